"""Decides when to poll for work, and when to sleep until a doorbell rings.

A host with shadow doorbells can be left alone while the device is busy: the device polls the shadow
page once a tick, and interrupts once for all that it found. After a while without work it arms the
event index and sleeps. The tuner chooses the tick, unless the host has set Interrupt Coalescing:
then it is the shortest one, which is none at all. A timer takes 30 µs to wake a thread, so a device
that goes on polling answers a host with one command at a time twice as soon, for the price of a
processor.

A host with one command at a time needs its completion at once; a host with many is faster if one
interrupt covers many completions. The tuner does not know which, and compares the throughput of
short windows at one tick and at another, alternately. A longer tick must also find more commands at
a poll, as others use the machine too. Ticks closer than a factor of two differ by less than the
noise."""

from collections.abc import Callable, Sequence

WINDOW = 10e-3
"""Seconds in which commands are counted."""
STEADY_WINDOWS = 4
"""Windows at one tick before another is tried; twice as many after each that was no better."""
MOST_STEADY_WINDOWS = 32
TRIAL_WINDOWS = 6
"""Windows in which the other tick and this one alternate."""
MUST_GAIN = 1.03
"""Times the throughput, so that noise alone seldom changes anything."""
LONGER_MUST_GATHER = 1.25
"""Times as many commands a poll."""
CLEARLY_WORSE, CLEARLY_BETTER = 0.8, 1.3
"""Ratios at which a trial ends early."""


class _Count:
    """Commands and the polls that found them, in some time."""

    def __init__(self) -> None:
        self.commands = 0
        self.polls = 0
        self.seconds = 0.0

    def include(self, window: "_Count") -> None:
        self.commands += window.commands
        self.polls += window.polls
        self.seconds += window.seconds

    @property
    def rate(self) -> float:
        return self.commands / self.seconds

    @property
    def gathered(self) -> float:
        return self.commands / self.polls


class Tuner:
    """The tick in use, out of `ticks`, in ascending seconds; time is what the caller says it is."""

    def __init__(self, ticks: Sequence[float]) -> None:
        self._ticks = tuple(ticks)
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """The load has ended: the next one begins with the shortest tick."""
        self._level = 0
        self._other = 0
        """The level that is tried, or was last."""
        self._trying = False
        self._patience = STEADY_WINDOWS
        self._windows = 0
        self._tried = _Count()
        self._stayed = _Count()
        self._window = _Count()
        self._window_began = now

    @property
    def tick(self) -> float:
        return self._ticks[self._other if self._trying and not self._windows % 2 else self._level]

    def executed(self, commands: int, now: float) -> None:
        """A poll has found `commands`, which have been executed at the time `now`."""
        window = self._window
        window.commands += commands
        window.polls += 1
        window.seconds = now - self._window_began
        if window.seconds < WINDOW:
            return
        self._window = _Count()
        self._window_began = now
        if self._trying:
            self._end_trial_window(window)
        else:
            self._end_steady_window(window)

    def _end_steady_window(self, window: _Count) -> None:
        if self._level and window.gathered < LONGER_MUST_GATHER:
            self._level = 0
        self._windows += 1
        if self._windows >= self._patience:
            self._begin_trial()

    def _begin_trial(self) -> None:
        """Try the others in turn, the longest first."""
        self._other = (self._other - 1) % len(self._ticks)
        if self._other == self._level:
            self._other = (self._other - 1) % len(self._ticks)
        self._trying = True
        self._windows = 0
        self._tried = _Count()
        self._stayed = _Count()

    def _end_trial_window(self, window: _Count) -> None:
        tried, stayed = self._tried, self._stayed
        (stayed if self._windows % 2 else tried).include(window)
        self._windows += 1
        if self._windows % 2:
            return
        gain = _ratio(tried.rate, stayed.rate)
        if self._windows < TRIAL_WINDOWS and CLEARLY_WORSE < gain < CLEARLY_BETTER:
            return
        better = gain > MUST_GAIN
        if self._other > self._level:
            better &= tried.gathered > LONGER_MUST_GATHER * stayed.gathered
        if better:
            self._level = self._other
            self._patience = STEADY_WINDOWS
        else:
            self._patience = min(2 * self._patience, MOST_STEADY_WINDOWS)
        self._trying = False
        self._windows = 0


def _ratio(tried: float, stayed: float) -> float:
    """The ratio of two rates, in commands per second; a window may have had no commands.

    A host whose completion queue is full makes the device poll again and again for nothing.
    """
    if not stayed:
        return CLEARLY_BETTER if tried else 1.0
    return tried / stayed


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
"""Seconds without work after which waiting for a doorbell is cheaper than polling."""
PAUSE = 0.25
"""Seconds without load after which the tuner forgets its measurements."""


class Polling:
    """Decides whether one controller polls, and how often."""

    def __init__(self, clock: Callable[[], float], rest: float | None = None) -> None:
        """`rest` are the seconds between two polls where nothing wakes the device."""
        self._clock = clock
        self._rest = rest
        self._quiet_at = -PAUSE
        self._crowded_until = self._timed_until = 0.0
        self._tuner = Tuner(TICKS)
        self.ticking = False
        """The shadow page is polled at every tick, instead of sleeping until a doorbell rings."""
        self.tuned = True
        """True if the tuner chooses the tick; otherwise it is the shortest one."""

    def worked(self, commands: int) -> None:
        """There was work: poll again soon instead of asking to be rung."""
        now = self._clock()
        if not self.ticking:
            self.ticking = True
            if now >= self._quiet_at + PAUSE:
                self._tuner.reset(now)
        self._quiet_at = now + IDLE
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
        return self.ticking and self._clock() >= self._quiet_at

    def armed(self) -> None:
        """The event indexes are set and nothing was found behind them."""
        self.ticking = False

    @property
    def tick(self) -> float:
        """Seconds between two polls while there is work."""
        return self._tuner.tick if self.tuned else TICKS[0]

    @property
    def timeout(self) -> float | None:
        """Seconds to wait for a message: a tick, or `rest`; None for no limit."""
        if not self.ticking:
            return self._rest
        tick = self.tick
        if tick == 0.0:
            now = self._clock()
            if now >= self._quiet_at - IDLE + SPIN or now < self._crowded_until:
                return RESTING_TICK
        return tick
