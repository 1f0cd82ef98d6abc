"""Commands that name several ranges of blocks, or are answered with some: Copy, Get LBA Status.

NVM Command Set Specification 1.0, section 3.2.2 (Copy) and 4.2.1 (Get LBA Status); 1.2, figures 38
to 41 (source range entries of formats 2h, 3h and 4h).
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from nvme_spec.layout import Buffer
from potash_wire.words import CommandDwords, bits

COPY_FORMAT_0 = 0
COPY_FORMAT_1 = 1
"""Descriptor formats of Copy, with tags for protection information of 8 and of 16 bytes; bit n of
CDFS in Identify Controller (`copy_formats`) is format n."""


class CopyFormat(IntEnum):
    """Descriptor formats whose source ranges name a namespace of their own."""

    BLOCKS = 2
    """Logical blocks, whose protection information would be of 16 bits."""
    BLOCKS_64 = 3
    """Logical blocks, whose protection information would be of 32 or 64 bits."""
    MEMORY = 4
    """Bytes of a memory namespace."""


_SOURCE_RANGE = struct.Struct("<8xQH6xIHH")
_SOURCE_RANGE_1 = struct.Struct("<8xQH8x10sHH")
SOURCE_RANGE_SIZE = _SOURCE_RANGE.size

_BLOCK_RANGES = {
    CopyFormat.BLOCKS: struct.Struct("<I4xQH4xH8x"),
    CopyFormat.BLOCKS_64: struct.Struct("<I4xQH4xH16x"),
}
_MEMORY_RANGE = struct.Struct("<I4xQI2xH8x")
SOURCE_RANGE_SIZES: dict[int, int] = {
    **{kind: one.size for kind, one in _BLOCK_RANGES.items()},
    CopyFormat.MEMORY: _MEMORY_RANGE.size,
}
"""Bytes of a source range by descriptor format."""

FAST_COPY_ONLY = 1 << 15
"""FCO of a source range's options: fail rather than copy through a buffer."""


class Copy(CommandDwords):
    """Copy: where to, number of source ranges, and the format of these."""

    sdlba: int = bits(10, 0, 63)
    nr_z: int = bits(12, 0, 7)
    desfmt: int = bits(12, 8, 11, default=COPY_FORMAT_0)
    prinfor: int = bits(12, 12, 15, default=0)
    dtype: int = bits(12, 20, 23, default=0)
    stcw: bool = bits(12, 24, default=False)
    prinfow: int = bits(12, 26, 29, default=0)
    fua: bool = bits(12, 30, default=False)
    lr: bool = bits(12, 31, default=False)
    dspec: int = bits(13, 16, 31, default=0)

    @property
    def length(self) -> int:
        """Bytes of the source ranges in format 0, 1 or 4h, of which the first and the last are as
        long."""
        size = _SOURCE_RANGE_1.size if self.desfmt == COPY_FORMAT_1 else SOURCE_RANGE_SIZE
        return size * (self.nr_z + 1)


class SourceRange(NamedTuple):
    """Source Range Entry of format 0, 32 bytes, or 1, 40 bytes: starting LBA, number of blocks
    (0's based), expected logical block tags, application tag and its mask."""

    slba: int
    nlb_z: int
    elbt: int = 0
    elbat: int = 0
    elbatm: int = 0

    @property
    def blocks(self) -> int:
        return self.nlb_z + 1

    @classmethod
    def decode_list(cls, buffer: Buffer) -> Iterator["SourceRange"]:
        """The entries in `buffer`; `struct.error` when it is not a whole number of them."""
        return map(cls._make, _SOURCE_RANGE.iter_unpack(buffer))

    @classmethod
    def decode_list_1(cls, buffer: Buffer) -> Iterator["SourceRange"]:
        """As `decode_list`, of format 1; its tags are big-endian."""
        for slba, nlb_z, elbt, elbat, elbatm in _SOURCE_RANGE_1.iter_unpack(buffer):
            yield cls(slba, nlb_z, int.from_bytes(elbt, "big"), elbat, elbatm)


class BlockSourceRange(NamedTuple):
    """Source Range Entry of formats 2h and 3h: blocks (0's based) of namespace `snsid`."""

    snsid: int
    slba: int
    nlb_z: int
    sopt: int = 0

    @property
    def blocks(self) -> int:
        return self.nlb_z + 1

    def encode(self, kind: CopyFormat) -> bytes:
        return _BLOCK_RANGES[kind].pack(*self)

    @classmethod
    def decode_list(cls, buffer: Buffer, kind: CopyFormat) -> Iterator["BlockSourceRange"]:
        """The entries in `buffer`; `struct.error` when it is not a whole number of them."""
        return map(cls._make, _BLOCK_RANGES[kind].iter_unpack(buffer))


class MemorySourceRange(NamedTuple):
    """Source Range Entry of format 4h: bytes (plain) of memory namespace `snsid`."""

    snsid: int
    saddr: int
    nbyte: int
    sopt: int = 0

    def encode(self) -> bytes:
        return _MEMORY_RANGE.pack(*self)

    @classmethod
    def decode_list(cls, buffer: Buffer) -> Iterator["MemorySourceRange"]:
        """The entries in `buffer`; `struct.error` when it is not a whole number of them."""
        return map(cls._make, _MEMORY_RANGE.iter_unpack(buffer))


class LbaStatusAction(IntEnum):
    """ATYPE of Get LBA Status, and RATYPE in the LBA Status log, which recommends one."""

    SCAN = 0x10
    """Look for untracked blocks too, those whose failure is not known yet."""
    TRACKED_ONLY = 0x11


class GetLbaStatus(CommandDwords):
    """Get LBA Status: dwords to return, and for how many blocks (0 is all that follow)."""

    slba: int = bits(10, 0, 63)
    mndw_z: int = bits(12, 0, 31)
    rl: int = bits(13, 0, 15)
    atype: int = bits(13, 24, 31)

    @property
    def length(self) -> int:
        """Bytes to return at most."""
        return 4 * (self.mndw_z + 1)


class LbaStatusCompletion(IntEnum):
    """CMPC: why the list of descriptors ends where it does."""

    MORE = 1
    COMPLETE = 2


_LBA_STATUS_HEADER = struct.Struct("<IB3x")
_LBA_STATUS_DESCRIPTOR = struct.Struct("<QIxB2x")
LBA_STATUS_HEADER_SIZE = _LBA_STATUS_HEADER.size
LBA_STATUS_DESCRIPTOR_SIZE = _LBA_STATUS_DESCRIPTOR.size


def encode_lba_status(ranges: Iterable[tuple[int, int]], completion: LbaStatusCompletion) -> bytes:
    """LBA Status Descriptor List: starting LBA and number of blocks of each range."""
    descriptors = [_LBA_STATUS_DESCRIPTOR.pack(lba, blocks, 0) for lba, blocks in ranges]
    return _LBA_STATUS_HEADER.pack(len(descriptors), completion) + b"".join(descriptors)
