"""Extensions of a whole device, through its socket: firmware, APU, workers, all processes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import potash.sdk
from potash.cli.app import run_app
from potash.observing.status import ask, status_socket
from potash.sdk import CommandFailed, Device
from potash.sdk.compute_namespace import ComputeNamespace
from potash.sdk.errors import PotashError
from potash.sdk.memory_namespace import Bytes, MemoryNamespace
from potash.vm.drive import device_process
from potash_firmware import extensions
from potash_firmware.bpf.added import found
from potash_firmware.mailbox.device_programs import DeviceProgram
from support.compute_programs import program
from support.extended import written

MEMORY, COMPUTE = 2, 3
"""Namespace identifiers."""
FIRST = len(DeviceProgram)
"""The index of the first device-defined program of an extension."""

EXTENSION = """
    import os, time

    @admin_command(0xC4, name="Process", data="none")
    def process(drive, command):
        return os.getpid()

    @admin_command(0xC8, name="Endless", data="none")
    def endless(drive, command):
        while True:
            try:
                time.sleep(0)
            except Exception:
                pass

    @helper(40)
    def popcount(arena, data, length, _3, _4, _5):
        return int.from_bytes(arena.bytes_at(data, length), "little").bit_count()

    @device_program(name="Count bits")
    def count_bits(ranges, parameters, data):
        if parameters[0]:
            raise ValueError("it has no parameters")
        return int.from_bytes(ranges[0], "little").bit_count() << 8 | len(data)

    @device_program(name="Fail")
    def fail(ranges, parameters, data):
        return 1 / 0
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a device with that extension."""
    folder = tmp_path_factory.mktemp("extensions")
    options = ["--size", "16M", "--memory-namespace", "1M", "--compute-namespace"]
    extend = ["--extend", written(folder, EXTENSION)]
    with device_process(folder / "s", *options, *extend):
        yield folder / "s"


@pytest.fixture
def device(served: Path) -> Iterator[Device]:
    with potash.sdk.open(f"vfio-user:{served}", timeout=30.0) as opened:
        yield opened


def test_programs_have_helpers_and_the_drive_has_programs(device: Device) -> None:
    memory, compute = MemoryNamespace(device, MEMORY), ComputeNamespace(device, COMPUTE)
    memory.write(0, b"\xff\x01\x03\x80".ljust(4096, b"\0"))
    ranges = [Bytes(MEMORY, 0, 4096)]
    assert [one.index for one in compute.programs() if one.built_in] == list(range(FIRST + 2))
    compute.activate(FIRST)
    assert compute.execute(FIRST, ranges) == 12 << 8
    with pytest.raises(CommandFailed):
        compute.execute(FIRST, ranges, parameters=(1, 0))
    compute.activate(FIRST + 1)
    with pytest.raises(CommandFailed):
        compute.execute(FIRST + 1, ranges)
    compute.load(FIRST + 2, program("r2 = 4096\ncall 40\nexit"))
    assert compute.execute(FIRST + 2, ranges) == 12


def test_an_endless_function_is_interrupted(device: Device) -> None:
    pid = device.admin(0xC4).result
    with pytest.raises(CommandFailed, match="Internal Error"):
        device.admin(0xC8)
    assert device.admin(0xC4).result == pid


def test_the_doctor_and_the_status_name_what_there_is(
    device: Device, served: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    device.admin(0xC4)
    snapshot = ask(status_socket(str(served)))
    assert snapshot["queues"][0]["commands"]["process"] >= 1
    process, endless, *programs = snapshot["extensions"]
    assert (process["calls"], process["failures"]) == (
        snapshot["queues"][0]["commands"]["process"],
        0,
    )
    assert endless["calls"] == endless["failures"]
    assert {(one["calls"], one["failures"]) for one in programs} == {(None, None)}
    assert run_app(["top", str(served), "--once", "--interval", "0.05"]) == 0
    row = next(line for line in capfd.readouterr().out.splitlines() if "Process" in line)
    assert row.split()[:5] == ["Process", "Admin", "command", "C4h", str(process["calls"])]
    run_app(["doctor", "--no-boot", "--json", str(served)])
    findings = json.loads(capfd.readouterr().out)["findings"]
    (said,) = [
        one["meaning"]
        for one in findings
        # Others may run meanwhile.
        if str(served) in one["name"] and one["name"].endswith("mine.py")
    ]
    assert said.startswith(
        "Admin command C4h, Process; Admin command C8h, Endless; helper 28h, pop"
    )
    assert said.endswith("device-defined program, Count bits; device-defined program, Fail")


def test_a_device_that_does_not_start_says_why(tmp_path: Path) -> None:
    bad = written(tmp_path, "admin_command(0xC5, name='Bad', data='none')(print)", "bad.py")
    with (
        pytest.raises(PotashError, match=r"bad.py.* line 2: bits 1:0 of opcode C5h .* as in C4h"),
        device_process(tmp_path / "s", "--extend", bad),
    ):
        pass


def test_a_drive_with_state_is_not_started_without_the_extension(tmp_path: Path) -> None:
    text = """
    count = state("count", default=int)

    @admin_command(0xC4, name="Count", data="none")
    def counted(drive, command):
        count.set(drive, count(drive) + 1)
        yield drive.save()
        return count(drive)
    """
    socket, drive = tmp_path / "s", ("--media", str(tmp_path / "drive"), "--size", "1M")
    extend = ("--extend", written(tmp_path, text))
    for number in (1, 2):
        with (
            device_process(socket, *drive, *extend),
            potash.sdk.open(f"vfio-user:{socket}", timeout=30.0) as device,
        ):
            assert device.admin(0xC4).result == number
    with (
        pytest.raises(PotashError, match=r"state 'count' of .*mine.py.*start it with --extend"),
        device_process(socket, *drive),
    ):
        pass


def test_programs_without_a_drive_have_helpers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, EXTENSION)
    monkeypatch.setattr(extensions, "programs", extensions.programs)
    found.cache_clear()
    assert run_app(["bpf", "--extend", file, "helpers", "--json"]) == 0
    found.cache_clear()
    listed = {one["name"]: one for one in json.loads(capfd.readouterr().out)["helpers"]}
    assert listed["popcount"] == {"number": 40, "name": "popcount", "package": file}
