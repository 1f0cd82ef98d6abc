"""Finding out how long to leave the host alone: a climb along a few ticks, on throughput.

A device that looks at the shadow page at every instant answers each command at once: a host with
one command at a time wants that. One with many is better off when it is interrupted once for many
completions, which it is when the device looks rarely, but then the host must have something else to
do meanwhile, and nobody can ask it. So this tries: the throughput of short windows at one tick is
compared with that at the next longer or shorter one, and the better one stays.

Ticks closer together than a factor of two give no difference that could be told from noise.
"""

from collections.abc import Sequence

WINDOW = 25e-3
"""Seconds in which commands are counted."""
STEADY_WINDOWS = 6
"""Windows at one tick before another is tried."""
TRIAL_WINDOWS = 2
LONGER_MUST_GAIN = 1.08
SHORTER_MAY_LOSE = 0.96
"""A longer tick delays what it does not speed up, so it has to be worth it; a shorter one need not
be."""
KEPT = 0.7
"""How much of the past a new window leaves in the average."""


class Tuner:
    """The tick in use, out of `ticks`, in ascending seconds; time is what the caller says it is."""

    def __init__(self, ticks: Sequence[float]) -> None:
        self._ticks = tuple(ticks)
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """The load has ended: the next one begins with the shortest tick."""
        self._level = 0
        self._trial: int | None = None
        self._direction = 1
        self._average: float | None = None
        self._steady = 0
        self._trial_rates: list[float] = []
        self._commands = 0
        self._window_began = now

    @property
    def tick(self) -> float:
        """Seconds between two looks."""
        return self._ticks[self._level if self._trial is None else self._trial]

    def executed(self, commands: int, now: float) -> None:
        """`commands` have been executed at the time `now`."""
        self._commands += commands
        elapsed = now - self._window_began
        if elapsed < WINDOW:
            return
        rate = self._commands / elapsed
        self._commands = 0
        self._window_began = now
        if self._trial is None:
            self._end_steady_window(rate)
        else:
            self._end_trial_window(rate)

    def _end_steady_window(self, rate: float) -> None:
        average = self._average
        self._average = rate if average is None else KEPT * average + (1 - KEPT) * rate
        self._steady += 1
        if self._steady < STEADY_WINDOWS:
            return
        self._steady = 0
        level = self._level + self._direction
        if 0 <= level < len(self._ticks):
            self._trial = level
            self._trial_rates.clear()
        else:
            self._direction = -self._direction

    def _end_trial_window(self, rate: float) -> None:
        assert self._trial is not None and self._average is not None
        self._trial_rates.append(rate)
        if len(self._trial_rates) < TRIAL_WINDOWS:
            return
        tried = sum(self._trial_rates) / len(self._trial_rates)
        needed = LONGER_MUST_GAIN if self._trial > self._level else SHORTER_MAY_LOSE
        if tried > needed * self._average:
            self._level = self._trial
            self._average = tried
        else:
            self._direction = -self._direction
        self._trial = None
