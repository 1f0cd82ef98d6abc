"""The scheduler: tasks that wait in the loop's thread, and the order in which they continue.

A task is a generator. It yields what it waits for, and continues with the result:

- a future: its result is the value of the `yield`, and its exception is raised there
- a set of futures, of which all have to end
- a `Signal`, which is sent with a value
- an `int`: a time at which it continues, in nanoseconds of guest time
- a callable, which another thread calls; otherwise as a future

Closing a task's generator ends it, so that a `finally` releases what it holds. Whether a task may
be closed while it waits is its own decision: for what works for it (a future, a signal) it stays,
and for what only makes it wait (a set, a time) it need not, unless a `Wait` says otherwise. Nothing
in here knows NVMe or flash.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias, TypeVar

from potash_firmware.rpu.deadlines import Deadlines

T = TypeVar("T")

Steps: TypeAlias = Generator[Any, Any, T]
"""The steps of a task, up to its result."""


def always() -> bool:
    """The `cancel` of a wait that can be given up without a trace."""
    return True


def never() -> bool:
    """The `cancel` of a wait that has to take its course."""
    return False


class Wait(NamedTuple):
    """A task's wait, and the ways to cut it short.

    `cancel` abandons it, if that is possible, and returns True then. `stop` only hastens the end of
    the future `what`, and with it the task, which then ends with the given error unless it was over
    before.
    """

    what: object
    cancel: Callable[[], bool] = always
    stop: Callable[[Exception], None] | None = None


class Signal:
    """An event that happens once, with a value; one task may wait for it."""

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
    """A generator under way. `ended` is called with it once, at its end, unless it is closed."""

    __slots__ = ("_ended", "_scheduler", "_steps", "left", "pausable", "single", "waits_for")

    def __init__(
        self,
        scheduler: "Scheduler",
        steps: Steps[Any],
        ended: Callable[["Task", Any, Exception | None], None],
        *,
        pausable: bool = False,
    ) -> None:
        """A task that has not begun; `ended` gets its result, or the exception that ended it.

        One that is `pausable` does not go on while the scheduler is paused.
        """
        self._scheduler = scheduler
        self._steps: Steps[Any] | None = steps
        self._ended = ended
        self.pausable = pausable
        self.left: set[Future[Any]] = set()
        """Futures that have to end before it goes on."""
        self.single = False
        """The task waits for a single future, whose result it gets."""
        self.waits_for: object = None
        """The value that it has yielded last."""

    @property
    def over(self) -> bool:
        """True once the task has ended or is closed."""
        return self._steps is None

    @property
    def future(self) -> Future[Any] | None:
        """The future that it waits for; None where it waits for something else."""
        wait = self.waits_for
        what = wait.what if isinstance(wait, Wait) else wait
        return what if isinstance(what, Future) else None

    def cancel(self) -> bool:
        """Close the task if its wait can be abandoned. True where it is closed."""
        wait = self.waits_for
        if isinstance(wait, Wait):
            may_close = wait.cancel()
        else:
            may_close = isinstance(wait, set | int)
        if may_close:
            self.close()
        return may_close

    def close(self) -> None:
        """End the task where it waits; the result of its wait is ignored."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

    def wake(self, value: object = None) -> None:
        """Queue the task to continue with the result of its wait."""
        self._scheduler.ready.append((self, value))

    def go_on(self, value: object = None) -> bool:
        """Continue with `value`, or with the result of that future. True where it waits again."""
        steps, error = self._steps, None
        if steps is None:
            return False
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
                    self.left, self.single = {what}, True
                    self._scheduler.waiting.setdefault(what, []).append(self)
                elif isinstance(what, Signal):
                    if what.sent:
                        value = what.value
                        continue
                    what.wait(self)
                elif isinstance(what, int):
                    self._scheduler.deadlines.put(what, self)
                elif isinstance(what, set):
                    if not what:
                        value = None
                        continue
                    self.left, self.single = set(what), False
                    for future in what:
                        self._scheduler.waiting.setdefault(future, []).append(self)
                else:
                    error = TypeError(f"a task cannot wait for {what!r}")
                    continue
                return True
        except StopIteration as end:
            self._steps = None
            self._ended(self, end.value, None)
        except Exception as failure:  # noqa: BLE001 - who has begun the task gets it
            self._steps = None
            self._ended(self, None, failure)
        return False


def _must_succeed(_: Task, result: object, error: Exception | None) -> None:
    if error is not None:
        raise error


class Scheduler:
    """The tasks of one controller. `submit` has something called by another thread."""

    def __init__(
        self, deadlines: Deadlines, submit: Callable[[Callable[[], Any]], Future[Any]]
    ) -> None:
        self.deadlines = deadlines
        self.ready: deque[tuple[Task, Any]] = deque()
        """Tasks to be continued, in this order, each with the result of its wait."""
        self.held: deque[tuple[Task, Any]] = deque()
        """Ready tasks that wait for the end of the pause."""
        self.waiting: dict[Future[Any], list[Task]] = {}
        self.calls: set[Future[Any]] = set()
        """Futures of callables that tasks have yielded."""
        self.paused: Callable[[], bool] = never
        """Says that no pausable task is to go on."""
        self._submit = submit

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
        """Continue the tasks that have waited for a future that has ended, in the order in which
        they began to wait."""
        self.calls.discard(future)
        for task in self.waiting.pop(future, ()):
            left = task.left
            if future in left:  # else it has been closed, or waits for something else
                left.remove(future)
                if not left:
                    self.ready.append((task, future if task.single else None))

    def resume(self) -> None:
        """End the pause."""
        self.ready.extend(self.held)
        self.held.clear()

    def run(self) -> None:
        """Continue all ready tasks, also those that become ready meanwhile."""
        ready = self.ready
        while ready:
            task, value = ready.popleft()
            if task.pausable and self.paused():
                self.held.append((task, value))
            else:
                task.go_on(value)

    def time_passes(self) -> bool:
        """Continue the tasks whose time has come. True where there were any."""
        any_due = False
        for waiter in self.deadlines.passed():
            waiter.wake()
            self.run()
            any_due = True
        return any_due
