"""The scheduler: what tasks wait for, in which order they go on, and what closing one does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from potash_firmware.rpu.deadlines import Deadlines, GuestClock
from potash_firmware.rpu.scheduler import Scheduler, Signal, Steps, Task, Wait, never


class Loop:
    """A scheduler whose time, and whose other threads, are the test's."""

    def __init__(self) -> None:
        self.now = 0
        self.paused = False
        self.calls: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.scheduler = Scheduler(Deadlines(GuestClock(lambda: self.now / 1e9)), self.submit)
        self.log: list[object] = []
        """What steps have found, and how tasks have ended."""

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((future, call))
        return future

    def start(self, steps: Steps[Any], *, pausable: bool = False) -> Task:
        paused = (lambda: self.paused) if pausable else never
        task = Task(self.scheduler, steps, self.ended, paused=paused)
        task.go_on()
        return task

    def ended(self, task: Task, result: object, error: Exception | None) -> None:
        self.log.append(result if error is None else error)

    def end(self, future: Future[Any]) -> None:
        self.scheduler.ended(future)
        self.scheduler.run()

    def waits(self, what: object, name: object = "released") -> Steps[Any]:
        try:
            return (yield what)
        finally:
            self.log.append(name)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_what_a_wait_brings(loop: Loop) -> None:
    done, failed, signal = Future[int](), Future[int](), Signal()

    def steps() -> Steps[None]:
        loop.log.append((yield done))
        with pytest.raises(OSError, match="oh"):
            yield failed
        loop.log.append((yield {done, failed}))
        loop.log.append((yield signal))
        yield 7
        loop.log.append(loop.now)
        loop.log.append((yield lambda: "called"))

    loop.start(steps())
    done.set_result(3)
    loop.end(done)
    failed.set_exception(OSError("oh"))
    loop.end(failed)
    assert loop.log == [3]
    loop.end(failed)
    loop.end(done)
    signal.send("sent")
    loop.scheduler.run()
    assert not loop.scheduler.time_passes()
    loop.now = 7
    assert loop.scheduler.time_passes()
    ((future, call),) = loop.calls
    future.set_result(call())
    loop.end(future)
    assert loop.log == [3, None, "sent", 7, "called", None]


def test_nothing_to_wait_for_is_not_waited_for(loop: Loop) -> None:
    signal = Signal()
    signal.send(5)
    loop.start(loop.waits(signal))
    loop.start(loop.waits(set[Future[Any]]()))
    assert loop.log == ["released", 5, "released", None]


def test_tasks_go_on_in_the_order_of_waiting(loop: Loop) -> None:
    first, second = Future[None](), Future[None]()
    for name, what in enumerate(({first, second}, {first}, {second}, second)):
        loop.start(loop.waits(what, name))
    for future in (second, first):
        future.set_result(None)
        loop.scheduler.ended(future)
    loop.scheduler.run()
    assert loop.log == [2, None, 3, None, 0, None, 1, None]


@pytest.mark.parametrize("paused", [False, True])
def test_a_future_that_has_ended_is_not_waited_for_in_vain(loop: Loop, paused: bool) -> None:
    """The task that it belongs to is ready, but behind those that wait for it only now."""
    first, second = Future[None](), Future[None]()

    def steps(what: object) -> Steps[None]:
        yield first
        yield what

    for what in (second, {second}):
        loop.start(steps(what), pausable=True)
    loop.start(loop.waits(second, "owner"), pausable=True)
    for future in (first, second):
        future.set_result(None)
        loop.scheduler.ended(future)
    loop.paused = paused
    loop.scheduler.run()
    loop.paused = False
    loop.scheduler.resume()
    loop.scheduler.run()
    assert loop.log == ["owner", None, None, None]
    assert not loop.scheduler.waiting


@pytest.mark.parametrize(
    ("what", "cancelled"),
    [
        (Future(), False),
        (Signal(), False),
        ({Future()}, True),
        (5, True),
        (Wait(Future()), True),
        (Wait({Future()}, never), False),
    ],
)
def test_a_task_is_closed_where_its_wait_allows_it(
    loop: Loop, what: object, cancelled: bool
) -> None:
    task = loop.start(loop.waits(what))
    assert task.cancel() is cancelled
    assert loop.log == (["released"] if cancelled else [])
    assert task.over is cancelled


def test_a_closed_task_releases_what_it_holds_and_never_goes_on(loop: Loop) -> None:
    future, signal = Future[None](), Signal()
    tasks = [
        loop.start(loop.waits(what, name)) for name, what in ((0, future), (1, signal), (2, 5))
    ]
    signal.send()
    for task in tasks:
        task.close()
    future.set_result(None)
    loop.end(future)
    loop.now = 10
    assert not loop.scheduler.time_passes()
    assert loop.scheduler.deadlines.timeout() is None
    assert loop.log == [0, 1, 2]


def test_in_a_pause_tasks_are_held_and_go_on_in_their_order(loop: Loop) -> None:
    future = Future[int]()
    held = [loop.start(loop.waits(future, name), pausable=True) for name in (0, 1, 2)]
    loop.start(loop.waits(future, "other"))
    future.set_result(9)
    loop.paused = True
    loop.end(future)
    assert loop.log == ["other", 9]
    held[1].close()
    loop.paused = False
    loop.scheduler.resume()
    loop.scheduler.run()
    assert loop.log == ["other", 9, 1, 0, 9, 2, 9]


def test_an_error_ends_its_task_alone(loop: Loop) -> None:
    def fails() -> Steps[None]:
        yield 1
        raise ValueError("a mistake")

    loop.start(fails())
    loop.start(loop.waits(1))
    loop.start(loop.waits("nonsense"))
    loop.now = 1
    loop.scheduler.time_passes()
    kinds = [one if isinstance(one, str | None) else type(one) for one in loop.log]
    assert kinds == ["released", TypeError, ValueError, "released", None]
