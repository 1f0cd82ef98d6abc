"""`Accelerator.run` and waiting by event, on a whole device; interrupts, and places for files."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import potash.sdk
from csd_spec.descriptors import Accelerator as Description
from csd_spec.descriptors import Capability
from csd_spec.status import StatusId, VendorStatus
from potash.sdk import (
    INPUT_LENGTH,
    Accelerator,
    CommandFailed,
    CommandTimeout,
    Device,
    DeviceGone,
    FileSink,
    FileSource,
    InvalidRequest,
    JobFailed,
    JobTimeout,
    PotashError,
)
from potash.sdk.targets import Range, Reporter
from potash.vm.drive import device_process
from potash_device.vta import compiled_code
from support.apu import program
from support.bpf import exit_, insn, load, mov, store
from support.sdk import RecordingTransport

ADD = Path(__file__).parents[2] / "examples" / "add"
EXPECTED = (ADD / "expected.bin").read_bytes()
LIMIT = 60.0

FOREVER = program(insn(0x05, offset=-1), exit_)

ARGUMENTS_BACK = program(
    load(6, 5, 16), store(2, 6), load(6, 5, 24), store(2, 6, 8),
    load(6, 5, 32, size=0x00), store(2, 6, 16, size=0x00),
    mov(1, 20), insn(0x85, imm=4), mov(0, 0), exit_,
)  # fmt: skip
"""Gives back the first 20 bytes of its argument list."""

BUSY_FOR_A_WHILE = program(
    mov(6, 300_000), insn(0x17, 6, imm=1), insn(0x55, 6, offset=-2, imm=0), mov(0, 5), exit_
)


@pytest.fixture
def device(socket: Path) -> Iterator[Device]:
    with potash.sdk.open(f"vfio-user:{socket}", timeout=10.0) as opened:
        yield opened


@pytest.fixture
def accelerator(device: Device) -> Accelerator:
    return device.accelerators()[0]


def test_one_call_runs_files_and_tells_how_far_it_is(accelerator: Accelerator) -> None:
    told: list[str] = []
    steps: list[str] = []
    result = accelerator.run(
        str(ADD / "program.o"),
        ADD / "input.bin",
        args=[520, (1024).to_bytes(4, "little")],
        timeout=LIMIT,
        progress=lambda label, fraction: told.append(label),
        report=steps.append,
    )
    assert result.output == EXPECTED
    assert result.printed == ["add: running the model"]
    assert {"sending the program", "sending the input", "reading the output"} <= set(told)
    assert [step.split()[0] for step in steps] == [
        "identify:", "enable", "send", "send", "select", "start", "done:", "read",
    ]  # fmt: skip


def test_arguments_are_numbers_bytes_and_the_length_of_the_input(accelerator: Accelerator) -> None:
    result = accelerator.run(ARGUMENTS_BACK, b"12345", args=[INPUT_LENGTH, -2, b"ab"], timeout=9)
    assert result.output == b"\x08\0\0\0\x05\0\0\0" + b"\x08\0\0\0\xfe\xff\xff\xff" + b"\x06\0\0\0"
    for wrong in (1 << 32, -(1 << 31) - 1):
        with pytest.raises(InvalidRequest, match="more than 32 bits"):
            accelerator.run(ARGUMENTS_BACK, b"12345", args=[wrong])


def test_programs_run_on_the_output_of_each_other(accelerator: Accelerator) -> None:
    """The second one gives back its arguments, and the third one what it is given."""
    back = program(load(6, 1, 8), store(2, 6), mov(1, 8), insn(0x85, imm=4), mov(0, 9), exit_)
    steps: list[str] = []
    result = accelerator.run(
        ARGUMENTS_BACK,
        b"12345",
        args=[INPUT_LENGTH, 7, b"ab"],
        then=[(ARGUMENTS_BACK, [1, 0x0102_0304, b"cd"]), (back, [])],
        timeout=LIMIT,
        report=steps.append,
    )
    assert result.output == b"\x08\0\0\0\x04\x03\x02\x01"
    assert (result.status.return_value, result.status.consumed) == (9, 8)
    assert (result.status.steps, result.status.ended_steps) == (3, 3)
    assert "start a chain of 3 steps" in steps
    fault = program(mov(1, 0), load(0, 1), exit_)
    with pytest.raises(JobFailed, match=r"step 2 of 3: .* out of bounds") as caught:
        accelerator.run(back, b"12345", then=[(fault, []), (back, [])], timeout=LIMIT)
    assert (caught.value.status.ended_steps, caught.value.status.firmware) == (1, 1)


def test_what_cannot_run_changes_nothing(accelerator: Accelerator, tmp_path: Path) -> None:
    accelerator.run(ARGUMENTS_BACK, b"12345", args=[1, 2, 3], timeout=LIMIT)
    with pytest.raises(FileNotFoundError):
        accelerator.run(tmp_path / "none.o", b"12345")
    with pytest.raises(IsADirectoryError):
        accelerator.run(ARGUMENTS_BACK, tmp_path)
    with pytest.raises(InvalidRequest, match="not on a file system of this drive"):
        accelerator.run(ARGUMENTS_BACK, FileSource(ADD / "input.bin"))
    with pytest.raises(InvalidRequest, match="not on a file system of this drive"):
        accelerator.run(ARGUMENTS_BACK, b"12345", output=FileSink(tmp_path / "output"))
    assert accelerator.status().status == StatusId.DONE
    assert accelerator.read_firmware() == ARGUMENTS_BACK
    assert list(tmp_path.iterdir()) == []


def test_a_failed_job_is_one_on_a_device_that_calls_it_done(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with (
        device_process(path, "--size", "64M", "--profile", "alkali"),
        potash.sdk.open(f"vfio-user:{path}", timeout=10.0) as opened,
    ):
        accelerator = opened.accelerators()[0]
        with pytest.raises(JobFailed, match="failed: memory access out of bounds") as caught:
            accelerator.run(program(mov(1, 0), load(0, 1), exit_), b"12345", timeout=LIMIT)
        assert caught.value.status.status == StatusId.DONE
        fault = program(mov(1, 0), load(0, 1), exit_)
        with pytest.raises(JobFailed, match="step 2 of 2: "):
            accelerator.run(ARGUMENTS_BACK, b"1", args=[1, 2, 3], then=[(fault, [])], timeout=LIMIT)
        assert accelerator.run(ARGUMENTS_BACK, b"12345", args=[1, 2, 3], timeout=LIMIT).output


def test_a_refused_program_says_why_with_its_status(accelerator: Accelerator) -> None:
    with pytest.raises(CommandFailed, match="firmware 0 was refused: ") as caught:
        accelerator.run(b"\x7fELF and nothing else", b"12345")
    assert caught.value.status == VendorStatus.FIRMWARE_REFUSED
    assert caught.value.log.startswith("firmware 0 was refused: ")


def test_the_jobs_end_is_told_before_the_next_poll(accelerator: Accelerator) -> None:
    """Without the event, a wait whose first pause is longer than its timeout would be late."""
    for _ in range(2):  # the first event does not keep the second one silent
        accelerator.run(BUSY_FOR_A_WHILE, b"1234", timeout=LIMIT)
        accelerator.start()
        ended = accelerator.wait(LIMIT, poll=(LIMIT, LIMIT))
        assert (ended.status, ended.return_value) == (StatusId.DONE, 5)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_stops_the_job(
    accelerator: Accelerator, kind: type[BaseException], socket: Path
) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise kind

    before = signal.signal(signal.SIGALRM, interrupt)
    armed = False

    def arm(label: str, fraction: float | None) -> None:
        nonlocal armed
        if label == "running" and not armed:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, 0.1)

    try:
        with pytest.raises(kind):
            accelerator.run(FOREVER, b"1234", progress=arm)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert armed
    assert accelerator.status().status != StatusId.RUNNING
    assert accelerator.run(ARGUMENTS_BACK, b"12345", args=[1, 2, 3], timeout=LIMIT).output


def test_a_job_that_takes_too_long_is_stopped(accelerator: Accelerator) -> None:
    with pytest.raises(JobTimeout, match="the job was stopped after 0.1 s"):
        accelerator.run(FOREVER, b"1234", timeout=0.1)
    assert accelerator.status().status == StatusId.STOPPED


def silent_reporter() -> Reporter:
    return Reporter(lambda step: None, lambda label, fraction: None)


def played(*answers: object) -> Accelerator:
    """An accelerator of a kernel's device, the transport of which answers so."""
    transport = RecordingTransport(answers, block_device=1)  # type: ignore[arg-type]  # shorthand
    described = Description(0, (Capability(0), Capability(1, 1 << 20), Capability(2, 1 << 20)))
    return Accelerator(Device(transport), described)


