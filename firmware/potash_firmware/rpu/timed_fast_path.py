"""The fast path in modelled time.

As on the slow path, the model is asked before the data of a command are moved, and they are moved
before the command waits for its deadline. A command that waits is one small object in place of a
suspended generator, and commands whose deadlines have passed are answered together.
"""

from collections import defaultdict
from collections.abc import Callable
from heapq import heappop
from itertools import groupby
from typing import NamedTuple

from csd_spec.traffic import CompletionKind, TimedCompletion
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.memory_commands import MEMORY_GRANULARITY
from nvme_spec.queues import SUBMISSION_ENTRY_SIZE, SubmissionEntry
from nvme_spec.status import NvmeError
from potash_device.controller.queues import SubmissionQueue
from potash_device.flash.profile import PAGE
from potash_firmware.ftl.requests import Op
from potash_firmware.rpu.command import Command
from potash_firmware.rpu.command_sets.fast_path import FastPath
from potash_firmware.rpu.commands import Commands
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import FastAccess
from potash_firmware.rpu.outstanding import OUTSTANDING_LIMIT, CommandTask
from potash_firmware.rpu.statistics import Histogram
from potash_firmware.rpu.timing.modelled import ModelledTime
from potash_firmware.rpu.timing.transfers import Crossing

_COMMAND = int(CompletionKind.COMMAND)


class Batch(NamedTuple):
    """Commands of a queue that were fetched together, at a time in nanoseconds."""

    path: "TimedFastPath"
    queue: SubmissionQueue
    entries: memoryview
    fetched: int

    def entry(self, index: int) -> SubmissionEntry:
        return SubmissionEntry.decode(self.entries, index * SUBMISSION_ENTRY_SIZE)


DSM_BYTE = 52
"""The byte of an entry with the field DSM of a write."""


class Kind(NamedTuple):
    """Commands of one opcode and namespace, and the histogram of their times."""

    csi: int
    opcode: int
    nsid: int
    times: Histogram


class TimedCommand(CommandTask):
    """A command whose data were moved, and that completes at its deadline.

    It is a task without a generator: all that is left of it is to complete.
    """

    __slots__ = ("batch", "crossing", "index", "kind")
    name: int
    waits_for: int

    def __init__(self, batch: Batch, index: int, cid: int, kind: Kind, due: int) -> None:
        self.batch = batch
        self.index = index
        self.name = cid
        self.kind = kind
        self.waits_for = due
        self.over = False
        self.crossing: Crossing | None = None
        """The transfers of its data, until it is known when they end."""

    @property
    def command(self) -> Command:  # type: ignore[override]
        """The command, for those few that do not complete together with others."""
        batch = self.batch
        entry = batch.entry(self.index)
        return Command(entry, batch.queue, CommandSet(self.kind.csi), batch.fetched)

    @property
    def paused(self) -> Callable[[], bool]:  # type: ignore[override]
        return self.batch.path.paused

    def crossed(self, due: int) -> None:
        """It is known when its data have been transferred, and it completes."""
        self.waits_for, self.crossing = due, None
        self.batch.path.put(due, self)

    def close(self) -> None:
        self.over = True
        if self.crossing is not None:
            self.crossing.drop()

    def wake(self, value: object = None) -> None:
        self.batch.path.wake(self)

    def go_on(self, value: object = None) -> bool:
        if not self.over:
            self.over = True
            self.batch.path.complete(self)
        return False


