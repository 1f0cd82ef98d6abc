"""`potash serve --time modelled`: what a client of the socket sees of a drive's time."""

import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import potash.sdk
from potash import configuration, timing
from potash.cli.app import run_app
from potash.vm.drive import serving
from potash_device.flash.scaling import scaled

SIZE = 64 << 20
SLOW = """
base = "tlc"
submission_ns = 5_000_000
read_ns = [20_000_000]
"""


def test_no_command_completes_before_the_model_says(tmp_path: Path) -> None:
    profile = tmp_path / "slow.toml"
    profile.write_text(SLOW)
    model = timing.Drive(scaled(timing.profile(str(profile)), SIZE))
    options = ("--time", "modelled", "--drive", str(profile), "--size", str(SIZE))
    with (
        serving(*options, "--time-factor", "2") as socket,
        potash.sdk.open(f"vfio-user:{socket}") as device,
    ):
        namespace = device.namespace(1)
        data = bytes(range(256)) * 16 * 300
        started = time.monotonic_ns()
        namespace.write(0, data)  # fills a program unit, so that it is on flash afterwards
        taken = time.monotonic_ns() - started
        assert taken >= 2 * model.submit(0, timing.Op.WRITE, 0, 300)
        time.sleep(0.1)
        for page in (0, 1):
            started = time.monotonic_ns()
            assert namespace.read(page, 1) == data[4096 * page : 4096 * (page + 1)]
            taken = time.monotonic_ns() - started
            at = (page + 1) * 10**10
            modelled = model.submit(at, timing.Op.READ, page, 1) - at
            assert modelled > 25_000_000
            assert taken >= 2 * modelled


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--drive", "qlc"], "--drive is for --time modelled"),
        (["--time-factor", "2"], "--time-factor is for --time modelled"),
        (["--policy", "gc=fifo"], "--policy is for --time modelled"),
        (["--monitor", "m"], "--monitor is for --time modelled"),
        (["--still-limit", "2"], "--still-limit is for --time modelled"),
        (["--hold"], "--hold is for --time modelled"),
        (["--bandwidth-shares", "host=2"], "--bandwidth-shares is for --time modelled"),
        (["--time", "modelled", "--bandwidth-shares", "host=0"], "'host=0' is no share; write"),
        (["--time", "modelled", "--hold"], "--hold needs --monitor"),
        (
            ["--time", "modelled", "--monitor", "m", "--clock", "stepped"],
            "--monitor is for --clock host",
        ),
        (["--time", "modelled", "--monitor", __file__], "is not a socket; QEMU makes one"),
        (["--time", "modelled", "--drive", "none"], "none is neither a file"),
        (["--time", "modelled", "--policy", "gc=no"], "'no' is neither FILE:CLASS nor one of"),
        (["--time", "modelled", "--size", "1M"], "such flash takes at least 25165824 (24M)"),
        (["--time", "modelled", "--size", "2T"], "the geometry has a TiB or more"),
    ],
)
def test_what_cannot_be_modelled_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    media = tmp_path / "media"
    assert run_app(["serve", "--socket", str(tmp_path / "s"), "--media", str(media), *options])
    assert said in capsys.readouterr().err
    assert not media.exists()
    media.mkdir()
    assert run_app(["serve", "--socket", str(tmp_path / "s"), "--media", str(media), *options])
    assert not any(media.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--monitor", "m"], "--monitor is for --socket"),
        (["--socket", "s", "--time", "modelled"], "give its options to `potash serve`"),
        (["--time-factor", "2"], "--time-factor is for --time modelled"),
    ],
)
def test_a_guest_takes_the_time_of_its_own_drives_alone(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["guest", *options])
    assert said in capsys.readouterr().err


def test_a_guest_writes_the_modelled_time_of_its_options_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--time", "modelled", "--drive", "z-nand", "--time-factor", "3"]
    assert run_app(["guest", *options, "--still-limit", "7", "--hold", "--print-config"]) == 0
    written = capsys.readouterr().out
    file = tmp_path / "potash.toml"
    file.write_text(written)
    section = configuration.read(file).time
    assert (section.mode, section.drive, section.factor) == ("modelled", "z-nand", 3)
    assert (section.still_limit, section.hold) == (7, True)


def test_files_of_the_drive_and_its_policies_are_found_from_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--drive", "mine.toml", "--policy", "gc=fifo", "--policy", "wear=mine.py:Mine"]
    assert run_app(["guest", "--time", "modelled", *options, "--print-config"]) == 0
    file = tmp_path / "potash.toml"
    file.write_text(capsys.readouterr().out)
    section = configuration.read(file).time
    assert section.drive == f"{tmp_path}/mine.toml"
    assert section.policies == ("gc=fifo", f"wear={tmp_path}/mine.py:Mine")
    beside = configuration.parse(
        tomllib.loads('[time]\ndrive = "a.toml"\npolicies = ["gc=b.py:C"]'), tmp_path
    )
    assert beside.time == replace(
        beside.time, drive=f"{tmp_path}/a.toml", policies=(f"gc={tmp_path}/b.py:C",)
    )
    # A command line that wants no model gets none.
    assert run_app(["serve", "--config", str(file), "--time", "fast", "--print-config"]) == 0
    assert configuration.parse(tomllib.loads(capsys.readouterr().out), tmp_path).time.mode == "fast"


FLASH = """
base = "femu"
channels = 2
dies = 2
pages = 16
blocks = 90
capacity = 16777216
background = 0
reserve = 3
program_ns = [1000]
"""
LOOPING = """
class Mine:
    def victim(self, superblocks):
        while True:
            pass
"""


def test_a_policy_that_loops_fails_one_command_of_the_device(tmp_path: Path) -> None:
    (tmp_path / "flash.toml").write_text(FLASH)
    (tmp_path / "mine.py").write_text(LOOPING)
    options = ("--time", "modelled", "--drive", str(tmp_path / "flash.toml"), "--size", "16M")
    failed = []
    with (
        serving(*options, "--policy", f"gc={tmp_path}/mine.py:Mine") as socket,
        potash.sdk.open(f"vfio-user:{socket}") as device,
    ):
        namespace = device.namespace(1)
        for turn in range(3):
            for first in range(0, 4096, 32):
                try:
                    namespace.write(first, bytes([turn]) * 32 * 4096)
                except potash.sdk.CommandFailed as error:
                    failed.append(str(error))
        assert namespace.read(0, 4096) == bytes([2]) * (16 << 20)
    assert len(failed) == 1 and "Internal Error" in failed[0]
