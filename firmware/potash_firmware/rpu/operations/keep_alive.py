"""The Keep Alive Timer: detection of a host that no longer responds.

Only Keep Alive commands count (CTRATT has no traffic based keep alive). When it expires, no
further command is served, and CSTS.CFS is set.

Source: NVM Express Base Specification 2.0, section 3.9 (Keep Alive)."""

from collections.abc import Callable


class KeepAlive:
    """The Keep Alive Timer of a controller; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = 0.0
        self.due: float | None = None
        """The time at which it expires; None while it does not run."""

    def configure(self, seconds: float) -> None:
        """Begin to count; 0 stops the timer."""
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        self.due = self._clock() + self._seconds if self._seconds else None

    def save(self) -> tuple[int, int]:
        """Milliseconds of the timer, and until it expires; zeroes while it does not run."""
        left = self.timeout
        return (0, 0) if left is None else (round(self._seconds * 1000), round(left * 1000))

    def load(self, milliseconds: int, left: int) -> None:
        self._seconds = milliseconds / 1000
        self.due = self._clock() + left / 1000 if milliseconds else None

    def stop(self) -> None:
        """Nobody is waited for, as after a controller reset."""
        self.configure(0.0)

    @property
    def timeout(self) -> float | None:
        """Seconds until it expires; None while it does not run."""
        return None if self.due is None else max(0.0, self.due - self._clock())

    @property
    def expired(self) -> bool:
        """The host has sent no Keep Alive command in time."""
        return self.due is not None and self._clock() >= self.due
