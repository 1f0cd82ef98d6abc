"""The examples: as demos, by hand, and rebuilt."""

from __future__ import annotations

import datetime
import functools
import json
import runpy
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import potash.sdk
from csd_spec import fields
from csd_spec.descriptors import AcceleratorStatus, encode_arguments
from csd_spec.opcodes import IoOpcode
from nvme_spec import opcodes as nvme
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.opcodes import AdminOpcode
from potash.cli.app import run_app
from potash.cli.device import demo as demos
from potash.models import networks
from potash.models.public import fetch
from potash.programs.examples import Example, example_names
from potash.programs.execution import execute
from potash.sdk import Accelerator, Device, JobFailed
from potash.sdk.commands import encoded
from potash.sdk.errors import PotashError
from potash.sdk.transport import PendingCommand, Request
from potash.vm.drive import device_process
from potash_firmware.bpf import Engine, load_program
from support.bpf_compiler import NO_COMPILER, compile_program, compiler
from support.docs import ROOT, SOCKET, blocks, run_shell
from support.reports import check

EXAMPLES = ROOT / "examples"
FOUND = ("checksum", "filter", "grep")
LIMIT = 60
WAKE_WORD = "wake-word"

load = functools.cache(Example.load)


@pytest.fixture(scope="module", autouse=True)
def networks_are_made_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "make", functools.cache(networks.make))
        yield


