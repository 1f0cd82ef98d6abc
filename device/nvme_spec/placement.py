"""Flexible Data Placement: which blocks of flash a host's data go to.

A namespace has placement handles, each of which is a reclaim unit handle of the endurance group,
which in turn refers to the reclaim unit that is being filled in each reclaim group. A placement
identifier has the group in its upper bits, and below them the index of a placement handle. NVM
Express Base Specification 2.1, section 8.1.10,
log pages 20h to 23h (5.1.12.1.28 to 5.1.12.1.31), features 1Dh and 1Eh; I/O Management Receive and
Send: NVM Command Set Specification 1.1.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Annotated

from nvme_spec.layout import Structure, u8, u16, u32, u64, u128
from potash_wire.packed import Packed
from potash_wire.records import U8, U16, U32, U64, At, Number
from potash_wire.words import CommandDwords, bits

DATA_PLACEMENT = 2
"""Directive type (DTYPE)."""
VENDOR_DIRECTIVE = 0xF
"""Directive type Vendor Specific."""

MAX_HANDLES = 128
"""Placement handles of a namespace."""

MANAGEMENT_HANDLES_AT = 392
MANAGEMENT_HANDLE_LIST_AT = 512
"""Offsets in Namespace Management's data: the number of placement handles (NPHNDLS), the list."""

EVENTS_IN_LOG = 63
MOST_MOVED = 0xFFFF
"""Logical blocks of an event, for that many or more."""


class HandleType(IntEnum):
    """RUHT: isolation of the data of different handles when the drive moves them."""

    INITIALLY_ISOLATED = 1
    PERSISTENTLY_ISOLATED = 2


class HandleUse(IntEnum):
    """RUHA."""

    UNUSED = 0
    HOST_SPECIFIED = 1
    CONTROLLER_SPECIFIED = 2


class EventType(IntEnum):
    """FDP events; those of the controller begin at 80h."""

    UNIT_NOT_FULLY_WRITTEN = 0x00
    UNIT_TIME_LIMIT_EXCEEDED = 0x01
    RESET_MODIFIED_HANDLES = 0x02
    INVALID_PLACEMENT_IDENTIFIER = 0x03
    MEDIA_REALLOCATED = 0x80
    IMPLICITLY_MODIFIED_HANDLE = 0x81


class ManagementReceive(CommandDwords):
    """I/O Management Receive."""

    mo: int = bits(10, 0, 7)
    mos: int = bits(10, 16, 31, default=0)
    numd_z: int = bits(11, 0, 31, default=0)

    @property
    def length(self) -> int:
        """Bytes to return."""
        return 4 * (self.numd_z + 1)


class ManagementSend(CommandDwords):
    """I/O Management Send; for a Reclaim Unit Handle Update, `mos` is the number of placement
    identifiers in the data, 0's based."""

    mo: int = bits(10, 0, 7)
    mos: int = bits(10, 16, 31, default=0)


STATUS_OPERATION = 1
"""MO of I/O Management Receive: Reclaim Unit Handle Status."""
UPDATE_OPERATION = 1
"""MO of I/O Management Send: Reclaim Unit Handle Update."""


class DirectiveReceive(CommandDwords):
    """Directive Receive, and Directive Send without the number of dwords."""

    numd_z: int = bits(10, 0, 31)
    doper: int = bits(11, 0, 7)
    dtype: int = bits(11, 8, 15)
    dspec: int = bits(11, 16, 31, default=0)

    @property
    def length(self) -> int:
        return 4 * (self.numd_z + 1)


IDENTIFY_DIRECTIVE = 0
RETURN_PARAMETERS = 1
"""Directive type Identify, and its operation of Directive Receive."""


class DirectiveParameters(Structure):
    """Data of Return Parameters; each field has a bit for each directive type."""

    SIZE = 4096
    supported = u32(0)
    enabled = u32(32)
    persistent = u32(64)


class FdpFields(CommandDwords):
    """Features, 1Dh: the endurance group, and in Set Features FDPE and FDPCIDX."""

    endgid: int = bits(11, 0, 15, default=0)
    value: int = bits(12, 0, 15, default=0)


class FdpEventsFields(CommandDwords):
    """Features, 1Eh: a placement handle, the number of event types, and whether they are enabled.

    Set Features takes a byte for each type, Get Features gives two: the type, and bit 0 of its
    attributes, which says whether it is enabled.
    """

    phndl: int = bits(11, 0, 15, default=0)
    noet: int = bits(11, 16, 23, default=0)
    enable: bool = bits(12, 0, default=False)


# The log pages.

