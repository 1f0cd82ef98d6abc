"""Commands that name several ranges of blocks, or are answered with some: Copy, Get LBA Status.

NVM Command Set Specification 1.0, section 3.2.2 (Copy) and 4.2.1 (Get LBA Status); 1.2, figures 38
to 41 (source range entries of formats 2h, 3h and 4h).
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Annotated

from potash_wire.packed import Packed
from potash_wire.records import U8, U16, U32, U64, At, Number, Record, Stored
from potash_wire.structures import Buffer
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
    PEER = 15
    """Bytes at an address of memory in another drive's BAR: a Potash extension. The ranges are
    those of `MEMORY`, with `snsid` 0."""


SOURCE_RANGE_SIZE = 32
_SOURCE_RANGE_1_SIZE = 40
SOURCE_RANGE_SIZES: dict[int, int] = {
    CopyFormat.BLOCKS: 32,
    CopyFormat.BLOCKS_64: 40,
    CopyFormat.MEMORY: 32,
    CopyFormat.PEER: 32,
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
        size = _SOURCE_RANGE_1_SIZE if self.desfmt == COPY_FORMAT_1 else SOURCE_RANGE_SIZE
        return size * (self.nr_z + 1)


class SourceRange(Packed):
    """Source Range Entry of format 0, 32 bytes, or 1, 40 bytes: starting LBA, number of blocks
    (0's based), expected logical block tags, application tag and its mask."""

    slba: Annotated[U64, At(8)]
    nlb_z: U16
    elbt: Annotated[U32, At(24)] = 0
    elbat: U16 = 0
    elbatm: U16 = 0

    @property
    def blocks(self) -> int:
        return self.nlb_z + 1

    @classmethod
    def decode_list_1(cls, buffer: Buffer) -> Iterator["SourceRange"]:
        """Decode a list in format 1, whose tags are big-endian, as `decode_list` does."""
        for slba, nlb_z, elbt, elbat, elbatm in _SourceRange1.decode_list(buffer):
            yield cls(slba, nlb_z, int.from_bytes(elbt, "big"), elbat, elbatm)


class _SourceRange1(Packed):
    slba: Annotated[U64, At(8)]
    nlb_z: U16
    elbt: Annotated[bytes, Stored("10s"), At(26)]
    elbat: U16
    elbatm: U16


class BlockSourceRange(Packed):
    """Source Range Entry of formats 2h and 3h: blocks (0's based) of namespace `snsid`."""

    snsid: U32
    slba: Annotated[U64, At(8)]
    nlb_z: U16
    sopt: Annotated[U16, At(22)] = 0

    @property
    def blocks(self) -> int:
        return self.nlb_z + 1

    def encode(self, kind: CopyFormat = CopyFormat.BLOCKS) -> bytes:
        return _BLOCK_RANGES[kind].encode(self)

    @classmethod
    def decode_list(
        cls, data: Buffer, kind: CopyFormat = CopyFormat.BLOCKS
    ) -> Iterator["BlockSourceRange"]:
        """The entries in `data`; `struct.error` when it is not a whole number of them."""
        return _BLOCK_RANGES[kind].decode_all(data)


_BLOCK_RANGES = {
    kind: Record(BlockSourceRange, least_size=SOURCE_RANGE_SIZES[kind])
    for kind in (CopyFormat.BLOCKS, CopyFormat.BLOCKS_64)
}


class MemorySourceRange(Packed, least_size=SOURCE_RANGE_SIZES[CopyFormat.MEMORY]):
    """Source Range Entry of format 4h: bytes (plain) of memory namespace `snsid`; or of format Fh:
    bytes at address `saddr`."""

    snsid: U32
    saddr: Annotated[U64, At(8)]
    nbyte: U32
    sopt: Annotated[U16, At(22)] = 0


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


LBA_STATUS_HEADER_SIZE = 8
LBA_STATUS_DESCRIPTOR_SIZE = 16


class _LbaStatusDescriptor(Packed, least_size=LBA_STATUS_DESCRIPTOR_SIZE):
    slba: U64
    blocks: U32


class _LbaStatus(Packed, least_size=LBA_STATUS_HEADER_SIZE):
    descriptors: Annotated[tuple[_LbaStatusDescriptor, ...], Number("I")]
    completion: U8


def encode_lba_status(ranges: Iterable[tuple[int, int]], completion: LbaStatusCompletion) -> bytes:
    """LBA Status Descriptor List: starting LBA and number of blocks of each range."""
    descriptors = tuple(_LbaStatusDescriptor(*one) for one in ranges)
    return _LbaStatus(descriptors, completion).encode()
