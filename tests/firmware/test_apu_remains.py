"""What the accelerators forget, and when: buffers, logs, and the processes that saw the data."""

from collections.abc import Iterator

import pytest

from csd_spec.opcodes import Operation
from csd_spec.status import StatusId
from potash_firmware.mailbox.messages import CONTROLLER_RESET, ERASE, NEXT_HOST, ResetScope
from support.apu import Board, board, program
from support.bpf import call, exit_, insn, mov

PRINT = 1
PATTERN = b"of a former host"

PRINT_INPUT = program(call(PRINT), mov(0, 0), exit_, padding=4096)
PRINT_FOREVER = program(call(PRINT), insn(0x05, offset=-1), exit_)


@pytest.fixture(scope="module")
def booted() -> Iterator[Board]:
    with board() as made:
        yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    """One whose accelerator 0 has run a job that printed, and has left something everywhere."""
    booted.reset_controller(NEXT_HOST)
    booted.ended.clear()
    assert booted.run(PRINT_INPUT, PATTERN + bytes(4)).status == StatusId.DONE
    for one in booted.config.accelerators:
        booted.buffers.arena(one.id)[:] = PATTERN * (one.plan.size // len(PATTERN))
    return booted


def is_zero(view: memoryview) -> bool:
    return not bytes(view).strip(b"\0")


def arenas(apu: Board) -> list[bool]:
    """Whether each accelerator's arena is all zeroes."""
    return [is_zero(apu.buffers.arena(one.id)) for one in apu.config.accelerators]


def logged(apu: Board) -> bool:
    return PATTERN in apu.log().encode()


def test_an_accelerator_s_reset_clears_its_buffers_and_keeps_its_log(apu: Board) -> None:
    assert apu.control(Operation.RESET) == 0
    assert arenas(apu) == [True, False]
    assert logged(apu)
    assert apu.enable() == 0


def test_a_controller_reset_clears_all_buffers_and_keeps_the_logs(apu: Board) -> None:
    worker = apu.worker(0)
    apu.reset_controller(CONTROLLER_RESET)
    assert arenas(apu) == [True, True]
    assert logged(apu)
    assert apu.send_data(b"data") == 0x7C0, "disabled"
    assert apu.worker(0) == worker


def test_the_next_host_finds_no_log_no_state_and_another_process(apu: Board) -> None:
    worker, unused = apu.worker(0), apu.worker(3)
    apu.reset_controller(NEXT_HOST)
    assert arenas(apu) == [True, True]
    page = apu.log()
    assert (page.entries, page.lost) == ((), 0)
    assert apu.send_data(b"data") == 0x7C0, "disabled"
    assert b"\x7fELF" not in bytes(apu.buffers.state.view)
    apu.until_so(lambda: apu.has_worker(0))
    assert apu.worker(0) != worker
    assert apu.worker(3) == unused, "it has seen nobody's data"


def test_an_erasure_leaves_the_subsystem_enabled(apu: Board) -> None:
    apu.reset_controller(ERASE)
    assert arenas(apu) == [True, True]
    assert not apu.log().entries
    assert apu.read_firmware(4)[0] == 0x7C2
    assert apu.send_data(b"data") == 0


@pytest.mark.parametrize("scope", [CONTROLLER_RESET, NEXT_HOST, ERASE])
def test_a_job_that_runs_writes_nothing_after_it(apu: Board, scope: ResetScope) -> None:
    assert apu.send_firmware(PRINT_FOREVER) == apu.send_data(PATTERN + bytes(4)) == 0
    assert apu.control(Operation.START) == 0
    apu.reset_controller(scope)
    assert arenas(apu) == [True, True]
    assert logged(apu) == (scope == CONTROLLER_RESET)
    assert apu.status().status == StatusId.IDLE


def test_what_is_asked_behind_a_reset_is_carried_out_after_it(apu: Board) -> None:
    assert apu.send_firmware(PRINT_FOREVER) == apu.send_data(PATTERN + bytes(4)) == 0
    assert apu.control(Operation.START) == 0
    tag = apu.send_reset(NEXT_HOST)
    assert apu.enable() == 0
    assert apu.is_answered(tag)
    assert apu.send_data(b"data") == 0
