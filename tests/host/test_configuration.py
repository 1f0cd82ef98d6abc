"""`potash.toml`: what it may say, what it must not, and that devices follow it."""

import contextlib
import dataclasses
import os
import tomllib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvme_spec.registers import CmbUse
from potash import configuration
from potash.cli.app import run_app
from potash.configuration import Configuration
from potash.namespace_sections import OF_ZONES, NamespaceSection
from potash.sdk import faults
from potash.sdk.errors import PotashError
from potash.sections import (
    AcceleratorSection,
    ComputeSection,
    DeviceSection,
    GuestSection,
    LimitsSection,
    MemorySection,
    VtaSection,
)
from potash.toml_kinds import ConfigurationError, keys
from potash.vm.guest import Guest
from potash_device.controller.cmb import CmbSettings
from potash_device.vta.config import Config
from support.docs import blocks

HERE = Path("/somewhere")


def parsed(text: str, folder: Path) -> Configuration:
    return configuration.parse(tomllib.loads(text), folder)


WHOLE = """
[device]
socket = "run/drive.sock"
media = "/srv/drive"
capacity = "2G"
read_only = true
map_doorbells = true
hmb = "64M"
nguid = true
power_states = true
ocp = true
ana = true
trust_memory = true
profile = "alkali"
range_unit = "lba"
range_count = "zero-based"
engine = "interpreter"
trace = "trace.jsonl"
log_level = "debug"
cmb = "64M:sqs,wds"
serial = "S1"
metrics = 0
log = ["rpu=debug,apu=info"]
log_format = "json"
faults = ["io read lost count=1"]
allow_faults = true
load = "state"
extensions = ["mine.py", "installed"]
natives = ["kernels.so:fft"]

[namespace.1]
size = "1G"
[namespace.2]
size = 1048576
block_size = 512

[accelerator.0]
input_size = "4K"
[accelerator.1]
output_size = "1GiB"

[memory]
namespaces = ["64M", 4096]
capacity = "1G"
copy_formats = false
bar = true
peers = true

[compute]
namespaces = 2
programs = 4
activated = 3
program_memory = "8M"
range_sets = 10
ranges = 64

[vta]
LOG_BLOCK = 5
LOG_WGT_BUFF_SIZE = 19
threads = 3

[limits]
memory = "1G"
seconds = 60
compile_memory = "768M"
compile_seconds = 5
frame_size = "8K"

[guest]
memory = "1G"
cpus = 4
debian_mirror = "http://debian.example/debian"
"""


def test_every_key_is_read() -> None:
    found = parsed(WHOLE, HERE)
    assert found == Configuration(
        device=DeviceSection(
            socket=(Path("/somewhere/run/drive.sock"),),
            media=Path("/srv/drive"),
            capacity=2 << 30,
            read_only=True,
            profile="alkali",
            range_unit="lba",
            range_count="zero-based",
            engine="interpreter",
            trace=Path("/somewhere/trace.jsonl"),
            log_level="debug",
            cmb=CmbSettings(64 << 20, CmbUse.SQS | CmbUse.WDS),
            map_doorbells=True,
            hmb=64 << 20,
            nguid=True,
            power_states=True,
            ocp=True,
            ana=True,
            trust_memory=True,
            serial="S1",
            metrics=0,
            log=({"rpu": "debug", "apu": "info"},),
            log_format="json",
            faults=(faults.parse("io read lost count=1"),),
            allow_faults=True,
            load=Path("/somewhere/state"),
            extensions=("/somewhere/mine.py", "installed"),
            natives=("/somewhere/kernels.so:fft",),
        ),
        namespaces=(NamespaceSection(1 << 30, 4096), NamespaceSection(1 << 20, 512)),
        accelerators=(AcceleratorSection(4096, 64 << 20), AcceleratorSection(64 << 20, 1 << 30)),
        memory=MemorySection((64 << 20, 4096), 1 << 30, copy_formats=False, bar=True, peers=True),
        compute=ComputeSection(2, 4, 3, 8 << 20, 10, 64),
        vta=Config(log_block_in=5, log_block_out=5, log_wgt_buff_size=19),
        vta_threads=3,
        limits=LimitsSection(1 << 30, 60, 768 << 20, 5, 8192),
        guest=GuestSection(1 << 30, 4, "http://debian.example/debian"),
    )


def test_nothing_is_what_a_device_is_without_options() -> None:
    assert parsed("", HERE) == Configuration()
    assert Configuration().accelerators == (AcceleratorSection(64 << 20, 64 << 20),)
    assert Configuration().vta == Config.default()


