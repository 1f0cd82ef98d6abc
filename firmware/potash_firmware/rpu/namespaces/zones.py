"""The zones of one namespace: their states, write pointers, and limits of active and open zones.

This is the state machine alone: it refuses what a zone does not take, and says which zones have
changed, whose records are then to be stored.

Source: NVM Express Zoned Namespace Command Set Specification 1.1, section 2.1.1; for random write
areas TP 4076, which later revisions include (section "Zone Random Write Area").
"""

import struct
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from nvme_spec.status import NvmeError, Status
from nvme_spec.zoned import (
    EXTENSION_UNIT,
    SEQUENTIAL_WRITE_REQUIRED,
    ZoneAttribute,
    ZoneDescriptor,
    ZoneSendAction,
    ZoneState,
)
from potash_device.media.shapes import (
    DEFAULT_LIMITS,
    NO_AREAS,
    ZONE_RECORD,
    WriteAreas,
    ZoneLimits,
)
from potash_firmware.rpu.namespaces.zone_ages import ACTIVE, ADVISED, ZoneAges

_RECORD = struct.Struct("<QBBH")
"""Write pointer from the zone's first block on, state, attributes, and `Zone.ahead`."""
_CHECKSUM = struct.Struct("<I")

_NONE = ZoneAttribute(0)

_OPENED = (ZoneState.IMPLICITLY_OPENED, ZoneState.EXPLICITLY_OPENED)
_WRITABLE = (ZoneState.EMPTY, *ACTIVE)

_REFUSED = {
    ZoneState.FULL: Status.ZONE_IS_FULL,
    ZoneState.READ_ONLY: Status.ZONE_IS_READ_ONLY,
    ZoneState.OFFLINE: Status.ZONE_IS_OFFLINE,
}
"""The status of a write to a zone in each state."""

_States = tuple[ZoneState, ...]

TRANSITIONS: dict[ZoneSendAction, tuple[_States, ZoneState, _States]] = {
    ZoneSendAction.CLOSE: ((*_OPENED, ZoneState.CLOSED), ZoneState.CLOSED, _OPENED),
    ZoneSendAction.FINISH: ((*_WRITABLE, ZoneState.FULL), ZoneState.FULL, ACTIVE),
    ZoneSendAction.OPEN: (_WRITABLE, ZoneState.EXPLICITLY_OPENED, (ZoneState.CLOSED,)),
    ZoneSendAction.RESET: (
        (*_WRITABLE, ZoneState.FULL),
        ZoneState.EMPTY,
        (*ACTIVE, ZoneState.FULL),
    ),
    ZoneSendAction.OFFLINE: (
        (ZoneState.READ_ONLY, ZoneState.OFFLINE),
        ZoneState.OFFLINE,
        (ZoneState.READ_ONLY,),
    ),
    ZoneSendAction.SET_EXTENSION: ((ZoneState.EMPTY,), ZoneState.CLOSED, ()),
}
"""States in which a zone takes an action, the one that it is in then, and the states of the zones
that the action is about when it is for all (section 3.4.3.1)."""


