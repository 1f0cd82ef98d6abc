"""Start Chain: several programs of an accelerator by one command, in a real APU process."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from csd_spec import chains
from csd_spec.chains import JobStep
from csd_spec.descriptors import CapabilityId, LogEntryType, encode_arguments
from csd_spec.opcodes import KEEP_ACTIVE_FIRMWARE, QUERY_FIRMWARE, IoOpcode, Operation
from csd_spec.program import Helper
from csd_spec.status import StatusId
from potash_device.cores import CoreProfile, Price
from potash_firmware.apu.config import NamespaceConfig
from potash_firmware.bpf.engine import Engine
from support.apu import BUFFER, CONFIG, MEDIA, Board, board, program
from support.bpf import call, exit_, insn, load, mov, mov_reg, store

PAGE = 4096
INVALID_FIELD, BUSY = 0x002, 0x00C
NO_FIRMWARE, NO_BUFFERS, NO_ARGUMENTS = 0x7C2, 0x7C3, 0x7C4
NAMESPACES = (NamespaceConfig(1, MEDIA),)


def set_length(length: int) -> bytes:
    return mov(1, length) + call(Helper.SET_OUTPUT_LENGTH)


def on_block(helper: Helper, lba: int, register: int) -> bytes:
    """`helper(1, lba, 1, register, 4096)`, which reads or writes a block."""
    arguments = mov(1, 1) + mov(2, lba) + mov(3, 1) + mov_reg(4, register) + mov(5, PAGE)
    return arguments + call(helper)


WRITE = program(
    mov_reg(7, 2), load(6, 1), store(2, 6), on_block(Helper.WRITE_LBA, 2, 7), set_length(8), exit_
)
"""Copies a number, and writes it to block 2."""


def on_number(operation: bytes) -> bytes:
    """A program that changes the first number of its input (r6), and returns the input's length."""
    begin = mov_reg(8, 3) + load(6, 1) + operation + store(2, 6)
    return program(begin, set_length(8), mov_reg(0, 8), exit_)


ADD, DOUBLE, FAULT, FOREVER = range(4)
IMAGES = {
    ADD: on_number(insn(0x07, 6, imm=5)),
    DOUBLE: on_number(insn(0x27, 6, imm=2)),
    FAULT: program(load(6, 0), exit_),
    FOREVER: program(insn(0x05, offset=-1), exit_),
}
STEPS = (JobStep(ADD), JobStep(DOUBLE), JobStep(ADD))


@pytest.fixture(scope="module")
def booted() -> Iterator[Board]:
    limits = replace(CONFIG.limits, log_entries=200)
    with board(replace(CONFIG, namespaces=NAMESPACES, limits=limits)) as made:
        yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    prepare(booted)
    return booted


def prepare(apu: Board) -> None:
    apu.reset_controller()
    for messages in (apu.ended, apu.write_backs, apu.begun, apu.left, apu.counted):
        messages.clear()
    apu.write_error, apu.hold_write_backs = 0, False
    for memory in apu.media.values():
        memory.view[:] = b"." * memory.size
    assert apu.enable() == 0
    for identifier, image in IMAGES.items():
        assert apu.send_firmware(image, identifier) == 0
    apu.forget_log()


def start(apu: Board, steps: Sequence[JobStep], number: int | None = 10) -> int:
    if number is not None:
        assert apu.send_data(struct.pack("<2Q", number, 0)) == 0
    return apu.control(Operation.START_CHAIN, arguments=chains.encode(steps))


def result(apu: Board) -> int:
    (number,) = struct.unpack("<Q", apu.read_data(8))
    return int(number)


def steps_of(apu: Board) -> tuple[int, int]:
    item = apu.status().descriptor(CapabilityId.FIRMWARE)
    assert item is not None
    return item.ended, item.steps


def test_the_output_of_a_step_is_the_input_of_the_next(apu: Board) -> None:
    assert start(apu, STEPS) == 0
    status = apu.wait()
    assert (status.status, status.return_value, status.firmware) == (StatusId.DONE, 8, ADD)
    assert (status.consumed, status.produced, result(apu)) == (16, 8, 2 * (10 + 5) + 5)
    assert steps_of(apu) == (3, 3) and not apu.ended, "one event"
    assert apu.log_types() == [
        LogEntryType.JOB_STARTED,
        LogEntryType.STEP_FINISHED,
        LogEntryType.STEP_FINISHED,
        LogEntryType.JOB_FINISHED,
    ]
    assert apu.log_texts(LogEntryType.STEP_FINISHED)[1].startswith("step 2 of 3: returned 8")


def test_steps_have_their_own_arguments(apu: Board) -> None:
    context = mov_reg(8, 5) + mov_reg(6, 2) + load(7, 1)
    first_value = load(1, 8, 20)  # an entry of the list is its length and its value
    image = program(context, first_value, insn(0x0F, 7, 1), store(6, 7), set_length(8), exit_)
    assert apu.send_firmware(image, 7) == 0
    steps = [JobStep(7, encode_arguments([struct.pack("<Q", value)])) for value in (1, 20, 300)]
    assert start(apu, steps) == 0
    assert apu.wait().status == StatusId.DONE
    assert result(apu) == 10 + 321