class TimedMedia:
    """The media of a namespace: before it moves data, the model is asked when the command ends.

    The answer stays in `ModelledTime.asked` until the command waits for its deadline.
    """

    def __init__(self, path: "TimedFastPath", nsid: int, access: FastAccess) -> None:
        csi, read, write, *_, media = access
        statistics, drive = path.controller.statistics, path.timing.drive
        self._path, self._timing, self._nsid = path, path.timing, nsid
        self.access, self._media = access, media
        self._blocks = path.controller.namespaces.blocks.get(nsid)
        """The namespace; None for one of memory."""
        self.pieces = path.timing.pieces(nsid)
        self._start, self._pages = self.pieces[0] if len(self.pieces) == 1 else (0, 0)
        self._read = Kind(csi, read or 0, nsid, statistics.reads)
        self._write = Kind(csi, write or 0, nsid, statistics.writes)
        if path.timing.has_errors:
            self._pages = 0  # `charge` looks whether pages could be read.
        self._submit = drive.submit
        self._shares = path.timing.transfers.sharing is not None
        self._data, self._hints, self._calls = drive.data, drive.hints, drive.calls
        self.require_whole = media.require_whole

    def read_at_once(self, views: list[memoryview], offset: int) -> bool:
        asked = self._ask(Op.READ, self._read, views, offset)
        return asked and self._media.read_at_once(views, offset)

    def write_at_once(self, views: list[memoryview], offset: int) -> bool:
        if self._data or (self._hints and self._path.has_attributes):
            return False  # The slow path gives the FTL what it wants to know of a write.
        asked = self._ask(Op.WRITE, self._write, views, offset)
        return asked and self._media.write_at_once(views, offset)

    def _ask(self, op: Op, kind: Kind, views: list[memoryview], offset: int) -> bool:
        """Ask the model. Returns False if the slow path has to go on."""
        timing = self._timing
        self._path.kind = kind
        length = len(views[0]) if len(views) == 1 else sum(map(len, views))
        first, end = offset // PAGE, -(-(offset + length) // PAGE)
        shares, inwards = self._shares, op is Op.WRITE
        try:
            if end <= self._pages and not (
                self._hints and op is Op.WRITE and timing.describes_writes(self._nsid)
            ):
                arrival = self._path.arrival
                if shares:
                    timing.drive.free_link()
                    # A job may have read since the first command of the batch.
                    arrival = timing.arrival(self._path.fetched)
                done = self._submit(arrival, op, self._start + first, end - first)
                timing.asked = done * timing.factor if done >= 0 else timing.time_of(done)
            elif self._blocks is None:
                if (offset | length) % MEMORY_GRANULARITY:  # the command is refused
                    return False
                timing.asked = timing.transfers.memory(length, length, inwards=inwards)
            else:  # of a namespace in several pieces, or that ends within a page
                at = self._path.fetched  # as the rest of the batch: time never goes back
                timing.asked = timing.charge(self._nsid, op, offset, length, at)
            if shares and isinstance(timing.asked, int):
                timing.asked = timing.transfers.cross(timing.asked, length, inwards=inwards)
        except NvmeError as error:
            timing.asked = error
            raise
        # The FTL may have begun something that has to end before the data are moved.
        return not (self._calls and self._blocks is not None and self._blocks.in_flight.busy)


