"""Reservations: the fields of their commands, and their data structures.

NVM Express Base Specification 2.0, sections 7.2 to 7.5 (Reservation Acquire, Register, Release and
Report), 5.16.1 (Reservation Notification log page) and 8.19.
"""

from enum import IntEnum

from nvme_spec.layout import Structure, raw, u8, u16, u32, u64
from potash_wire.packed import Packed
from potash_wire.records import U64
from potash_wire.words import CommandDwords, bits


class ReservationType(IntEnum):
    """RTYPE."""

    WRITE_EXCLUSIVE = 1
    EXCLUSIVE_ACCESS = 2
    WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 3
    EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 4
    WRITE_EXCLUSIVE_ALL_REGISTRANTS = 5
    EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 6


class RegisterAction(IntEnum):
    """RREGA."""

    REGISTER = 0
    UNREGISTER = 1
    REPLACE = 2


class AcquireAction(IntEnum):
    """RACQA."""

    ACQUIRE = 0
    PREEMPT = 1
    PREEMPT_AND_ABORT = 2


class ReleaseAction(IntEnum):
    """RRELA."""

    RELEASE = 0
    CLEAR = 1


class PersistenceChange(IntEnum):
    """CPTPL: the Persist Through Power Loss state after a Reservation Register."""

    NONE = 0
    CLEAR = 2
    SET = 3


class ReservationRegister(CommandDwords):
    """Reservation Register; `iekey` is Ignore Existing Key."""

    rrega: int = bits(10, 0, 2, default=0)
    iekey: bool = bits(10, 3, default=False)
    cptpl: int = bits(10, 30, 31, default=0)


class ReservationAcquire(CommandDwords):
    """Reservation Acquire."""

    racqa: int = bits(10, 0, 2, default=0)
    iekey: bool = bits(10, 3, default=False)
    rtype: int = bits(10, 8, 15, default=0)


class ReservationRelease(CommandDwords):
    """Reservation Release."""

    rrela: int = bits(10, 0, 2, default=0)
    iekey: bool = bits(10, 3, default=False)
    rtype: int = bits(10, 8, 15, default=0)


class ReservationReport(CommandDwords):
    """Reservation Report; `eds` asks for the extended data structure."""

    numd_z: int = bits(10, 0, 31)
    eds: bool = bits(11, 0, default=False)

    @property
    def length(self) -> int:
        """Bytes to return at most."""
        return 4 * (self.numd_z + 1)


class RegisterKeys(Packed):
    """The data of Reservation Register: the current and the new key."""

    crkey: U64
    nrkey: U64


class AcquireKeys(Packed):
    """The data of Reservation Acquire: the current key, and the key to be preempted."""

    crkey: U64
    prkey: U64


class ReleaseKey(Packed):
    """The data of Reservation Release: the current key."""

    crkey: U64


NO_CONTROLLER = 0xFFFF
"""CNTLID of a registrant with which no controller is associated."""

RCSTS_HOLDS = 1 << 0
"""Bit of RCSTS: the host holds the reservation."""


class ReservationStatus(Structure):
    """The header of the Reservation Status data structure, before its registered controllers."""

    SIZE = 24
    gen = u32(0)
    rtype = u8(4)
    regctl = u16(5)
    ptpls = u8(9)


class ExtendedReservationStatus(ReservationStatus):
    """The header of the extended data structure, which has the same fields."""

    SIZE = 64


class RegisteredController(Structure):
    """A controller whose host, with a 64-bit identifier, is a registrant."""

    SIZE = 24
    cntlid = u16(0)
    rcsts = u8(2)
    hostid = raw(8, 8)
    rkey = u64(16)


class RegisteredControllerExtended(Structure):
    """A controller whose host, with a 128-bit identifier, is a registrant."""

    SIZE = 64
    cntlid = u16(0)
    rcsts = u8(2)
    rkey = u64(8)
    hostid = raw(16, 16)


class NotificationType(IntEnum):
    """RNLPT."""

    EMPTY = 0
    REGISTRATION_PREEMPTED = 1
    RESERVATION_RELEASED = 2
    RESERVATION_PREEMPTED = 3


class ReservationNotificationLog(Structure):
    """Log page 80h: the oldest notification that was not read, and the number of others."""

    SIZE = 64
    lpc = u64(0)
    rnlpt = u8(8)
    nalp = u8(9)
    nsid = u32(12)
