"""Values for programs on their way through the APU, with the test in the RPU's place, or in that of
workers that lie."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from csd_spec.opcodes import Operation
from potash_firmware.apu import channel
from potash_firmware.apu.channel import FromWorker, JobExecuted
from potash_firmware.apu.checks import Checks
from potash_firmware.apu.engines import Engines
from potash_firmware.apu.job import Step
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.model import Subsystem
from potash_firmware.bpf import Engine
from potash_firmware.mailbox import ApuPort, pair
from potash_firmware.mailbox.messages import (
    CONTROLLER_RESET,
    Execute,
    OpenEngine,
    Outcome,
    ToRpu,
)
from potash_firmware.mailbox.values import (
    MAX_OWN,
    JobValueRead,
    ReadJobValue,
    ReadValue,
    ValueRead,
)
from support.apu import CONFIG as JOBS
from support.apu import Board, program
from support.bpf import call, exit_, insn, lddw, load, mov, mov_reg, store
from support.engines import CONFIG, NSID, PAGE, EngineBoard, engine_board
from support.workers import PlayedSupervisor

KV_RETRIEVE, KV_LIST = 13, 14
RETURNED, FAULTED = Outcome.RETURNED, Outcome.FAULTED
KEY = b"key".ljust(8, b"\0")
KV = 0x1_0000_0005
"""What programs name: the upper half of the register says nothing."""


def retrieve(room: int, *target: bytes, helper: int = KV_RETRIEVE, length: int = 3) -> bytes:
    """A program that reads a value, or keys, to r4, which is the output unless `target` changes it,
    and returns the result."""
    return program(*reading(room, *target, helper=helper, length=length), exit_)


def reading(*given: Any, helper: int = KV_RETRIEVE, length: int = 3) -> Iterator[bytes]:
    room, *target = given
    yield from (lddw(6, int.from_bytes(KEY, "little")), store(10, 6, -8), mov_reg(4, 2), *target)
    yield from (mov_reg(2, 10), insn(0x07, 2, imm=-8), mov(3, length))
    yield from (lddw(1, KV), lddw(5, room), call(helper))


ON_STACK = mov_reg(4, 10), insn(0x07, 4, imm=-64)


@pytest.fixture(scope="module", params=[Engine.INTERPRETER, Engine.NATIVE], ids=str)
def board(request: pytest.FixtureRequest) -> Iterator[EngineBoard]:
    limits = replace(CONFIG.limits, engine_workers=1)
    with engine_board(replace(CONFIG, engine=request.param, limits=limits)) as made:
        yield made


def test_a_value_comes_into_a_range(board: EngineBoard) -> None:
    memory, handle = board.memory(pages=300)
    with closing(memory):
        ranges = (handle, 0, PAGE), (handle, 2 * PAGE, 200 * PAGE)
        far = insn(0x07, 4, imm=10)
        tag = board.begin(board.program(retrieve(199 * PAGE, far)), *ranges)
        asked = board.value()
        assert asked == ReadValue(tag, 5, 512 << 10, b"key", offset=10, range=1)
        memory.view[2 * PAGE + 10 : 2 * PAGE + 15] = b"value"
        board.port.send(ValueRead(tag, 5))
        assert board.end_of(tag) == (RETURNED, 5)


def test_a_few_bytes_come_to_the_stack(board: EngineBoard) -> None:
    code = board.program(program(*reading(8, *ON_STACK), load(0, 10, -64), exit_))
    for value in (b"12345678", b"abcdefgh"):  # the second time, nothing is prepared
        tag = board.begin(code)
        assert board.value() == ReadValue(tag, 5, 8, b"key")
        board.port.send(ValueRead(tag, 100, value))
        assert board.end_of(tag) == (RETURNED, int.from_bytes(value, "little"))


def test_keys_are_requested_from_a_first_one_on(board: EngineBoard) -> None:
    tag = board.begin(board.program(retrieve(64, *ON_STACK, helper=KV_LIST, length=0)))
    assert board.value() == ReadValue(tag, 5, 64, b"", lists=True)
    board.port.send(ValueRead(tag, -errno.ENODEV))
    assert board.end_of(tag) == (RETURNED, (1 << 64) - errno.ENODEV)


def test_a_key_that_is_too_long_is_not_requested(board: EngineBoard) -> None:
    code = retrieve(8, *ON_STACK, helper=KV_LIST, length=18)
    code = code.replace(insn(0x07, 2, imm=-8), insn(0x07, 2, imm=-64))
    found = board.execute(board.program(code))
    assert found == (RETURNED, (1 << 64) - errno.EINVAL)
    assert not board.values


@pytest.mark.parametrize("room", [MAX_OWN + 1, 1 << 33])
def test_much_is_read_into_one_range_only(board: EngineBoard, room: int) -> None:
    memory, handle = board.memory(pages=2)
    with closing(memory):
        over = insn(0x07, 4, imm=-PAGE)  # from the range before
        ranges = (handle, 0, PAGE), (handle, PAGE, PAGE)
        assert board.execute(board.program(retrieve(room, over)), *ranges)[0] is FAULTED
    text = board.texts()[-1]
    assert ("one memory range only" in text) is (room == MAX_OWN + 1)
    assert not board.values


def test_an_execution_that_waits_for_a_value_expires() -> None:
    limits = replace(CONFIG.limits, seconds=1.0)
    with engine_board(replace(CONFIG, limits=limits, engine=Engine.INTERPRETER)) as board:
        assert board.execute(board.program(retrieve(8, *ON_STACK))) == (Outcome.EXPIRED, 0)


def test_an_execution_that_waits_for_a_value_is_cancelled(board: EngineBoard) -> None:
    code = board.program(retrieve(8, *ON_STACK))
    tag = board.begin(code)
    asked = board.value()
    board.cancel(tag)
    assert board.end_of(tag) == (Outcome.CANCELLED, 0)
    board.port.send(ValueRead(asked.tag, 8, b"too late"))
    tag = board.begin(code)
    board.value()
    board.port.send(ValueRead(asked.tag, 8, b"not this"))
    board.port.send(ValueRead(tag, 3))
    assert board.end_of(tag) == (RETURNED, 3)
    tag = board.begin(code)
    board.value()
    board.reset_controller(CONTROLLER_RESET)
    assert board.end_of(tag) == (Outcome.CANCELLED, 0)


# Jobs.


@pytest.fixture(scope="module", params=[Engine.INTERPRETER, Engine.NATIVE], ids=str)
def jobs(request: pytest.FixtureRequest) -> Iterator[Board]:
    with Board(replace(JOBS, engine=request.param)) as made:
        yield made


def requested(board: Board) -> ReadJobValue:
    board.until(lambda: bool(board.values))
    (found,) = board.values
    assert isinstance(found, ReadJobValue)
    board.values.clear()
    return found


def begin(board: Board) -> ReadJobValue:
    """Begin a job that requests a value for the fourth byte of its output, and more."""
    board.reset_controller()
    board.ended.clear()
    assert board.enable() == 0
    assert board.send_firmware(retrieve(1000, insn(0x07, 4, imm=3))) == 0
    assert board.send_data(bytes(4)) == 0
    assert board.control(Operation.START) == 0
    return requested(board)


def test_a_value_comes_into_the_buffer_of_a_job(jobs: Board) -> None:
    asked, plan = begin(jobs), JOBS.accelerators[0].plan
    assert asked == ReadJobValue(asked.tag, 5, 1000, b"key", offset=plan.output_offset + 3)
    jobs.buffers.arena(0)[asked.offset : asked.offset + 5] = b"value"
    jobs.port.send(JobValueRead(asked.tag, 5))
    assert jobs.wait().return_value == 5
    assert jobs.read_data(12) == b"\0\0\0value\0\0\0\0"


def test_no_job_has_an_arena_that_a_value_may_still_come_into(jobs: Board) -> None:
    """The job is stopped, and the next one waits, until the RPU has answered."""
    asked = begin(jobs)
    pid = jobs.worker(0)
    stopped = jobs.send_control(Operation.STOP)
    jobs.until_so(lambda: pid not in jobs.workers(0))
    jobs.status()
    assert not jobs.is_answered(stopped)
    jobs.port.send(JobValueRead(asked.tag, -errno.ECANCELED))
    jobs.answer(stopped)
    assert jobs.control(Operation.START) == 0
    again = requested(jobs)
    assert again.tag != asked.tag
    reset = jobs.send_reset()
    jobs.port.send(JobValueRead(again.tag, 1))
    jobs.answer(reset)


# Workers that lie.


@dataclass
class Played:
    """Engines, whose workers the test plays; one runs execution 7, without ranges."""

    supervisor: PlayedSupervisor
    engines: Engines
    port: ApuPort
    sent: Any


@contextmanager
def played() -> Iterator[Played]:
    rpu, apu = pair()
    with PlayedSupervisor(CONFIG) as supervisor, rpu, apu:
        checks = Checks(supervisor, CONFIG.limits)
        engines = Engines(CONFIG, supervisor, checks, apu, lambda: 0.0)
        engines.handle(OpenEngine(NSID))
        supervisor.say(channel.Ready())
        engines.handle(Execute(7, NSID, 0))
        supervisor.ends[1].recv(channel.MAX_MESSAGE)
        yield Played(supervisor, engines, apu, rpu)


@pytest.mark.parametrize(
    "lie",
    [
        ReadValue(8, 5, 8, b"k"),  # of another execution
        ReadValue(7, 5, MAX_OWN + 1, b"k"),
        ReadValue(7, 5, 0, b"k", range=0),  # there is none
        ReadJobValue(7, 5, 8, b"k"),
    ],
    ids=str,
)
def test_an_engine_s_worker_that_lies_is_ended(lie: FromWorker) -> None:
    with played() as made:
        made.supervisor.say(lie)
        assert made.supervisor.killed == [1]
        assert made.sent.receive() is None


def test_a_worker_has_one_request_at_a_time() -> None:
    with played() as made:
        for _ in range(3):
            made.supervisor.say(ReadValue(7, 5, 8, b"k"))
            assert made.sent.receive() == ReadValue(7, 5, 8, b"k")
            made.engines.handle(ValueRead(7, 1, b"v"))
            answer = made.supervisor.ends[1].recv(channel.MAX_MESSAGE)
            assert channel.decode_value(answer) == ValueRead(7, 1, b"v")
        made.supervisor.say(*[ReadValue(7, 5, 8, b"k")] * 2)
        assert made.supervisor.killed == [1]
        assert made.sent.receive() == ReadValue(7, 5, 8, b"k")
        assert made.sent.receive() is None
        made.engines.handle(ValueRead(7, 1, b"v"))  # for nobody


def test_a_worker_that_reads_no_answers_is_ended() -> None:
    with played() as made:
        for _ in range(10_000):
            made.supervisor.say(ReadValue(7, 5, MAX_OWN, b"k"))
            assert made.sent.receive() is not None
            made.engines.handle(ValueRead(7, MAX_OWN, bytes(MAX_OWN)))
            if made.supervisor.killed:
                break
        assert made.supervisor.killed == [1]


@pytest.mark.parametrize(
    "lies",
    [
        [ReadValue(1, 5, 8, b"k")],
        [ReadJobValue(2, 5, 8, b"k")],
        [ReadJobValue(1, 5, 8, b"k", accelerator=3)],
        [ReadJobValue(1, 5, 8, b"k", offset=JOBS.accelerators[0].plan.writes_offset - 7)],
        [ReadJobValue(1, 5, 8, b"k", offset=(1 << 64) - 4)],
        [ReadJobValue(1, 5, 8, b"k")] * 2,
        [JobExecuted(1, RETURNED), ReadJobValue(1, 5, 8, b"k")],
    ],
    ids=str,
)
def test_a_job_s_worker_that_lies_is_ended(lies: list[FromWorker]) -> None:
    accelerator = Subsystem.create(JOBS, lambda: 0.0).accelerators[0]
    sent: list[ToRpu] = []
    with PlayedSupervisor(JOBS) as supervisor:
        Jobs(JOBS, {0: accelerator}, supervisor, sent.append).runners[0].start(Step(0, b"", b""))
        supervisor.say(*lies)
        assert supervisor.killed == [1]
        assert len([message for message in sent if isinstance(message, ReadJobValue)]) < 2
