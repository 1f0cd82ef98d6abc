"""Ranges of the drive's blocks: those that commands name, and a worker's access to them.

A program reads and writes the ranges that its host has granted. What it writes reaches no media
while it runs: it is gathered in the arena, where the job's own reads see it, and written when the
program has returned. So a job that fails has written nothing.

Alkali CSD platform documentation, section 4.3.2 (Use local storage as accelerator input, output).
"""

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter

from csd_spec.fields import LocalStorage
from csd_spec.opcodes import PAGE_SIZE
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu.config import NamespaceConfig, RangeBlocks, RangeUnit
from potash_firmware.apu.model import ByteRange, Grant
from potash_firmware.mailbox.messages import MAX_RANGES

Namespaces = Mapping[int, NamespaceConfig]


def resolve(
    fields: LocalStorage, nsid: int, namespaces: Namespaces, counting: RangeBlocks
) -> ByteRange:
    """The bytes that a command names; they may reach past the end of the namespace. Raises
    NvmeError: Invalid Namespace or Format, Invalid Field for an empty range, LBA Out of Range for
    one that starts at or after the end."""
    namespace = namespaces.get(nsid)
    if namespace is None:
        raise NvmeError(Status.INVALID_NAMESPACE, f"there is no namespace {nsid}")
    unit = PAGE_SIZE if counting.unit is RangeUnit.PAGE else namespace.block_size
    count = fields.pages + 1 if counting.zero_based else fields.pages
    if count == 0:
        raise NvmeError(Status.INVALID_FIELD, "the range is empty")
    if fields.start * unit >= namespace.size:
        raise NvmeError(Status.LBA_OUT_OF_RANGE, f"{fields.start} is past the end")
    return ByteRange(nsid, fields.start * unit, count * unit)


def missing(item: ByteRange | Grant, namespaces: Namespaces) -> str | None:
    """The reason why a range that was chosen does not exist any more; None if it does.

    A host may delete or format the namespace between its choice and Start.
    """
    namespace = namespaces.get(item.nsid)
    if namespace is None:
        return f"namespace {item.nsid} is not there any more"
    if isinstance(item, Grant):
        item = range_of(item, namespaces)
    if item.first % namespace.block_size or overhang(item, namespaces):
        return f"namespace {item.nsid} has changed since the range was chosen"
    return None


def range_of(grant: Grant, namespaces: Namespaces) -> ByteRange:
    """The bytes of granted blocks, whose namespace exists."""
    block = namespaces[grant.nsid].block_size
    return ByteRange(grant.nsid, grant.first_lba * block, grant.blocks * block)


def overhang(item: ByteRange, namespaces: Namespaces) -> int:
    """Bytes of a range that lie past the end of its namespace."""
    return max(0, item.first + item.length - namespaces[item.nsid].size)