def test_the_input_of_a_chain_is_used_up_and_blocks_are_read_again(apu: Board) -> None:
    assert start(apu, STEPS) == 0
    assert apu.wait().status == StatusId.DONE
    assert start(apu, STEPS, None) == apu.control(Operation.START) == NO_BUFFERS
    apu.media[1].view[PAGE : PAGE + 8] = struct.pack("<Q", 100)
    assert apu.local(IoOpcode.LOCAL_INPUT, 1, 1) == apu.local(IoOpcode.LOCAL_OUTPUT, 3, 1) == 0
    for _ in range(2):
        assert start(apu, STEPS, None) == 0
        status = apu.wait()
        assert (status.status, status.consumed, status.produced) == (StatusId.DONE, PAGE, 8)
    assert len(apu.write_backs) == 2, "outputs between steps are not written"
    assert apu.media[1].view[3 * PAGE :][:9] == struct.pack("<Q", 215) + b"\0"


def test_a_whole_output_becomes_a_whole_input(apu: Board) -> None:
    """A step that sets no length has an output of all its room."""
    image = program(mov_reg(0, 3), exit_)
    assert apu.send_firmware(image, 7) == 0
    assert start(apu, [JobStep(7), JobStep(7)]) == 0
    assert apu.wait().return_value == BUFFER


@pytest.mark.parametrize("failing", range(3))
def test_what_a_step_has_written_to_granted_blocks_stays(apu: Board, failing: int) -> None:
    """A step also finds there what the one before has written."""

    def copy(source: int, target: int) -> bytes:
        read, write = on_block(Helper.READ_LBA, source, 7), on_block(Helper.WRITE_LBA, target, 7)
        return program(mov_reg(7, 2), read, write, set_length(8), mov(0, 0), exit_)

    apu.media[1].view[:PAGE] = b"A" * PAGE
    assert apu.grant(0, 4, writable=True) == 0
    steps = [JobStep(7 + number) for number in range(3)]
    for number, step in enumerate(steps):
        assert apu.send_firmware(copy(number, number + 1), step.firmware) == 0
    steps.insert(failing, JobStep(FAULT))
    assert start(apu, steps) == 0
    assert apu.wait().status == StatusId.FAILED
    written = [bytes(apu.media[1].view[at * PAGE :][:1]) for at in range(1, 4)]
    assert written == [b"A"] * failing + [b"."] * (3 - failing)


def fault(apu: Board) -> None:
    """The step is FAULT."""


def kill(apu: Board) -> None:
    os.kill(apu.worker(0), signal.SIGKILL)


def stop(apu: Board) -> None:
    assert apu.control(Operation.STOP) == 0


def reset(apu: Board) -> None:
    assert apu.control(Operation.RESET) == 0


@pytest.mark.parametrize("ended", range(3))
@pytest.mark.parametrize(
    ("end", "firmware", "status", "kind"),
    [
        (fault, FAULT, StatusId.FAILED, LogEntryType.MEMORY_FAULT),
        (kill, FOREVER, StatusId.FAILED, LogEntryType.PROCESS_LOST),
        (stop, FOREVER, StatusId.STOPPED, LogEntryType.JOB_FINISHED),
        (reset, FOREVER, StatusId.IDLE, LogEntryType.JOB_FINISHED),
    ],
)
def test_the_step_that_ends_a_chain_is_named(
    apu: Board,
    end: Callable[[Board], None],
    firmware: int,
    status: StatusId,
    kind: LogEntryType,
    ended: int,
) -> None:
    steps = [JobStep(ADD)] * 3
    steps[ended] = JobStep(firmware)
    assert start(apu, steps) == 0
    if firmware == FOREVER:
        apu.until_so(lambda: steps_of(apu)[0] == ended)
        assert start(apu, STEPS, None) == apu.control(Operation.START) == BUSY
    end(apu)
    if status is StatusId.FAILED:
        apu.wait()
    assert apu.status().status == status and not apu.ended
    assert len(apu.log_texts(LogEntryType.STEP_FINISHED)) == ended
    assert apu.log_texts(kind)[-1].startswith(f"step {ended + 1} of 3: ")
    if end is not reset:
        assert steps_of(apu) == (ended, 3)
        assert start(apu, STEPS) == 0
        assert apu.wait().status == StatusId.DONE and result(apu) == 35


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", INVALID_FIELD),
        (bytes(8), INVALID_FIELD),
        (chains.encode(STEPS)[:-4], INVALID_FIELD),
        (b"\2" + chains.encode(STEPS)[1:], INVALID_FIELD),
        (struct.pack("<HHI", 1, 17, 0) + bytes(8 * 17), INVALID_FIELD),
        (chains.encode(STEPS[:1]) + b"\0\0\0\0\3\0\0\0", None),  # what follows the steps is ignored
        (chains.encode([JobStep(ADD)] * 16), None),
        (chains.encode([*STEPS, JobStep(9)]), NO_FIRMWARE),
        (chains.encode([*STEPS, JobStep(16)]), NO_FIRMWARE),
        (chains.encode([JobStep(KEEP_ACTIVE_FIRMWARE)]), NO_FIRMWARE),
        (chains.encode([*STEPS, JobStep(ADD, b"\1\0\0\0")]), NO_ARGUMENTS),
    ],
)
def test_a_chain_that_cannot_be_is_refused_before_anything_runs(
    apu: Board, data: bytes, status: int | None
) -> None:
    assert apu.send_data(bytes(8)) == 0
    answered = apu.control(Operation.START_CHAIN, arguments=data)
    assert answered == (status or 0)
    if status is None:
        assert apu.wait().status == StatusId.DONE
    else:
        assert apu.status().status == StatusId.IDLE
        assert LogEntryType.JOB_STARTED not in apu.log_types()
        assert apu.control(Operation.START, firmware=ADD) == 0, "its input is still there"
        apu.wait()


