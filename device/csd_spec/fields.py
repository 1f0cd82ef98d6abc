"""The fields of each command in command dwords 10 to 15.

A decode ignores reserved bits and keeps unknown operations; an encode raises ValueError for what
does not fit. Lengths are plain counts of dwords, not 0's based ones.

Alkali CSD platform documentation, sections 4.3.1 and 4.3.2."""

from collections.abc import Sequence
from typing import NamedTuple, Self

Cdws = tuple[int, int, int, int, int, int]
"""Command dwords 10 to 15."""

ACCELERATOR_MASK = 0xFFFF
COUNT_MASK = 0xFFFF
RETAIN_BIT = 1 << 31
WRITABLE_BIT = 1 << 16
REPLACE_BIT = 1 << 17


class GlobalControl(NamedTuple):
    """Global Accelerator Control (C0h): CDW12 is the operation."""

    operation: int

    def encode(self) -> Cdws:
        return (0, 0, _fit("operation", self.operation, 32), 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        return cls(cdws[2])


class Identify(NamedTuple):
    """Accelerator Identify (C2h): CDW10 is the number of dwords to return."""

    dwords: int

    def encode(self) -> Cdws:
        return (_fit("number of dwords", self.dwords, 32), 0, 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        return cls(cdws[0])


class GetStatus(NamedTuple):
    """Get Accelerator Status (C6h): CDW10 dwords; CDW12 accelerator ID (15:0) and RAE (31).

    With `retain` set the device takes a snapshot, or keeps the one it has; without it the device
    answers from the snapshot, if it holds one, and releases it.
    """

    dwords: int
    accelerator: int
    retain: bool = False

    def encode(self) -> Cdws:
        cdw12 = _fit("accelerator ID", self.accelerator, 16)
        cdw12 |= RETAIN_BIT if self.retain else 0
        return (_fit("number of dwords", self.dwords, 32), 0, cdw12, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        return cls(cdws[0], cdws[2] & ACCELERATOR_MASK, bool(cdws[2] & RETAIN_BIT))


class DataTransfer(NamedTuple):
    """Send Data (81h), Read Data (82h): CDW10 dwords, CDW12 accelerator ID (15:0).

    CDW14 is an extension: the offset into the buffer, in dwords, so that a buffer that is larger
    than one transfer may be moved in pieces.
    """

    dwords: int
    accelerator: int
    offset: int = 0

    def encode(self) -> Cdws:
        return FirmwareTransfer(self.dwords, self.accelerator, 0, self.offset).encode()

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        return cls(cdws[0], cdws[2] & ACCELERATOR_MASK, cdws[4])


class FirmwareTransfer(NamedTuple):
    """Send Firmware (85h), Read Firmware (86h): as `DataTransfer`, with CDW13 the firmware ID."""

    dwords: int
    accelerator: int
    firmware: int
    offset: int = 0

    def encode(self) -> Cdws:
        return (
            _fit("number of dwords", self.dwords, 32),
            0,
            _fit("accelerator ID", self.accelerator, 16),
            _fit("firmware ID", self.firmware, 32),
            _fit("offset", self.offset, 32),
            0,
        )

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        return cls(cdws[0], cdws[2] & ACCELERATOR_MASK, cdws[3], cdws[4])


class LocalStorage(NamedTuple):
    """A range of local storage (88h, 8Ch, and the extensions 94h, 98h, 9Ch).

    CDW12 and CDW13 are the start, CDW14 15:0 the number of pages: Read's CDW10 to CDW12, moved up
    by two. As CDW12 is taken, CDW15 15:0 is the accelerator ID. The namespace is the command's
    NSID. Bits 16 and 17 of CDW15 are extensions that only 9Ch knows: the program may write the
    range as well, and the range replaces all earlier grants.
    """

    start: int
    pages: int
    accelerator: int
    writable: bool = False
    replace: bool = False

    def encode(self) -> Cdws:
        start = _fit("start", self.start, 64)
        cdw15 = _fit("accelerator ID", self.accelerator, 16)
        cdw15 |= WRITABLE_BIT if self.writable else 0
        cdw15 |= REPLACE_BIT if self.replace else 0
        return (
            0,
            0,
            start & 0xFFFF_FFFF,
            start >> 32,
            _fit("number of pages", self.pages, 16),
            cdw15,
        )

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        return cls(
            cdws[3] << 32 | cdws[2],
            cdws[4] & COUNT_MASK,
            cdws[5] & ACCELERATOR_MASK,
            bool(cdws[5] & WRITABLE_BIT),
            bool(cdws[5] & REPLACE_BIT),
        )


class Control(NamedTuple):
    """Basic Accelerator Control (91h).

    CDW10 is the length of Start's argument list in dwords, CDW12 15:0 the accelerator ID, CDW13 the
    operation, CDW14 the firmware ID of Start and of Set active firmware.
    """

    operation: int
    accelerator: int
    firmware: int = 0
    dwords: int = 0

    def encode(self) -> Cdws:
        return (
            _fit("number of dwords", self.dwords, 32),
            0,
            _fit("accelerator ID", self.accelerator, 16),
            _fit("operation", self.operation, 32),
            _fit("firmware ID", self.firmware, 32),
            0,
        )

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        return cls(cdws[3], cdws[2] & ACCELERATOR_MASK, cdws[4], cdws[0])


def _fit(name: str, value: int, bits: int) -> int:
    if not 0 <= value < 1 << bits:
        raise ValueError(f"the {name} {value} does not fit in {bits} bits")
    return int(value)
