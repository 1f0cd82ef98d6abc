"""A guest's time for those who wait for it: seconds, without those in which the guest is stopped.

Whoever stops it (a device whose emulation is behind, a user at a monitor), a limit for what the
guest does must not pass meanwhile.
"""

import time
from collections.abc import Callable

from potash.vm.qmp import Message, event_time


class Pauses:
    """What QEMU's events STOP and RESUME say.

    Args:
        clock: seconds of the host's monotonic clock.
        realtime: seconds of the clock that the events' times are of.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        realtime: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._realtime = realtime
        self._stopped_at: float | None = None
        self._total = 0.0

    @property
    def stopped(self) -> bool:
        return self._stopped_at is not None

    @property
    def now(self) -> float:
        """Seconds of the guest's life, from any origin; constant while it is stopped."""
        return (self._clock() if self._stopped_at is None else self._stopped_at) - self._total

    def take(self, event: Message) -> None:
        """Take an event; those other than STOP and RESUME mean nothing here."""
        if event.get("event") == "STOP" and self._stopped_at is None:
            self._stopped_at = self._when(event)
        elif event.get("event") == "RESUME" and self._stopped_at is not None:
            self._total += max(0.0, self._when(event) - self._stopped_at)
            self._stopped_at = None

    def _when(self, event: Message) -> float:
        at = event_time(event)
        return self._clock() - (0.0 if at is None else max(0.0, self._realtime() - at))
