"""Reclaim unit handles of the drive's one endurance group, and its reclaim groups.

In each group, a handle fills a reclaim unit with what is written by its placement identifiers.
Where the time of flash is modelled, each is a stream of the modelled drive and a unit is a
superblock; else bytes are counted, and none is ever moved.

Source: NVM Express Base Specification 2.1, section 8.1.10 (Flexible Data Placement).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from csd_spec.placement import HandleCounters
from nvme_spec import placement
from nvme_spec.status import NvmeError, Status
from potash_device.flash.rates import PAGE
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Number, Section
from potash_firmware.rpu.namespaces.inventory import Inventory
from potash_firmware.rpu.part import Part
from potash_wire.records import U8, U16, U32

if TYPE_CHECKING:
    from potash_firmware.ftl.requests import StreamCounters
    from potash_firmware.rpu.timing.modelled import ModelledTime

GROUP = 1
"""Identifier of the endurance group."""


class SavedEvent(NamedTuple):
    """An event that happened."""

    type: U8
    identifier: U16
    timestamp: int
    nsid: U32
    handle: U8
    group: U8 = 0
    moved: U16 = 0


class SavedPlacement(TypedDict, total=False):
    """Bytes that were written, moved and erased; by stream, bytes in its reclaim unit, and
    counters; by handle, events that the host wants to know of; events that happened; whether the
    host has disabled data placement."""

    written: Number
    moved: Number
    erased: Number
    used: list[int]
    enabled: list[list[int]]
    events: list[SavedEvent]
    disabled: bool
    handles: list[tuple[Number, Number, Number, Number]]


SECTION: Section[SavedPlacement] = Section("placement", SavedPlacement)
"""The sidecar's section."""


