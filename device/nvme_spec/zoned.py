"""The Zoned Namespace Command Set: what its commands carry, and its data structures.

Source: NVM Express Zoned Namespace Command Set Specification 1.1, sections 3.4 (commands) and 4.1
(log page and Identify); for random write areas TP 4076, which later revisions include.
"""

from collections.abc import Iterable
from enum import IntEnum, IntFlag

from nvme_spec.identify.lists import IDENTIFY_SIZE
from nvme_spec.layout import Structure, table, u8, u16, u32, u64
from nvme_spec.layout import bits as bit_field
from potash_wire.words import CommandDwords, bits

NO_LIMIT = 0xFFFF_FFFF
"""MAR and MOR of a namespace without such a limit."""

REPORT_HEADER_SIZE = 64
DESCRIPTOR_SIZE = 64
EXTENSION_UNIT = 64
"""Bytes that ZDES counts in."""

CHANGED_ZONES_SIZE = 4096
MOST_CHANGED_ZONES = 511
CHANGED_ZONES_UNKNOWN = 0xFFFF
"""Number of Zone Identifiers where more zones changed than the list holds."""


class ZoneState(IntEnum):
    """ZS of a zone descriptor (figure 37)."""

    EMPTY = 0x1
    IMPLICITLY_OPENED = 0x2
    EXPLICITLY_OPENED = 0x3
    CLOSED = 0x4
    READ_ONLY = 0xD
    FULL = 0xE
    OFFLINE = 0xF


class ZoneAttribute(IntFlag):
    """ZA of a zone descriptor (figure 37)."""

    FINISHED_BY_CONTROLLER = 1 << 0
    FINISH_RECOMMENDED = 1 << 1
    RESET_RECOMMENDED = 1 << 2
    RANDOM_WRITE_AREA = 1 << 3
    EXTENSION_VALID = 1 << 7


class ZoneSendAction(IntEnum):
    """ZSA (figure 39)."""

    CLOSE = 0x01
    FINISH = 0x02
    OPEN = 0x03
    RESET = 0x04
    OFFLINE = 0x05
    SET_EXTENSION = 0x10
    FLUSH_AREA = 0x11
    """Flush Explicit ZRWA Range: commit up to the block `slba`."""


class ZoneReceiveAction(IntEnum):
    """ZRA (figure 34)."""

    REPORT = 0x00
    EXTENDED_REPORT = 0x01


REPORTED_STATES: dict[int, ZoneState] = {
    0x1: ZoneState.EMPTY,
    0x2: ZoneState.IMPLICITLY_OPENED,
    0x3: ZoneState.EXPLICITLY_OPENED,
    0x4: ZoneState.CLOSED,
    0x5: ZoneState.FULL,
    0x6: ZoneState.READ_ONLY,
    0x7: ZoneState.OFFLINE,
}
"""The state that a reporting option selects."""

REPORT_ALL = 0x0
REPORT_ATTRIBUTES = 0x9
"""Reporting options: every zone, and those with one of the attributes that a controller gives."""


class ZoneManagementSend(CommandDwords):
    """Zone Management Send: `zsa` is a `ZoneSendAction`."""

    slba: int = bits(10, 0, 63, default=0)
    zsa: int = bits(13, 0, 7, default=0)
    select_all: bool = bits(13, 8, default=False)
    allocate_area: bool = bits(13, 9, default=False)
    """ZRWAA: the zone that is opened, or gets an extension, gets a random write area."""


class ZoneManagementReceive(CommandDwords):
    """Zone Management Receive: `options` are what zones are reported."""

    slba: int = bits(10, 0, 63, default=0)
    numd_z: int = bits(12, 0, 31, default=0)
    zra: int = bits(13, 0, 7, default=0)
    options: int = bits(13, 8, 15, default=0)
    partial: bool = bits(13, 16, default=False)

    @property
    def length(self) -> int:
        """Bytes to return."""
        return 4 * (self.numd_z + 1)


class ZoneDescriptor(Structure):
    """Figure 37."""

    SIZE = DESCRIPTOR_SIZE
    zt = bit_field(0, 1, 0, 3)
    zs = bit_field(1, 1, 4, 7)
    za = u8(2)
    zai = u8(3)
    zcap = u64(8)
    zslba = u64(16)
    wp = u64(24)


SEQUENTIAL_WRITE_REQUIRED = 0x2
"""ZT: the only zone type."""


class LbaFormatExtension(Structure):
    """Figure 49: blocks of a zone, and the size of a zone descriptor extension in 64 bytes."""

    SIZE = 16
    zsze = u64(0)
    zdes = u8(8)


class ZonedNamespaceStructure(Structure):
    """CNS 05h for the Zoned Namespace Command Set, figure 48."""

    SIZE = IDENTIFY_SIZE
    zoc = u16(0)
    ozcs = u16(2)
    mar_z = u32(4)
    mor_z = u32(8)
    rrl = u32(12)
    frl = u32(16)
    rrl1 = u32(20)
    rrl2 = u32(24)
    rrl3 = u32(28)
    frl1 = u32(32)
    frl2 = u32(36)
    frl3 = u32(40)
    numzrwa_z = u32(44)
    zrwafg = u16(48)
    zrwasz = u16(50)
    zrwacap = u8(52)
    lbafe = table(2816, LbaFormatExtension, 64)


READ_ACROSS_ZONES = 1 << 0
RANDOM_WRITE_AREAS = 1 << 1
"""Bits of OZCS."""
EXPLICIT_FLUSH = 1 << 0
"""Bit of ZRWACAP."""


class ZonedController(Structure):
    """CNS 06h for the Zoned Namespace Command Set, figure 50."""

    SIZE = IDENTIFY_SIZE
    zasl = u8(0)


def encode_report(matching: int, listed: Iterable[bytes]) -> bytes:
    """A report of zones (figures 35 and 36), with `matching` as the number of zones."""
    return matching.to_bytes(8, "little").ljust(REPORT_HEADER_SIZE, b"\0") + b"".join(listed)


def encode_changed_zones(slbas: Iterable[int]) -> bytes:
    """Changed Zone List (figure 46) of the zones that begin at `slbas`."""
    found = list(slbas)
    if len(found) > MOST_CHANGED_ZONES:
        return CHANGED_ZONES_UNKNOWN.to_bytes(2, "little").ljust(CHANGED_ZONES_SIZE, b"\0")
    body = b"".join(one.to_bytes(8, "little") for one in found)
    return (len(found).to_bytes(8, "little") + body).ljust(CHANGED_ZONES_SIZE, b"\0")