@pytest.mark.parametrize(
    ("answers", "certain"),
    [((), True), ((DeviceGone("gone"),), True), ((CommandTimeout("late"),), False)],
)
def test_a_job_has_ended_when_the_device_says_so_or_is_gone(
    answers: tuple[object, ...], certain: bool
) -> None:
    assert played(*answers)._ended(KeyboardInterrupt()) is certain


class Recorder:
    """Everything that a place for output needs of an accelerator; `refusing` what fails."""

    id, output_size = 0, 1 << 20

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.device = SimpleNamespace(block_device=1)
        self.refusing: PotashError | None = None

    def use_local_output(self, page: int, pages: int, nsid: int | None, append: bool) -> None:
        self.asked.append(f"output {page}:{pages}")

    def reset(self) -> None:
        if self.refusing is not None:
            raise self.refusing
        self.asked.append("reset")


@pytest.fixture
def target() -> Recorder:
    return Recorder()


@pytest.fixture
def sink(target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSink:
    """A place for output in a folder that plays a file system of the drive."""
    monkeypatch.setattr("potash.sdk.files.volume_of", lambda path, device: (0, "ext4", ""))
    monkeypatch.setattr("potash.sdk.files.require_usable", lambda name, fd, volume: None)
    monkeypatch.setattr(FileSink, "_look", lambda self: [Range(5, 1)])
    monkeypatch.setattr("os.O_DIRECT", 0)
    (tmp_path / "output").write_bytes(b"old")
    made = FileSink(tmp_path / "output", size=4096)
    made.prepare(target, 5)
    made.attach(target, silent_reporter())
    return made


def places(folder: Path) -> list[Path]:
    return list(folder.glob(".output.potash-*"))


def test_an_output_takes_its_name_when_it_is_whole(
    sink: FileSink, target: Any, tmp_path: Path
) -> None:
    (place,) = places(tmp_path)
    assert place.read_bytes() == bytes(4096), "what was not written has no contents of its own"
    assert (tmp_path / "output").read_bytes() == b"old"
    assert sink.collect(target, 7, silent_reporter()) == b""
    sink.close()
    assert target.asked == ["output 5:1", "reset"]
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    assert (tmp_path / "output").read_bytes() == bytes(7)


@pytest.mark.parametrize("gone", [None, DeviceGone("gone")])
def test_an_output_that_does_not_come_leaves_what_was_there(
    sink: FileSink, target: Any, gone: PotashError | None, tmp_path: Path
) -> None:
    target.refusing = gone
    sink.close()
    sink.close()
    assert target.asked == ["output 5:1", "reset"][: 1 if gone else 2]
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    assert (tmp_path / "output").read_bytes() == b"old"


def test_blocks_that_may_still_be_written_are_not_given_back(
    sink: FileSink, target: Any, tmp_path: Path
) -> None:
    sink.close(still_written=True)
    assert len(places(tmp_path)) == 1
    assert target.asked == ["output 5:1"]


def test_blocks_that_a_later_job_would_write_are_not_given_back(
    sink: FileSink, target: Any, tmp_path: Path
) -> None:
    target.refusing = CommandTimeout("late")
    with pytest.raises(CommandTimeout):
        sink.collect(target, 7, silent_reporter())
    sink.close()
    assert len(places(tmp_path)) == 1
    assert (tmp_path / "output").read_bytes() == b"old"


def test_on_a_new_machine_there_is_a_folder_for_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A confined worker cannot make it, and would compile the simulator for each model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with (
        device_process(tmp_path / "s", "--size", "16M"),
        potash.sdk.open(f"vfio-user:{tmp_path / 's'}") as device,
    ):
        device.accelerator().run(ARGUMENTS_BACK, b"1234")
        (folder,) = (tmp_path / "cache" / "potash" / "vta").iterdir()
        assert folder.name == compiled_code.STORE.identity.hex()[:16]
