"""The fields of each command in command dwords 10 to 15.

A decode ignores reserved bits and keeps unknown operations; an encode raises ValueError for what
does not fit. Lengths are plain counts of dwords, not 0's based ones.

Alkali CSD platform documentation, sections 4.3.1 and 4.3.2."""

from potash_wire import words
from potash_wire.words import CommandDwords, bits

Cdws = words.Cdws
"""Command dwords 10 to 15."""

ACCELERATOR_MASK = 0xFFFF
COUNT_MASK = 0xFFFF
RETAIN_BIT = 1 << 31
WRITABLE_BIT = 1 << 16
REPLACE_BIT = 1 << 17


class GlobalControl(CommandDwords):
    """Global Accelerator Control (C0h): CDW12 is the operation."""

    operation: int = bits(12, 0, 31)


class Identify(CommandDwords):
    """Accelerator Identify (C2h): CDW10 is the number of dwords to return."""

    dwords: int = bits(10, 0, 31)


class GetStatus(CommandDwords):
    """Get Accelerator Status (C6h): CDW10 dwords; CDW12 accelerator ID (15:0) and RAE (31).

    With `retain` set the device takes a snapshot, or keeps the one it has; without it the device
    answers from the snapshot, if it holds one, and releases it.
    """

    dwords: int = bits(10, 0, 31)
    accelerator: int = bits(12, 0, 15)
    retain: bool = bits(12, 31, default=False)


class DataTransfer(CommandDwords):
    """Send Data (81h), Read Data (82h): CDW10 dwords, CDW12 accelerator ID (15:0).

    CDW14 is an extension: the offset into the buffer, in dwords, so that a buffer that is larger
    than one transfer may be moved in pieces.
    """

    dwords: int = bits(10, 0, 31)
    accelerator: int = bits(12, 0, 15)
    offset: int = bits(14, 0, 31, default=0)


class PeerTransfer(CommandDwords):
    """Send Peer Data (84h, an extension): as `DataTransfer`, with the offset in CDW11.

    CDW14 and CDW15 are the address of the data in memory that another drive shares.
    """

    dwords: int = bits(10, 0, 31)
    accelerator: int = bits(12, 0, 15)
    address: int = bits(14, 0, 63)
    offset: int = bits(11, 0, 31, default=0)


class FirmwareTransfer(CommandDwords):
    """Send Firmware (85h), Read Firmware (86h): as `DataTransfer`, with CDW13 the firmware ID."""

    dwords: int = bits(10, 0, 31)
    accelerator: int = bits(12, 0, 15)
    firmware: int = bits(13, 0, 31)
    offset: int = bits(14, 0, 31, default=0)


class LocalStorage(CommandDwords):
    """A range of local storage (88h, 8Ch, and the extensions 94h, 98h, 9Ch).

    CDW12 and CDW13 are the start, CDW14 15:0 the number of pages: Read's CDW10 to CDW12, moved up
    by two. As CDW12 is taken, CDW15 15:0 is the accelerator ID. The namespace is the command's
    NSID. Bits 16 and 17 of CDW15 are extensions that only 9Ch knows: the program may write the
    range as well, and the range replaces all earlier grants.
    """

    start: int = bits(12, 0, 63)
    pages: int = bits(14, 0, 15)
    accelerator: int = bits(15, 0, 15)
    writable: bool = bits(15, 16, default=False)
    replace: bool = bits(15, 17, default=False)


class Control(CommandDwords):
    """Basic Accelerator Control (91h).

    CDW10 is the length of Start's argument list, or of Start Chain's steps, in dwords, CDW12 15:0
    the accelerator ID, CDW13 the operation, CDW14 the firmware ID of Start and of Set active
    firmware.
    """

    operation: int = bits(13, 0, 31)
    accelerator: int = bits(12, 0, 15)
    firmware: int = bits(14, 0, 31, default=0)
    dwords: int = bits(10, 0, 31, default=0)