def first_bytes(
    ranges: tuple[ByteRange, ...], size: int, namespaces: Namespaces
) -> tuple[ByteRange, ...]:
    """The parts of `ranges` that hold their first `size` bytes, rounded up to whole blocks."""
    parts = []
    for item in ranges:
        if size <= 0:
            break
        block = namespaces[item.nsid].block_size
        length = min(item.length, -(-size // block) * block)
        parts.append(item._replace(length=length))
        size -= length
    return tuple(parts)


class Granted:
    """The blocks that grants allow to read or, for `writing`, to write. Several may adjoin, or
    overlap."""

    def __init__(self, granted: Sequence[Grant], *, writing: bool) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        """First block and end of ranges apart from one another, in order, by namespace."""
        for grant in sorted(granted):
            if writing and not grant.writable:
                continue
            ranges = self._ranges.setdefault(grant.nsid, [])
            first, end = grant.first_lba, grant.first_lba + grant.blocks
            if ranges and first <= ranges[-1][1]:
                first, before = ranges.pop()
                end = max(before, end)
            ranges.append((first, end))

    def has(self, nsid: int, lba: int, count: int) -> bool:
        """True if all of `count` blocks are allowed."""
        ranges = self._ranges.get(nsid, [])
        place = bisect_right(ranges, lba, key=itemgetter(0)) - 1
        return not count or (place >= 0 and lba + count <= ranges[place][1])


def portions(
    source: int, parts: Sequence[ByteRange]
) -> Iterator[tuple[int, tuple[ByteRange, ...]]]:
    """Portions of ranges that fit in one message, with the offset of their bytes in the arena."""
    for first in range(0, len(parts), MAX_RANGES):
        pieces = tuple(parts[first : first + MAX_RANGES])
        yield source, pieces
        source += sum(piece.length for piece in pieces)


class MediaReadError(Exception):
    """The media cannot be read."""


class NotAllowed(Exception):
    """A program accesses blocks that it may not access, or more than there is room for."""


def read_media(fd: int, nsid: int, offset: int, into: memoryview) -> None:
    """Fill `into` from byte `offset` of a namespace's media. Raises MediaReadError."""
    while into:
        try:
            count = os.preadv(fd, [into], offset)
        except OSError as error:
            raise MediaReadError(f"namespace {nsid}: {error.strerror}") from None
        if count == 0:
            raise MediaReadError(f"the media of namespace {nsid} ends at {offset}")
        into, offset = into[count:], offset + count


@dataclass
class Blocks:
    """One job's access to granted blocks.

    `media` are descriptors of namespaces, at least of those that are granted; `gathered` is the
    memory for the blocks to be written. The program must not write the job's `output_ranges`, as it
    would be undefined which of the two is written last.
    """

    granted: tuple[Grant, ...]
    namespaces: Mapping[int, NamespaceConfig]
    media: Mapping[int, int]
    gathered: memoryview
    output_ranges: tuple[ByteRange, ...] = ()
    unreadable: tuple[ByteRange, ...] = ()
    """Granted blocks that the drive refuses to read, for a host too."""
    _places: dict[tuple[int, int], int] = field(default_factory=dict)
    """The places of blocks in `gathered`, in order, by namespace and first byte."""
    _used: int = 0

    @cached_property
    def _readable(self) -> Granted:
        return Granted(self.granted, writing=False)

    @cached_property
    def _writable(self) -> Granted:
        return Granted(self.granted, writing=True)

    def read(self, nsid: int, lba: int, count: int, into: memoryview) -> int:
        """Read `count` blocks into the beginning of `into`; returns how many bytes they have.
        Raises NotAllowed and MediaReadError."""
        size = self._block_size(nsid, lba, count, writing=False)
        length = count * size
        if length > len(into):
            raise NotAllowed(
                f"{count} blocks have {length} bytes, and there is room for {len(into)}"
            )
        first = lba * size
        self._require_readable(ByteRange(nsid, first, length), size)
        read_media(self.media.get(nsid, -1), nsid, first, into[:length])
        for at in range(0, length, size) if self._places else ():
            place = self._places.get((nsid, first + at))
            if place is not None:
                into[at : at + size] = self.gathered[place : place + size]
        return length

    def write(self, nsid: int, lba: int, count: int, data: memoryview) -> int:
        """Gather `count` blocks, all of `data`; returns how many bytes they have. Raises
        NotAllowed, and then has gathered nothing."""
        size = self._block_size(nsid, lba, count, writing=True)
        length = count * size
        if length != len(data):
            raise NotAllowed(f"{count} blocks have {length} bytes, not {len(data)}")
        first = lba * size
        if any(_overlap(item, ByteRange(nsid, first, length)) for item in self.output_ranges):
            raise NotAllowed("blocks of the job's output are written by setting its output only")
        keys = [(nsid, first + at) for at in range(0, length, size)]
        added = sum(size for key in keys if key not in self._places)
        if self._used + added > len(self.gathered):
            raise NotAllowed(f"a job can write {len(self.gathered)} bytes, and this would be more")
        for key, at in zip(keys, range(0, length, size), strict=True):
            place = self._places.setdefault(key, self._used)
            if place == self._used:
                self._used += size
            self.gathered[place : place + size] = data[at : at + size]
        return length

    def written(self) -> tuple[ByteRange, ...]:
        """The ranges whose bytes follow each other in `gathered` from its beginning on."""
        found: list[ByteRange] = []
        for nsid, first in self._places:
            size = self.namespaces[nsid].block_size
            last = found[-1] if found else None
            if last is not None and (nsid, first) == (last.nsid, last.first + last.length):
                found[-1] = last._replace(length=last.length + size)
            else:
                found.append(ByteRange(nsid, first, size))
        return tuple(found)

    def _require_readable(self, accessed: ByteRange, size: int) -> None:
        """Raises MediaReadError for a block that cannot be read, unless the job has written it."""
        for item in self.unreadable:
            if not _overlap(item, accessed):
                continue
            last = min(item.first + item.length, accessed.first + accessed.length)
            for at in range(max(item.first, accessed.first), last, size):
                if (accessed.nsid, at) not in self._places:
                    raise MediaReadError(f"block {at // size} of namespace {accessed.nsid} is lost")

    def _block_size(self, nsid: int, lba: int, count: int, *, writing: bool) -> int:
        """Bytes of a block of a namespace, if the program may access these blocks."""
        namespace = self.namespaces.get(nsid)
        if namespace is None:
            raise NotAllowed(f"there is no namespace {nsid}")
        if not (self._writable if writing else self._readable).has(nsid, lba, count):
            what = "writing" if writing else "reading"
            raise NotAllowed(
                f"{count} blocks from {lba} of namespace {nsid} are not granted for {what}"
            )
        if count and nsid not in self.media:
            raise NotAllowed(f"there is no namespace {nsid}")
        if count and (lba + count) * namespace.block_size > namespace.size:
            raise NotAllowed(f"namespace {nsid} ends before {count} blocks from {lba} do")
        return namespace.block_size


def _overlap(left: ByteRange, right: ByteRange) -> bool:
    return bool(
        left.length
        and right.length
        and left.nsid == right.nsid
        and left.first < right.first + right.length
        and right.first < left.first + left.length
    )
