"""Guest time: the host's monotonic clock, less the time in which the guest stood still."""

import time
from collections.abc import Callable


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
