"""Scatter gather lists: transfers described by addresses and lengths of pieces of guest memory.

Each segment is copied before it is validated. `MAX_DESCRIPTORS` limits the cost of a list, also of
a circular one. A list may describe more than the command transfers; the rest is ignored.

Source: NVM Express Base Specification 2.0, section 4.1.2 (Scatter Gather List)."""

import struct
from collections.abc import Iterator
from typing import Annotated, Self

from nvme_spec.logs import CommandByte
from nvme_spec.queues import SglDescriptorSubType, SglDescriptorType
from nvme_spec.registers import CmbUse
from nvme_spec.status import NvmeError, Status
from potash_device.controller.dma import DmaEngine, transfer_error
from potash_wire.packed import Packed
from potash_wire.records import U8, U32, U64, At
from pyvfio_user.memory import AccessFault

MAX_DESCRIPTORS = 1024
"""Descriptors that one command's list has at most, the ones that lead to segments included."""

SEGMENT_ALIGNMENT = 8
"""Segments start on a qword (figure 92, SGL Segment descriptor)."""

MAX_PIECES = 1024
"""Pieces of guest memory that they may be, where the host's mappings are many and small."""

_COMMAND = struct.Struct("<QQ")
"""Command dwords 6 to 9, which are PRP1 and PRP2 or the first descriptor."""

_LEADS_ON = (SglDescriptorType.SEGMENT, SglDescriptorType.LAST_SEGMENT)


class Descriptor(Packed):
    """One descriptor of 16 bytes; `identifier` is its type and sub type."""

    address: U64
    length: U32
    identifier: Annotated[U8, At(15)]

    @classmethod
    def of_command(cls, dptr_low: int, dptr_high: int) -> Self:
        """The descriptor in a command's data pointer, given as its two halves."""
        return cls.decode(_COMMAND.pack(dptr_low, dptr_high))

    @property
    def type(self) -> int:
        """Type of the descriptor. Raises NvmeError if this controller does not support it."""
        kind = _SUPPORTED.get(self.identifier)
        if kind is None:
            raise NvmeError(
                Status.SGL_DESCRIPTOR_TYPE_INVALID,
                f"SGL descriptor type {self.identifier >> 4:#x} with sub type"
                f" {self.identifier & 0xF:#x} is not supported",
            )
        return kind


_SUPPORTED = {
    kind << 4 | SglDescriptorSubType.ADDRESS: kind
    for kind in (SglDescriptorType.DATA_BLOCK, SglDescriptorType.BIT_BUCKET, *_LEADS_ON)
}


def views(
    dma: DmaEngine, dptr_low: int, dptr_high: int, length: int, *, write: bool
) -> list[memoryview]:
    """The pieces of a transfer of `length` bytes, in order; `write` to guest memory or from it.

    The two halves of the command's data pointer hold its descriptor. A bit bucket takes what is
    written to it and is no memory of the guest's; where data is read from guest memory it stands
    for nothing. Raises NvmeError: a status of section 3.3.3.2.1 that begins with SGL, and as
    `transfer_error` says.
    """
    pieces: list[memoryview] = []
    remaining = length
    if not remaining:
        return pieces
    try:
        for descriptor in _descriptors(dma, Descriptor.of_command(dptr_low, dptr_high)):
            size = min(remaining, descriptor.length)
            if descriptor.type == SglDescriptorType.DATA_BLOCK:
                if size:
                    pieces += dma.pieces(descriptor.address, size, write=write)
                remaining -= size
                _require_few(pieces, descriptor)
            elif write and size:
                pieces.append(memoryview(bytearray(size)))
                remaining -= size
            if not remaining:
                return pieces
    except AccessFault as fault:
        raise transfer_error(fault) from None
    raise NvmeError(
        Status.DATA_SGL_LENGTH_INVALID,
        f"the SGL describes {length - remaining} of the {length} bytes to be moved",
    )


def metadata_views(dma: DmaEngine, address: int, length: int, *, write: bool) -> list[memoryview]:
    """The views of metadata whose one descriptor is at `address`. Raises NvmeError."""
    if address % SEGMENT_ALIGNMENT:
        raise NvmeError(
            Status.INVALID_FIELD,
            f"the metadata's segment at {address:#x} is not aligned",
            location=CommandByte.MPTR,
        )
    try:
        found = dma.pieces(address, _COMMAND.size, write=False, use=CmbUse.LISTS)
    except AccessFault as fault:
        raise transfer_error(fault) from None
    try:
        low, high = _COMMAND.unpack(b"".join(found))
        return views(dma, low, high, length, write=write)
    except NvmeError as error:
        if error.status == Status.DATA_SGL_LENGTH_INVALID:
            error.status = Status.METADATA_SGL_LENGTH_INVALID
        raise


def _require_few(pieces: list[memoryview], descriptor: Descriptor) -> None:
    if len(pieces) > MAX_PIECES:
        raise AccessFault(descriptor.address, descriptor.length, "the list is in too many mappings")


def _descriptors(dma: DmaEngine, first: Descriptor) -> Iterator[Descriptor]:
    """The data blocks and bit buckets of a list, in order. Raises NvmeError, AccessFault."""
    seen = 1
    here = first
    while here.type in _LEADS_ON:
        count = _entries(here)
        seen += count
        if seen > MAX_DESCRIPTORS:
            raise NvmeError(
                Status.INVALID_NUMBER_OF_SGL_DESCRIPTORS,
                f"the SGL has more than {MAX_DESCRIPTORS} descriptors",
            )
        segment = _segment(dma, here)
        for descriptor in segment[:-1]:
            if descriptor.type in _LEADS_ON:
                raise NvmeError(
                    Status.INVALID_NUMBER_OF_SGL_DESCRIPTORS,
                    "a descriptor that leads to a segment is not the last of its own",
                )
            yield descriptor
        last = segment[-1]
        if (here.type == SglDescriptorType.LAST_SEGMENT) == (last.type in _LEADS_ON):
            raise NvmeError(
                Status.INVALID_SGL_SEGMENT_DESCRIPTOR,
                "the last segment leads on, or one before it does not",
            )
        here = last
    yield here


def _entries(leading: Descriptor) -> int:
    """Number of descriptors in the segment that `leading` points to. Raises NvmeError."""
    count, rest = divmod(leading.length, _COMMAND.size)
    if not count or rest or leading.address % SEGMENT_ALIGNMENT:
        raise NvmeError(
            Status.INVALID_SGL_SEGMENT_DESCRIPTOR,
            f"a segment cannot have {leading.length} bytes at {leading.address:#x}",
        )
    return count


def _segment(dma: DmaEngine, leading: Descriptor) -> list[Descriptor]:
    """The descriptors of a segment, in a copy that the host cannot change any more."""
    content = b"".join(dma.pieces(leading.address, leading.length, write=False, use=CmbUse.LISTS))
    return [*Descriptor.decode_list(content)]
