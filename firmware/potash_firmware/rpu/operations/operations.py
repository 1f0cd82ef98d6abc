"""Operations that take many steps, each of which may wait for storage.

An operation is a task of the scheduler, and between two of its steps the loop serves commands. One
that has begun belongs to the drive: a reset drops the command, and the operation continues, unless
it has not begun yet. Operations that change namespaces are exclusive, whichever controller they are
of: each begins when the previous one has ended."""

import logging
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Steps
from potash_firmware.rpu.media_work import MediaWork
from potash_firmware.rpu.namespaces.inventory import StoredNamespace
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Scheduler, Signal, Task

log = logging.getLogger(__name__)

OPERATION_LIMIT = 64
"""Operations beyond which no Admin command is fetched: resets forget commands, but not what they
began."""


class Operation:
    """An operation under way, or one that waits for others."""

    def __init__(self, steps: Steps, *, exclusive: bool) -> None:
        self.steps = steps
        self.exclusive = exclusive
        self.task: Task | None = None
        self.ended = Signal()
        self.over = False
        self.dword: int | None = None
        self.error: NvmeError | None = None

    @property
    def passes_time(self) -> bool:
        """The operation waits for a time."""
        return self.task is not None and isinstance(self.task.waits_for, int)

    def result(self) -> int | None:
        """The result of an operation that has ended. Raises NvmeError."""
        if self.error is not None:
            raise self.error
        return self.dword


class Operations:
    """The operations of a drive."""

    def __init__(self, media_work: MediaWork, scheduler: Scheduler) -> None:
        self._media_work = media_work
        self._scheduler = scheduler
        self._running: list[Operation] = []
        self._queue: deque[Operation] = deque()

    @property
    def idle(self) -> bool:
        return not self._running and not self._queue

    def drop(self, operations: Collection[Operation]) -> None:
        """Drop those of these operations that have begun nothing."""
        self._queue = deque(each for each in self._queue if each not in operations)

    def quiet(self, namespaces: Sequence[StoredNamespace | MemoryNamespace]) -> Steps:
        """Wait for all work on these namespaces, on which nothing new may begin.

        A command that still has steps after that, as it is held while Bus Master Enable is 0, must
        not take them.
        """
        yield self._media_work.every | self._scheduler.calls
        # A command that had begun may have a next step, which is what it has begun now.
        while going_on := set().union(*(ns.in_flight.futures for ns in namespaces)):
            yield going_on
        for namespace in namespaces:
            namespace.in_flight = namespace.in_flight.replaced()
        return None

    def start(self, steps: Steps, *, exclusive: bool = False) -> Operation:
        """Begin an operation, which may be over when this returns, or wait for others."""
        operation = Operation(steps, exclusive=exclusive)
        if exclusive and any(operation.exclusive for operation in self._running):
            self._queue.append(operation)
        else:
            self._begin(operation)
        return operation

    def _begin(self, operation: Operation) -> None:
        def ended(_: Task, dword: Any, error: Exception | None) -> None:
            operation.dword = dword
            operation.error = None if error is None else _refusal(error)
            operation.over = True
            self._running.remove(operation)
            operation.ended.send()
            while self._queue and not any(other.exclusive for other in self._running):
                self._begin(self._queue.popleft())

        self._running.append(operation)
        operation.task = self._scheduler.start(operation.steps, ended)


class CommandOperations(Part):
    """The operations that commands of one controller have begun, among those of the `drive`."""

    def __init__(self, drive: Operations) -> None:
        self._drive = drive
        self._of_commands: list[Operation] = []

    @property
    def idle(self) -> bool:
        """The drive has no operations, whosesoever they are."""
        return self._drive.idle

    @property
    def full(self) -> bool:
        """No command should begin another one, but for one that only passes time."""
        if len(self._of_commands) < OPERATION_LIMIT:
            return False
        self._of_commands = [each for each in self._of_commands if not each.over]
        return sum(not each.passes_time for each in self._of_commands) >= OPERATION_LIMIT

    def reset(self, *, next_host: bool = False) -> None:
        """A controller reset: drop the operations that have begun nothing."""
        self._drive.drop(self._of_commands)
        self._of_commands = [each for each in self._of_commands if each.task and not each.over]

    def command(self, steps: Steps, *, exclusive: bool = True) -> Steps:
        """Begin an operation for a command, and wait for its end. Raises NvmeError."""
        operation = self._drive.start(steps, exclusive=exclusive)
        self._of_commands.append(operation)
        try:
            yield operation.ended
        finally:
            self._of_commands = [each for each in self._of_commands if not each.over]
        return operation.result()


def _refusal(error: Exception) -> NvmeError:
    """The error of the command whose operation has ended with this exception."""
    if isinstance(error, NvmeError):
        return error
    if isinstance(error, MediaError):
        log.error("an operation on the drive has failed: %s", error.strerror)
        return NvmeError(Status.INTERNAL_ERROR, str(error.strerror), dnr=False)
    # A bug of the firmware must not end the drive.
    log.error("an operation on the drive failed", exc_info=error)
    return NvmeError(Status.INTERNAL_ERROR, str(error), dnr=False)
