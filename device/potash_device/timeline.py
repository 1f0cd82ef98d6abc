"""Pools of units, and bandwidths that their tasks share, which go on together in modelled time.

No event of a pool or of a bandwidth is decided before all that may influence it: while it is not
known what a task does from some time on, nothing is decided that comes later. So the time at which
a task ends does not depend on how fast it, or another one, is emulated. Transfers that are urgent,
as the host's are, do not wait for that: what a task does after them counts as later than them.
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
        self.blocked = False
        """True while it is not known of some pool what comes next in it."""

    def advance(self, now: int, most: int = 1 << 62) -> int | None:
        """Go on until `now`, by at most so many steps.

        Returns the time of the next step; None if there is none. While that is not known, it is the
        next one of a bandwidth that is urgent.
        """
        while True:
            step = min(self._steps(now), key=lambda step: step[:2], default=None)
            if step is None:
                return None
            if step.kind == Kind.UNKNOWN:
                return min(self._urgent(), default=None)
            if step.at > now or most == 0:
                return step.at
            most -= 1
            step.take()

    def _urgent(self) -> Iterator[int]:
        for bandwidth in self.bandwidths:
            if bandwidth.urgent and (at := bandwidth.following) is not None:
                yield at

    def _steps(self, now: int) -> Iterator[_Step]:
        waits = any(at <= now for at in self._urgent())
        since = now - (0 if waits else PATIENCE_NS)
        for bandwidth in self.bandwidths:
            if (at := bandwidth.following) is not None:
                yield _Step(at, _FIRST, partial(bandwidth.go_on, at))
        self.blocked = False
        for pool in self.pools:
            event = pool.following
            if event is None:
                continue
            is_unknown = event.kind is Kind.UNKNOWN
            self.blocked = self.blocked or is_unknown
            if event.at >= since or not is_unknown:
                yield _Step(event.at, event.kind, partial(pool.take, event))
