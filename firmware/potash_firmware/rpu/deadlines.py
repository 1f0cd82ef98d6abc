"""Guest time, and heaps of deadlines.

Guest time is the host's monotonic clock, less the time in which the guest stood still. A controller
has one heap in guest time, for what a guest waits for: commands, jobs and operations; and one in
host time, for the firmware's own timers.
"""

import time
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil
from typing import Protocol

from potash_firmware.rpu.statistics import Histogram


class GuestClock:
    """Whole nanoseconds that never go back, and do not pass while the clock is frozen.

    `seconds` is the host's clock; guest time is that less `offset`. A clock that is never frozen
    has host time.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        """The host's clock."""
        self.offset = 0
        self.frozen: int | None = None
        """The time at which the clock stands; None while time passes."""

    def now(self) -> int:
        if self.frozen is not None:
            return self.frozen
        return round(self.seconds() * 1e9) - self.offset

    @property
    def behind(self) -> int:
        """Nanoseconds that have passed for the host, and not here."""
        return self.offset if self.frozen is None else round(self.seconds() * 1e9) - self.frozen

    def freeze(self) -> None:
        """No time passes until `thaw`."""
        self.frozen = self.now()

    def advance(self, to: int) -> None:
        """Stand at a later time than so far, unless it has passed."""
        self.frozen = max(self.now(), to)

    def thaw(self, offset: int | None = None) -> None:
        """Time passes again, with the host's clock `offset` ahead of it, or from where it stopped.

        An offset by which time would have gone back counts as the latter.
        """
        if self.frozen is None:
            return
        latest = self.behind
        self.offset = latest if offset is None else min(offset, latest)
        self.frozen = None


class SteppedClock(GuestClock):
    """A clock that begins at 0, and goes on only when it is advanced."""

    behind = 0

    def __init__(self) -> None:
        super().__init__()
        self.frozen = 0


POLLED = 300_000
"""Nanoseconds before a deadline from which on the loop does not sleep: a timer wakes it late."""

NEAR = 20_000
"""Nanoseconds for which the loop only polls before a deadline: one of its passes takes as long."""

_COMPACT = 1024
"""Entries beyond which those are removed that nobody waits for any more."""


class Waiter(Protocol):
    """An object that waits for a deadline; `wake` is called then, unless it is `over`."""

    @property
    def over(self) -> bool: ...

    def wake(self) -> None: ...


class Timer:
    """A call at the time `due`; it is `over` when it was made, or the timer was cancelled."""

    __slots__ = ("_call", "due", "over")

    def __init__(self, due: int, call: Callable[[], None]) -> None:
        self.due = due
        self.over = False
        self._call = call

    def __lt__(self, other: object) -> bool:
        """One that is set anew may have the time and the place of the one before."""
        return False

    def wake(self) -> None:
        self.over = True
        self._call()

    def cancel(self) -> None:
        self.over = True


def no_step() -> None:
    """The step of a timer that only wakes the loop."""


NO_TIMER = Timer(0, no_step)
NO_TIMER.cancel()
"""A timer that is over, for one that does not run yet."""


class Deadlines:
    """Deadlines of one controller, in the time of `clock`."""

    def __init__(self, clock: GuestClock) -> None:
        self.clock = clock
        self.lateness = Histogram()
        """The lateness of commands and jobs that have waited for a deadline."""
        self.heap: list[tuple[int, int, Waiter]] = []
        """Deadlines, those included that nobody waits for any more."""
        self._sequence = count()
        self._limit = _COMPACT

    def timeout(self, *, polls: bool = True) -> float | None:
        """Seconds that the loop may sleep, where it `polls` before a deadline; None while there is
        no deadline, or no time passes."""
        heap = self.heap
        while heap and heap[0][2].over:
            heappop(heap)
        if not heap or self.clock.frozen is not None:
            return None
        return max(0, heap[0][0] - self.clock.now() - (POLLED if polls else 0)) / 1e9

    @property
    def due(self) -> bool:
        return bool(self.heap) and self.heap[0][0] <= self.clock.now()

    @property
    def near(self) -> bool:
        """A deadline comes so soon that nothing else is worth beginning."""
        if not self.heap or self.clock.frozen is not None:
            return False
        return self.heap[0][0] <= self.clock.now() + NEAR

    def passed(self) -> Iterator[Waiter]:
        """The waiters whose deadline has passed, in the order of deadlines, then of arrival; later
        those that begin to wait meanwhile, as time need not pass."""
        if not self.heap:
            return
        now, end = self.clock.now(), next(self._sequence)
        while self.heap and self.heap[0][0] <= now and self.heap[0][1] < end:
            waiter = heappop(self.heap)[2]
            if not waiter.over:
                yield waiter

    def place(self) -> int:
        """A place among waiters with the same deadline: behind those that have one already."""
        return next(self._sequence)

    def put(self, due: int, waiter: Waiter, place: int | None = None) -> None:
        """Wake `waiter` at `due`, in nanoseconds; `place` is one that it alone has."""
        if len(self.heap) >= self._limit:
            self.heap[:] = [entry for entry in self.heap if not entry[2].over]
            heapify(self.heap)
            self._limit = max(_COMPACT, 2 * len(self.heap))
        heappush(self.heap, (due, next(self._sequence) if place is None else place, waiter))

    def call(self, due: int, step: Callable[[], None], place: int | None = None) -> Timer:
        """Take a step at `due`, unless the timer is cancelled before; `place` is as in `put`."""
        timer = Timer(due, step)
        self.put(due, timer, place)
        return timer

    def after(self, seconds: float, step: Callable[[], None] = no_step) -> Timer:
        """Take a step when so many seconds have passed, and not a fraction of a nanosecond sooner:
        one that only asks for the rest of the time must not be taken again and again in a pass."""
        return self.call(self.clock.now() + ceil(seconds * 1e9), step)

    def left(self, timer: Timer) -> float | None:
        """Seconds until a timer's step; None when the timer is over."""
        return None if timer.over else max(0, timer.due - self.clock.now()) / 1e9
