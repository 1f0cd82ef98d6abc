"""Reclaim unit handles of the drive's one endurance group, which has one reclaim group.

Each handle fills a reclaim unit with what is written by its placement identifiers. Where the time
of flash is modelled, a handle is a stream of the modelled drive and a unit is a superblock; else
bytes are counted, and none is ever moved.

Source: NVM Express Base Specification 2.1, section 8.1.10 (Flexible Data Placement).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from csd_spec.placement import HandleCounters
from nvme_spec import placement
from nvme_spec.status import NvmeError, Status
from potash_device.flash.profile import PAGE
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Number, Section
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.part import Part
from potash_wire.records import U8, U16, U32

if TYPE_CHECKING:
    from potash_firmware.ftl.requests import StreamCounters
    from potash_firmware.rpu.timing.modelled import ModelledTime

GROUP = 1
"""Identifier of the endurance group."""


class SavedPlacement(TypedDict, total=False):
    """Bytes that were written, moved and erased; by handle, bytes in its reclaim unit, events that
    the host wants to know of, and counters; and events that happened."""

    written: Number
    moved: Number
    erased: Number
    used: list[int]
    enabled: list[list[int]]
    events: list[tuple[U8, U16, int, U32, U8]]
    handles: list[tuple[Number, Number, Number, Number]]


SECTION: Section[SavedPlacement] = Section("placement", SavedPlacement)
"""The sidecar's section."""


@dataclass(frozen=True)
class PlacementSettings:
    """The division of a drive for data placement. Raises ValueError for an impossible one."""

    handles: int = 8
    unit: int = 64 << 20
    """Bytes of a reclaim unit; those of a modelled drive are its superblocks."""

    def __post_init__(self) -> None:
        if not 1 <= self.handles <= placement.MAX_HANDLES:
            raise ValueError(f"a drive has 1 to {placement.MAX_HANDLES} reclaim unit handles")
        if self.unit < 1 << 20 or self.unit % 4096:
            raise ValueError("a reclaim unit has at least 1M, in whole pages of 4096 bytes")


