"""The modelled time of jobs on accelerators and of executions in compute namespaces.

A worker executes a program as fast as it can and counts what it does. From that follows when the
modelled core would have ended; blocks that the program has read pass through the modelled drive at
the times at which the core would have asked for them. What a program comes to is kept until then.
Each accelerator has a core of its own, and each compute namespace units that it shares out (see
`potash_device.units`), which tasks have until they are due, or until nobody waits for them. All
share the drive and the DRAM. Between two reads, and before its end, a task uses its core first and
then moves bytes in DRAM, so that it is known early when it does not use DRAM yet.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from csd_spec.traffic import CompletionKind, TimedCompletion
from nvme_spec.status import NvmeError
from potash_device.bandwidth import Flow, Transfer
from potash_device.cores import Price, Work
from potash_device.timeline import Timeline
from potash_device.units import Ahead, Pool, Task, UnitScheduler
from potash_firmware.ftl.requests import Op
from potash_firmware.mailbox import messages
from potash_firmware.mailbox.shared import ENGINE_ROWS, Row, Word, unshared_row
from potash_firmware.rpu.deadlines import NO_TIMER
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Scheduler, Signal, Steps, Wait
from potash_firmware.rpu.timing.holding import Running
from potash_firmware.rpu.timing.modelled import ModelledTime, UnreadableError
from potash_firmware.rpu.timing.transfers import Sharing

log = logging.getLogger(__name__)

READS_AT_ONCE = 64
"""Reads of a job that are given to the modelled drive before others are served."""


class Apu(Protocol):
    """The link to the APU, `port` None while there is none."""

    @property
    def port(self) -> object | None: ...

    def send(self, message: messages.JobDue | messages.JobOverdue) -> None: ...


PIECES = 8
"""Pieces of a read that are under way at once, at most."""

POLL_NS = 1_000_000
"""Guest time between two looks at what an emulation has done, while others wait for it."""


class _Pool(Pool):
    """The core of an accelerator, or the units of a compute namespace."""

    def __init__(self, units: int = 1, scheduler: UnitScheduler | None = None) -> None:
        super().__init__(units, scheduler)
        self.tasks: dict[Timed, None] = {}
        """Tasks that have not ended, in the order of arrival."""


class _Flows(NamedTuple):
    """The transfers of an accelerator, or of a compute namespace."""

    dram: Flow
    reads: Flow
    """Blocks on the link."""


@dataclass(eq=False, kw_only=True)
class Timed(Task):
    """A job or an execution, until it has ended in modelled time."""

    arrived: int
    what: str
    """A job or an execution, in traces."""
    pool: _Pool
    flows: _Flows
    time: "JobTime"
    cancel: Callable[[], None]
    over: Callable[["Timed", int], None]
    """Called at its end, with the time, unless nothing comes of the job."""
    order: int
    """Its place among those with the same times, whichever worker ends first."""
    ended: Signal = field(default_factory=Signal)
    """Sent at its end."""
    row: int = 0
    """The same as `Execute.row`."""
    live: Row = field(default_factory=unshared_row)
    work: Work | None = None
    """All that it has counted, once its worker has ended."""
    reads: list[messages.Read] = field(default_factory=list)
    served: int = 0
    """Reads that the drive has been given."""
    moved: int = 0
    """Time of DRAM that it has had, or has."""
    transfers: list[Transfer] = field(default_factory=list)
    """Transfers that it waits for."""

    def ahead(self) -> Ahead:
        core = self.progress if self.work is None else self._point(self.work)[0]
        return Ahead(max(0, core - self.done), is_point=self.work is not None)

    @property
    def progress(self) -> int:
        """The time of its core so far, by its worker."""
        taken = self.live[Word.MODELLED]  # before the next: see `WorkCounter.show`
        return self.time.split(taken, self.live[Word.DRAM])[0]

    def _point(self, work: Work) -> tuple[int, int]:
        """The times of its core and of DRAM until its next read, or its end."""
        if self.served < len(self.reads):
            read = self.reads[self.served]
            return self.time.split(read.at, self.time.price.dram(read.moved))
        moved = 0 if work.declared else work.bytes
        return self.time.split(self.time.price(work), self.time.price.dram(moved))

    def reached(self, at: int) -> int | None:
        assert self.work is not None
        sharing = self.time.sharing
        _, dram = self._point(self.work)
        if sharing is not None and dram > self.moved:
            length, self.moved = dram - self.moved, dram
            self.transfers.append(sharing.dram.begin(self.flows.dram, length, at, self.go_on))
            self.waits = True
            return at
        if self.served < len(self.reads):
            self.served += 1
            read = self.reads[self.served - 1]
            if sharing is None:
                return self.time.read(read, at)
            end = read.first + read.length
            _Reading(self, sharing, read.nsid, read.first, end, at).go_on(at)
            self.waits = bool(self.transfers)
            return at
        self.time.end(self, at)
        return None

    def go_on(self, at: int) -> None:
        """Go on at a time at which all that it waits for is over."""
        self.transfers.clear()
        self.pool.resume(self, at)


@dataclass(eq=False)
class _Reading:
    """A read of a job whose data share the link with others': in pieces, of which a few are under
    way, so that others' blocks are read in between."""

    timed: Timed
    sharing: Sharing
    nsid: int
    first: int
    end: int
    """Bytes that the drive has not been asked for yet."""
    done: int
    """The time at which all pieces that are over were there."""

    def go_on(self, at: int) -> None:
        """Have the drive read as many pieces as may be under way."""
        time, under_way = self.timed.time, self.timed.transfers
        piece = time.timing.transfers.piece
        while self.first < self.end and len(under_way) < PIECES:
            length = min(self.end, self.first // piece * piece + piece) - self.first
            due = time.read(messages.Read(0, self.nsid, self.first, length), at)
            self.first += length
            if due > at:
                begins, link, after = time.timing.transfers.leg(at, due, length)
                flow, over = self.timed.flows.reads, partial(self._over, after)
                under_way.append(self.sharing.to_host.begin(flow, link, begins, over))

    def _over(self, after: int, at: int) -> None:
        """The first piece has crossed the link."""
        self.done = max(self.done, at + after)
        del self.timed.transfers[0]
        self.go_on(at)
        if not self.timed.transfers:
            self.timed.go_on(self.done)


class _Ended(NamedTuple):
    """A job whose output is written: when it began, and when its program ended."""

    start: int
    due: int


class JobTime(Part):
    """The modelled time of all jobs of one controller."""

    def __init__(
        self,
        timing: ModelledTime,
        scheduler: Scheduler,
        apu: Apu,
        units: int,
        unit_scheduler: Callable[[], UnitScheduler],
    ) -> None:
        """A new object of `unit_scheduler` schedules the `units` of each compute namespace."""
        self.timing = timing
        self._units, self._unit_scheduler = units, unit_scheduler
        self._scheduler = scheduler
        self._apu = apu
        self.price = Price(timing.processor)
        self.sharing = timing.transfers.sharing
        self._timeline = Timeline()
        if self.sharing is not None:
            self._timeline.bandwidths = self.sharing.bandwidths
            self.sharing.go_on = self._go_on
        self._timer = NO_TIMER
        """The timer of the next step of the timeline."""
        self._pools: dict[Hashable, _Pool] = {}
        self._common: _Pool | None = None
        """The units that all compute namespaces share, if they do."""
        self._flows: dict[tuple[str, int], _Flows] = {}
        self._accelerators: dict[int, tuple[int, Timed]] = {}
        """The job of each, and its number."""
        self._ended: dict[int, _Ended] = {}
        """The last job of each accelerator whose program has ended."""
        self.awaited: set[int] = set()
        """Accelerators whose jobs the APU has yet to end, as their programs are due."""
        self._rows = list(range(ENGINE_ROWS, 0, -1))
        self.accelerator_row: Callable[[int], Row] = lambda _: unshared_row()
        """The shared counters of an accelerator, by its identifier."""
        self.engine_row: Callable[[int], Row] = lambda _: unshared_row()
        """The counters of an execution, by its row, from 1."""

    def reset(self, *, next_host: bool = False) -> None:
        """The session is over: what runs is stopped, and nobody waits for it."""
        for pool in self._pools.values():
            for timed in reversed(list(pool.tasks)):  # none is to begin in the place of one
                self._drop(timed)
        self.apu_lost()

    def apu_lost(self) -> None:
        """Drop all jobs, which were lost with the APU."""
        self.drop([*self._accelerators, *self._ended, *self.awaited])

    def drop(self, accelerators: Iterable[int]) -> None:
        """Drop the jobs of some accelerators."""
        for accelerator in accelerators:
            if (found := self._accelerators.pop(accelerator, None)) is not None:
                self._drop(found[1])
            self._ended.pop(accelerator, None)
            self.awaited.discard(accelerator)

    # Jobs on accelerators.

    def began(self, message: messages.JobBegan) -> None:
        accelerator, number = message.accelerator, message.job
        self.awaited.discard(accelerator)
        before = self._accelerators.pop(accelerator, None)
        if before is not None:
            self._drop(before[1])
        pool = self._pools.get(("accelerator", accelerator))
        if pool is None:
            pool = self._pools["accelerator", accelerator] = _Pool()
        timed = self._arrive(
            "JOB",
            pool,
            self._flows_of("accelerator", accelerator),
            lambda: self._send(messages.JobOverdue(accelerator, number)),
            lambda _, due: self._job_due(accelerator, number, due),
        )
        timed.live = self.accelerator_row(accelerator)
        timed.live[Word.MODELLED] = 0
        self._accelerators[accelerator] = number, timed

    def counted(self, message: messages.JobCounted) -> None:
        number, timed = self._accelerators.get(message.accelerator, (None, None))
        if timed is None or number != message.job or timed.work is not None:
            return  # of before a reset
        timed.reads += message.reads
        if not message.more:
            timed.reads.sort(key=lambda read: read.at)  # values were read in between
            timed.work = message.work
            self._go_on()

    def left(self, message: messages.JobLeft) -> None:
        number, timed = self._accelerators.get(message.accelerator, (None, None))
        if timed is not None and number == message.job:
            del self._accelerators[message.accelerator]
            self._drop(timed)

    def job(self, accelerator: int) -> Timed | None:
        """The job of an accelerator, until it has ended."""
        return self._accelerators.get(accelerator, (0, None))[1]

    def _job_due(self, accelerator: int, number: int, due: int) -> None:
        _, timed = self._accelerators[accelerator]
        assert timed.start is not None
        self.timing.lateness.add(max(0, self.timing.clock.now() - due))
        self._ended[accelerator] = _Ended(timed.start, due)
        self._completed(CompletionKind.JOB, accelerator, timed.start, due)
        self.awaited.add(accelerator)
        self._send(messages.JobDue(accelerator, number, due - timed.start))

    def write(self, accelerator: int, nsid: int, first: int, length: int) -> tuple[int, int]:
        """The time at which bytes of a job's output are written, and the time since the job's
        beginning. Raises NvmeError."""
        start, due = self._ended.get(accelerator, (self.timing.clock.now(),) * 2)
        done = self.timing.charge(nsid, Op.WRITE, first, length, due)
        self._completed(CompletionKind.OUTPUT, accelerator, due, done)
        return done, done - start

    def _completed(self, kind: CompletionKind, accelerator: int, began: int, at: int) -> None:
        times = {"arrived": began, "began": began, "completed": at}
        self.timing.completed(TimedCompletion(kind, nsid=accelerator, **times))

    def _flows_of(self, kind: str, number: int) -> _Flows:
        """The flows of an accelerator or a compute namespace, with its share."""
        flows = self._flows.get((kind, number))
        if flows is None:
            weight = 1 if self.sharing is None else self.sharing.shares.of(kind, number)
            flows = self._flows[kind, number] = _Flows(Flow(weight), Flow(weight, in_order=True))
        return flows

    # Executions.

    def arrive(
        self, nsid: int, cancel: Callable[[], None], *, program: int, priority: int, loaded: bool
    ) -> Timed:
        """An Execute command has come, of the program at an index; `executed` has to follow."""
        pool = self._pools.get(("namespace", nsid), self._common)
        if pool is None:
            pool = _Pool(self._units, self._unit_scheduler())
            if pool.scheduler.common:
                self._common = self._pools["namespaces", 0] = pool
            else:
                self._pools["namespace", nsid] = pool
        return self._arrive(
            "EXECUTION",
            pool,
            self._flows_of("namespace", nsid),
            cancel,
            self._execution_over,
            program=program,
            priority=priority,
            namespace=nsid,
            loaded=loaded,
        )

    def _execution_over(self, timed: Timed, due: int) -> None:
        assert timed.start is not None
        self.timing.executions += 1
        self.timing.execution_ns = due - timed.start

    def row(self, timed: Timed) -> int:
        """The row for an execution that is given to the engine; 0 if there is none left."""
        timed.row = self._rows.pop() if self._rows else 0
        if timed.row:
            timed.live = self.engine_row(timed.row)
            timed.live[Word.MODELLED] = 0
        return timed.row

    def executed(self, timed: Timed, work: Work | None) -> None:
        """An execution has ended, or nothing came of it where there is no work."""
        if timed.row:
            self._rows.append(timed.row)
            timed.row, timed.live = 0, unshared_row()
        if work is None:
            self._drop(timed)
        else:
            timed.work = work
            self._go_on()

    def until_end(self, timed: Timed) -> Steps[None]:
        """Wait until the execution would have ended."""
        try:
            if timed.end is None:
                yield Wait(timed.ended)
            yield from self._scheduler.until(timed.end, began=timed.start or 0)
        except GeneratorExit:
            self._drop(timed)
            raise

    # Running jobs.

    def working(self, writing: int) -> bool:
        """True while it is not known in modelled time when some job or execution goes on.

        `writing` of the jobs whose programs have ended wait for their output to be written.
        """
        return len(self.awaited) > writing or any(True for _ in self._emulated())

    def running(self) -> Iterator[Running]:
        """The running jobs and executions, with the progress of their workers."""
        lost = set()  # with their APU, which the next one is to say
        if self._apu.port is None:
            lost = {timed for _, timed in self._accelerators.values()}
        for since, timed in self._emulated():
            if timed not in lost:
                yield Running(timed, since, timed.progress)

    def _emulated(self) -> Iterator[tuple[int, Timed]]:
        """Tasks on a unit that are still emulated, each with the time at which it would have begun
        if it had had its unit all the time."""
        for pool in self._pools.values():
            for unit in pool.units:
                timed = unit.task
                if isinstance(timed, Timed) and timed.work is None and timed.end is None:
                    yield unit.since - timed.done, timed

    def fail(self) -> None:
        """Have all that runs end, as it takes too long."""
        for pool in self._pools.values():
            for timed in [task for task in pool.tasks if task.work is None]:
                timed.cancel()

    def _arrive(
        self,
        what: str,
        pool: _Pool,
        flows: _Flows,
        cancel: Callable[[], None],
        over: Callable[["Timed", int], None],
        **task: Any,
    ) -> Timed:
        """A task arrives, with these fields of `Task`."""
        timed = Timed(
            arrived=self.timing.clock.now(),
            what=what,
            pool=pool,
            flows=flows,
            time=self,
            order=self._scheduler.deadlines.place(),
            cancel=cancel,
            over=over,
            **task,
        )
        if pool not in self._timeline.pools:
            self._timeline.pools.append(pool)
        pool.tasks[timed] = None
        pool.arrive(timed)
        self._go_on()
        return timed

    def split(self, ns: int, dram: int) -> tuple[int, int]:
        """The time of its core alone, and the time of DRAM that it has a share of, of work that
        takes `ns` in all, and `dram` of these in DRAM."""
        dram = 0 if self.sharing is None else min(ns, dram)
        return (ns - dram) * self.timing.factor, dram * self.timing.factor

    def _drop(self, timed: Timed) -> None:
        if timed.end is None:
            now = self.timing.clock.now()
            timed.pool.drop(timed, now)
            for transfer in timed.transfers:
                transfer.drop(now)
            self._leave(timed, now)
            self._go_on()

    def end(self, timed: Timed, due: int) -> None:
        """A task has ended in modelled time."""
        assert timed.start is not None
        self.timing.show(timed.what, timed.start, due)
        self._leave(timed, due)
        timed.over(timed, due)

    def _leave(self, timed: Timed, at: int) -> None:
        del timed.pool.tasks[timed]
        timed.end = at
        timed.ended.send()

    def _go_on(self) -> None:
        """Decide what can be decided, and come back when more can be."""
        now, timeline = self.timing.clock.now(), self._timeline
        following = timeline.advance(now, READS_AT_ONCE)
        timeline.pools = [pool for pool in timeline.pools if pool.busy]
        tasks = [timed for pool in self._pools.values() for timed in pool.tasks]
        if timeline.blocked and len(tasks) > 1:
            following = min(following or now + POLL_NS, now + POLL_NS)
        due = None if following is None else max(following, now + 1)
        if self._timer.over or due != self._timer.due:
            self._timer.cancel()
            if due is not None:
                deadlines = self._scheduler.deadlines
                order = min((timed.order for timed in tasks), default=deadlines.place())
                self._timer = deadlines.call(due, self._go_on, order)

    def read(self, read: messages.Read, at: int) -> int:
        """The time at which the drive has read a range that is requested at a given time."""
        try:
            return self.timing.charge(read.nsid, Op.READ, read.first, read.length, at)
        except UnreadableError as error:
            return error.due
        except (NvmeError, ValueError) as error:
            log.debug("a read of a job is not modelled: %s", error)
            return at

    def _send(self, message: messages.JobDue | messages.JobOverdue) -> None:
        if self._apu.port is not None:
            self._apu.send(message)
