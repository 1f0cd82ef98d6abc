"""The Subsystem Local Memory command set (CSI 03h): commands on the bytes of a memory namespace.

NVM Express Subsystem Local Memory Command Set Specification 1.0. Its text was not available:
opcodes and fields are those on which implementations agree (`docs/supported.md` marks what is
unverified). All lengths and addresses are plain bytes.
"""

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import Annotated

from nvme_spec.identify.lists import IDENTIFY_SIZE
from nvme_spec.layout import Structure, u64
from nvme_spec.queues import EntryDwords
from nvme_spec.ranges import SOURCE_RANGE_SIZES
from potash_wire.packed import Packed
from potash_wire.records import U32, U64, At, Number, Stored
from potash_wire.words import CommandDwords, bits

MEMORY_GRANULARITY = 4
"""Bytes; first byte and length of Memory Read, Write, Fill and Copy are multiples of it."""


UNVERIFIED = {
    "MemoryNamespace": "no layout is public; as one implementation creates it, in bytes",
    "MemoryOpcode.MEMORY_FILL": "one implementation; in others 00h, Flush in every command set",
    "MemoryCopy.nr_z": "implementations disagree whether the number of ranges is 0's based",
    "HostAddressable": "one implementation; how a host learns the number of the BAR is not known",
    "MemoryCopy.desfmt": "whether formats have to be enabled by the host (CDFE) is not known",
}
"""Parts of this module that no two independent implementations confirm, and their basis."""


class MemoryOpcode(IntEnum):
    """I/O commands of a memory namespace; Flush is that of every command set.

    Memory Fill is 04h in one implementation, and 00h, which is Flush, in others.
    """

    FLUSH = 0x00
    MEMORY_COPY = 0x01
    MEMORY_READ = 0x02
    MEMORY_FILL = 0x04
    MEMORY_WRITE = 0x05


class MemoryAccess(CommandDwords):
    """Memory Read, Write and Fill: first byte and length. Fill writes zeroes."""

    start: int = bits(10, 0, 63)
    length: int = bits(12, 0, 31)


class MemoryCopy(EntryDwords):
    """Memory Copy; the command's namespace is the destination, its data the source ranges."""

    length: int = bits(2, 0, 63)
    sdaddr: int = bits(10, 0, 63)
    """The first byte of the destination."""
    nr_z: int = bits(12, 0, 7)
    """Implementations disagree whether this is 0's based."""
    desfmt: int = bits(12, 8, 11)
    """Descriptor format 2h, 3h or 4h."""

    @property
    def data_length(self) -> int:
        """Bytes of the source ranges. Raises KeyError for another format."""
        return SOURCE_RANGE_SIZES[self.desfmt] * (self.nr_z + 1)


class MemoryNamespace(Structure):
    """CNS 05h and the data of Namespace Management with CSI 03h: size and capacity in bytes.

    No layout is public: this one follows what an implementer creates such a namespace with.
    """

    SIZE = IDENTIFY_SIZE
    nsze = u64(0)
    ncap = u64(8)


class MemoryAccessType(IntFlag):
    """Access to the memory of a namespace without commands."""

    BAR = 1 << 0
    CXL = 1 << 1


class HostAddressable(Packed):
    """A namespace whose memory a host reaches from byte `offset` on, of a BAR for `BAR`."""

    nsid: U32
    access: Annotated[MemoryAccessType, Stored("B")]
    offset: Annotated[U64, At(8)]


class _HostAddressableLog(Packed, least_size=16):
    namespaces: Annotated[tuple[HostAddressable, ...], Number("H")]


def encode_host_addressable(namespaces: Sequence[HostAddressable]) -> bytes:
    """Host Addressable Namespaces log (85h), of revision 1.2 of the command set.

    The layout is that of one implementer, in whose list revision 1.3 has the same.
    """
    return _HostAddressableLog(tuple(namespaces)).encode()