@dataclass(eq=False, slots=True)
class Zone:
    """A zone; `pointer` counts from `first`, its first block."""

    number: int
    first: int
    state: ZoneState = ZoneState.EMPTY
    pointer: int = 0
    attributes: ZoneAttribute = _NONE
    extension: bytes = b""
    area: bool = False
    """It has a random write area."""
    ahead: int = 0
    """Blocks from the write pointer to the end of the last that is written in the zone's random
    write area."""
    resets: int = 0
    """Number of resets since power-on."""

    def encode(self) -> bytes:
        """The zone's record; an empty zone is all zeroes."""
        if self.state is ZoneState.EMPTY:
            return bytes(ZONE_RECORD)
        attributes = self.attributes | ZoneAttribute.RANDOM_WRITE_AREA * self.area
        record = _RECORD.pack(self.pointer, self.state, attributes, self.ahead)
        record += self.extension.ljust(EXTENSION_UNIT, b"\0")
        return (record + _CHECKSUM.pack(zlib.crc32(record))).ljust(ZONE_RECORD, b"\0")

    def decode(self, record: bytes, capacity: int) -> bool:
        """Be as a record says; False, and read-only, where the record is damaged."""
        size = _RECORD.size + EXTENSION_UNIT
        if not any(record):
            return True
        pointer, state, attributes, ahead = _RECORD.unpack_from(record)
        (checksum,) = _CHECKSUM.unpack_from(record, size)
        valid = checksum == zlib.crc32(record[:size]) and state in set(ZoneState)
        if not valid or pointer + ahead > capacity:
            self.state = ZoneState.READ_ONLY
            return False
        self.pointer, self.state, self.ahead = pointer, ZoneState(state), ahead
        self.area = bool(attributes & ZoneAttribute.RANDOM_WRITE_AREA)
        self.attributes = ZoneAttribute(attributes) & ~ZoneAttribute.RANDOM_WRITE_AREA
        self.extension = bytes(record[_RECORD.size : size])
        return True


class ZoneChanges:
    """Zones that the drive has changed, or changed its recommendation for, since the host of each
    controller has read the log page (section 4.1.4.1)."""

    def __init__(self, zones: Iterable[int] = ()) -> None:
        self._last: dict[int, int] = {}
        """The number of the last change of each zone."""
        self._count = 0
        self._read: dict[int, int] = {}
        """The number of the last change that the host of each controller has read of."""
        self.new = False
        """No host was notified of the last change."""
        self.add(zones)

    def add(self, zones: Iterable[int]) -> None:
        """Zones have changed."""
        changed = dict.fromkeys(zones, self._count + 1)
        if changed:
            self._last |= changed
            self._count += 1
            self.new = True

    def unread(self, controller: int) -> bool:
        """True if there are zones that the host of a controller has not read of."""
        return self._count > self._read.get(controller, 0)

    def of(self, controller: int) -> list[int]:
        """Numbers of the zones that the host of a controller has not read of, in their order."""
        read = self._read.get(controller, 0)
        return sorted(zone for zone, last in self._last.items() if last > read)

    def were_read(self, controller: int) -> None:
        """The host of a controller has read the log page."""
        self._read[controller] = self._count


