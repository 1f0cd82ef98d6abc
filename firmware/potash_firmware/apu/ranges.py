"""Conversion of the ranges of local storage commands to bytes of a namespace's media.

Alkali CSD platform documentation, section 4.3.2 (Use local storage as accelerator input, output).
"""

from collections.abc import Iterator, Mapping, Sequence

from csd_spec.fields import LocalStorage
from csd_spec.opcodes import PAGE_SIZE
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu.config import NamespaceConfig, RangeBlocks, RangeUnit
from potash_firmware.apu.model import ByteRange, Grant
from potash_firmware.mailbox.messages import MAX_RANGES

Namespaces = Mapping[int, NamespaceConfig]


def resolve(
    fields: LocalStorage,
    nsid: int,
    namespaces: Namespaces,
    counting: RangeBlocks,
) -> ByteRange:
    """The bytes that a command names; they may reach past the end of the namespace.

    Raises NvmeError: Invalid Namespace or Format, Invalid Field for an empty range, LBA Out of
    Range for one that starts at or after the end.
    """
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
    """The reason for which a range that was chosen earlier no longer exists; None when it does.

    A host may delete or format the namespace between its choice and Start.
    """
    namespace = namespaces.get(item.nsid)
    if namespace is None:
        return f"namespace {item.nsid} is not there any more"
    if isinstance(item, Grant):
        block = namespace.block_size
        item = ByteRange(item.nsid, item.first_lba * block, item.blocks * block)
    if item.first % namespace.block_size or overhang(item, namespaces):
        return f"namespace {item.nsid} has changed since the range was chosen"
    return None


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


def is_granted(granted: Sequence[Grant], nsid: int, lba: int, count: int, *, writing: bool) -> bool:
    """True where grants, one or several that are adjacent or overlap, allow all of `count`
    blocks."""
    end = lba + count
    while lba < end:
        reach = lba
        for grant in granted:
            if grant.nsid == nsid and grant.first_lba <= lba and (grant.writable or not writing):
                reach = max(reach, grant.first_lba + grant.blocks)
        if reach == lba:
            return False
        lba = reach
    return True


def portions(
    source: int, parts: Sequence[ByteRange]
) -> Iterator[tuple[int, tuple[ByteRange, ...]]]:
    """Groups of as many ranges as a message holds, each with the offset of its bytes in the
    arena."""
    for first in range(0, len(parts), MAX_RANGES):
        pieces = tuple(parts[first : first + MAX_RANGES])
        yield source, pieces
        source += sum(piece.length for piece in pieces)


def besides(gathered: Sequence[ByteRange]) -> str:
    """A text for the log: the blocks that a program has written by grants, if any."""
    total = sum(item.length for item in gathered)
    return f", {total} bytes written to granted blocks" if total else ""