class Placement(Part):
    """The reclaim unit handles of one drive.

    `namespaces` give the reclaim unit handle of each placement identifier of a namespace.
    """

    def __init__(
        self,
        settings: PlacementSettings,
        timing: ModelledTime | None,
        sidecar: Sidecar,
        namespaces: Namespaces,
    ) -> None:
        self.handles = settings.handles
        self.unit = settings.unit if timing is None else timing.superblock
        self._timing = timing
        self._sidecar = sidecar
        self._lists = namespaces.handles
        self._timestamp = namespaces.features.timestamp_value
        self._written = 0
        self._moved = self._erased = 0
        """Bytes that a modelled drive has written and erased before this start."""
        self._used = [0] * settings.handles
        """Bytes in the reclaim unit of each handle, where nothing is modelled."""
        self._counted = [HandleCounters()] * settings.handles
        """Bytes of each handle; but those of a modelled drive that it has counted before this
        start, apart from the host's."""
        self.enabled: list[set[placement.EventType]] = [set() for _ in range(settings.handles)]
        """The events of each handle that the host wants to know of."""
        self.host_events: deque[placement.Event] = deque(maxlen=placement.EVENTS_IN_LOG)

    @property
    def kind(self) -> placement.HandleType:
        """The isolation of data that the drive moves."""
        if self._timing is not None and self._timing.drive.profile.isolated:
            return placement.HandleType.PERSISTENTLY_ISOLATED
        return placement.HandleType.INITIALLY_ISOLATED

    def handle(self, nsid: int, identifier: int) -> int | None:
        """The reclaim unit handle of a placement identifier; None for one that is invalid."""
        listed = self._lists(nsid)
        return listed[identifier] if identifier < len(listed) else None

    def stream(self, nsid: int, identifier: int) -> int:
        """The handle whose unit a write goes to: an invalid identifier is the first one."""
        handle = self.handle(nsid, identifier)
        return self._lists(nsid)[0] if handle is None else handle

    def write(self, nsid: int, identifier: int, length: int) -> None:
        """A host writes so many bytes."""
        handle = self.stream(nsid, identifier)
        if self.handle(nsid, identifier) is None:
            self._note(placement.EventType.INVALID_PLACEMENT_IDENTIFIER, nsid, identifier, handle)
        self._written += length
        counted = self._counted[handle]
        if self._timing is None:
            self._counted[handle] = counted._replace(
                host=counted.host + length, media=counted.media + length
            )
        elif not self._timing.has_zones(nsid):
            self._counted[handle] = counted._replace(host=counted.host + length)
        self._used[handle] = (self._used[handle] + length) % self.unit

    def available(self, handle: int) -> int:
        """Bytes that a handle's reclaim unit still takes."""
        used = self._used[handle] if self._timing is None else self._timing.filled(handle)
        return self.unit - used

    def update(self, nsid: int, identifiers: Sequence[int]) -> int | None:
        """Have handles begin other reclaim units; when a modelled drive has done that.

        Raises NvmeError for identifiers that the namespace does not have.
        """
        handles = [self.handle(nsid, identifier) for identifier in identifiers]
        if None in handles:
            raise NvmeError(Status.INVALID_FIELD, "a placement identifier is not the namespace's")
        due = None
        for identifier, handle in zip(identifiers, handles, strict=True):
            assert handle is not None
            if self.available(handle) < self.unit:
                self._note(placement.EventType.UNIT_NOT_FULLY_WRITTEN, nsid, identifier, handle)
            self._used[handle] = 0
            if self._timing is not None:
                due = self._timing.close(handle)
        return due

    def status(self, nsid: int, block_size: int) -> list[placement.HandleStatus]:
        """The handle of each placement identifier of a namespace."""
        return [
            placement.HandleStatus(identifier, handle, self.available(handle) // block_size)
            for identifier, handle in enumerate(self._lists(nsid))
        ]

    @property
    def statistics(self) -> placement.Statistics:
        return placement.Statistics(hbmw=self._written, mbmw=self.media_written, mbe=self.erased)

    @property
    def written(self) -> int:
        """Bytes that the host has written."""
        return self._written

    @property
    def media_written(self) -> int:
        """Bytes that went to the media, those that the drive has moved included."""
        return self._written if self._timing is None else self._moved + self._timing.programmed

    @property
    def erased(self) -> int:
        """Bytes."""
        return 0 if self._timing is None else self._erased + self._timing.erased

    @property
    def counters(self) -> list[HandleCounters]:
        """Bytes of each handle. Zones that have superblocks of a modelled drive are of none."""
        drive = None if self._timing is None else self._timing.drive
        # A custom translation layer has no counters of streams.
        streams: Sequence[StreamCounters] = getattr(drive, "streams", ())
        if not streams:
            return list(self._counted)
        return [
            HandleCounters(
                before.host,
                before.media + since.media * PAGE,
                before.moved + since.relocated * PAGE,
                before.padding + since.padding * PAGE,
            )
            for before, since in zip(self._counted, streams, strict=False)
        ]

    def _note(self, kind: placement.EventType, nsid: int, identifier: int, handle: int) -> None:
        if kind in self.enabled[handle]:
            self.host_events.append(
                placement.Event(kind, identifier, self._timestamp(), nsid, handle)
            )

    # Saved state.

    def record(self) -> None:
        saved: SavedPlacement = {
            "written": self._written,
            "moved": self.media_written,
            "erased": self.erased,
            "used": self._used,
            "enabled": [sorted(kinds) for kinds in self.enabled],
            "events": [event[:] for event in self.host_events],
            "handles": [counters[:] for counters in self.counters],
        }
        self._sidecar.put(SECTION, saved)

    def restore(self, *, clean: bool | None = None) -> None:
        """Go on from what was recorded, as far as that makes sense."""
        state = self._sidecar.get(SECTION)
        if state is None:
            return
        self._written = state.get("written", 0)
        self._moved, self._erased = state.get("moved", 0), state.get("erased", 0)
        for handle, used in enumerate(state.get("used", [])[: self.handles]):
            self._used[handle] = used % self.unit
        for handle, counters in enumerate(state.get("handles", [])[: self.handles]):
            self._counted[handle] = HandleCounters(*counters)
        for handle, enabled in enumerate(state.get("enabled", [])[: self.handles]):
            self.enabled[handle] = {kind for kind in placement.EventType if kind in enabled}
        self.host_events.extend(placement.Event(*event) for event in state.get("events", []))
