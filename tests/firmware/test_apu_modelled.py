"""Jobs of which the time is modelled: what they count, and when they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest

from csd_spec.opcodes import IoOpcode, Operation
from csd_spec.program import Helper
from csd_spec.run_times import with_run_time
from csd_spec.status import StatusId
from potash_device.cores import CoreProfile, Price, Work
from potash_firmware.apu.channel import RANGES_AT_ONCE, BlocksRead, FromWorker, JobExecuted
from potash_firmware.apu.config import NamespaceConfig
from potash_firmware.apu.job import Step
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.model import ByteRange, Subsystem
from potash_firmware.apu.work_counter import MOST_READS, WorkCounter
from potash_firmware.bpf.engine import Engine
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import (
    Executed,
    JobBegan,
    JobCounted,
    JobDue,
    JobEnded,
    Outcome,
    Read,
    ReadCheck,
    ReadChecked,
    ToRpu,
)
from potash_firmware.mailbox.shared import Row, Word
from support.apu import CONFIG, DEADLINE, MEDIA, Board, board, program
from support.bpf import call, exit_, insn, load, mov, mov_reg, store
from support.compute_programs import SUM
from support.engines import CONFIG as ENGINE_CONFIG
from support.engines import PAGE, EngineBoard, engine_board
from support.workers import PlayedSupervisor

PROCESSOR = CoreProfile()
READ_LBA, SET_OUTPUT_LENGTH = Helper.READ_LBA, Helper.SET_OUTPUT_LENGTH

# Two loads, three moves and a sum, a product, a store, and two calls: of a helper, and the exit.
SIMPLE = program(
    load(6, 1),
    load(7, 1, 8),
    insn(0x2F, 6, 7),
    insn(0x07, 6, imm=1),
    store(2, 6),
    mov(1, 8),
    call(SET_OUTPUT_LENGTH),
    mov_reg(0, 6),
    mov(9, 0),
    exit_,
)
SIMPLE_WORK = Work((4, 1, 0, 2, 1, 0, 0, 2), helpers=1)
ENDLESS = program(insn(0x07, 0, imm=1), insn(0x05, offset=-2))
FAULTS = program(load(6, 1), insn(0x37, 6, imm=3), load(7, 6), exit_)
FAULTS_WORK = Work((0, 0, 1, 2, 0, 0, 0, 0))


@pytest.fixture(scope="module", params=[Engine.NATIVE, Engine.INTERPRETER])
def booted(request: pytest.FixtureRequest) -> Iterator[Board]:
    namespaces = (NamespaceConfig(1, MEDIA),)
    config = replace(CONFIG, namespaces=namespaces, processor=PROCESSOR, engine=request.param)
    with board(config) as made:
        yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    booted.reset_controller()
    for heard in (booted.begun, booted.counted, booted.left, booted.ended):
        heard.clear()
    booted.hold_due = False
    assert booted.enable() == 0
    return booted


def start(apu: Board, image: bytes, data: bytes = bytes(64)) -> None:
    assert apu.send_firmware(image) == apu.send_data(data) == apu.control(Operation.START) == 0


def test_a_job_counts_what_its_program_does_whatever_runs_it(apu: Board) -> None:
    for _ in range(3):  # compiled, then from the cache, then as it is loaded
        start(apu, SIMPLE)
        assert apu.wait().status == StatusId.DONE
    assert [one.work for one in apu.counted] == [SIMPLE_WORK] * 3
    assert [one.job for one in apu.begun] == [one.job for one in apu.counted]
    assert len({one.job for one in apu.begun}) == 3
    apu.until(lambda: len(apu.left) == 3)


def test_a_job_that_faults_counts_up_to_the_fault(apu: Board) -> None:
    start(apu, FAULTS)
    assert apu.wait().status == StatusId.FAILED
    assert [one.work for one in apu.counted] == [FAULTS_WORK]


def test_blocks_that_a_job_reads_are_told_with_the_time_until_then(apu: Board) -> None:
    assert apu.local(IoOpcode.LOCAL_INPUT, 2, 2) == apu.grant(8, 4) == 0

    def read(lba: int) -> bytes:
        """`read_lba(1, lba, 1, output, 4096)`."""
        return b"".join(
            (mov(1, 1), mov(2, lba), mov(3, 1), mov_reg(4, 6), mov(5, PAGE), call(READ_LBA))
        )

    image = program(mov_reg(6, 2), read(9), read(8), mov(0, 0), exit_)
    assert apu.send_firmware(image) == apu.control(Operation.START) == 0
    assert apu.wait().status == StatusId.DONE
    (counted,) = apu.counted
    price = Price(PROCESSOR)
    expected = [
        Read(price(Work()), 1, 2 * PAGE, 2 * PAGE),
        Read(price(Work((6, 0, 0, 0, 0, 0, 0, 1), helpers=1)), 1, 9 * PAGE, PAGE),
        Read(price(Work((11, 0, 0, 0, 0, 0, 0, 2), helpers=2)), 1, 8 * PAGE, PAGE),
    ]
    assert list(counted.reads) == expected
    assert counted.work == Work((12, 0, 0, 0, 0, 0, 0, 3), helpers=2)


def test_a_job_runs_until_it_is_due(apu: Board) -> None:
    apu.hold_due = True
    start(apu, SIMPLE)
    apu.until(lambda: bool(apu.counted))
    assert apu.status().status == StatusId.RUNNING
    assert not apu.ended
    (counted,) = apu.counted
    for other in (JobDue(0, counted.job + 1), JobDue(3, counted.job), JobDue(9, counted.job)):
        apu.port.send(other)
        assert apu.status().status == StatusId.RUNNING
    apu.port.send(JobDue(0, counted.job))
    assert apu.wait().status == StatusId.DONE
    assert apu.read_data(8) == (1).to_bytes(8, "little")
    apu.port.send(JobDue(0, counted.job))
    assert apu.status().status == StatusId.DONE


@pytest.mark.parametrize("operation", [Operation.STOP, Operation.RESET])
def test_a_job_that_is_not_due_can_be_stopped(apu: Board, operation: Operation) -> None:
    apu.hold_due = True
    start(apu, SIMPLE)
    apu.until(lambda: bool(apu.counted))
    assert apu.control(operation) == 0
    stopped = StatusId.STOPPED if operation is Operation.STOP else StatusId.IDLE
    assert apu.status().status == stopped
    apu.until(lambda: bool(apu.left))
    assert [one.job for one in apu.left] == [one.job for one in apu.begun]
    apu.port.send(JobDue(0, apu.counted[0].job))
    assert apu.status().status == stopped


def test_a_job_whose_worker_is_lost_while_it_is_not_due_ends_well(apu: Board) -> None:
    apu.hold_due = True
    start(apu, SIMPLE)
    apu.until(lambda: bool(apu.counted))
    worker = apu.worker(0)
    os.kill(worker, signal.SIGKILL)
    apu.until_so(lambda: apu.workers(0) not in ([], [worker]))
    assert apu.status().status == StatusId.RUNNING
    apu.port.send(JobDue(0, apu.counted[0].job))
    assert apu.wait().status == StatusId.DONE


def moves_on(row: Row, live: Callable[[], bool]) -> bool:
    """Whether a row says more and more while something runs."""
    seen: set[int] = set()
    end = time.monotonic() + DEADLINE
    while live() and len(seen) < 4 and time.monotonic() < end:
        seen.add(row[Word.MODELLED])
        time.sleep(0.005)
    return len(seen) == 4 and live()


def test_the_counters_show_how_far_a_job_is(apu: Board) -> None:
    start(apu, ENDLESS)
    row = apu.counters.row(0)
    assert moves_on(row, lambda: apu.status().status == StatusId.RUNNING)
    assert apu.control(Operation.STOP) == 0
    start(apu, SIMPLE)
    assert apu.wait().status == StatusId.DONE
    assert row[Word.MODELLED] <= Price(PROCESSOR)(SIMPLE_WORK)


def test_the_counters_show_how_far_an_execution_is() -> None:
    with engine_board(replace(ENGINE_CONFIG, processor=PROCESSOR)) as made:
        memory, handle = made.memory(pages=1)
        with closing(memory):
            endless, simple = made.program(ENDLESS), made.program(SIMPLE)
            ranges = ((handle, 0, PAGE), (handle, 0, PAGE))
            tag = made.begin(endless, *ranges, row=5)
            other = made.begin(simple, *ranges, row=1)
            assert work_of(made, other) == SIMPLE_WORK
            assert 0 < made.counters.row(0)[Word.MODELLED] <= Price(PROCESSOR)(SIMPLE_WORK)
            assert moves_on(made.counters.row(4), lambda: True)
            made.cancel(tag)
            assert work_of(made, tag) is None


def test_without_a_processor_nothing_is_counted() -> None:
    with board() as plain:
        assert plain.enable() == 0
        start(plain, SIMPLE)
        assert plain.wait().status == StatusId.DONE
        assert not plain.begun + plain.counted + plain.left


# Compute namespaces


def test_executions_count_in_one_worker_or_three() -> None:
    for workers in (1, 3):
        limits = replace(ENGINE_CONFIG.limits, engine_workers=workers)
        with engine_board(replace(ENGINE_CONFIG, processor=PROCESSOR, limits=limits)) as made:
            memory, handle = made.memory(pages=2)
            simple, ranges = made.program(SIMPLE), ((handle, 0, PAGE), (handle, PAGE, PAGE))
            with closing(memory):
                tags = [made.begin(simple, *ranges) for _ in range(6)]
                assert [work_of(made, tag) for tag in tags] == [SIMPLE_WORK] * 6
                faulting = made.begin(made.program(FAULTS), *ranges)
                assert work_of(made, faulting) == FAULTS_WORK


def work_of(made: EngineBoard, tag: int) -> Work | None:
    made.until(lambda: tag in made.ended_executions)
    return made.ended_executions.pop(tag).work


def test_a_program_takes_the_time_that_it_declares() -> None:
    with engine_board(replace(ENGINE_CONFIG, processor=PROCESSOR)) as made:
        memory, handle = made.memory(pages=4)
        ranges = (handle, 0, 2 * PAGE), (handle, 2 * PAGE, PAGE)
        with closing(memory):
            counted = work_of(made, made.begin(made.program(SUM), *ranges))
            assert counted is not None
            for text, ns in (
                ("fixed=20us,per_byte=0.5ns", 20_000 + 3 * PAGE // 2),
                ("scale=3,priority=1", 3 * Price(PROCESSOR)(counted)),
            ):
                tag = made.begin(made.program(with_run_time(SUM, text)), *ranges)
                assert work_of(made, tag) == counted._replace(declared=ns + 1)
                assert Price(PROCESSOR)(counted._replace(declared=ns + 1)) == ns


def test_device_defined_programs_count_the_bytes_that_they_touch() -> None:
    with engine_board(replace(ENGINE_CONFIG, processor=PROCESSOR)) as made:
        memory, handle = made.memory(pages=4)
        first, second = (handle, 0, 2 * PAGE), (handle, 2 * PAGE, 2 * PAGE)
        with closing(memory):
            for asked, expected in (
                ((DeviceProgram.COPY, (0, 0)), 4 * PAGE),
                ((DeviceProgram.COPY, (100, 0)), 200),
                ((DeviceProgram.CRC32C, (0, 0)), 2 * PAGE),
                ((DeviceProgram.FILTER, (10 << 32 | 16, 0)), 160),
            ):
                index, parameters = asked
                tag = made.begin(index, first, second, parameters=parameters)
                assert work_of(made, tag) == Work(bytes=expected)


# What a worker is not believed


RETURNED = JobExecuted(1, Outcome.RETURNED, work=Work())
FAULTED = Executed(1, Outcome.FAULTED, work=Work())
UNCOUNTED = JobExecuted(1, Outcome.RETURNED)


def told(*said: FromWorker, modelled: bool = True) -> list[ToRpu] | None:
    """What the RPU hears when a worker says this; None where it was not believed."""
    sent: list[ToRpu] = []
    config = replace(CONFIG, processor=PROCESSOR if modelled else None)
    accelerator = Subsystem.create(config, lambda: 0.0).accelerators[0]
    accelerator.buffers = replace(accelerator.buffers, input_ranges=(ByteRange(1, 0, PAGE),))
    with PlayedSupervisor(config) as supervisor:
        jobs = Jobs(config, {0: accelerator}, supervisor, sent.append, media={1: 0})
        jobs.runners[0].start(Step(0, b"image", b""))
        (check,) = (one for one in sent if isinstance(one, ReadCheck))
        jobs.handle(ReadChecked(check.tag))
        for one in said:
            supervisor.say(one)
        if supervisor.killed:
            return None
    return [one for one in sent if not isinstance(one, ReadCheck)]


def test_what_a_worker_has_counted_is_passed_on_in_its_order() -> None:
    parts = [BlocksRead((Read(n, 1, 0, PAGE),)) for n in range(3)]
    heard = told(*parts, RETURNED)
    assert heard is not None
    assert heard.pop(0) == JobBegan(0, 1)
    assert heard == [JobCounted(0, 1, Work(), parts[n].reads, more=n < 2) for n in range(3)]
    assert told(UNCOUNTED, modelled=False) == [JobEnded(0, 0xC0)]


@pytest.mark.parametrize(
    "said",
    [
        (UNCOUNTED,),
        (Executed(1, Outcome.FAULTED),),
        (RETURNED, RETURNED),
        (RETURNED, FAULTED),
        (replace(RETURNED, output_length=CONFIG.accelerators[0].output_size + 1),),
        (BlocksRead(()),) * (MOST_READS // RANGES_AT_ONCE + 1),
        (RETURNED, BlocksRead((Read(0, 1, 0, PAGE),))),
        (BlocksRead((Read(0, 1, MEDIA - PAGE, PAGE + 1),)), RETURNED),
        (BlocksRead((Read(0, 2, 0, PAGE),)), RETURNED),
    ],
)
def test_a_worker_that_counts_wrongly_is_not_believed(said: tuple[FromWorker, ...]) -> None:
    assert told(*said) is None


def test_a_worker_that_counts_unasked_is_not_believed() -> None:
    assert told(RETURNED, modelled=False) is None
    assert told(BlocksRead(()), UNCOUNTED, modelled=False) is None


# The counter


def test_the_row_says_how_much_time_a_job_has_taken_so_far() -> None:
    counter = WorkCounter(PROCESSOR)
    seen = [counter.row[Word.MODELLED]]
    counter.instructions.add((1000, *[0] * 7))
    counts: list[Callable[[], None]] = [
        counter.instructions.progress,
        counter.called,
        lambda: counter.accelerated(100),
        lambda: counter.ran_model(4000, 4096),
    ]
    for count in counts:
        count()
        seen.append(counter.row[Word.MODELLED])
        assert seen[-1] == Price(PROCESSOR)(counter.work)
    assert all(before < after for before, after in pairwise(seen))
    counter.begin()
    assert counter.row[Word.MODELLED] == seen[0] == PROCESSOR.dispatch_ns


def test_a_row_holds_what_no_job_takes() -> None:
    counter = WorkCounter(PROCESSOR)
    counter.accelerated(1 << 100)
    assert counter.row[Word.MODELLED] == min(Price(PROCESSOR)(counter.work), (1 << 64) - 1)


def test_very_many_reads_become_bytes() -> None:
    counter = WorkCounter(PROCESSOR)
    counter.reads = [Read(0, 1, 0, PAGE)] * MOST_READS
    counter.read(1, 0, PAGE)
    assert (len(counter.reads), counter.bytes) == (MOST_READS, PAGE)