class Zones:
    """`count` zones of `size` blocks, of which `capacity` can be written; `areas` are their random
    write areas, in blocks."""

    def __init__(
        self,
        count: int,
        size: int,
        capacity: int,
        areas: WriteAreas = NO_AREAS,
        limits: ZoneLimits = DEFAULT_LIMITS,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.size, self.capacity, self.areas = size, capacity, areas
        self.every = [Zone(number, number * size) for number in range(count)]
        self.active_limit = min(limits.max_active, count)
        self.open_limit = min(limits.max_open, count)
        self.cross_zone_reads = limits.cross_zone_reads
        self.area_limit = min(areas.zones or self.active_limit, self.active_limit)
        self.advice: Mapping[ZoneAttribute, Container[int]] = {}
        """Numbers of zones that the drive recommends to reset when they are full, or to finish when
        they are active (sections 5.4 and 5.5)."""
        self.ages = ZoneAges(limits, clock)
        self.changes = ZoneChanges()
        self.unsaved: set[int] = set()
        """Zones whose records are to be stored before anything else happens in them."""
        self._active: set[int] = set()
        self._implicit: dict[int, None] = {}
        """Implicitly opened zones, the least recently written first."""
        self._explicit: set[int] = set()

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def opened(self) -> int:
        return len(self._implicit) + len(self._explicit)

    def of(self, lba: int) -> Zone:
        return self.every[lba // self.size]

    def starting(self, lba: int) -> Zone:
        """The zone that begins with a block. Raises NvmeError where none does."""
        number, offset = divmod(lba, self.size)
        if offset or number >= len(self.every):
            raise NvmeError(Status.INVALID_FIELD, f"no zone begins with block {lba}")
        return self.every[number]

    def become(self, zone: Zone, state: ZoneState) -> None:
        """Have a zone in a state, whatever the one before."""
        before = self._recommended(zone)
        zone.state = state
        self.ages.touch(zone.number, state)
        if state not in ACTIVE:
            zone.area, zone.ahead = False, 0
        if self._recommended(zone) & ~before:
            self.changes.add([zone.number])
        for among in (self._active, self._explicit):
            among.discard(zone.number)
        self._implicit.pop(zone.number, None)
        if state in ACTIVE:
            self._active.add(zone.number)
        if state is ZoneState.IMPLICITLY_OPENED:
            self._implicit[zone.number] = None
        elif state is ZoneState.EXPLICITLY_OPENED:
            self._explicit.add(zone.number)
        self.unsaved.add(zone.number)

    def attributes(self, zone: Zone) -> ZoneAttribute:
        """The zone's attributes, with the recommendations for its state."""
        area = ZoneAttribute.RANDOM_WRITE_AREA if zone.area else _NONE
        return zone.attributes | self._recommended(zone) | area

    def _recommended(self, zone: Zone) -> ZoneAttribute:
        for advice, states in ADVISED.items():
            if zone.state in states and (
                zone.number in self.advice.get(advice, ()) or zone.number in self.ages.aged[advice]
            ):
                return advice
        return _NONE

    def grow_old(self) -> bool:
        """Recommend to finish or to reset the zones that were left alone for long enough; True if
        there are new ones."""
        found = self.ages.grow_old()
        self.changes.add(found)
        return bool(found)

    def recommend(self, advice: Mapping[ZoneAttribute, Container[int]]) -> None:
        """Have another `advice`."""
        before = [self._recommended(zone) for zone in self.every]
        self.advice = advice
        self.changes.add(
            zone.number
            for zone, earlier in zip(self.every, before, strict=True)
            if self._recommended(zone) != earlier
        )

    # Reading and writing.

    def require_readable(self, lba: int, count: int) -> None:
        """Raise NvmeError where some of the blocks are in a zone that is offline, or in several
        zones where reads may not cross them."""
        numbers = range(lba // self.size, (lba + count - 1) // self.size + 1)
        if len(numbers) > 1 and not self.cross_zone_reads:
            raise NvmeError(
                Status.ZONE_BOUNDARY_ERROR,
                f"{count} blocks from {lba} on are in {len(numbers)} zones",
                lba=lba,
            )
        for number in numbers:
            if self.every[number].state is ZoneState.OFFLINE:
                raise NvmeError(
                    Status.ZONE_IS_OFFLINE,
                    f"zone {number} is offline",
                    lba=max(lba, number * self.size),
                )

    def claim(self, lba: int, count: int) -> range | None:
        """`count` blocks from `lba` are about to be written: open the zone and move its pointer;
        the blocks that leave its random write area by that, None for a zone without one.

        A write that fails leaves the pointer behind its blocks (section 2.1.1.2.1.1, b). Raises
        NvmeError where the zone does not take them; nothing has changed then.
        """
        zone = self.of(lba)
        self.require_writable(zone)
        area, begin = zone.area, lba - zone.first
        end, room = begin + count, zone.pointer + self.areas.size
        if begin < zone.pointer or (end > room + self.areas.size if area else begin > zone.pointer):
            raise NvmeError(
                Status.ZONE_INVALID_WRITE,
                f"the write pointer is at {zone.first + zone.pointer}, not at {lba}",
                lba=lba,
            )
        if end > self.capacity:
            raise NvmeError(
                Status.ZONE_BOUNDARY_ERROR,
                f"{count} blocks from {lba} on leave zone {zone.number}",
                lba=lba,
            )
        self._open_implicitly(zone)
        if self.ages.used:
            self.ages.touch(zone.number, zone.state)
        if area:
            granularity = self.areas.granularity
            committed = self._commit(zone, -(-max(0, end - room) // granularity) * granularity)
            if end > zone.pointer + zone.ahead:
                zone.ahead = end - zone.pointer
                self.unsaved.add(zone.number)
            return committed
        self._commit(zone, count)
        return None

    def _open_implicitly(self, zone: Zone) -> None:
        if zone.state not in _OPENED:
            self._make_room(zone, ZoneState.IMPLICITLY_OPENED)
            self.become(zone, ZoneState.IMPLICITLY_OPENED)
        elif zone.state is ZoneState.IMPLICITLY_OPENED:
            self._implicit[zone.number] = self._implicit.pop(zone.number)

    def _commit(self, zone: Zone, count: int) -> range:
        """Move the write pointer; the blocks that it passes."""
        first = zone.first + zone.pointer
        if count:
            zone.pointer += count
            zone.ahead = max(0, zone.ahead - count)
            self.unsaved.add(zone.number)
        if zone.pointer == self.capacity:
            self.become(zone, ZoneState.FULL)
        return range(first, first + count)

    def written_ahead(self, zone: Zone) -> range:
        """The blocks of a zone's random write area up to the last one that is written."""
        first = zone.first + zone.pointer
        return range(first, first + zone.ahead)

    def flush_area(self, lba: int) -> range:
        """Commit the blocks of a random write area up to `lba`, which is the last of them. Raises
        NvmeError; nothing has changed then."""
        zone = self.of(lba)
        count = lba - zone.first - zone.pointer + 1
        last = min(zone.pointer + self.areas.size, self.capacity) - zone.pointer
        if not zone.area or not 0 < count <= last or count % self.areas.granularity:
            raise NvmeError(
                Status.INVALID_ZONE_OPERATION_REQUEST,
                f"block {lba} is not the last of a range that zone {zone.number} can commit",
                lba=lba,
            )
        self._open_implicitly(zone)
        return self._commit(zone, count)

    def require_writable(self, zone: Zone) -> None:
        """Raise NvmeError for a zone that takes no writes."""
        refused = _REFUSED.get(zone.state)
        if refused is not None:
            raise NvmeError(refused, f"zone {zone.number} is {zone.state.name}", lba=zone.first)

    def _make_room(self, zone: Zone, state: ZoneState) -> None:
        """Have resources for `zone` to become active or open; the controller may close another
        zone for that. Raises NvmeError where there are none (section 2.1.1.4.1)."""
        if zone.state not in ACTIVE and self.active >= self.active_limit:
            raise NvmeError(
                Status.TOO_MANY_ACTIVE_ZONES, f"{self.active} zones are active", dnr=False
            )
        opens = state in _OPENED and zone.state not in _OPENED
        if opens and self.opened >= self.open_limit:
            if not self._implicit:
                raise NvmeError(
                    Status.TOO_MANY_OPEN_ZONES, f"{self.opened} zones are open", dnr=False
                )
            self.become(self.every[next(iter(self._implicit))], ZoneState.CLOSED)

    # Zone Management Send.

    def selected(self, action: ZoneSendAction, slba: int, *, every: bool) -> list[Zone]:
        """The zones that an action changes. Raises NvmeError where it cannot be taken."""
        taken, after, chosen = TRANSITIONS[action]
        if every:
            return [zone for zone in self.every if zone.state in chosen]
        zone = self.starting(slba)
        if zone.state not in taken:
            raise NvmeError(
                Status.INVALID_ZONE_STATE_TRANSITION,
                f"zone {zone.number} is {zone.state.name}, which {action.name} is not for",
                lba=slba,
            )
        return [] if zone.state is after else [zone]

    def take(self, action: ZoneSendAction, zones: Iterable[Zone]) -> None:
        """Take an action but Reset on `selected` zones. Raises NvmeError; nothing has changed."""
        found, state = list(zones), TRANSITIONS[action][1]
        if action is ZoneSendAction.OPEN and len(found) > 1:
            room = self.open_limit - len(self._explicit)
            if len(found) > room:
                raise NvmeError(
                    Status.TOO_MANY_OPEN_ZONES, f"{len(found)} zones cannot be opened", dnr=False
                )
        for zone in found:
            if state in ACTIVE:
                self._make_room(zone, state)
            self.become(zone, state)

    def require_area(self, zone: Zone) -> None:
        """Raise NvmeError unless a zone that is to become active can have a random write area."""
        if not self.areas.size or zone.state is not ZoneState.EMPTY:
            raise NvmeError(
                Status.INVALID_ZONE_OPERATION_REQUEST,
                "an empty zone gets a random write area, if the namespace has such areas",
            )
        used = sum(self.every[number].area for number in self._active)
        if used >= self.area_limit:
            raise NvmeError(
                Status.ZRWA_RESOURCES_UNAVAILABLE,
                f"{used} zones have a random write area",
                dnr=False,
            )

    def empty(self, zones: Iterable[Zone]) -> None:
        """These are reset, and hold nothing any more."""
        for zone in zones:
            zone.pointer, zone.attributes, zone.extension = 0, _NONE, b""
            zone.resets += 1
            self.become(zone, ZoneState.EMPTY)

    def not_emptied(self, zones: Iterable[Zone]) -> None:
        """Mark zones whose reset has failed: their remaining data can be read, and they can be
        reset again.

        They take no writes, so nothing lies behind a write pointer.
        """
        for zone in zones:
            if zone.state is ZoneState.EMPTY:
                self.become(zone, ZoneState.FULL)

    def write_protected(self) -> None:
        """The namespace takes no writes any more: active zones become full (section 2.1.1.4.1)."""
        self._all_become(ZoneState.FULL, ACTIVE)

    def lost(self) -> None:
        """The media have lost writes: zones are read-only."""
        self._all_become(ZoneState.READ_ONLY, (*_WRITABLE, ZoneState.FULL))

    def _all_become(self, state: ZoneState, before: _States) -> None:
        for zone in self.every:
            if zone.state in before:
                self.become(zone, state)
                self.changes.add([zone.number])

    # Power cycles.

    def load(self, records: bytes) -> list[int]:
        """Be as the records say; the numbers of zones whose record is damaged."""
        damaged = []
        for zone in self.every:
            at = zone.number * ZONE_RECORD
            if not zone.decode(records[at : at + ZONE_RECORD], self.capacity):
                damaged.append(zone.number)
            self.become(zone, zone.state)
        self.unsaved = set(damaged)
        self.changes.add(damaged)
        return damaged

    def power_cycled(self) -> None:
        """Zones that were open are in their initial state (section 2.1.1.3)."""
        for number in [*self._implicit, *sorted(self._explicit)]:
            zone = self.every[number]
            used = zone.pointer or zone.ahead or zone.attributes & ZoneAttribute.EXTENSION_VALID
            self.become(zone, ZoneState.CLOSED if used else ZoneState.EMPTY)

    def unwritten(self) -> Iterator[tuple[int, int]]:
        """First block and number of the blocks behind each write pointer and random write area."""
        for zone in self.every:
            end = zone.pointer + zone.ahead
            if zone.state in _WRITABLE and end < self.size:
                yield zone.first + end, self.size - end

    def descriptor(self, zone: Zone) -> bytes:
        """The zone descriptor; an invalid write pointer is all ones."""
        writable = zone.state in _WRITABLE
        return bytes(
            ZoneDescriptor(
                zt=SEQUENTIAL_WRITE_REQUIRED,
                zs=zone.state,
                za=self.attributes(zone),
                zcap=self.capacity,
                zslba=zone.first,
                wp=zone.first + zone.pointer if writable else (1 << 64) - 1,
            )
        )
