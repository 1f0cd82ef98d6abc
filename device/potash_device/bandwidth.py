"""A bandwidth that transfers of several flows share by their weights, as generalized processor
sharing does (Parekh and Gallager 1993).

At each moment, the flows that have something to transfer divide the bandwidth in proportion to
their weights, and what others do not need is theirs. Lengths are ns that a transfer takes alone,
times whole ns: a transfer ends at the first one at which all of it is done, and has its share until
then. What is left of a transfer is exact. Nothing in here waits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import gcd


@dataclass(eq=False)
class Flow:
    """Transfers of one origin; it has its share of a bandwidth while there is one."""

    weight: int = 1
    in_order: bool = False
    """They take place one after the other; otherwise they divide the share equally."""
    urgent: bool = False
    """They wait for nothing that is not known yet (see `timeline`)."""


@dataclass(eq=False)
class Transfer:
    """A transfer of a flow, `length` ns alone; `over` is called with the time of its end, unless it
    was dropped."""

    bandwidth: "Bandwidth"
    flow: Flow
    length: int
    over: Callable[[int], None]
    left: int = field(default=0, init=False)
    """In parts of a ns, once it has arrived."""
    end: int | None = field(default=None, init=False)
    dropped: int | None = None
    """The time at which it is given up."""

    def drop(self, at: int) -> None:
        """Give it up at a time, as nobody waits for it any more."""
        self.dropped = at
        self.bandwidth.look_ahead()


class Bandwidth:
    """A bandwidth, at the time `now`; its user says how far it goes on."""

    def __init__(self) -> None:
        self.now = 0
        self.urgent = 0
        """Urgent transfers that have yet to end."""
        self._coming: list[tuple[int, int, Transfer]] = []
        """A heap of transfers that have yet to arrive."""
        self._number = 0
        self._present: dict[Flow, deque[Transfer]] = {}
        """The flows that have something to transfer."""
        self._parts = 1
        """The parts of a ns in which it is counted what is left."""
        self._served: list[tuple[Transfer, int, int]] = []
        """The transfers that take place; a ns of theirs takes so many ns alone, as a fraction."""
        self._end: int | None = None
        """The time at which the first of these ends."""

    def __bool__(self) -> bool:
        """True if transfers have yet to end."""
        return bool(self._present or self._coming)

    def begin(
        self, flow: Flow, length: int, at: int, over: Callable[[int], None] = lambda at: None
    ) -> Transfer:
        """A transfer arrives at a time, or now if that has passed."""
        transfer = Transfer(self, flow, length, over)
        self._number += 1
        self.urgent += flow.urgent
        heappush(self._coming, (max(at, self.now), self._number, transfer))
        return transfer

    @property
    def following(self) -> int | None:
        """The time at which the next transfer arrives or ends; None if there is none."""
        coming = self._coming[0][0] if self._coming else self._end
        return coming if self._end is None or coming is None else min(self._end, coming)

    def go_on(self, to: int) -> None:
        """Go on to a time that is not after `following`, and call `over` of what ends then."""
        ended = [served[0] for served in self._served if self._end_of(*served) <= to]
        if to > self.now:
            passed, self.now = (to - self.now) * self._parts, to
            for transfer, weight, whole in self._served:
                transfer.left -= passed * weight // whole
        for transfer in ended:
            transfers = self._present[transfer.flow]
            transfers.remove(transfer)
            if not transfers:
                del self._present[transfer.flow]
        if not self._present:
            self._parts = 1
        while self._coming and self._coming[0][0] <= to:
            transfer = heappop(self._coming)[2]
            transfer.left = transfer.length * self._parts
            self._present.setdefault(transfer.flow, deque()).append(transfer)
        self._serve()
        for transfer in ended:
            transfer.end = to
            self.urgent -= transfer.flow.urgent
            if transfer.dropped is None:
                transfer.over(to)

    def _serve(self) -> None:
        """Decide who is served, and have so many parts of a ns that each gets whole ones in it."""
        weights = sum(flow.weight for flow in self._present)
        self._served = [
            (transfer, flow.weight, weights if flow.in_order else weights * len(transfers))
            for flow, transfers in self._present.items()
            for transfer in (transfers if not flow.in_order else (transfers[0],))
        ]
        for _, weight, whole in self._served:
            more = whole // gcd(whole, weight * self._parts)
            if more > 1:
                self._parts *= more
                for transfers in self._present.values():
                    for transfer in transfers:
                        transfer.left *= more
        self.look_ahead()

    def look_ahead(self) -> None:
        """Find out again which transfer ends first."""
        self._end = min((self._end_of(*served) for served in self._served), default=None)

    def _end_of(self, transfer: Transfer, weight: int, whole: int) -> int:
        end = self.now + max(0, -(-transfer.left * whole // (weight * self._parts)))
        return end if transfer.dropped is None else min(end, max(self.now, transfer.dropped))
