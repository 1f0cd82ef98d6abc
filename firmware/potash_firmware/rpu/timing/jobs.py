"""The modelled time of jobs on accelerators and of executions in compute namespaces.

A worker executes a program as fast as it can and counts what it does. From that follows when the
modelled core would have ended; blocks that the program has read pass through the modelled drive at
the times at which the core would have asked for them. What a program comes to is kept until then.
Each accelerator and each compute namespace has one core, which a job has until it is due, or until
nobody waits for it any more.
"""

import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from csd_spec.traffic import CompletionKind, TimedCompletion
from nvme_spec.status import NvmeError
from potash_device.cores import Cores, Job, Price, Work
from potash_firmware.ftl.requests import Op
from potash_firmware.mailbox import messages
from potash_firmware.mailbox.shared import ENGINE_ROWS, Row, Word, unshared_row
from potash_firmware.rpu.deadlines import Timer
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Scheduler, Signal, Steps, Wait
from potash_firmware.rpu.timing.holding import Running
from potash_firmware.rpu.timing.modelled import ModelledTime, UnreadableError

log = logging.getLogger(__name__)

READS_AT_ONCE = 64
"""Reads of a job that are given to the modelled drive before others are served."""


class Apu(Protocol):
    """The link to the APU, `port` None while there is none."""

    @property
    def port(self) -> object | None: ...

    def send(self, message: messages.JobDue | messages.JobOverdue) -> None: ...


@dataclass(eq=False)
class Timed:
    """A job or an execution, until it is known when it ends; then `due` says so."""

    what: str
    """A job or an execution, in traces."""
    place: Job
    cancel: Callable[[], None]
    order: int
    """Its place among those with the same times, whichever worker ends first."""
    over: Callable[[int], None] = lambda _: None
    """Called at that time, with it, unless nothing comes of the job."""
    known: Signal = field(default_factory=Signal)
    """Sent when that time is known, which may lie ahead."""
    row: int = 0
    """The same as `Execute.row`."""
    live: Row = field(default_factory=unshared_row)
    work: Work | None = None
    """All that it has counted, once its worker has ended."""
    reads: list[messages.Read] = field(default_factory=list)
    due: int | None = None
    timer: Timer | None = None
    """The next step for the job."""
    served: int = 0
    """Reads that the drive has been given."""
    at: int = 0
    """The time at which the last of these completed, and the core's work before that: `worked`."""
    worked: int = 0


class _Ended(NamedTuple):
    """A job whose output is written: when it began, and when its program ended."""

    start: int
    due: int