def test_the_active_firmware_is_that_of_the_last_step(apu: Board) -> None:
    assert apu.control(Operation.SELECT_FIRMWARE, firmware=DOUBLE) == 0
    assert start(apu, [JobStep(ADD), JobStep(KEEP_ACTIVE_FIRMWARE)]) == 0
    assert apu.wait().firmware == DOUBLE and result(apu) == 30


def test_a_step_can_be_a_query(apu: Board) -> None:
    """What ends it is a request that makes no sense; that it ran is in the log."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    assert start(apu, [JobStep(ADD), JobStep(QUERY_FIRMWARE)]) == 0
    assert apu.wait().status == StatusId.FAILED
    assert steps_of(apu) == (1, 2)


@pytest.mark.parametrize("steps", [2, 3])
def test_a_chain_stopped_during_a_write_back_begins_no_other_step(apu: Board, steps: int) -> None:
    """The command waits for the write-back, as it does for a job's."""
    assert apu.send_firmware(WRITE, 7) == apu.grant(2, 1, writable=True) == 0
    apu.hold_write_backs = True
    assert start(apu, [JobStep(7)] + [JobStep(FOREVER)] * (steps - 1)) == 0
    apu.until(lambda: bool(apu.write_backs))
    tag = apu.send_control(Operation.STOP)
    assert apu.status().status == StatusId.RUNNING and not apu.is_answered(tag)
    apu.complete(apu.write_backs[0])
    apu.answer(tag)
    assert apu.status().status == StatusId.STOPPED and steps_of(apu) == (1, steps)


def test_a_step_whose_writes_fail_ends_the_chain(apu: Board) -> None:
    assert apu.send_firmware(WRITE, 7) == apu.grant(2, 1, writable=True) == 0
    apu.write_error = 5
    assert start(apu, [JobStep(ADD), JobStep(7), JobStep(ADD)]) == 0
    assert apu.wait().status == StatusId.FAILED and steps_of(apu) == (1, 3)
    (text,) = apu.log_texts(LogEntryType.INVALID_OUTPUT_BUFFER)
    assert text.startswith("step 2 of 3: ")


def test_a_chain_outlives_a_worker_that_is_lost_between_two_steps(apu: Board) -> None:
    """The next step does not begin before the write-back, and has another worker."""
    assert apu.send_firmware(WRITE, 7) == apu.grant(2, 1, writable=True) == 0
    apu.hold_write_backs = True
    assert start(apu, [JobStep(7), JobStep(ADD)]) == 0
    apu.until(lambda: bool(apu.write_backs))
    worker = apu.worker(0)
    os.kill(worker, signal.SIGKILL)
    apu.until_so(lambda: apu.workers(0) not in ([], [worker]))
    apu.complete(apu.write_backs[0])
    assert apu.wait().status == StatusId.DONE and result(apu) == 15


def test_a_chain_that_is_lost_with_its_apu_has_failed() -> None:
    with board(replace(CONFIG, namespaces=NAMESPACES)) as made:
        prepare(made)
        assert start(made, [JobStep(ADD), JobStep(FOREVER), JobStep(ADD)]) == 0
        made.until_so(lambda: steps_of(made)[0] == 1)
        made.kill()
        made.boot()
        made.until(lambda: bool(made.ended))
        assert made.wait().status == StatusId.FAILED and steps_of(made) == (1, 3)
        assert start(made, STEPS) == 0
        assert made.wait().status == StatusId.DONE


@pytest.mark.parametrize("engine", [Engine.NATIVE, Engine.INTERPRETER])
def test_a_chain_takes_the_modelled_time_of_its_steps(engine: Engine) -> None:
    """Each is a job of its own for the model of the core."""
    profile = CoreProfile()
    with board(replace(CONFIG, namespaces=NAMESPACES, processor=profile, engine=engine)) as made:
        prepare(made)
        for step in STEPS:
            assert start(made, [step]) == 0
            made.wait()
        single = [item.work for item in made.counted]
        assert start(made, STEPS) == 0
        made.wait()
        assert [item.work for item in made.counted[3:]] == single
        assert all(Price(profile)(work) > profile.dispatch_ns for work in single)
        assert len(made.begun) == 6 and len({item.job for item in made.begun}) == 6
        made.until(lambda: len(made.left) == 4)  # the first steps are left by the next ones