@pytest.fixture
def on_the_device(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Demos run on the device of these tests; `test_cli.py` has one on a device of its own."""
    served = SimpleNamespace(socket=socket)
    monkeypatch.setattr(demos, "serving", lambda *_: nullcontext(served))


@pytest.fixture
def demo(on_the_device: None, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Any]:
    """Runs a demo, and gives its report."""

    def run(name: str) -> Any:
        assert run_app(["demo", name, "--embedded", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        check("demo run", report)
        return report

    return run


def test_the_examples_are_known() -> None:
    assert example_names() == [
        *("add", "checksum", "columns", "digits", "filter", "grep", "resnet18", "wake-word")
    ]


@pytest.mark.parametrize("name", ["checksum", "filter"])
def test_a_demo_finds_what_python_finds_and_says_what_it_saved(
    name: str, demo: Callable[[str], Any]
) -> None:
    report = demo(name)
    example = load(name)
    program = len((EXAMPLES / name / "program.o").read_bytes())
    assert report["example"] == name and report["equal"] is True
    assert (report["input"], report["output"]) == (len(example.input), len(example.expected))
    assert report["moved_without"] == -(-len(example.input) // 4096) * 4096
    assert program < report["moved_with"] < report["moved_without"] / 50


@pytest.mark.parametrize(
    ("name", "runs", "without"),
    # A host by itself reads the images, which lie behind the model.
    [("digits", 600, 600 * 64), ("resnet18", 1, 224 * 224 * 3)],
)
def test_a_demo_of_a_model_gives_the_reference_kernels_bytes(
    name: str, runs: int, without: int, demo: Callable[[str], Any]
) -> None:
    report = demo(name)
    assert report["equal"] is True
    assert report["moved_without"] == -(-without // 4096) * 4096 > 5 * report["moved_with"]
    assert report["vta_cycles"] % runs == 0 and report["vta_instructions"] % runs == 0
    assert report["vta_seconds"] == report["vta_cycles"] / 100e6 > 0
    assert 0 < report["job_seconds"] < report["seconds"]
    if name == "digits":
        assert report["accuracy"] >= 0.96 and report["images"] == 600
    else:
        assert len(report["classes"]) == 5


def test_a_chain_of_programs_moves_less_than_round_trips(
    socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runpy.run_path(str(EXAMPLES / "chain" / "chain.py"))
    assert script["main"](f"vfio-user:{socket}", True) == 0
    report = json.loads(capsys.readouterr().out)
    runs = struct.iter_unpack("Bc", bytes.fromhex(report["output"]))
    read = b"".join(length * digit for length, digit in runs)
    fields_of_records = script["RECORD"].iter_unpack(script["records"]())
    pictures = [picture for _, camera, picture in fields_of_records if camera == 3]
    digits = runpy.run_path(str(EXAMPLES / "digits" / "example.py"))
    assert report["equal"] and read == digits["expected"](digits["MODEL"] + b"".join(pictures))
    link = report["link_bytes"]
    assert 50 * link["as_chain"] < link["with_round_trips"] < report["input"] / 5


def need(name: str) -> None:
    """Skip the test of an example whose network cannot be had, which is not in the repository."""
    if name == WAKE_WORD:
        try:
            fetch("wake-word-okay-nabu")
        except PotashError as error:
            pytest.skip(str(error))


def make(folder: Path, command: str) -> None:
    """Run the script of an example in a copy of its folder."""
    runpy.run_path(str(folder / command.split()[-1]), run_name="__main__")


def test_a_word_is_found_where_it_was_said(demo: Callable[[str], Any]) -> None:
    need(WAKE_WORD)
    report = demo(WAKE_WORD)
    assert report["equal"] is True
    # The word takes 0.8 seconds, and the network some tenths more. The other words are ignored.
    first, second = report["milliseconds"]
    assert 2500 < first < 3100 and 8000 < second < 8600
    assert report["moved_without"] == 79 * 4096 > 10 * report["moved_with"]
    assert report["vta_cycles"] % 332 == 0


@pytest.mark.parametrize("at", [0, 22, 40])
def test_a_recording_of_another_kind_is_refused(at: int) -> None:
    need(WAKE_WORD)
    example = load(WAKE_WORD)
    data = bytearray(example.input)
    data[len(data) - (44 + 2 * 160000) + at] ^= 0xFF
    printed = run(example.program, bytes(data), *example.arguments)
    assert (
        printed == "wake-word: the recording is not a WAV file of 16 bits, one channel and 16 kHz"
    )


def test_a_demo_shows_what_was_found(
    on_the_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["demo", "grep", "--embedded"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "equal"
    assert lines[-2].startswith("moved between drive and host: ")
    assert "timed out" in lines[-3]


def test_a_table_is_queried_where_it_is(
    demo: Callable[[str], Any], socket: Path, tmp_path: Path
) -> None:
    report = demo("columns")
    assert report["equal"] is True
    assert report["input"] > report["moved_without"] > 100 * report["moved_with"]
    shutil.copytree(EXAMPLES / "columns", tmp_path, dirs_exist_ok=True)
    typed, ask = blocks("../examples/columns/README.md", "sh")
    make(tmp_path, typed)
    said = run_shell(ask.replace(SOCKET, str(socket)), cwd=tmp_path)
    kept = pq.read_table(tmp_path / "sales.parquet").filter(
        (pc.field("price") > 10_000)
        & (pc.field("region") == "EU")
        & (pc.field("day") >= datetime.date(2026, 3, 1))
    )
    kept = kept.append_column("income", pc.multiply(kept["price"], kept["quantity"]))
    expected = kept.group_by("product").aggregate(
        [([], "count_all"), ("income", "sum"), ("price", "max")]
    )
    assert [tuple(line.split()) for line in said.splitlines()[1:-1]] == sorted(
        tuple(map(str, row.values())) for row in expected.to_pylist()
    )


def test_a_query_gives_the_same_by_start_and_by_execute(socket: Path) -> None:
    example = load("columns")
    with potash.sdk.open(f"vfio-user:{socket}") as device:
        started, executed = demos.start(device, example), demos.execute(device, example)
    assert started.output == executed.output == example.expected
    assert abs(started.moved - executed.moved) < 200  # for the descriptors of ranges


def test_a_demo_that_there_is_not_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["demo", "../add", "--embedded"]) == 2
    names = "'add', 'checksum', 'columns', 'digits', 'filter', 'grep', 'resnet18', 'wake-word'"
    assert names in capsys.readouterr().err


def test_grep_expects_what_grep_finds(tmp_path: Path) -> None:
    if shutil.which("grep") is None:
        pytest.skip("there is no grep")
    example = load("grep")
    (tmp_path / "log").write_bytes(example.input)
    text = example.arguments[1].decode()
    found = subprocess.run(
        ["grep", "-F", text, "log"], cwd=tmp_path, capture_output=True, timeout=LIMIT, check=True
    ).stdout
    assert example.expected == struct.pack("<Q", found.count(b"\n")) + found
    assert 10 < found.count(b"\n") < 1000


def run(program: bytes, data: bytes, *arguments: bytes | int, room: int = 1 << 16) -> bytes | str:
    """The output; what was printed where there is none."""
    printed: list[str] = []
    done = execute(
        load_program(program),
        data,
        arguments=[
            one if isinstance(one, bytes) else one.to_bytes(4, "little") for one in arguments
        ],
        output_size=room,
        engine=Engine.INTERPRETER,
        show=printed.append,
    )
    return done.output if done.output else "\n".join(printed)


@pytest.fixture(params=["shipped", "rebuilt"], scope="module")
def programs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """The programs' object files, as they come and as the compiler of this machine makes them."""
    if request.param == "shipped":
        return {name: (EXAMPLES / name / "program.o").read_bytes() for name in FOUND}
    command = compiler()
    if command is None:
        pytest.skip(NO_COMPILER)
    folder = tmp_path_factory.mktemp("programs")
    return {
        name: compile_program(command, EXAMPLES / name / "program.c", folder / f"{name}.o")
        for name in FOUND
    }


LOG = b"one two\n\ntwo\nthree\ntwo two two\nlast two"


@pytest.mark.parametrize(
    ("data", "text", "lines"),
    [
        (LOG, b"two", [b"one two", b"two", b"two two two", b"last two"]),
        (LOG, b"two t", [b"two two two"]),
        (LOG, b"one", [b"one two"]),
        (LOG, b"e", [b"one two", b"three"]),
        (LOG, b"last two", [b"last two"]),
        (LOG, b"last two!", []),
        (LOG, b"x" * 100, []),
        (b"\n\n\n", b"a", []),
        (b"aaaaaab\nab\n", b"aab", [b"aaaaaab"]),
        (b"\xff\xfe\n\xff\n", b"\xff\xfe", [b"\xff\xfe"]),
    ],
)
def test_grep_finds_lines(
    programs: dict[str, bytes], data: bytes, text: bytes, lines: list[bytes]
) -> None:
    output = run(programs["grep"], data + b"two behind the end", len(data), text)
    assert output == struct.pack("<Q", len(lines)) + b"".join(line + b"\n" for line in lines)


def test_grep_counts_the_lines_that_there_is_no_room_for(programs: dict[str, bytes]) -> None:
    output = run(programs["grep"], LOG, len(LOG), b"two", room=8 + 8 + 4 + 11)
    assert output == struct.pack("<Q", 4) + b"one two\ntwo\n"
    assert run(programs["grep"], LOG, len(LOG), b"two", room=8) == struct.pack("<Q", 4)


@pytest.mark.parametrize(
    "arguments", [(), (5,), (len(LOG) + 1, b"two"), (5, b""), (5, b"a\nb"), (b"abc", b"two")]
)
def test_grep_says_what_it_wants(
    programs: dict[str, bytes], arguments: tuple[bytes | int, ...]
) -> None:
    assert str(run(programs["grep"], LOG, *arguments)).startswith("grep: the arguments are")


RECORDS = b"".join(struct.pack("<II120s", at, 2**32 - 1 - at, b"x" * at) for at in range(20))


@pytest.mark.parametrize(
    ("field", "low", "high", "wanted"),
    [
        (0, 3, 5, range(3, 6)),
        (0, 0, 2**32 - 1, range(20)),
        (0, 19, 19, range(19, 20)),
        (0, 6, 5, range(0)),
        (4, 2**32 - 3, 2**32 - 1, range(3)),
        (124, 0, 0, range(20)),
    ],
)
def test_filter_selects_records(
    programs: dict[str, bytes], field: int, low: int, high: int, wanted: range
) -> None:
    output = run(programs["filter"], RECORDS, 20, field, low, high)
    expected = b"".join(RECORDS[at * 128 : (at + 1) * 128] for at in wanted)
    assert output == (expected or "filter: records selected: 0")


@pytest.mark.parametrize(
    "arguments", [(), (20, 0, 1), (21, 0, 0, 9), (2**32 - 1, 0, 0, 9), (20, 125, 0, 9)]
)
def test_filter_says_what_it_wants(programs: dict[str, bytes], arguments: tuple[int, ...]) -> None:
    said = run(programs["filter"], RECORDS, *arguments)
    assert str(said).startswith("filter: the arguments are")


def test_filter_hands_out_nothing_half_done(programs: dict[str, bytes]) -> None:
    said = run(programs["filter"], RECORDS, 20, 0, 0, 99, room=2559)
    assert said == "filter: the records do not fit in the output"


@pytest.mark.parametrize("length", [1, 9, 4096, 4097, 8192])
def test_checksum_sums_pages(programs: dict[str, bytes], length: int) -> None:
    script = load("checksum")
    output = run(programs["checksum"], script.input[:8192], length)
    assert isinstance(output, bytes)
    sums = struct.unpack(f"<{len(output) // 4}I", output)
    assert len(sums) == 1 + -(-length // 4096)
    if length <= 4096:
        assert sums[0] == sums[1]
    if length >= 4096:  # of a page that is whole, the script knows the sum
        assert sums[1] == struct.unpack_from("<I", script.expected, 4)[0]


def test_checksum_knows_the_check_value(programs: dict[str, bytes]) -> None:
    output = run(programs["checksum"], b"123456789", 9)
    assert output == struct.pack("<II", 0xE306_9283, 0xE306_9283)


@pytest.mark.parametrize("arguments", [(), (8193,)])
def test_checksum_says_what_it_wants(
    programs: dict[str, bytes], arguments: tuple[int, ...]
) -> None:
    said = run(programs["checksum"], bytes(8192), *arguments)
    assert str(said).startswith("checksum: the argument is")
    assert str(run(programs["checksum"], bytes(8192), 8192, room=11)).startswith("checksum: the su")


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("device") / "s"
    options = ("--memory-namespace", "16M", "--compute-namespace")
    with device_process(path, "--size", "64M", *options):
        yield path


class Moved:
    """Bytes that commands bring to a device and from it, but for what it reports about itself."""

    def __init__(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        submit = device.transport.submit

        def counted(request: Request, timeout: float) -> PendingCommand:
            stores_input = (request.opcode, request.csi) == (nvme.IoOpcode.WRITE, CommandSet.NVM)
            if request.opcode == AdminOpcode.LOAD_PROGRAM if request.admin else not stores_input:
                self.bytes += len(request.data_out or b"") + request.data_in_length
            return submit(request, timeout)

        monkeypatch.setattr(device.transport, "submit", counted)


@pytest.mark.parametrize(
    "name", ["add", *FOUND, "digits", pytest.param("resnet18", marks=pytest.mark.slow)]
)
def test_an_example_gives_the_same_by_start_and_by_execute(
    name: str, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load(name)
    with potash.sdk.open(f"vfio-user:{socket}") as device:
        moved = Moved(device, monkeypatch)
        started = demos.start(device, example)
        by_start, moved.bytes = moved.bytes, 0
        executed = demos.execute(device, example)
    assert started.output == executed.output == example.expected
    # Each argument has its length before it; what is in dwords is filled up.
    headers = len(encode_arguments(example.arguments)) - sum(map(len, example.arguments))
    assert started.moved + headers == by_start
    assert 0 <= moved.bytes - headers - executed.moved < 16
    # Without pages of output, Execute moves less, but for the descriptors of ranges.
    assert abs(executed.moved - started.moved) < 4096


@pytest.mark.parametrize("name", [*FOUND, "digits", "resnet18", WAKE_WORD])
def test_an_example_is_run_as_its_folder_says(name: str, socket: Path, tmp_path: Path) -> None:
    need(name)
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder)
    text = (folder / "README.md").read_text()
    typed, first, build = (part.partition("```")[0] for part in text.split("```sh\n")[1:])
    make(folder, typed)
    said = run_shell(first.replace(SOCKET, str(socket)), cwd=folder).splitlines()
    assert said[-1] == "equal" and said[0].startswith(f"program: {name}: ")
    assert "clang -O2 -target bpf -fno-builtin -I ../include -c program.c -o program.o" in build


COPY = """
#include "potash.h"

/* Copies the blocks of argument 1 to those of argument 2, as many as argument 3 says. */
int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u32 nsid, from, to, count;
	u64 length;

	set_output_length(0);
	if (!argument_u32(ctx, 0, &nsid) || !argument_u32(ctx, 1, &from) ||
	    !argument_u32(ctx, 2, &to) || !argument_u32(ctx, 3, &count))
		return 1;
	length = read_lba(nsid, from, count, out, out_len);
	write_lba(nsid, to, count, out, length);
	return 0;
}
"""


FROM, TO, BLOCKS = 1000, 5000, 300


@pytest.fixture
def copier(socket: Path, tmp_path: Path) -> Iterator[tuple[Device, Accelerator]]:
    """A device whose accelerator has the program, and may read and write what that copies."""
    command = compiler()
    if command is None:
        pytest.skip(NO_COMPILER)
    (tmp_path / "copy.c").write_text(COPY)
    image = compile_program(command, tmp_path / "copy.c", tmp_path / "copy.o")
    with potash.sdk.open(f"vfio-user:{socket}") as device:
        device.write(FROM, bytes(range(256)) * 16 * BLOCKS)
        device.write(TO, bytes(4096 * BLOCKS))
        (accelerator,) = device.accelerators()
        accelerator.enable()
        accelerator.reset()
        accelerator.send_firmware(image, 0)
        accelerator.write_input(bytes(4))
        for start, writable in ((FROM, False), (TO, True)):
            grant = fields.LocalStorage(start, BLOCKS, accelerator.id, writable)
            device.io(IoOpcode.GRANT_LOCAL_STORAGE, nsid=1, **encoded(grant))
        yield device, accelerator


def copy(accelerator: Accelerator, *numbers: int) -> AcceleratorStatus:
    accelerator.start(0, args=[1, *numbers])
    return accelerator.wait(LIMIT)


def test_a_program_copies_blocks_on_a_whole_device(copier: tuple[Device, Accelerator]) -> None:
    device, accelerator = copier
    data = device.read(FROM, BLOCKS)
    for _ in range(2):
        assert copy(accelerator, FROM, TO, BLOCKS).return_value == 0
        assert device.read(TO, BLOCKS) == data == device.read(FROM, BLOCKS)
    assert "1228800 bytes written" in accelerator.log().entries[-1].text


def test_a_block_that_no_host_can_read_no_program_can(copier: tuple[Device, Accelerator]) -> None:
    device, accelerator = copier
    for lba in (FROM + 5, FROM + 7):
        device.io(nvme.IoOpcode.WRITE_UNCORRECTABLE, nsid=1, cdw10=lba)
    with pytest.raises(JobFailed, match=f"block {FROM + 5} of namespace 1 is lost"):
        copy(accelerator, FROM, TO, BLOCKS)
    with pytest.raises(JobFailed, match=f"block {FROM + 7} of namespace 1 is lost"):
        copy(accelerator, FROM + 7, TO, 1)
    assert device.read(TO, BLOCKS) == bytes(4096 * BLOCKS)
    for first, count in ((0, 5), (6, 1), (8, BLOCKS - 8)):
        assert copy(accelerator, FROM + first, TO + first, count).return_value == 0
        assert device.read(TO + first, count) == device.read(FROM + first, count)
    device.write(FROM + 5, b"n" * 3 * 4096)
    assert copy(accelerator, FROM, TO, BLOCKS).return_value == 0
    assert device.read(TO, BLOCKS) == device.read(FROM, BLOCKS)