_CONFIGURATION_VALID = 1 << 7
_VOLATILE_WRITE_CACHE = 1 << 4


class Configuration(Structure):
    """FDP Configuration Descriptor, without its reclaim unit handles."""

    SIZE = 64
    dsze = u16(0)
    fdpa = u8(2)
    vss = u8(3)
    nrg = u32(4)
    nruh = u16(8)
    maxpids_z = u16(10)
    nns = u32(12)
    runs = u64(16)
    erutl = u32(24)


def group_bits(groups: int) -> int:
    """RGIF: the upper bits of a placement identifier that have its reclaim group."""
    return (groups - 1).bit_length()


def encode_configurations(
    handles: int,
    unit: int,
    namespaces: int,
    kind: HandleType = HandleType.INITIALLY_ISOLATED,
    groups: int = 1,
) -> bytes:
    """FDP Configurations log (20h): one, with reclaim groups of units of so many bytes."""
    size = -(-(Configuration.SIZE + 4 * handles) // 8) * 8
    one = Configuration(
        dsze=size,
        fdpa=_CONFIGURATION_VALID | _VOLATILE_WRITE_CACHE | group_bits(groups),
        nrg=groups,
        nruh=handles,
        maxpids_z=handles * groups - 1,
        nns=namespaces,
        runs=unit,
    )
    types = struct.pack("<B3x", kind) * handles
    descriptor = (bytes(one) + types).ljust(size, b"\0")
    # Number of configurations (0's based), version, size.
    return struct.pack("<HBxI8x", 0, 0, 16 + size) + descriptor


class _Use(Packed, least_size=8):
    ruha: U8


class _Usage(Packed, least_size=8):
    uses: Annotated[tuple[_Use, ...], Number("H")]


def encode_usage(uses: Sequence[HandleUse]) -> bytes:
    """Reclaim Unit Handle Usage log (21h)."""
    return _Usage(tuple(map(_Use, uses))).encode()


class Statistics(Structure):
    """FDP Statistics log (22h): bytes that the host wrote, that the media did, that were erased."""

    SIZE = 64
    hbmw = u128(0)
    mbmw = u128(16)
    mbe = u128(32)


_PID_VALID, _NSID_VALID, _LOCATION_VALID = 1 << 0, 1 << 1, 1 << 2


class Event(Packed, least_size=64):
    """FDP Event; `timestamp` is laid out as the feature's value."""

    type: U8
    pid: Annotated[U16, At(2)]
    timestamp: U64
    nsid: U32
    handle: Annotated[U16, At(34)]
    group: Annotated[U16, At(32)] = 0
    moved: Annotated[U16, At(18)] = 0
    """Logical blocks that were moved, for Media Reallocated; FFFFh for that many or more."""

    @property
    def by_controller(self) -> bool:
        return self.type >= EventType.MEDIA_REALLOCATED

    def encode(self) -> bytes:
        valid = 0 if self.by_controller else _PID_VALID | _NSID_VALID
        return _ListedEvent(self, valid | _LOCATION_VALID).encode()


class _ListedEvent(Packed, least_size=64):
    event: Event
    flags: Annotated[U8, At(1)]


def encode_events(events: Sequence[Event]) -> bytes:
    """FDP Events log (23h), 4 KiB."""
    head = struct.pack("<I60x", len(events))
    return (head + b"".join(event.encode() for event in events)).ljust(4096, b"\0")


# I/O Management Receive.


class HandleStatus(Packed, least_size=32):
    """Reclaim Unit Handle Status Descriptor: the logical blocks that the unit still takes."""

    pid: U16
    handle: U16
    blocks: Annotated[U64, At(8)]


class _Statuses(Packed):
    statuses: Annotated[tuple[HandleStatus, ...], Number("H", 14)]


def encode_status(statuses: Iterable[HandleStatus]) -> bytes:
    """Reclaim Unit Handle Status."""
    return _Statuses(tuple(statuses)).encode()


class EnduranceGroupLog(Structure):
    """Endurance Group Information log (09h); data units are of 1 000 times 1 000 000 bytes."""

    SIZE = 512
    critical_warning = u8(0)
    available_spare = u8(3)
    available_spare_threshold = u8(4)
    percentage_used = u8(5)
    data_units_read = u128(48)
    data_units_written = u128(64)
    media_units_written = u128(80)
    host_read_commands = u128(96)
    host_write_commands = u128(112)
    media_errors = u128(128)
    error_log_entries = u128(144)
    tegcap = u128(160)
    uegcap = u128(176)


ENDURANCE_UNIT = 10**9
"""Bytes of the units of the Endurance Group Information log."""
