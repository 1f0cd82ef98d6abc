"""Pools of units, and bandwidths that their tasks share, which go on together in modelled time.

No event of a pool or of a bandwidth is decided before all that may influence it: while it is not
known what a task does from some time on, nothing is decided that comes later. So the time at which
a task ends does not depend on how fast it, or another one, is emulated.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from potash_device.bandwidth import Bandwidth
from potash_device.units import Kind, Pool

PATIENCE_NS = 1_000_000_000
"""Time that others wait for what a task does; then it does what it does later than they do."""


_FIRST = -1
"""The kind of the events of bandwidths."""


class _Step(NamedTuple):
    at: int
    kind: int
    take: Callable[[], None]


class Timeline:
    """The events of pools and bandwidths, in one order; at one instant, those of bandwidths first,
    then those of pools by their kinds, then in the order of `pools`."""

    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self.bandwidths: list[Bandwidth] = []

    def advance(self, now: int, most: int = 1 << 62) -> int | None:
        """Go on until `now`, by at most so many steps.

        Returns the time of the next step; None while it is not known, or there is none.
        """
        while True:
            step = min(self._steps(now), key=lambda step: step[:2], default=None)
            if step is None or step.kind == Kind.UNKNOWN:
                return None
            if step.at > now or most == 0:
                return step.at
            most -= 1
            step.take()

    def _steps(self, now: int) -> Iterator[_Step]:
        for bandwidth in self.bandwidths:
            if (at := bandwidth.following) is not None:
                yield _Step(at, _FIRST, partial(bandwidth.go_on, at))
        for pool in self.pools:
            event = pool.following
            if event is not None and (
                event.kind is not Kind.UNKNOWN or event.at >= now - PATIENCE_NS
            ):
                yield _Step(event.at, event.kind, partial(pool.take, event))
