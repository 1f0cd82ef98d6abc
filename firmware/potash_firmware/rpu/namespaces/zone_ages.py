"""The drive's policy of recommendations: zones that were left alone for a long time.

A zone that is active and was not written for `finish_after` seconds takes resources, and the drive
recommends to finish it; the data of one that is full for `reset_after` seconds are old, and it
recommends to reset it.

Source: NVM Express Zoned Namespace Command Set Specification 1.1, sections 5.4 and 5.5.
"""

from collections.abc import Callable, Mapping

from nvme_spec.zoned import ZoneAttribute, ZoneState
from potash_device.media.shapes import ZoneLimits

ACTIVE = (ZoneState.IMPLICITLY_OPENED, ZoneState.EXPLICITLY_OPENED, ZoneState.CLOSED)
ADVISED: Mapping[ZoneAttribute, tuple[ZoneState, ...]] = {
    ZoneAttribute.RESET_RECOMMENDED: (ZoneState.FULL,),
    ZoneAttribute.FINISH_RECOMMENDED: ACTIVE,
}
"""States of zones that a recommendation is for."""
INTERVAL = 1.0
"""Seconds between two looks at the ages of zones."""


class ZoneAges:
    """The times, in nanoseconds of `clock`, since which zones are as they are."""

    def __init__(self, limits: ZoneLimits, clock: Callable[[], int]) -> None:
        self._limits = {
            ZoneAttribute.RESET_RECOMMENDED: limits.reset_after * 10**9,
            ZoneAttribute.FINISH_RECOMMENDED: limits.finish_after * 10**9,
        }
        self.used = any(self._limits.values())
        """The drive has such recommendations."""
        self._clock = clock
        self._since: dict[ZoneAttribute, dict[int, int]] = {advice: {} for advice in ADVISED}
        """Times by number of a zone, the earliest first."""
        self.aged: dict[ZoneAttribute, set[int]] = {advice: set() for advice in ADVISED}
        """Numbers of zones for which the drive has a recommendation."""

    def touch(self, number: int, state: ZoneState) -> None:
        """A zone has been written, or is in another state."""
        if not self.used:
            return
        for advice, states in ADVISED.items():
            self._since[advice].pop(number, None)
            self.aged[advice].discard(number)
            if self._limits[advice] and state in states:
                self._since[advice][number] = self._clock()

    def grow_old(self) -> list[int]:
        """Numbers of the zones for which there is a new recommendation."""
        found = []
        for advice, since in self._since.items():
            while since:
                number, time = next(iter(since.items()))
                if self._clock() - time < self._limits[advice]:
                    break
                del since[number]
                self.aged[advice].add(number)
                found.append(number)
        return found
