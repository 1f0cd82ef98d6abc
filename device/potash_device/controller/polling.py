"""When to poll for work, and when to sleep until a doorbell rings.

A host with shadow doorbells can be left alone while the device is busy: the device polls the shadow
page once a tick, and interrupts once for all that it found. After a while without work it arms the
event index and sleeps. The tuner chooses the tick, unless the host has set Interrupt Coalescing:
then it is the shortest one, which is none at all. A timer takes 30 µs to wake a thread, so a device
that goes on polling answers a host with one command at a time twice as soon, for the price of a
processor."""

from collections.abc import Callable, Sequence
from enum import Enum

from potash_device.controller.tuner import Tuner

TICKS = (0.0, 50e-6, 200e-6)
"""Few and far apart: between two of them there is no valley for the tuner to turn back at."""
SPIN = 250e-6
"""Seconds after the last work in which a tick may be none at all."""
RESTING_TICK = 50e-6
"""The tick from then on."""
CROWDED = 200e-6
"""Seconds without the processor after which it counts as wanted by others."""
CROWDED_FOR = 10e-3
TIMED_FOR = 1.0
"""Seconds for which a timer is then preferred to waiting awake, from which one may come back a time
slice late."""
IDLE = 1.5e-3
"""Without work for so long, being rung is cheaper than polling."""
PAUSE = 0.25
"""What was found out about a load is forgotten when there was none for so long."""


class Mode(Enum):
    """How the device learns of new work."""

    RUNG = "asleep until a doorbell rings"
    TICKING = "polling the shadow page at every tick"


class Polling:
    """Whether one controller polls, and how often."""

    def __init__(
        self, clock: Callable[[], float], ticks: Sequence[float] = TICKS, idle: float = IDLE
    ) -> None:
        self._clock = clock
        self._shortest = ticks[0]
        self._idle = idle
        self._quiet_at = -PAUSE
        self._crowded_until = self._timed_until = 0.0
        self._tuner = Tuner(ticks)
        self.mode = Mode.RUNG
        self.tuned = True
        """Whether the tick is the tuner's; the shortest one otherwise."""

    def worked(self, commands: int) -> None:
        """There was work: poll again soon instead of asking to be rung."""
        now = self._clock()
        if self.mode is Mode.RUNG:
            self.mode = Mode.TICKING
            if now >= self._quiet_at + PAUSE:
                self._tuner.reset(now)
        self._quiet_at = now + self._idle
        self._tuner.executed(commands, now)

    def yielded(self, seconds: float) -> None:
        """The processor was offered to others, and came back after `seconds`.

        Whoever yields goes to the end of the line. Where there is one, who sleeps is served sooner.
        """
        if seconds > CROWDED:
            now = self._clock()
            self._crowded_until = now + CROWDED_FOR
            self._timed_until = now + TIMED_FOR

    @property
    def may_wait(self) -> bool:
        """The processor is free, so that what is due soon can be waited for without sleeping."""
        return self._clock() >= self._timed_until

    @property
    def may_arm(self) -> bool:
        """Nothing has happened for so long that being rung is cheaper than polling."""
        return self.mode is Mode.TICKING and self._clock() >= self._quiet_at

    def armed(self) -> None:
        """The event indexes are set and nothing was found behind them."""
        self.mode = Mode.RUNG

    @property
    def tick(self) -> float:
        """Seconds between two polls while there is work."""
        return self._tuner.tick if self.tuned else self._shortest

    @property
    def timeout(self) -> float | None:
        """How long to wait for a message: a tick, or as long as it takes (None)."""
        if self.mode is Mode.RUNG:
            return None
        tick = self.tick
        if tick == 0.0:
            now = self._clock()
            if now >= self._quiet_at - self._idle + SPIN or now < self._crowded_until:
                return RESTING_TICK
        return tick