class TimedFastPath(FastPath):
    """The fast path of a controller with modelled time."""

    def __init__(self, controller: Controller, timing: ModelledTime, commands: Commands) -> None:
        super().__init__(controller, commands.complete_successes, commands.interrupts.send)
        self._timed = self
        self.controller, self.timing, self._commands = controller, timing, commands
        self._outstanding, self._deadlines = controller.outstanding, controller.deadlines
        self.paused = commands.must_wait
        self._media: dict[int, TimedMedia] = {}
        self._batch: Batch
        self._cids: list[int] = []
        self._waiting: dict[object, CommandTask] = {}
        self.arrival = 0
        """The time of the drive at which the commands of the batch arrive."""
        self.kind: Kind
        """The kind of the command for which the model was asked last."""

    def run(self, queue: SubmissionQueue, limit: int) -> int:
        timing = self.timing
        if self.controller.board.dma.remote:
            return 0
        done = super().run(queue, min(limit, OUTSTANDING_LIMIT - len(self._outstanding.all)))
        timing.notice_retired()
        if timing.asked is not None:  # it is refused, or its data cannot be moved immediately
            self._commands.begin(queue)
            timing.asked = None
            done += 1
        return done

    def begin(
        self, queue: SubmissionQueue, entries: memoryview, cids: list[int]
    ) -> Callable[[int], None]:
        """Implement `Deferral`, as `media` does."""
        now = self._deadlines.clock.now()
        self._batch, self._cids = Batch(self, queue, entries, now), cids
        self._waiting = self._outstanding.by_queue[queue.qid]
        if self.controller.power is not None:
            self.controller.power.begin()
        self.arrival = self.timing.arrival(now)
        return self._wait

    def media(self, nsid: int, access: FastAccess) -> TimedMedia:
        media = self._media.get(nsid)
        if (
            media is None
            or media.access is not access
            or media.pieces is not self.timing.pieces(nsid)
        ):
            media = TimedMedia(self, nsid, access)
            if access.csi != CommandSet.MEMORY:  # whose memory has to be freed with the namespace
                self._media[nsid] = media
        return media

    @property
    def fetched(self) -> int:
        """The time at which the batch was fetched."""
        return self._batch.fetched

    @property
    def has_attributes(self) -> bool:
        """The command that is about to be executed, a write, has attributes of its data."""
        return self._batch.entries[len(self._cids) * SUBMISSION_ENTRY_SIZE + DSM_BYTE] != 0

    def _wait(self, cid: int) -> None:
        """The command for which the model was asked waits for its deadline."""
        due = self.timing.asked
        self.timing.asked = None
        crossing = due if isinstance(due, Crossing) else None
        if crossing is not None:
            due = crossing.at
        assert isinstance(due, int)
        task = TimedCommand(self._batch, len(self._cids), cid, self.kind, due)
        self._cids.append(cid)
        self._outstanding.all[task] = None
        self._waiting[cid] = task
        if crossing is None:
            self._deadlines.put(due, task)
        else:
            task.crossing = crossing
            crossing.when_due(task.crossed)

    def wake(self, first: TimedCommand) -> None:
        """Complete a command, and those behind it whose deadlines have passed, too."""
        scheduler, heap = self.controller.scheduler, self._deadlines.heap
        now, tasks = self._deadlines.clock.now(), [first]
        while (
            heap
            and heap[0][0] <= now
            and isinstance(task := heap[0][2], TimedCommand)
            and task.batch.path is self
        ):
            heappop(heap)
            if not task.over:
                tasks.append(task)
        if self.paused():
            scheduler.held.extend((task, None) for task in tasks)
            return
        for queue, of_queue in groupby(tasks, lambda task: task.batch.queue):
            together = list(of_queue)
            if self._commands.may_complete(queue, len(together)):
                self._complete_together(queue, together, now)
            else:
                for task in together:
                    task.go_on()

    def _complete_together(
        self, queue: SubmissionQueue, tasks: list[TimedCommand], now: int
    ) -> None:
        timing, qid, waiting = self.timing, queue.qid, self._outstanding.by_queue[queue.qid]
        cids, late, completions = [], [], []
        took: dict[Histogram, list[int]] = defaultdict(list)
        for task in tasks:
            task.over = True
            cid, due, fetched = task.name, task.waits_for, task.batch.fetched
            csi, opcode, nsid, times = task.kind
            del self._outstanding.all[task], waiting[cid]
            cids.append(cid)
            late.append(now - due)
            took[times].append(now - fetched)
            row = (_COMMAND, opcode, 0, qid, cid, nsid, csi, fetched, fetched, due)
            completions.append(TimedCompletion._make(row))
        timing.completed(*completions)
        if self.controller.power is not None:
            self.controller.power.completed = completions[-1].completed
        self._deadlines.lateness.add_all(late)
        for times, nanoseconds in took.items():
            times.add_all(nanoseconds)
        self._complete(queue, cids)

    def put(self, due: int, task: TimedCommand) -> None:
        """A command waits for its deadline."""
        if not task.over:
            self._deadlines.put(due, task)

    def complete(self, task: TimedCommand) -> None:
        """Complete a command by itself."""
        command = task.command
        self._outstanding.discard(task)
        self._deadlines.lateness.add(self._deadlines.clock.now() - task.waits_for)
        self.controller.scheduler.reached = 0, task.waits_for
        self._commands.succeeded(command)