@dataclass(frozen=True)
class PlacementSettings:
    """The division of a drive for data placement. Raises ValueError for an impossible one."""

    handles: int = 8
    unit: int = 64 << 20
    """Bytes of a reclaim unit; those of a modelled drive are its superblocks."""
    groups: int = 1
    """Reclaim groups."""

    def __post_init__(self) -> None:
        if not 1 <= self.handles <= placement.MAX_HANDLES:
            raise ValueError(f"a drive has 1 to {placement.MAX_HANDLES} reclaim unit handles")
        if not 1 <= self.groups <= placement.MAX_HANDLES // self.handles:
            most = placement.MAX_HANDLES // self.handles
            raise ValueError(f"with {self.handles} handles there are 1 to {most} reclaim groups")
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
        namespaces: Inventory,
    ) -> None:
        self.handles, self.groups = settings.handles, settings.groups
        self.enabled = True
        """Data placement is enabled."""
        self.unit = settings.unit if timing is None else timing.superblock
        self._timing = timing
        self._sidecar = sidecar
        self._namespaces = namespaces
        self._lists = namespaces.handles
        self._timestamp = namespaces.features.timestamp_value
        self._written = 0
        self._moved = self._erased = 0
        """Bytes that a modelled drive has written and erased before this start."""
        streams = settings.handles * settings.groups
        self._used = [0] * streams
        """Bytes in each reclaim unit that is filled, where nothing is modelled."""
        self._counted = [HandleCounters()] * streams
        """Bytes of each stream; but those of a modelled drive that it has counted before this
        start, apart from the host's."""
        self._relocated = [0] * streams
        """Pages of each stream that were relocated when events of that were last looked for."""
        self.noted: list[set[placement.EventType]] = [set() for _ in range(settings.handles)]
        """The events of each handle that the host wants to know of."""
        self._notes_moves = False
        """Moves are events of some handle, which is asked for every write."""
        self.events: deque[placement.Event] = deque(maxlen=2 * placement.EVENTS_IN_LOG)
        """Events of the host and of the controller, the oldest first."""

    @property
    def kind(self) -> placement.HandleType:
        """The isolation of data that the drive moves."""
        if self._timing is not None and self._timing.drive.profile.isolated:
            return placement.HandleType.PERSISTENTLY_ISOLATED
        return placement.HandleType.INITIALLY_ISOLATED

    def handle(self, nsid: int, index: int) -> int | None:
        """The reclaim unit handle of a placement handle; None for one that is invalid."""
        listed = self._lists(nsid)
        return listed[index] if index < len(listed) else None

    def _named(self, nsid: int, identifier: int) -> int | None:
        """The stream of a placement identifier; None for one that is invalid."""
        shift = 16 - placement.group_bits(self.groups)
        group, handle = identifier >> shift, self.handle(nsid, identifier & (1 << shift) - 1)
        return None if handle is None or group >= self.groups else handle * self.groups + group

    def stream(self, nsid: int, identifier: int) -> int:
        """The stream that a write goes to; an invalid identifier is the first one."""
        if not self.enabled:
            return 0
        stream = self._named(nsid, identifier)
        return self._lists(nsid)[0] * self.groups if stream is None else stream

    def write(self, nsid: int, identifier: int, length: int) -> None:
        """A host writes so many bytes."""
        stream = self._named(nsid, identifier) if self.enabled else 0
        if stream is None:
            stream = self.stream(nsid, identifier)
            self._note(placement.EventType.INVALID_PLACEMENT_IDENTIFIER, nsid, identifier, stream)
        self.note_moves()
        self._written += length
        counted = self._counted[stream]
        if self._timing is None:
            self._counted[stream] = counted._replace(
                host=counted.host + length, media=counted.media + length
            )
        elif not self._timing.has_zones(nsid):
            self._counted[stream] = counted._replace(host=counted.host + length)
        self._used[stream] = (self._used[stream] + length) % self.unit

    def available(self, stream: int) -> int:
        """Bytes that the reclaim unit of a stream still takes."""
        used = self._used[stream] if self._timing is None else self._timing.filled(stream)
        return self.unit - used

    def note(self, handle: int, events: Iterable[placement.EventType], *, on: bool) -> None:
        """Note events of these kinds of a handle from now on, or note them no more."""
        self.note_moves()  # as the events have been up to now
        kinds, noted = set(events), self.noted[handle]
        noted |= kinds
        if not on:
            noted -= kinds
        self._relocated = [stream.relocated for stream in self._streams]
        moves = placement.EventType.MEDIA_REALLOCATED
        self._notes_moves = any(moves in each for each in self.noted)

    def note_moves(self) -> None:
        """Note what a modelled drive has moved of handles whose host wants to know."""
        if not self._notes_moves:
            return
        moved = [stream.relocated for stream in self._streams]
        for stream, (before, now) in enumerate(zip(self._relocated, moved, strict=False)):
            if now > before:
                blocks = (now - before) * self._blocks(stream)
                self._note(placement.EventType.MEDIA_REALLOCATED, 0, 0, stream, moved=blocks)
        self._relocated = moved

    def update(self, nsid: int, identifiers: Sequence[int]) -> int | None:
        """Have handles begin other reclaim units; when a modelled drive has done that.

        Raises NvmeError for identifiers that the namespace does not have.
        """
        streams = [self._named(nsid, identifier) for identifier in identifiers]
        if None in streams:
            raise NvmeError(Status.INVALID_FIELD, "a placement identifier is not the namespace's")
        due = None
        for identifier, stream in zip(identifiers, streams, strict=True):
            assert stream is not None
            if self.available(stream) < self.unit:
                self._note(placement.EventType.UNIT_NOT_FULLY_WRITTEN, nsid, identifier, stream)
            self._used[stream] = 0
            if self._timing is not None:
                due = self._timing.close(stream)
        return due

    def status(self, nsid: int, block_size: int) -> list[placement.HandleStatus]:
        """The handle of each placement identifier of a namespace."""
        shift = 16 - placement.group_bits(self.groups)
        return [
            placement.HandleStatus(
                group << shift | index,
                handle,
                self.available(handle * self.groups + group) // block_size,
            )
            for group in range(self.groups)
            for index, handle in enumerate(self._lists(nsid))
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
        """Bytes of each handle, in all groups. Zones that have superblocks of a modelled drive are
        of none."""
        counted, groups = self._counters, self.groups
        return [
            HandleCounters(*map(sum, zip(*counted[first : first + groups], strict=True)))
            for first in range(0, len(counted), groups)
        ]

    @property
    def _counters(self) -> list[HandleCounters]:
        """Bytes of each stream."""
        streams = self._streams
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

    def _blocks(self, stream: int) -> int:
        """Logical blocks of a page of a stream; 1 for pages of larger ones."""
        for nsid, namespace in self._namespaces.blocks.items():
            if stream // self.groups in self._lists(nsid):
                return max(1, PAGE // namespace.block_size)
        return 1

    @property
    def _streams(self) -> Sequence[StreamCounters]:
        # A custom translation layer has no counters of streams.
        drive = None if self._timing is None else self._timing.drive
        streams: Sequence[StreamCounters] = getattr(drive, "streams", ())
        return streams

    def _note(
        self, kind: placement.EventType, nsid: int, identifier: int, stream: int, moved: int = 0
    ) -> None:
        handle, group = divmod(stream, self.groups)
        if kind in self.noted[handle]:
            moved = min(moved, placement.MOST_MOVED)
            self.events.append(
                placement.Event(kind, identifier, self._timestamp(), nsid, handle, group, moved)
            )

    # Saved state.

    def record(self) -> None:
        saved: SavedPlacement = {
            "written": self._written,
            "moved": self.media_written,
            "erased": self.erased,
            "used": self._used,
            "enabled": [sorted(kinds) for kinds in self.noted],
            "events": [SavedEvent(*event) for event in self.events],
            "handles": [counters[:] for counters in self._counters],
            "disabled": not self.enabled,
        }
        self._sidecar.put(SECTION, saved)

    def restore(self, *, clean: bool | None = None) -> None:
        """Go on from what was recorded, as far as that makes sense."""
        state = self._sidecar.get(SECTION)
        if state is None:
            return
        self._written = state.get("written", 0)
        self._moved, self._erased = state.get("moved", 0), state.get("erased", 0)
        for stream, used in enumerate(state.get("used", [])[: len(self._used)]):
            self._used[stream] = used % self.unit
        for stream, counters in enumerate(state.get("handles", [])[: len(self._counted)]):
            self._counted[stream] = HandleCounters(*counters)
        for handle, noted in enumerate(state.get("enabled", [])[: self.handles]):
            self.noted[handle].clear()
            self.note(handle, {kind for kind in placement.EventType if kind in noted}, on=True)
        self.events.extend(placement.Event(*event) for event in state.get("events", []))
        self.enable(not state.get("disabled", False))

    def enable(self, enabled: bool) -> None:
        """Enable data placement, or disable it, while there is no namespace."""
        self.enabled = enabled
        self._namespaces.handle_count = self.handles if enabled else 0
