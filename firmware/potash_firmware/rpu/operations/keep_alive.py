"""The Keep Alive Timer: detection of a host that no longer responds.

Only Keep Alive commands count (CTRATT has no traffic based keep alive). When it expires, no
further command is served, and CSTS.CFS is set.

Source: NVM Express Base Specification 2.0, section 3.9 (Keep Alive)."""

from potash_firmware.rpu.deadlines import NO_TIMER, Deadlines, Timer
from potash_firmware.rpu.part import Part


class KeepAlive(Part):
    """The Keep Alive Timer of a controller, one of its `timers`."""

    def __init__(self, timers: Deadlines) -> None:
        self._timers = timers
        self._timer: Timer = NO_TIMER
        self._seconds = 0.0
        self.expired = False
        """The host has sent no Keep Alive command in time. The loop checks this after it has
        executed commands, one of which may restart the timer."""

    def configure(self, seconds: float) -> None:
        """Start the timer; 0 stops it."""
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self._start(self._seconds)

    def _start(self, left: float) -> None:
        self._timer.cancel()
        self.expired = False
        self._timer = self._timers.after(left, self._expire) if self._seconds else NO_TIMER

    def _expire(self) -> None:
        self.expired = True

    def save(self) -> tuple[int, int]:
        """Milliseconds of the timer, and until it expires; zeroes while it does not run."""
        left = self.timeout
        return (0, 0) if left is None else (round(self._seconds * 1000), round(left * 1000))

    def load(self, saved: tuple[int, int]) -> None:
        milliseconds, left = saved
        self._seconds = milliseconds / 1000
        self._start(left / 1000)

    def reset(self, *, next_host: bool = False) -> None:
        self.configure(0.0)

    @property
    def timeout(self) -> float | None:
        """Seconds until it expires; None while it does not run."""
        return self._timers.left(self._timer)
