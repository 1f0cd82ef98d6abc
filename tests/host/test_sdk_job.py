"""A host application's whole sequence, on a whole device, and what it refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import potash.sdk
from csd_spec.descriptors import LogEntryType
from csd_spec.status import StatusId
from potash.sdk import Device, DeviceNotFound, JobFailed, JobTimeout, LocalStorage, PotashError
from support.bpf import call, insn, load, mov
from support.bpf_elf import Name, elf, text

PRINT = 1
EXIT = insn(0x95)
FAULTING = elf([text(mov(0, 0), load(0, 0), EXIT)], [Name("prog")])
LAST_WORDS = elf([text(call(PRINT), mov(0, 0), load(0, 0), EXIT)], [Name("prog")])
FOREVER = elf([text(mov(0, 0), insn(0x05, offset=-1), EXIT)], [Name("prog")])
SILENT = elf([text(mov(0, 0), EXIT)], [Name("prog")])
ADD = Path(__file__).parents[2] / "examples" / "add"
PROGRAM = (ADD / "program.o").read_bytes()
INPUT = (ADD / "input.bin").read_bytes()
EXPECTED = (ADD / "expected.bin").read_bytes()
MODEL_SIZE = (520).to_bytes(4, "little")
ARGUMENTS = [MODEL_SIZE, len(EXPECTED).to_bytes(4, "little")]
BLOCK = 4096
LAST_BLOCK = (64 << 20) // BLOCK - 1


@pytest.fixture
def device(socket: Path) -> Iterator[Device]:
    with potash.sdk.open(f"vfio-user:{socket}", timeout=10.0) as opened:
        yield opened


def test_a_job_goes_through_the_buffers_and_touches_no_block(device: Device) -> None:
    device.write(0, b"\xa5" * (8 * BLOCK))
    result = device.accelerator().run(PROGRAM, INPUT, args=ARGUMENTS, timeout=30)
    assert result.output == EXPECTED
    assert result.status.produced == len(EXPECTED)
    assert device.read(0, 8) == b"\xa5" * (8 * BLOCK)


def test_a_job_works_on_local_storage_with_its_output_behind_its_input(device: Device) -> None:
    steps: list[str] = []
    result = device.accelerator().run(
        PROGRAM, INPUT, args=ARGUMENTS, local=LocalStorage(16), timeout=30, report=steps.append
    )
    assert result.output == EXPECTED
    assert device.read(16, 1)[: len(INPUT)] == INPUT
    assert device.read(17, 1)[: len(EXPECTED)] == EXPECTED
    assert any("local storage as output" in step and "page 17" in step for step in steps)


def test_a_jobs_output_goes_to_the_block_that_was_chosen(device: Device) -> None:
    device.write(18, b"\xa5" * BLOCK)
    local = LocalStorage(17, LAST_BLOCK)
    assert device.accelerator().run(PROGRAM, INPUT, args=ARGUMENTS, local=local).output == EXPECTED
    assert device.read(LAST_BLOCK, 1)[: len(EXPECTED)] == EXPECTED
    assert device.read(18, 1) == b"\xa5" * BLOCK


def test_a_program_that_sets_no_output_length_fills_only_the_room_that_it_was_given(
    device: Device,
) -> None:
    """What lies behind the output on the drive stays what it was."""
    device.write(20, b"\xa5" * 8 * BLOCK)
    result = device.accelerator().run(SILENT, b"x" * BLOCK, local=LocalStorage(20), timeout=30)
    assert len(result.output) == BLOCK
    assert device.read(22, 6) == b"\xa5" * 6 * BLOCK
    roomy = LocalStorage(20, output_size=3 * BLOCK)
    assert len(device.accelerator().run(SILENT, b"x", local=roomy, timeout=30).output) == 3 * BLOCK
    assert device.read(24, 4) == b"\xa5" * 4 * BLOCK


def test_nothing_is_written_for_a_job_that_cannot_start(device: Device) -> None:
    device.write(30, b"\xa5" * BLOCK)
    for program, accelerator in ((PROGRAM, 5), (b"no program", 0)):
        with pytest.raises(PotashError):
            device.accelerator(accelerator).run(program, INPUT, local=LocalStorage(30))
    assert device.read(30, 1) == b"\xa5" * BLOCK


def test_what_a_program_prints_comes_with_its_result(device: Device) -> None:
    result = device.accelerator().run(PROGRAM, INPUT, timeout=30)
    assert result.printed == ["add: the arguments are the lengths of the model and of the output"]
    assert device.accelerator().run(SILENT, INPUT, local=LocalStorage(20)).printed == []


def test_a_job_that_faults_says_why_and_the_next_one_runs(device: Device) -> None:
    with pytest.raises(JobFailed, match="the job on accelerator 0 failed: ") as caught:
        device.accelerator().run(FAULTING, INPUT, timeout=30)
    assert caught.value.status.status == StatusId.FAILED
    assert caught.value.log.entries[-1].type == LogEntryType.MEMORY_FAULT
    assert device.accelerator().run(PROGRAM, INPUT, args=ARGUMENTS, timeout=30).output == EXPECTED


def test_what_a_program_had_printed_comes_with_its_fault(device: Device) -> None:
    device.accelerator().run(PROGRAM, INPUT, timeout=30)  # prints something else
    with pytest.raises(JobFailed) as caught:
        device.accelerator().run(LAST_WORDS, b"going\0", timeout=30)
    assert caught.value.printed == ["going"]


def test_a_job_that_does_not_end_is_stopped_and_keeps_others_out(device: Device) -> None:
    with pytest.raises(JobTimeout, match="was stopped after 0.05 s"):
        device.accelerator().run(FOREVER, INPUT, timeout=0.05)
    (accelerator,) = device.accelerators()
    assert accelerator.status().status == StatusId.STOPPED
    accelerator.start()
    assert accelerator.status().status == StatusId.RUNNING
    with pytest.raises(PotashError, match="busy with another job"):
        device.accelerator().run(PROGRAM, INPUT)
    accelerator.stop()
    with pytest.raises(JobFailed, match="was stopped"):
        accelerator.wait(timeout=1)
    assert device.accelerator().run(PROGRAM, INPUT, args=ARGUMENTS, timeout=30).output == EXPECTED


@pytest.mark.parametrize(
    ("local", "message"),
    [
        (LocalStorage(LAST_BLOCK), "do not fit on the drive"),
        (LocalStorage(0, LAST_BLOCK + 1), "do not fit on the drive"),
        (LocalStorage(5, 5), "would overlap"),
    ],
)
def test_blocks_that_cannot_hold_a_job_are_refused_before_they_are_written(
    device: Device, local: LocalStorage, message: str
) -> None:
    device.write(5, b"\xa5" * BLOCK)
    with pytest.raises(PotashError, match=message):
        device.accelerator().run(PROGRAM, INPUT, local=local)
    assert device.read(5, 1) == b"\xa5" * BLOCK


def test_what_no_accelerator_can_do_is_refused(device: Device) -> None:
    with pytest.raises(DeviceNotFound, match="no accelerator 9"):
        device.accelerator(9).run(PROGRAM, INPUT)
    with pytest.raises(PotashError, match="the accelerator takes 67108864"):
        device.accelerator().run(PROGRAM, bytes((64 << 20) + 4))
    with pytest.raises(PotashError, match="input is empty"):
        device.accelerator().run(PROGRAM, b"")
    with pytest.raises(PotashError, match="input is empty"):
        device.accelerator().run(PROGRAM, b"", local=LocalStorage(0))
    with pytest.raises(PotashError, match="firmware 0 was refused: "):
        device.accelerator().run(b"\x7fELF and nothing else", INPUT)
