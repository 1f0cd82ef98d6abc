"""Memory Copy: blocks, or bytes of memory, of this drive or another one, to a memory namespace.

A program of a compute namespace works on memory namespaces, so its input is copied there first. The
source ranges are copied one after the other, which may take long. A copy of at most 1 MiB that no
disk delays is done immediately. A larger one is divided into parts of at most 4 MiB, which the
media executor copies, and between which other commands are served. For example, two ranges of 6 MiB
and 1 MiB are copied in parts of 4 MiB, 2 MiB and 1 MiB.

Source: NVM Express Subsystem Local Memory Command Set Specification 1.0
(`nvme_spec.memory_commands` gives the basis of its layouts); NVM Command Set Specification 1.2,
section 3.3.2 (source ranges).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nvme_spec.memory_commands import MemoryCopy
from nvme_spec.ranges import SOURCE_RANGE_SIZES, BlockSourceRange, CopyFormat, MemorySourceRange
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.command_sets.memory.access import AT_ONCE, require_granularity
from potash_firmware.rpu.command_sets.nvm import blocks
from potash_firmware.rpu.command_sets.nvm.copy import source_memory
from potash_firmware.rpu.command_sets.nvm.limits import MOST_SOURCE_RANGES
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.media_work import BlocksInFlight
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.peer_memory import PeerMemory
from potash_firmware.rpu.reservations import Access
from potash_firmware.rpu.scheduler import Later

if TYPE_CHECKING:  # importing it loads NumPy, which only modelled time needs
    from potash_firmware.rpu.timing.modelled import ModelledTime


_FORMATS = frozenset(SOURCE_RANGE_SIZES)
_FORMATS_WITHOUT_PEERS = _FORMATS - {CopyFormat.PEER}


class CopySource(NamedTuple):
    """Bytes of a namespace, from byte `first` on, or of other drives, from an address on."""

    namespace: Namespace | MemoryNamespace | PeerMemory
    in_flight: BlocksInFlight
    first: int
    length: int


class Part(NamedTuple):
    """The bytes that one step of a copy moves."""

    source: CopySource
    target: memoryview


def destination(
    controller: Controller, command: Command, formats: Collection[int]
) -> tuple[MemoryNamespace, MemoryCopy]:
    """The namespace that a command copies to, and the command's fields. Raises NvmeError for bytes
    that are not there, and for formats of descriptors other than these."""
    namespace = controller.namespaces.of_kind(MemoryNamespace, command.entry.nsid)
    fields = MemoryCopy.decode(command.entry)
    if fields.desfmt not in formats:
        raise NvmeError(Status.INVALID_FIELD, f"descriptor format {fields.desfmt} is not supported")
    require_granularity(fields.sdaddr, fields.length)
    namespace.require_range(fields.sdaddr, fields.length)
    if fields.nr_z >= MOST_SOURCE_RANGES:
        raise NvmeError(
            Status.COMMAND_SIZE_LIMIT_EXCEEDED,
            f"{fields.nr_z + 1} ranges are more than one command takes",
        )
    return namespace, fields


def copy(controller: Controller, command: Command) -> Result:
    """Copy the source ranges, one after another, to the command's namespace."""
    peers = controller.board.settings.peers
    formats = _FORMATS_WITHOUT_PEERS if peers is None else _FORMATS
    namespace, fields = destination(controller, command, formats)
    listed = controller.transfer.receive(command, fields.data_length)
    if fields.desfmt == CopyFormat.MEMORY:
        sources = [
            _bytes(controller, namespace, item) for item in MemorySourceRange.decode_list(listed)
        ]
    elif fields.desfmt == CopyFormat.PEER and peers is not None:
        memory = PeerMemory(peers)
        sources = [_peer(memory, item) for item in MemorySourceRange.decode_list(listed)]
    else:
        kind = CopyFormat(fields.desfmt)
        sources = [
            _blocks(controller, namespace, item)
            for item in BlockSourceRange.decode_list(listed, kind)
        ]
    total = sum(source.length for source in sources)
    if total != fields.length:
        raise NvmeError(Status.INVALID_FIELD, f"the ranges have {total} bytes, not {fields.length}")
    for source in sources:
        if source.namespace is namespace and (
            source.first < fields.sdaddr + total and fields.sdaddr < source.first + source.length
        ):
            raise NvmeError(
                Status.OVERLAPPING_IO_RANGE, "a source range overlaps the destination range"
            )
    target = namespace.memory.bytes[fields.sdaddr : fields.sdaddr + total]
    timing, at_once = controller.timing, total <= AT_ONCE
    if timing is not None:
        due = _modelled(timing, sources, total)
        steps = _copy_parts(controller, command, sources, target, at_once=at_once)
        return controller.scheduler.not_before(due, steps)
    if at_once and _copied_at_once(controller, sources, target):
        return None
    return _copy_parts(controller, command, sources, target, at_once=False)


def _modelled(timing: ModelledTime, sources: Sequence[CopySource], total: int) -> int | Later:
    """The time at which the modelled drive would finish the copy. Raises NvmeError."""
    reads = [
        (source.namespace.nsid, source.first, source.length)
        for source in sources
        if isinstance(source.namespace, Namespace)
    ]
    peers = sum(source.length for source in sources if isinstance(source.namespace, PeerMemory))
    read = [timing.read(*extent) for extent in reads]
    # Each byte is written to memory, and what comes from memory is also read there.
    from_memory = total - peers - sum(length for *_, length in reads)
    after = max(read, default=None)
    return timing.transfers.memory(total + from_memory, peers, after, inwards=bool(peers))


