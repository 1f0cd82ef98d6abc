"""Guest time, and a heap of deadlines in it.

Guest time is the host's monotonic clock, less the time in which the guest stood still.
"""

import time
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Protocol

from potash_firmware.rpu.statistics import Histogram


class GuestClock:
    """Whole nanoseconds that never go back, and do not pass while the clock is frozen.

    `nanoseconds` is the host's clock; guest time is that less `offset`.
    """

    def __init__(self, nanoseconds: Callable[[], int] = time.monotonic_ns) -> None:
        self._nanoseconds = nanoseconds
        self.offset = 0
        self._frozen: int | None = None

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def now(self) -> int:
        return self._nanoseconds() - self.offset if self._frozen is None else self._frozen

    @property
    def behind(self) -> int:
        """Nanoseconds that have passed for the host, and not here."""
        return self.offset if self._frozen is None else self._nanoseconds() - self._frozen

    def freeze(self) -> None:
        """No time passes until `thaw`."""
        self._frozen = self.now()

    def thaw(self, offset: int | None = None) -> None:
        """Time passes again, with the host's clock `offset` ahead of it, or from where it stopped.

        An offset by which time would have gone back counts as the latter.
        """
        if self._frozen is None:
            return
        latest = self._nanoseconds() - self._frozen
        self.offset = latest if offset is None else min(offset, latest)
        self._frozen = None


POLLED = 300_000
"""Nanoseconds before a deadline from which on the loop does not sleep: a timer wakes it late."""

_COMPACT = 1024
"""Entries beyond which those are removed that nobody waits for any more."""


class Waiter(Protocol):
    """An object that waits for a deadline; `wake` is called then, unless it is `over`."""

    @property
    def over(self) -> bool: ...

    def wake(self) -> None: ...


class Timer:
    """A call at a time, which can be cancelled until then."""

    __slots__ = ("over", "wake")

    def __init__(self, call: Callable[[], None]) -> None:
        self.over = False
        self.wake = call

    def cancel(self) -> None:
        self.over = True


class Deadlines:
    """The deadlines of one controller."""

    def __init__(self, clock: GuestClock) -> None:
        self.clock = clock
        self.lateness = Histogram()
        """The lateness of commands and jobs that have waited for a deadline."""
        self.heap: list[tuple[int, int, Waiter]] = []
        """Deadlines, those included that nobody waits for any more."""
        self._sequence = count()
        self._limit = _COMPACT

    @property
    def next(self) -> int | None:
        """The earliest deadline that somebody waits for, in nanoseconds of guest time."""
        heap = self.heap
        while heap and heap[0][2].over:
            heappop(heap)
        return heap[0][0] if heap else None

    def timeout(self, *, polls: bool = True) -> float | None:
        """Seconds that the loop may sleep, where it `polls` before a deadline; None while there is
        no deadline, or no time passes."""
        due = self.next
        if due is None or self.clock.frozen:
            return None
        return max(0, due - self.clock.now() - (POLLED if polls else 0)) / 1e9

    @property
    def due(self) -> bool:
        return bool(self.heap) and self.heap[0][0] <= self.clock.now()

    def passed(self) -> Iterator[Waiter]:
        """The waiters whose deadline has passed, in the order of deadlines, then of arrival."""
        if not self.heap:
            return
        now = self.clock.now()
        while self.heap and self.heap[0][0] <= now:
            waiter = heappop(self.heap)[2]
            if not waiter.over:
                yield waiter

    def put(self, due: int, waiter: Waiter) -> None:
        """Wake `waiter` at `due`, nanoseconds of guest time."""
        if len(self.heap) >= self._limit:
            self.heap[:] = [one for one in self.heap if not one[2].over]
            heapify(self.heap)
            self._limit = max(_COMPACT, 2 * len(self.heap))
        heappush(self.heap, (due, next(self._sequence), waiter))

    def call(self, due: int, step: Callable[[], None]) -> Timer:
        """Take a step at `due`, unless the timer is cancelled before."""
        timer = Timer(step)
        self.put(due, timer)
        return timer