def test_a_core_is_selected_by_its_name_and_changed_by_keys() -> None:
    paper = parsed('[vta]\ncore = "paper"', HERE)
    assert paper.vta == Config(log_uop_buff_size=14) and paper.vta.name == "paper"
    changed = parsed('[vta]\ncore = "paper"\nLOG_BATCH = 1', HERE)
    assert changed.vta == Config(log_uop_buff_size=14, log_batch=1) and changed.vta.name is None
    for one in (paper, changed):
        assert parsed(configuration.write(one), HERE) == one
    assert 'core = "paper"' in configuration.write(paper)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[devise]", "there is no section [devise]; did you mean device?"),
        ("[sizes]", "there is no section [sizes]; there are device, memory, compute, limits"),
        ("size = 1", "there is no section [size]; the key size belongs in [namespace.1]"),
        ("extensions = ['x']", "section [extensions]; the key extensions belongs in [device]"),
        ("[guest]\nengine = 'x'", "[guest] has no key engine; the key engine belongs in [device]"),
        ("[device]\nthreads = 1", "[device] has no key threads; the key threads belongs in [vta]"),
        ("device = 1", "[device] must be a section"),
        ("[device]\nmedai = 'x'", "[device] has no key medai; did you mean media?"),
        ("[device]\nmedia = 1", "media in [device] is 1; it must be a string that is not empty"),
        ("[device]\nmedia = ''", "it must be a string that is not empty"),
        ("[device]\nread_only = 1", "read_only in [device] is 1; it must be true or false"),
        ("[device]\nprofile = 'x'", "profile in [device] is 'x'; it must be alkali or potash"),
        ("[device]\ncapacity = '1X'", 'it must be a size, such as 1048576 or "1M"'),
        ("[device]\ncapacity = true", "it must be a size"),
        ("[device]\ncapacity = 1", "it must be 4 KiB to"),
        ("[device]\ncapacity = '9999999999999999999T'", "it must be 4 KiB to"),
        ("namespace = []", "[namespace.1] and on are sections, at most 64"),
        ("[namespace.0]", "[namespace.0] is misnumbered: they are numbered from 1 without a gap"),
        ("[namespace.1]\n[namespace.3]", "[namespace.3] is misnumbered"),
        ("[namespace.01]", "[namespace.01] is misnumbered"),
        ("[namespace]\n1 = 5", "[namespace.1] must be a section"),
        ("[namespace.1]\nblock_size = 1024", "is 1024; it must be 512 or 4096"),
        ("[namespace.1]\nblock_size = 512.0", "is 512.0; it must be 512 or 4096"),
        ("[namespace.1]\nmetadata = 4", "is 4; it must be 0 or 8 or 16 or 64"),
        ("[namespace.1]\nprotection = 1", "[namespace.1]: protection is without metadata"),
        ("[namespace.1]\nsize = 512", "[namespace.1]: size is less than one block of 4096"),
        ("[accelerator.1]", "numbered from 0 without a gap"),
        ("[accelerator.0]\ninput_size = '2G'", "it must be 4 KiB to 1 GiB"),
        ("[vta]\nLOG_BLOCKS = 4", "[vta]: 'LOG_BLOCKS' is not a key"),
        ("[vta]\nLOG_ACC_WIDTH = 4", "[vta]: LOG_ACC_WIDTH is 4"),
        ("vta = 4", "[vta] must be a section"),
        ("[vta]\nthreads = 0", "threads in [vta] is 0; it must be a whole number, 1 to 16"),
        ("[memory]\nnamespaces = ['4K', 512]", "it must be 4 KiB to 1 TiB, in steps of 4 KiB"),
        ("[memory]\nnamespaces = '4K'", "it must be a list of at most 64 sizes"),
        ("[compute]\nnamespaces = 17", "it must be a whole number, 0 to 16"),
        ("[compute]\nranges = 65", "it must be a whole number, 1 to 64"),
        ("[limits]\nmemory = '64M'", "it must be 512 MiB to"),
        ("[limits]\nseconds = 0.5", "it must be a whole number, 1 to 1000000"),
        ("[guest]\nmemory = '320K'", "it must be 320 MiB to"),
        ("[guest]\nmemory = 536870913", "in steps of 1 MiB"),
        ("[guest]\ncpus = 0", "cpus in [guest] is 0; it must be a whole number, 1 to 64"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parsed(text, HERE)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "none.toml", "none.toml cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (Path("/dev/zero"), "/dev/zero is larger than 1 MiB"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            configuration.read(path)
    for text in ("[device", "a = " + "[" * 5000):
        (tmp_path / "broken.toml").write_text(text)
        with pytest.raises(ConfigurationError, match="broken.toml: it is not TOML: [^\\n]+$"):
            configuration.read(tmp_path / "broken.toml")
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'[device]\nmedia = "\xe9"\n')
    with pytest.raises(ConfigurationError, match="latin.toml is not TOML: it is not UTF-8"):
        configuration.read(latin)


