"""The commands that were fetched and not yet answered because they wait for something.

One that has ended (reset, queue deleted, aborted) is closed, so that no command is answered twice,
whatever comes of what it has begun."""

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from nvme_spec.opcodes import AdminOpcode
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Signal, Task, Wait

OUTSTANDING_LIMIT = 4096
"""Commands that wait at most. Beyond it they wait in their queues, in the host's own memory."""

_EVENT_REQUEST = int(AdminOpcode.ASYNCHRONOUS_EVENT_REQUEST)


def _is_event_request(command: Command) -> bool:
    return not command.queue.qid and command.entry.opcode == _EVENT_REQUEST


class FirstHalf(NamedTuple):
    """The first half of a fused operation, which waits for the next entry of its queue."""

    command: Command
    next: Signal
    """Brings what the second half makes of both, or None where that entry is none."""


class CommandTask(Task):
    """The task of a command, which does not go on in a pause."""

    __slots__ = ("command", "name")
    command: Command
    name: object
    """Tells it from the others of its queue: its identifier, or itself for an event request. A host
    that is about to disable the controller may end its event requests for itself, and give their
    identifiers to other commands (SPDK does)."""


class Outstanding(Part):
    """Waiting commands, in the order in which they began to wait, and by queue and identifier."""

    def __init__(self) -> None:
        self.all: dict[CommandTask, None] = {}
        """All waiting commands, in the order in which they began to wait."""
        self.by_queue: defaultdict[int, dict[object, CommandTask]] = defaultdict(dict)
        """The waiting commands of each submission queue by identifier (event requests by task)."""
        self.aborted: list[tuple[Command, NvmeError]] = []
        """Commands that another command has ended, which are answered before that one."""
        self.answer: Callable[[], None] = lambda: None
        """Answers them now."""
        self.fused: dict[int, FirstHalf] = {}
        """First halves of fused operations that wait for the second, by queue."""

    def __len__(self) -> int:
        return len(self.all)

    def conflicts(self, command: Command) -> bool:
        """Another command has the identifier of this one; the identifier of an event request
        counts for event requests alone."""
        qid, cid = command.key
        if qid:
            return cid in self.by_queue[qid]
        found = self.find((qid, cid))
        return found is not None and (
            _is_event_request(command) or not _is_event_request(found.command)
        )

    @property
    def commands(self) -> list[Command]:
        """All of them, in the order in which they have begun to wait."""
        return [task.command for task in self.all]

    @property
    def admin(self) -> int:
        """The number of waiting Admin commands."""
        return len(self.by_queue[0])

    @property
    def any_io(self) -> bool:
        """An I/O command is outstanding."""
        return len(self.all) > self.admin

    @property
    def working(self) -> bool:
        """A command is outstanding that is no event request."""
        return self.any_io or any(
            not _is_event_request(task.command) for task in self.by_queue[0].values()
        )

    def add(self, task: CommandTask) -> None:
        """A command waits from now on."""
        command = task.command
        entry, qid = command.entry, command.queue.qid
        task.name = task if not qid and entry.opcode == _EVENT_REQUEST else entry.cid
        self.all[task] = None
        self.by_queue[qid][task.name] = task

    def discard(self, task: CommandTask) -> None:
        """A command waits no longer, if it did."""
        if task in self.all:
            del self.all[task]
            del self.by_queue[task.command.queue.qid][task.name]

    def find(self, key: tuple[int, int]) -> CommandTask | None:
        qid, cid = key
        queue = self.by_queue[qid]
        found = queue.get(cid)
        if found is None and not qid:  # few wait there
            found = next((task for task in queue.values() if task.command.entry.cid == cid), None)
        return found

    def reset(self, *, next_host: bool = False) -> None:
        """End all of them, unanswered; the last first, so that none goes on in place of another."""
        tasks = list(self.all)
        self.all.clear()
        self.by_queue.clear()
        for task in reversed(tasks):
            task.close()
        self.aborted.clear()
        self.fused.clear()

    def abort(self, key: tuple[int, int]) -> bool | Future[Any]:
        """End a command that waits; False when no such one does, or it cannot be cancelled.

        One that can only be stopped ends soon: with the future that is given.
        """
        task = self.find(key)
        if task is None:
            return False
        if self._stop(task, Status.ABORT_REQUESTED):
            assert task.future is not None
            return task.future
        if not task.cancel():
            return False
        self._end(task, Status.ABORT_REQUESTED)
        return True

    def abort_queue(self, qid: int) -> set[Future[Any]]:
        """End the commands of a submission queue that is being deleted.

        Those that the media or an engine work on cannot be cancelled: their futures are given. A
        write that was called ended would undo what the host writes to the same blocks after it.
        """
        self.fused.pop(qid, None)
        return {
            future
            for task in list(self.by_queue[qid].values())
            for future in self.end(task, Status.SQ_DELETION_ABORTED)
        }

    def end(self, task: CommandTask, status: Status) -> set[Future[Any]]:
        """End a command, if it still waits. The future of what the media or an engine do for it,
        which has to end first, if anything: not that of a task which could go on but for a pause,
        as that may last for ever."""
        if task not in self.all:
            return set()
        future = task.future
        if future is None or (future.done() and task.paused()):
            half = self.fused.get(task.command.queue.qid)
            if half is not None and half.command is task.command:
                del self.fused[task.command.queue.qid]
            self._end(task, status)
            return set()
        self._stop(task, status)
        return {future}

    def abort_namespace(self, nsid: int) -> set[Future[Any]]:
        """End the I/O commands on a namespace that is being detached, but for those that the media
        or an engine work on: their futures are given."""
        begun: set[Future[Any]] = set()
        for task in [task for task in self.all if task.command.entry.nsid == nsid]:
            future = task.future
            if not task.command.queue.qid:
                continue
            if future is None or future.done():
                self._end(task, Status.INVALID_FIELD)
            else:
                begun.add(future)
        return begun

    def _stop(self, task: CommandTask, status: Status) -> bool:
        """Hasten the end of what works for a command; False where that cannot be done."""
        wait, future = task.waits_for, task.future
        if not isinstance(wait, Wait) or wait.stop is None or future is None or future.done():
            return False
        wait.stop(NvmeError(status, dnr=False))
        return True

    def _end(self, task: CommandTask, status: Status) -> None:
        self.discard(task)
        task.close()
        self.aborted.append((task.command, NvmeError(status, dnr=False)))
