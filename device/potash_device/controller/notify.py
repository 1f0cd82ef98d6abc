"""When to look for work, when to be woken for it.

A host with shadow doorbells can be left alone while the device is busy: the device looks into the
shadow page once a tick, and the host never leaves its guest to ring. After a while without work the
device arms the event index and sleeps until it is rung. This is the decision alone: it knows no
queue and no clock but the one that it is given, in seconds.

A tick must be shorter than what a host with one command at a time would notice, and an idle time
much longer than a tick. Both are plain constants here.
"""

from collections.abc import Callable
from enum import Enum

TICK = 20e-6
IDLE = 1.5e-3


class Watch(Enum):
    """How the device learns of new work."""

    RUNG = "asleep until a doorbell rings"
    TICKING = "looking at the shadow page at every tick"


class Notify:
    """The state of one controller's attention."""

    def __init__(self, clock: Callable[[], float], tick: float = TICK, idle: float = IDLE) -> None:
        self._clock = clock
        self._tick = tick
        self._idle = idle
        self._quiet_at = 0.0
        self.watch = Watch.RUNG

    def worked(self) -> None:
        """There was work: look again soon instead of asking to be rung."""
        self.watch = Watch.TICKING
        self._quiet_at = self._clock() + self._idle

    @property
    def may_arm(self) -> bool:
        """Nothing has happened for so long that being rung is cheaper than looking."""
        return self.watch is Watch.TICKING and self._clock() >= self._quiet_at

    def armed(self) -> None:
        """The event indexes are set and nothing was found behind them."""
        self.watch = Watch.RUNG

    @property
    def timeout(self) -> float | None:
        """How long to wait for a message: a tick, or as long as it takes (None)."""
        return self._tick if self.watch is Watch.TICKING else None