sizes = st.integers(4096, 1 << 30)
some_paths = st.text(min_size=1).map(lambda name: Path("/p") / name.strip("/."))
paths = st.none() | some_paths
configurations = st.builds(
    Configuration,
    device=st.builds(
        DeviceSection,
        socket=st.none() | st.lists(some_paths, min_size=1, max_size=3).map(tuple),
        media=paths,
        capacity=st.none() | st.integers(4096, (1 << 63) - 1),
        read_only=st.booleans(),
        profile=st.sampled_from(["alkali", "potash"]),
        range_unit=st.sampled_from(["page", "lba"]),
        range_count=st.sampled_from(["plain", "zero-based"]),
        engine=st.sampled_from(["native", "interpreter"]),
        trace=paths,
        log_level=st.sampled_from(["debug", "info", "warning", "error"]),
        cmb=st.none()
        | st.builds(
            CmbSettings,
            st.integers(12, 30).map(lambda shift: 1 << shift),
            st.integers(1, 31).map(CmbUse).filter(lambda uses: CmbUse.SQS in uses),
        ),
    ),
    namespaces=st.lists(
        st.builds(NamespaceSection, sizes, st.sampled_from([512, 4096])), max_size=12
    ).map(tuple),
    accelerators=st.lists(st.builds(AcceleratorSection, sizes, sizes), min_size=1, max_size=12).map(
        tuple
    ),
    memory=st.builds(
        MemorySection,
        st.lists(st.integers(1, 1 << 10).map(lambda pages: pages << 12), max_size=3).map(tuple),
        st.none() | st.integers(1, 1 << 20).map(lambda pages: pages << 12),
        st.booleans(),
        st.booleans(),
    ),
    compute=st.builds(ComputeSection, st.integers(0, 16), st.integers(1, 256)),
    vta=st.builds(Config, log_wgt_buff_size=st.integers(16, 18), log_batch=st.integers(0, 1)),
    vta_threads=st.none() | st.integers(1, 16),
    guest=st.builds(
        GuestSection,
        st.integers(320, 1 << 20).map(lambda mebi: mebi << 20),
        st.integers(1, 64),
        st.none() | st.text(min_size=1),
    ),
)


@settings(max_examples=20)
@given(configurations)
def test_what_is_written_reads_back_to_the_same(wanted: Configuration) -> None:
    assert parsed(configuration.write(wanted), HERE) == wanted


LITERALS = (
    *("true", "false", "2", "64", "8192", '"64M"', '"1G"', '["64K", "8K"]', '"8:1G"', '"5%"'),
    *('"8K"', '"a.toml"', '["a.toml"]', '["gc=fifo", "wear=a.py:Mine"]', '["a.so:f"]'),
    *("[1, 0]", '"rpu=debug"', '["rpu=debug"]', '["io read lost count=1"]', '"host=3"'),
)
"""Values, of which each key has one that is not its default."""


def changed(section: str, kind: type[Any]) -> dict[str, Any]:
    """The keys of a section with values that are not their defaults."""
    values = {}
    for name, key in keys(kind).items():
        choices = key.kind.type.choices if isinstance(key.kind.type, click.Choice) else ()
        for literal in (*map(key.kind.write, choices), *LITERALS):
            with contextlib.suppress(ValueError):
                value = key.kind.read(tomllib.loads(f"a = {literal}")["a"], HERE)
                if value != key.default:
                    values[name] = value
                    break
        assert name in values, f"{name} in [{section}]"
    return values


def test_every_key_is_written() -> None:
    sections = {name: kind(**changed(name, kind)) for name, kind in configuration.SECTIONS.items()}
    block = changed("namespace", NamespaceSection)
    zones = {name: block.pop(name) for name in ("zone_size", "zone_capacity", *OF_ZONES)}
    wanted = Configuration(
        namespaces=(NamespaceSection(**zones), NamespaceSection(**block)),
        accelerators=(AcceleratorSection(**changed("accelerator", AcceleratorSection)),),
        vta_threads=changed("vta", VtaSection)["threads"],
        **sections,
    )
    assert parsed(configuration.write(wanted), Path("/elsewhere")) == wanted


def test_what_toml_cannot_say_is_refused() -> None:
    broken = Configuration(DeviceSection(media=Path(os.fsdecode(b"/srv/\xff"))))
    with pytest.raises(ConfigurationError, match="is no Unicode"):
        configuration.write(broken)


