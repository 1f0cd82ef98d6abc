"""The Host Memory Buffer feature, 0Dh.

Sizes and addresses of memory are in units of the memory page size (CC.MPS).

Source: NVM Express Base Specification 2.0, section 5.27.1.11.
"""

from typing import Annotated

from nvme_spec.layout import Structure, u32, u64
from potash_wire.packed import Packed
from potash_wire.records import U32, U64, At
from potash_wire.words import CommandDwords, bits


class HostMemoryBuffer(CommandDwords):
    """Set Features: whether it is enabled, its size, and the list of descriptors of its memory."""

    ehm: bool = bits(11, 0, default=False)
    mr: bool = bits(11, 1, default=False)
    hsize: int = bits(12, 0, 31, default=0)
    hmdla: int = bits(13, 0, 63, default=0)
    hmdlec: int = bits(15, 0, 31, default=0)


class HostMemoryDescriptor(Packed, least_size=16):
    """An entry of the list: the address of contiguous memory, and its size."""

    badd: U64
    bsize: Annotated[U32, At(8)]


class HostMemoryAttributes(Structure):
    """The data of Get Features."""

    SIZE = 4096
    hsize = u32(0)
    hmdla = u64(4)
    hmdlec = u32(12)
