"""Operations that take many steps, each of which may wait for storage.

A task is a generator in the loop's thread, which yields what it waits for (`command.Step`); between
two steps the loop serves other commands. A task that has begun belongs to the drive: a reset drops
the command, and the task continues, unless it has not begun yet. Tasks that change namespaces are
exclusive: each begins when the previous one has ended."""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Pending, Result, Steps
from potash_firmware.rpu.media_work import BlocksInFlight, MediaWork

log = logging.getLogger(__name__)

TASK_LIMIT = 64
"""Tasks beyond which no Admin command is fetched: resets forget commands, but not what they
began."""


class Task:
    """An operation under way; its end is a token that a command can wait for."""

    def __init__(self, steps: Steps, *, exclusive: bool, of_command: bool) -> None:
        self.steps = steps
        self.exclusive = exclusive
        self.of_command = of_command
        """It is a command's, which a reset forgets."""
        self.call: Future[Any] | None = None
        """The call that the media executor makes for it."""
        self.awaited: set[Future[Any]] = set()
        self.until: float | None = None
        """When it goes on, if it waits for that."""
        self.ended = False
        self.dword: int | None = None
        self.error: NvmeError | None = None

    def result(self) -> int | None:
        """What an ended task has come to. Raises NvmeError."""
        if self.error is not None:
            raise self.error
        return self.dword


class Tasks:
    """The tasks of one controller; `clock` gives seconds."""

    def __init__(self, media_work: MediaWork, clock: Callable[[], float]) -> None:
        self._media_work = media_work
        self._clock = clock
        self.resting = 0
        """Tasks that wait for a time."""
        self._running: list[Task] = []
        self._queue: deque[Task] = deque()

    @property
    def idle(self) -> bool:
        return not self._running and not self._queue

    @property
    def full(self) -> bool:
        """No command should begin another task, but for one that only passes time."""
        return len(self._running) - self.resting + len(self._queue) >= TASK_LIMIT

    def reset(self) -> None:
        """A controller reset: drop the commands' tasks that have begun nothing."""
        self._queue = deque(task for task in self._queue if not task.of_command)

    @property
    def calls(self) -> "set[Future[Any]]":
        """What the media executor does for tasks now."""
        return {task.call for task in self._running if task.call is not None}

    def quiet(self, blocks: Iterable[BlocksInFlight]) -> Steps:
        """Wait for whatever was begun on these blocks, on which nothing new may begin."""
        yield self._media_work.unfinished | self.calls
        # A command that had begun may have a next step, which is what it has begun now.
        while going_on := set().union(*(one.futures for one in blocks)):
            yield going_on
        return None

    def command(self, steps: Steps, *, exclusive: bool = True) -> Result:
        """Begin a task for a command: its result, or `Pending` until it has ended."""
        task = self.start(steps, exclusive=exclusive, of_command=True)
        return task.result() if task.ended else Pending(task, lambda _: task.result())

    def start(self, steps: Steps, *, exclusive: bool = False, of_command: bool = False) -> Task:
        """Begin a task, which may be over when this returns, or wait for others."""
        task = Task(steps, exclusive=exclusive, of_command=of_command)
        if exclusive and any(one.exclusive for one in self._running):
            self._queue.append(task)
        else:
            self._begin(task)
        return task

    @property
    def timeout(self) -> float | None:
        """Seconds until a task goes on by itself; None when none does."""
        if not self.resting:
            return None
        due = min(task.until for task in self._running if task.until is not None)
        return max(0.0, due - self._clock())

    def time_passed(self) -> list[Task]:
        """Go on with those whose time has come; those that have ended."""
        now = self._clock()
        due = [task for task in self._running if task.until is not None and task.until <= now]
        for task in due:
            task.until = None
            self.resting -= 1
            self._go_on(task, None)
        return self._begin_queued(due)

    def media_finished(self, future: "Future[Any]") -> list[Task]:
        """Some work of the media has ended; the tasks that have, too."""
        waiting = list(self._running)
        for task in waiting:
            if future is task.call:
                task.call = None
                self._go_on(task, future)
            elif future in task.awaited:
                task.awaited.discard(future)
                if not task.awaited:
                    self._go_on(task, None)
        return self._begin_queued(waiting)

    def _begin_queued(self, gone_on: list[Task]) -> list[Task]:
        """Begin those that need wait no longer; all that have ended, of `gone_on` and of them."""
        ended = [task for task in gone_on if task.ended]
        while self._queue and not any(one.exclusive for one in self._running):
            task = self._queue.popleft()
            self._begin(task)
            if task.ended:
                ended.append(task)
        return ended

    def _begin(self, task: Task) -> None:
        self._running.append(task)
        self._go_on(task, None)

    def _go_on(self, task: Task, future: "Future[Any] | None") -> None:
        """Take the task's next steps, up to one that waits or to its end."""
        try:
            error = future.exception() if future is not None else None
            if error is not None:
                step = task.steps.throw(error)
            else:
                step = task.steps.send(future.result() if future is not None else None)
            while isinstance(step, set) and not step:
                step = task.steps.send(None)
        except StopIteration as end:
            task.dword = end.value
        except NvmeError as refused:
            task.error = refused
        except MediaError as failed:
            log.error("an operation on the drive has failed: %s", failed.strerror)
            task.error = NvmeError(Status.INTERNAL_ERROR, str(failed.strerror), dnr=False)
        except Exception as mistake:  # a bug of the firmware must not end the drive
            log.exception("an operation on the drive failed")
            task.error = NvmeError(Status.INTERNAL_ERROR, str(mistake), dnr=False)
        else:
            if isinstance(step, set):
                task.awaited = set(step)
            elif isinstance(step, float):
                task.until = self._clock() + step
                self.resting += 1
            else:
                task.call = self._media_work.executor.submit(step)
            return
        task.ended = True
        self._running.remove(task)