class JobTime(Part):
    """The modelled time of all jobs of one controller."""

    def __init__(self, timing: ModelledTime, scheduler: Scheduler, apu: Apu) -> None:
        self._timing = timing
        self._scheduler = scheduler
        self._apu = apu
        self._price = Price(timing.processor)
        self._cores = Cores()
        self._timed: dict[Job, Timed] = {}
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
        for timed in reversed(list(self._timed.values())):  # none is to begin in the place of one
            self._drop(timed)
        self.apu_lost()

    def apu_lost(self) -> None:
        """Drop all jobs, which were lost with the APU."""
        for _, timed in self._accelerators.values():
            self._drop(timed)
        self._accelerators.clear()
        self._ended.clear()
        self.awaited.clear()

    # Jobs on accelerators.

    def began(self, message: messages.JobBegan) -> None:
        accelerator, number = message.accelerator, message.job
        self.awaited.discard(accelerator)
        before = self._accelerators.pop(accelerator, None)
        if before is not None:
            self._drop(before[1])
        timed = self._arrive(
            "JOB",
            ("accelerator", accelerator),
            lambda: self._send(messages.JobOverdue(accelerator, number)),
            partial(self._job_due, accelerator, number),
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
            timed.work = message.work
            self._settle(timed)

    def left(self, message: messages.JobLeft) -> None:
        number, timed = self._accelerators.get(message.accelerator, (None, None))
        if timed is not None and number == message.job:
            del self._accelerators[message.accelerator]
            self._drop(timed)

    def _job_due(self, accelerator: int, number: int, due: int) -> None:
        _, timed = self._accelerators[accelerator]
        assert timed.place.start is not None
        self._timing.lateness.add(max(0, self._timing.clock.now() - due))
        self._ended[accelerator] = _Ended(timed.place.start, due)
        start = timed.place.start
        self._timing.completed(
            TimedCompletion(
                CompletionKind.JOB, nsid=accelerator, arrived=start, began=start, completed=due
            )
        )
        self.awaited.add(accelerator)
        self._send(messages.JobDue(accelerator, number, due - timed.place.start))

    def write(self, accelerator: int, nsid: int, first: int, length: int) -> tuple[int, int]:
        """The time at which bytes of a job's output are written, and the time since the job's
        beginning. Raises NvmeError."""
        start, due = self._ended.get(accelerator, (self._timing.clock.now(),) * 2)
        done = self._timing.charge(nsid, Op.WRITE, first, length, due)
        self._timing.completed(
            TimedCompletion(
                CompletionKind.OUTPUT, nsid=accelerator, arrived=due, began=due, completed=done
            )
        )
        return done, done - start

    # Executions.

    def arrive(self, nsid: int, cancel: Callable[[], None]) -> Timed:
        """An Execute command has come; `executed` has to follow."""
        timed = self._arrive("EXECUTION", ("engine", nsid), cancel)
        timed.over = partial(self._execution_over, timed)
        return timed

    def _execution_over(self, timed: Timed, due: int) -> None:
        assert timed.place.start is not None
        self._timing.executions += 1
        self._timing.execution_ns = due - timed.place.start

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
            self._settle(timed)

    def until_due(self, timed: Timed) -> Steps[None]:
        """Wait until the execution would have ended."""
        try:
            if timed.due is None:
                yield Wait(timed.known)
            yield from self._scheduler.until(timed.due, began=timed.place.start or 0)
        except GeneratorExit:
            self._drop(timed)
            raise

    # Running jobs.

    def working(self, writing: int) -> bool:
        """True while it is not known in modelled time when some job or execution goes on.

        `writing` of the jobs whose programs have ended wait for their output to be written.
        """
        return len(self.awaited) > writing or any(
            timed.work is None and place.start is not None for place, timed in self._timed.items()
        )

    def running(self) -> Iterator[Running]:
        """The running jobs and executions, with the progress of their workers."""
        factor = self._timing.factor
        lost = set()  # with their APU, which the next one is to say
        if self._apu.port is None:
            lost = {timed for _, timed in self._accelerators.values()}
        for place, timed in self._timed.items():
            if timed.work is None and place.start is not None and timed not in lost:
                yield Running(place, place.start, timed.live[Word.MODELLED] * factor)

    def fail(self) -> None:
        """Have all that runs end, as it takes too long."""
        for timed in [one for one in self._timed.values() if one.work is None]:
            timed.cancel()

    def _arrive(
        self,
        what: str,
        core: Hashable,
        cancel: Callable[[], None],
        over: Callable[[int], None] = lambda _: None,
    ) -> Timed:
        place = self._cores.begin(core, self._timing.clock.now())
        order = self._scheduler.deadlines.place()
        timed = self._timed[place] = Timed(what, place, cancel, order, over)
        return timed

    def _drop(self, timed: Timed) -> None:
        if self._timed.pop(timed.place, None) is not None:
            if timed.timer is not None:
                timed.timer.cancel()
            now = self._timing.clock.now()
            following = self._cores.drop(timed.place, now)
            self._known(timed, now)
            self._begin(following)

    def _leave(self, timed: Timed, due: int) -> None:
        del self._timed[timed.place]
        timed.over(due)
        self._begin(self._cores.end(timed.place, due))

    def _begin(self, following: Job | None) -> None:
        """A core was left, so it may be known now when the next job begins."""
        if following is not None:
            self._settle(self._timed[following])

    def _settle(self, timed: Timed) -> None:
        """Find out when it ends, if it is known when it has begun and what it has done."""
        start = timed.place.start
        dropped = timed.place not in self._timed  # the engine ends an execution after a reset, too
        if timed.work is not None and start is not None and not dropped:
            timed.at = start
            self._go_on(timed)

    def _go_on(self, timed: Timed) -> None:
        """Give the drive the reads whose time has come, and end behind the last."""
        assert timed.work is not None
        factor, clock = self._timing.factor, self._timing.clock
        for _ in range(READS_AT_ONCE):
            if timed.served == len(timed.reads):
                break
            read = timed.reads[timed.served]
            at = timed.at + (read.at - timed.worked) * factor
            if at > clock.now():
                self._call(at, timed, partial(self._go_on, timed))
                return
            timed.at, timed.worked = self._read(read, at), read.at
            timed.served += 1
        else:
            self._call(clock.now() + 1, timed, partial(self._go_on, timed))
            return
        due = timed.at + max(0, self._price(timed.work) - timed.worked) * factor
        assert timed.place.start is not None
        self._timing.show(timed.what, timed.place.start, due)
        self._known(timed, due)
        self._call(due, timed, partial(self._leave, timed, due))

    def _call(self, at: int, timed: Timed, step: Callable[[], None]) -> None:
        """Take a step at a time, unless the job is gone by then."""
        timed.timer = self._scheduler.deadlines.call(at, step, timed.order)

    def _read(self, read: messages.Read, at: int) -> int:
        """The time at which the drive has read a range that is requested at a given time."""
        try:
            return self._timing.charge(read.nsid, Op.READ, read.first, read.length, at)
        except UnreadableError as error:
            return error.due
        except (NvmeError, ValueError) as error:
            log.debug("a read of a job is not modelled: %s", error)
            return at

    def _known(self, timed: Timed, due: int) -> None:
        timed.due = due
        timed.known.send()

    def _send(self, message: messages.JobDue | messages.JobOverdue) -> None:
        if self._apu.port is not None:
            self._apu.send(message)
