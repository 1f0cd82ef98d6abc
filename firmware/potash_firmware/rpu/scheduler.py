"""A cooperative scheduler: tasks run in the firmware loop's thread, and continue in turn.

A task is a generator. It yields what it waits for, and continues with the result:

- a future: its result is the value of the `yield`, and its exception is raised there
- a set of futures: continues with None when all have ended; their exceptions are not raised
- a `Signal`: continues with the value with which it is sent
- an `int`: a guest time in nanoseconds (see `deadlines`); continues with None then
- a callable: another thread calls it, and its result or exception comes as from a future

Closing a task's generator ends it, so that a `finally` releases what it holds. `Task.cancel` closes
a waiting task only if its wait can be abandoned. By default that is so for a set or a time, which
only delay the task, and not for a future, a callable or a signal, which work on its behalf; a
`Wait` overrides the default. This module knows nothing of NVMe or flash.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from potash_firmware.rpu.deadlines import Deadlines

T = TypeVar("T")

Steps: TypeAlias = Generator[Any, Any, T]
"""The steps of a task, up to its result."""


def always() -> bool:
    """The `cancel` of a wait that can be abandoned, with nothing to undo."""
    return True


def never() -> bool:
    """The `cancel` of a wait that must not be abandoned."""
    return False


OVER_LIMIT = 1024
"""Futures that have ended which are remembered during a pause beside those of held tasks."""


class Wait(NamedTuple):
    """The object that a task waits for (no callable), and the ways to end the wait early.

    `cancel` undoes what was registered for the wait, and returns True, if the wait can be
    abandoned. `stop` asks the work behind the future `what` to end soon; the task then fails with
    the given error unless the work was complete already.
    """

    what: object
    cancel: Callable[[], bool] = always
    stop: Callable[[Exception], None] | None = None


class Later(Protocol):
    """A time that depends on what happens until then."""

    at: int
    """It is not before this one."""

    def wait(self, *, abortable: bool) -> Steps[int]:
        """Wait until it is known."""


class Signal:
    """An event that happens once, with a value; at most one task may wait for it."""

    __slots__ = ("_task", "sent", "value")

    def __init__(self) -> None:
        self.sent = False
        self.value: Any = None
        self._task: Task | None = None

    def send(self, value: object = None) -> None:
        """Send the value: the task that waits is queued to continue."""
        task = self._sent(value)
        if task is not None:
            task.wake(value)

    def send_now(self, value: object = None) -> None:
        """The same as `send`, but the task continues before this returns."""
        task = self._sent(value)
        if task is not None:
            task.go_on(value)

    def _sent(self, value: object) -> "Task | None":
        self.sent, self.value = True, value
        task, self._task = self._task, None
        return task

    def wait(self, task: "Task") -> None:
        self._task = task


class Task:
    """A running generator.

    `ended` is called once, with the task, when the generator returns or raises, and never if it is
    closed.
    """

    __slots__ = (
        "_ended", "_scheduler", "_steps", "left", "over", "paused", "single", "waits_for",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: "Scheduler",
        steps: Steps[Any],
        ended: Callable[["Task", Any, Exception | None], None],
        *,
        paused: Callable[[], bool] = never,
    ) -> None:
        """Create a task; `ended` gets its result, or the exception that ended it.

        It does not go on while it is `paused`.
        """
        self._scheduler = scheduler
        self._steps = steps
        self._ended = ended
        self.over = False
        """The task has ended or is closed."""
        self.paused = paused
        self.left: set[Future[Any]] = set()
        """Futures that have to end before it goes on."""
        self.single = False
        """True if the task waits for one future, whose result is the value of its `yield`."""
        self.waits_for: object = None
        """The value that it yielded last; for a callable, the future of the call."""

    @property
    def future(self) -> Future[Any] | None:
        """The future that it waits for; None where it waits for something else."""
        wait = self.waits_for
        what = wait.what if isinstance(wait, Wait) else wait
        return what if isinstance(what, Future) else None

    def cancel(self) -> bool:
        """Close the task if its wait can be abandoned. Returns True if it was closed."""
        wait = self.waits_for
        if isinstance(wait, Wait):
            may_close = wait.cancel()
        else:
            may_close = isinstance(wait, set | int)
        if may_close:
            self.close()
        return may_close

    def close(self) -> None:
        """End the task at its current `yield`; the result of its wait is ignored."""
        if not self.over:
            self.over = True
            self._steps.close()

    def wake(self, value: object = None) -> None:
        """Queue the task to continue with the result of its wait."""
        self._scheduler.ready.append((self, value))

    def _wait(self, futures: set[Future[Any]], single: Future[Any] | None) -> None:
        scheduler, self.single = self._scheduler, single is not None
        self.left = futures - scheduler.over
        for future in self.left:
            scheduler.waiting.setdefault(future, []).append(self)
        if not self.left:  # but the tasks that they belong to continue first
            self.wake(single)

    def go_on(self, value: object = None) -> bool:
        """Continue with `value`, or with its result if it is a future. True if it waits again."""
        if self.over:
            return False
        steps, error = self._steps, None
        if isinstance(value, Future):
            try:
                value = value.result()
            except BaseException as failure:  # noqa: BLE001 - raised in the generator
                error = failure
        try:
            while True:
                if error is None:
                    wait = steps.send(value)
                else:
                    wait, error = steps.throw(error), None
                self.waits_for = wait
                what = wait.what if isinstance(wait, Wait) else wait
                if callable(what):
                    what = self.waits_for = self._scheduler.submit(what)
                if isinstance(what, Future):
                    self._wait({what}, what)
                elif isinstance(what, set):
                    if not what:
                        value = None
                        continue
                    self._wait(what, None)
                elif isinstance(what, Signal):
                    if what.sent:
                        value = what.value
                        continue
                    what.wait(self)
                elif isinstance(what, int):
                    self._scheduler.deadlines.put(what, self)
                else:
                    error = TypeError(f"a task cannot wait for {what!r}")
                    continue
                self._scheduler.reached = None
                return True
        except StopIteration as end:
            self.over = True
            self._ended(self, end.value, None)
        except Exception as failure:  # noqa: BLE001 - for `ended`
            self.over = True
            self._ended(self, None, failure)
        self._scheduler.reached = None
        return False


def _must_succeed(_: Task, result: object, error: Exception | None) -> None:
    if error is not None:
        raise error


class Scheduler:
    """The tasks of one drive. `submit` hands a callable to another thread."""

    def __init__(
        self, deadlines: Deadlines, submit: Callable[[Callable[[], Any]], Future[Any]]
    ) -> None:
        self.deadlines = deadlines
        self.ready: deque[tuple[Task, Any]] = deque()
        """Tasks to be continued, in this order, each with the result of its wait."""
        self.held: deque[tuple[Task, Any]] = deque()
        """Ready tasks that wait for the end of a pause."""
        self.waiting: dict[Future[Any], list[Task]] = {}
        self.calls: set[Future[Any]] = set()
        """Futures of callables that tasks have yielded."""
        self.over: set[Future[Any]] = set()
        """Futures that have ended, while tasks that have waited for them are yet to continue:
        `ended` is not called again for a task that begins to wait for one only now."""
        self._submit = submit
        self.emulated: dict[object, tuple[int, int]] | None = None
        """Begin and due time of the steps of `not_before` that have not ended; None if nobody asks
        for them."""
        self.reached: tuple[int, int] | None = None
        """The beginning of a core's work (0 without a core) and the deadline that has passed last.
        The command's completion, which follows in the same step, takes them."""

    def start(
        self,
        steps: Steps[Any],
        ended: Callable[[Task, Any, Exception | None], None] = _must_succeed,
    ) -> Task:
        """Begin a task, which may have ended when this returns."""
        task = Task(self, steps, ended)
        task.go_on()
        return task

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future = self._submit(call)
        self.calls.add(future)
        return future

    def ended(self, future: Future[Any]) -> None:
        """Queue the tasks that wait for a future that has ended, in the order in which they began
        to wait. The loop calls it in its thread, once for each future of the media executor."""
        self.calls.discard(future)
        for task in self.waiting.pop(future, ()):
            left = task.left
            if future in left:  # else another wait of the task has come in between
                left.remove(future)
                if not left:
                    self.over.add(future)
                    self.ready.append((task, future if task.single else None))

    def resume(self) -> None:
        """Queue what was held during a pause; to be called when one has ended."""
        self.ready.extend(self.held)
        self.held.clear()

    def forget_closed(self) -> None:
        """Forget those of the held tasks that are closed."""
        self.held = deque(entry for entry in self.held if not entry[0].over)

    def run(self) -> None:
        """Continue all ready tasks, including those that become ready meanwhile."""
        ready = self.ready
        while ready:
            task, value = ready.popleft()
            if task.paused is not never and task.paused():
                self.held.append((task, value))
            else:
                task.go_on(value)
        if not self.held:
            self.over.clear()
        elif len(self.over) > OVER_LIMIT + 2 * len(self.held):  # of others, which go on meanwhile
            self.over.intersection_update(value for _, value in self.held)

    def until(
        self, due: int | Later | None, *, abortable: bool = True, began: int = 0
    ) -> Steps[None]:
        """Wait for `due`, if there is such a time; how late it becomes is counted.

        `began` is when a core began with what is done then.
        """
        if due is None:
            return
        if not isinstance(due, int):
            due = yield from due.wait(abortable=abortable)
        deadlines = self.deadlines
        while (late := deadlines.clock.now() - due) < 0:
            yield due if abortable else Wait(due, never)
        deadlines.lateness.add(late)
        self.reached = began, due

    def not_before(
        self, due: int | Later | None, steps: Steps[T], *, abortable: bool = True
    ) -> Steps[T]:
        """End as `steps` do, with a result or an error, but not before `due`."""
        try:
            result = yield from steps if self.emulated is None else self._emulate(steps, due)
        except Exception:
            yield from self.until(due, abortable=abortable)
            raise
        yield from self.until(due, abortable=abortable)
        return result

    def _emulate(self, steps: Steps[T], due: int | Later | None) -> Steps[T]:
        assert self.emulated is not None
        if due is not None:
            least = due if isinstance(due, int) else due.at
            self.emulated[steps] = self.deadlines.clock.now(), least
        try:
            return (yield from steps)
        finally:
            self.emulated.pop(steps, None)

    def time_passes(self) -> bool:
        """Continue the tasks whose time has come. True if there were any."""
        any_due = False
        for waiter in self.deadlines.passed():
            waiter.wake()
            self.run()
            any_due = True
        return any_due
