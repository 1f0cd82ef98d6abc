"""The zones that have superblocks of a modelled drive.

While a zone has data, it has a stream of the drive, whose superblocks are its own; a reset erases
them, and gives the stream back.
"""

import sys
from collections.abc import Collection

from potash_device.flash.profile import Profile
from potash_firmware.ftl.interface import Held, ZoneStream
from potash_firmware.rpu.timing.layout import Layout


class ZoneStreams:
    """The streams of zones. Raises ValueError for some that zones cannot have."""

    def __init__(self, profile: Profile, streams: Collection[ZoneStream] = ()) -> None:
        self._groups, self.first = profile.groups, profile.frontiers
        every = range(self.first, self.first + profile.superblocks)
        self._streams = {(nsid, zone): stream for nsid, zone, stream in streams}
        self._free = set(every) - set(self._streams.values())
        if len(self._free) + len(streams) != len(every):
            raise ValueError("two zones have the same superblocks, or some that are not there")

    @property
    def every(self) -> list[ZoneStream]:
        return [ZoneStream(*zone, stream) for zone, stream in self._streams.items()]

    def of(self, nsid: int, zone: int) -> int | None:
        """The stream of a zone; None if it has no superblocks."""
        return self._streams.get((nsid, zone))

    def give(self, nsid: int, zone: int) -> int:
        """The stream of a zone, perhaps a new one: if possible, on the zone's group of dies."""
        if (found := self.of(nsid, zone)) is None:
            group = (zone + self.first) % self._groups
            found = min(self._free, key=lambda stream: (stream % self._groups != group, stream))
            self._free.remove(found)
            self._streams[nsid, zone] = found
        return found

    def take(self, nsid: int, zones: range = range(sys.maxsize)) -> list[int]:
        """The streams of zones, or of all zones of a namespace, which have none from now on."""
        gone = [key for key in self._streams if key[0] == nsid and key[1] in zones]
        streams = [self._streams.pop(key) for key in gone]
        self._free.update(streams)
        return streams


def require_sound(profile: Profile, held: Held) -> None:
    """Raises ValueError unless namespaces can have these parts of a drive."""
    Layout(profile.logical_pages, held.pieces)
    ZoneStreams(profile, held.zones)