def test_options_override_the_file_and_the_file_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "potash.toml"
    file.write_text(WHOLE)
    options = ["--profile", "potash", "--size", "8M", "--read-write", "--socket", "/run/other"]
    options += ["--no-trust-memory"]
    assert run_app(["serve", "--config", str(file), "--print-config", *options]) == 0
    content = tomllib.loads(capsys.readouterr().out)
    assert content["device"] == {
        "socket": "/run/other",
        "media": "/srv/drive",
        "capacity": "2G",
        "read_only": False,
        "profile": "potash",
        "range_unit": "lba",
        "range_count": "zero-based",
        "engine": "interpreter",
        "trace": str(tmp_path / "trace.jsonl"),
        "log_level": "debug",
        "cmb": "64M:sqs,wds",
        "map_doorbells": True,
        "hmb": "64M",
        "nguid": True,
        "power_states": True,
        "ocp": True,
        "ana": True,
        "trust_memory": False,
        "serial": "S1",
        "metrics": 0,
        "log": ["rpu=debug,apu=info"],
        "log_format": "json",
        "faults": ["io read lost count=1"],
        "fault_files": [],
        "allow_faults": True,
        "incoming": False,
        "extensions": [str(tmp_path / "mine.py"), "installed"],
        "natives": [str(tmp_path / "kernels.so:fft")],
        "load": str(tmp_path / "state"),
    }
    plain = {"metadata": 0, "protection": 0}
    assert content["namespace"] == {"1": {"size": "8M", "block_size": 4096, **plain}}
    assert content["accelerator"]["1"] == {"input_size": "64M", "output_size": "1G"}
    assert content["memory"]["namespaces"] == ["64M", "4K"]
    assert content["compute"]["namespaces"] == 2
    options = ["--cpus", "2", "--namespace", "1M:512", "--compute-namespace"]
    options += ["--memory-namespace", "8K", "--no-memory-bar"]
    assert run_app(["guest", "--config", str(file), "--print-config", *options]) == 0
    content = tomllib.loads(capsys.readouterr().out)
    assert (content["guest"]["memory"], content["guest"]["cpus"]) == ("1G", 2)
    assert content["namespace"] == {"1": {"size": "1M", "block_size": 512, **plain}}
    assert content["memory"] == {
        "namespaces": ["8K"], "capacity": "1G", "copy_formats": False, "bar": False,
        "peers": True,
    }  # fmt: skip
    assert (content["compute"]["namespaces"], content["compute"]["ranges"]) == (1, 64)
    assert content["device"]["engine"] == "interpreter"


@pytest.mark.parametrize("command", ["serve", "guest"])
def test_a_wrong_file_ends_with_one_sentence(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "potash.toml"
    file.write_text("[device]\nsokcet = 'x'\n")
    assert run_app([command, "--config", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"potash: {file}: [device] has no key sokcet; did you mean socket?\n"


def test_a_guest_has_the_drive_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`potash guest` and `potash serve` make the same of a file; a second drive differs in what
    two drives must not share."""
    file = tmp_path / "potash.toml"
    namespaces = """
        [namespace.1]
        size = "64M"
        block_size = 512
        zone_size = "16M"
        [namespace.2]
        size = "32M"
        metadata = 16
        protection = 1
        [namespace.3]
        size = "16M"
        block_size = 512
        [time]
        mode = "modelled"
        policies = ["gc=fifo", "wear=mine.py:Mine"]
    """
    device = WHOLE.partition("[namespace.1]")[0].replace("read_only = true", "")
    file.write_text(device + namespaces)
    assert run_app(["serve", "--config", str(file), "--print-config"]) == 0
    expected = parsed(capsys.readouterr().out, HERE)
    drives: list[Configuration] = []

    def played(*wanted: Configuration, **_: object) -> AbstractContextManager[Guest]:
        drives.extend(wanted)
        raise PotashError("the guest would boot now")

    monkeypatch.setattr("potash.cli.device.guest.running_guest", played)
    monkeypatch.delenv("POTASH_DEBIAN_MIRROR", raising=False)
    assert run_app(["guest", "--config", str(file), "--devices", "2", "--cpus", "4"]) == 1
    assert capsys.readouterr().err == "potash: the guest would boot now\n"

    def own(guest: GuestSection, **device: Any) -> Configuration:
        section = dataclasses.replace(expected.device, load=None, **device)
        return dataclasses.replace(expected, device=section, guest=guest)

    guest = GuestSection(cpus=4)
    second: dict[str, Any] = {"media": None, "serial": "POTASH0002", "trace": None, "metrics": None}
    assert drives == [own(guest), own(guest, **second)]


def test_the_page_shows_a_configuration() -> None:
    found = parsed(blocks("config.md", "toml")[0], HERE)
    assert found.namespaces == (NamespaceSection(1 << 30, 4096), NamespaceSection(64 << 20, 512))
    assert found.vta.block_in == 32