def _bytes(controller: Controller, target: MemoryNamespace, item: MemorySourceRange) -> CopySource:
    namespace = source_memory(controller, target.nsid, item.snsid, item.sopt)
    require_granularity(item.saddr, item.nbyte)
    namespace.require_range(item.saddr, item.nbyte)
    return CopySource(namespace, namespace.in_flight, item.saddr, item.nbyte)


def _peer(memory: PeerMemory, item: MemorySourceRange) -> CopySource:
    if item.snsid:
        raise NvmeError(Status.INVALID_NAMESPACE, "an address is in no namespace of this drive")
    require_granularity(item.saddr, item.nbyte)
    memory.view(item.saddr, item.nbyte)
    return CopySource(memory, memory.in_flight, item.saddr, item.nbyte)


def _blocks(controller: Controller, target: MemoryNamespace, item: BlockSourceRange) -> CopySource:
    if item.snsid == target.nsid:
        raise NvmeError(
            Status.INCOMPATIBLE_NAMESPACE, "a range of blocks is of the memory namespace itself"
        )
    namespace = controller.namespaces.attached.get(item.snsid)
    if not isinstance(namespace, Namespace):
        raise NvmeError(
            Status.INVALID_NAMESPACE, f"no namespace {item.snsid:#x} of blocks is attached"
        )
    controller.namespaces.require_usable(item.snsid)
    controller.reservations.require(item.snsid, Access.READ)
    controller.reachability.require_copyable(target.nsid, item.snsid, item.sopt)
    first, length = namespace.byte_range(item.slba, item.blocks)
    blocks.require_correctable(namespace, item.slba, item.blocks)
    return CopySource(namespace, namespace.in_flight, first, length)


def _parts(sources: Sequence[CopySource], target: memoryview) -> Iterator[Part]:
    at = 0
    for source in sources:
        for first, length in blocks.pieces(source.first, source.length, blocks.STEP):
            yield Part(source._replace(first=first, length=length), target[at : at + length])
            at += length


def _copied_at_once(
    controller: Controller, sources: Sequence[CopySource], target: memoryview
) -> bool:
    """Copy if nothing has to be waited for, and return True if all was copied. Raises NvmeError."""
    at = 0
    for source in sources:
        namespace, in_flight, first, length = source
        if isinstance(namespace, Namespace) and any(
            blocks.in_turn(in_flight, ((first, length),), writes=False)
        ):
            return False
        try:
            if not _copy_inline(source, target[at : at + length]):
                return False
        except MediaError as error:
            raise _nvme_error(controller, namespace, error) from None
        at += length
    controller.statistics.moved += at
    return True


def _copy_parts(
    controller: Controller,
    command: Command,
    sources: Sequence[CopySource],
    whole: memoryview,
    *,
    at_once: bool,
) -> Steps:
    """Copy one part after the other; part of the destination may be written when it fails.

    Raises NvmeError.
    """
    if at_once and _copied_at_once(controller, sources, whole):
        return None
    for source, target in _parts(sources, whole):
        namespace, ranges = source.namespace, ((source.first, source.length),)
        _require_there(controller, namespace)
        if isinstance(namespace, Namespace):
            for before in blocks.in_turn(source.in_flight, ranges, writes=False):
                yield before
                _require_there(controller, namespace)
        try:
            yield controller.media_work.on_blocks(
                source.in_flight, ranges, _copy_job(source, target), writes=False
            )
        except MediaError as error:
            raise _nvme_error(controller, namespace, error) from None
        controller.statistics.moved += len(target)
        blocks.require_queue(command)
        controller.namespaces.of_kind(MemoryNamespace, command.entry.nsid)  # deleted?
    return None


def _require_there(
    controller: Controller, namespace: Namespace | MemoryNamespace | PeerMemory
) -> None:
    """Raise NvmeError for a source that was detached or replaced since the command began."""
    if isinstance(namespace, PeerMemory):
        return  # each part looks for it
    if controller.namespaces.attached.get(namespace.nsid) is not namespace:
        raise controller.namespaces.absent(namespace.nsid)


def _copy_inline(source: CopySource, target: memoryview) -> bool:
    """Copy if that takes no access to a disk, and return True if so. Raises MediaError."""
    namespace, _, first, length = source
    if isinstance(namespace, PeerMemory):
        target[:] = namespace.view(first, length)
        return True
    if isinstance(namespace, MemoryNamespace):
        target[:] = namespace.memory.bytes[first : first + length]
        return True
    return not namespace.dulbe and namespace.media.read_at_once([target], first)


def _copy_job(source: CopySource, target: memoryview) -> Callable[[], None]:
    namespace, _, first, length = source
    if isinstance(namespace, PeerMemory):
        content = namespace.view(first, length)
        return lambda: _move(content, target)
    dulbe = isinstance(namespace, Namespace) and namespace.dulbe
    media = namespace.media

    def move() -> None:
        if dulbe:
            blocks.require_allocated(media, first, length)
        media.read_into([target], first)

    return move


def _move(content: memoryview, target: memoryview) -> None:
    target[:] = content


def _nvme_error(
    controller: Controller, namespace: Namespace | MemoryNamespace | PeerMemory, error: MediaError
) -> NvmeError:
    if not isinstance(namespace, Namespace):
        return NvmeError(Status.INTERNAL_ERROR, dnr=False, detail=str(error.strerror))
    return blocks.read_error(controller, namespace, error)
