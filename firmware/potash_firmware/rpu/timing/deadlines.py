"""Deadlines in guest time: one heap for everything that ends at a time and not before.

What a command comes to is known at once, and kept until its deadline. It is an outstanding command
meanwhile, so aborts, resets, deleted queues and Bus Master Enable treat it as any that waits. Guest
time is the host's monotonic clock, less the time in which the guest stood still.
"""

import time
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from nvme_spec.status import NvmeError
from potash_firmware.rpu.command import Pending, Result, nothing_to_undo, steps_by
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
        if self._frozen is not None:
            return self._frozen
        return self._nanoseconds() - self.offset

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


class _Call(NamedTuple):
    """In the place of a token: what is no command's."""

    step: Callable[[], None]
    wanted: Callable[[], bool]


class Deadlines:
    """The deadlines of one controller; `holds` says whether a command still waits for a token."""

    def __init__(self, clock: GuestClock, holds: Callable[[object], bool]) -> None:
        self.clock = clock
        self.lateness = Histogram()
        """Of the commands that `keep` has kept, and of jobs."""
        self._holds = holds
        self._heap: list[tuple[int, int, object]] = []
        self._sequence = count()
        self._limit = _COMPACT

    def __len__(self) -> int:
        """Entries, those included that nobody waits for any more."""
        return len(self._heap)

    def clear(self) -> None:
        self._heap.clear()

    @property
    def next(self) -> int | None:
        """The earliest deadline that a command waits for, in nanoseconds of guest time."""
        heap = self._heap
        while heap and not self._is_wanted(heap[0][2]):
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
        return bool(self._heap) and self._heap[0][0] <= self.clock.now()

    def passed(self) -> Iterator[object]:
        """The tokens whose deadline has passed, in order of deadlines, then as they came.

        Takes the steps of `call` in between.
        """
        if not self._heap:
            return
        now = self.clock.now()
        while self._heap and self._heap[0][0] <= now:
            token = heappop(self._heap)[2]
            if isinstance(token, _Call):
                if token.wanted():
                    token.step()
            else:
                yield token

    def wait(
        self,
        due: int,
        resume: Callable[[], Result],
        recall: Callable[[], bool] | None = nothing_to_undo,
    ) -> Pending:
        """Go on with `resume` at `due`, nanoseconds of guest time."""
        token = object()
        self.put(due, token)
        return Pending(token, lambda _: resume(), recall)

    def put(self, due: int, token: object) -> None:
        """Have the command go on at `due` that waits for `token`."""
        if len(self._heap) >= self._limit:
            self._heap = [one for one in self._heap if self._is_wanted(one[2])]
            heapify(self._heap)
            self._limit = max(_COMPACT, 2 * len(self._heap))
        heappush(self._heap, (due, next(self._sequence), token))

    def call(
        self, due: int, step: Callable[[], None], wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Take a step at `due` that is no command's, in `passed`, if it is `wanted` then."""
        self.put(due, _Call(step, wanted))

    def _is_wanted(self, token: object) -> bool:
        return token.wanted() if isinstance(token, _Call) else self._holds(token)

    def keep(self, due: int | None, step: Callable[[], Result]) -> Result:
        """Take `step`, and end as it ends, however long it waits, but not before `due` if there is
        such a time.

        Raises NvmeError.
        """
        if due is None:
            return step()
        try:
            result = step()
        except NvmeError as error:
            return self._end(due, _raising(error))
        if isinstance(result, Pending):
            return steps_by(result, lambda step: self.keep(due, step))
        return self._end(due, lambda: result)

    def after(self, step: Callable[[], Result], due: Callable[[], int]) -> Result:
        """Take `step`, and where it succeeds end at what `due` gives then.

        Raises NvmeError.
        """
        result = step()
        if isinstance(result, Pending):
            return steps_by(result, lambda step: self.after(step, due))
        return self._end(due(), lambda: result)

    def _end(self, due: int, end: Callable[[], Result]) -> Result:
        late = self.clock.now() - due
        if late < 0:
            return self.wait(due, lambda: self._end(due, end))
        self.lateness.add(late)
        return end()


def _raising(error: NvmeError) -> Callable[[], Result]:
    def end() -> Result:
        raise error

    return end
