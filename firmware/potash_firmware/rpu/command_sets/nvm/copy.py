"""Copy: blocks of the same namespace, or bytes of memory namespaces, to blocks.

It is one piece of work, so that all sources are read before the first block is written.

Source: NVM Command Set Specification 1.0, section 3.2.2 (Copy); 1.2, figure 41 (format 4h).
"""

from collections.abc import Callable, Sequence
from functools import partial

from nvme_spec.commands import PRACT
from nvme_spec.features import FeatureId, HostBehavior, Select
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import CommandByte
from nvme_spec.ranges import (
    COPY_FORMAT_0,
    COPY_FORMAT_1,
    Copy,
    CopyFormat,
    MemorySourceRange,
    SourceRange,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import (
    Target,
    healed,
    heals,
    in_the_way,
    placement_of,
    read_error,
    require_allocated,
    require_correctable,
    require_known_format,
    require_writable,
    stream_of,
    write_error,
)
from potash_firmware.rpu.command_sets.nvm.content import Pairs
from potash_firmware.rpu.command_sets.nvm.limits import copy_limits
from potash_firmware.rpu.command_sets.sources import source_memory
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.protection.wanted import Tags, Wanted


def copy(controller: Controller, command: Command) -> Steps:
    """Blocks or bytes to blocks: as if all were read before the first is written."""
    fields = Copy.decode(command.entry.cdws)
    namespace = controller.namespaces.usable(command.entry.nsid)
    if fields.desfmt not in (COPY_FORMAT_0, COPY_FORMAT_1, CopyFormat.MEMORY) or (
        fields.desfmt == CopyFormat.MEMORY and not _memory_enabled(controller)
    ):
        raise NvmeError(
            Status.INVALID_FIELD, f"source ranges of format {fields.desfmt} are not enabled"
        )
    _require_copyable(controller, namespace, fields)
    limits = copy_limits(namespace.block_size)
    if fields.nr_z > limits.msrc_z:
        raise _too_much(f"{fields.nr_z + 1} ranges")
    data = controller.transfer.receive(command, fields.length)
    if fields.desfmt == CopyFormat.MEMORY:
        return (yield from _from_memory(controller, command, namespace, fields, data))
    of_format_1 = fields.desfmt == COPY_FORMAT_1
    decode = SourceRange.decode_list_1 if of_format_1 else SourceRange.decode_list
    listed = list(decode(data))
    total = sum(one.blocks for one in listed)
    if max(one.blocks for one in listed) > limits.mssrl or total > limits.mcl:
        raise _too_much(f"{total} blocks in {len(listed)} ranges")
    sources = [namespace.byte_range(one.slba, one.blocks) for one in listed]

    def readable() -> None:
        for one in listed:
            namespace.require_readable(one.slba, one.blocks)
            require_correctable(namespace, one.slba, one.blocks)

    read = _reading(namespace.media, sources, dulbe=namespace.dulbe)
    store = None
    if namespace.metadata.size:
        kept = namespace.metadata
        wanted = [
            Wanted.of(kept, fields.prinfor, False, Tags(one.elbt, one.elbat, one.elbatm))
            for one in listed
        ]
        for one, asked in zip(listed, wanted, strict=True):
            asked.require_valid(one.slba)
        parts = [
            Pairs(Target(namespace, one.slba, one.blocks, wanted=asked))
            for one, asked in zip(listed, wanted, strict=True)
        ]
        read = _reading_pairs(parts, dulbe=namespace.dulbe)
        store = _storing_pairs(command, namespace, fields, total)
    return (yield from _write(controller, namespace, fields, total, sources, readable, read, store))


def _require_copyable(controller: Controller, namespace: Namespace, fields: Copy) -> None:
    """Raise NvmeError for a format of source ranges, or a treatment of protection information, that
    the namespace does not have (NVM Command Set 1.0, section 3.2.2)."""
    kept = namespace.metadata
    if not kept.protection:
        return
    require_known_format(controller, namespace)
    if fields.desfmt != (COPY_FORMAT_0 if kept.guard == 16 else COPY_FORMAT_1):
        raise NvmeError(
            Status.INVALID_NAMESPACE,
            f"source ranges of format {fields.desfmt} are for other protection information",
        )
    if (fields.prinfor ^ fields.prinfow) & PRACT:
        raise NvmeError(
            Status.INVALID_FIELD, "protection information is replaced, or it is passed on"
        )


def _from_memory(
    controller: Controller, command: Command, namespace: Namespace, fields: Copy, data: memoryview
) -> Steps:
    """Format 4h. Raises NvmeError."""
    limits, block_size = copy_limits(namespace.block_size), namespace.block_size
    listed = list(MemorySourceRange.decode_list(data))
    total = sum(one.nbyte for one in listed)
    if total % block_size or not total:
        raise NvmeError(Status.INVALID_FIELD, f"{total} bytes are no whole blocks")
    largest = max(one.nbyte for one in listed)
    if largest > limits.mssrl * block_size or total > limits.mcl * block_size:
        raise _too_much(f"{total} bytes in {len(listed)} ranges")
    sources = []
    for one in listed:
        controller.namespaces.active(one.snsid)
        memory = source_memory(controller, namespace.nsid, one.snsid, one.sopt)
        memory.require_range(one.saddr, one.nbyte)
        sources.append(memory.memory.bytes[one.saddr : one.saddr + one.nbyte])
    blocks = total // block_size
    store = _storing_pairs(command, namespace, fields, blocks) if namespace.metadata.size else None

    def read() -> Sequence[memoryview]:
        if store is None:
            return sources
        metadata = bytearray(blocks * namespace.metadata.size)
        return [memoryview(b"".join(sources)), memoryview(metadata)]

    return _write(controller, namespace, fields, blocks, (), lambda: None, read, store)


def _memory_enabled(controller: Controller) -> bool:
    """Format 4h can be used: there is memory, and the host has enabled the format if it has to."""
    if CommandSet.MEMORY not in controller.namespaces.enabled:
        return False
    value = controller.features.read(Select.CURRENT, FeatureId.HOST_BEHAVIOR_SUPPORT)
    enabled = HostBehavior(value.data).copy_formats & 1 << CopyFormat.MEMORY
    return controller.settings.copy_formats_enabled or bool(enabled)


Read = Callable[[], Sequence[memoryview]]
"""Gives what is to be written, where it may wait: bytes in pieces, or blocks and their metadata.
Raises MediaError, and NvmeError for protection information that is wrong."""
Store = Callable[[Sequence[memoryview]], None]
"""Writes that, where it may wait. Raises as `Read`."""


def _write(
    controller: Controller,
    namespace: Namespace,
    fields: Copy,
    blocks: int,
    sources: Sequence[tuple[int, int]],
    readable: Callable[[], None],
    read: Read,
    store: Store | None = None,
) -> Steps:
    """Write what `read` gives over `blocks` blocks, while nobody else touches `sources`.

    Raises NvmeError, as `readable` may.
    """
    offset, length = namespace.byte_range(fields.sdlba, blocks, location=CommandByte.CDW10)
    require_writable(controller, namespace)
    ranges = ((offset, length), *sources)
    placement = placement_of(controller, fields.dtype, fields.dspec)

    def written() -> Steps:
        while before := in_the_way(namespace, ranges, writes=True, alone=True):
            yield before
        readable()
        heal = heals(controller, namespace, fields.sdlba, blocks)
        durable = heal or fields.fua or namespace.write_through
        if controller.placement is not None:
            controller.placement.write(namespace.nsid, placement, length)
        write = store or partial(namespace.media.write_from, offset=offset)
        namespace.claim(fields.sdlba, blocks)
        try:
            unread = yield controller.media_work.on_blocks(
                namespace.in_flight,
                ranges,
                _copying(namespace, read, write, durable=durable),
                writes=True,
                alone=True,
            )
        except MediaError as error:
            raise write_error(controller, namespace, error) from None
        if isinstance(unread, NvmeError):
            raise controller.failures.unprotected(namespace.nsid, unread)
        if unread is not None:
            raise read_error(controller, namespace, unread)
        controller.health.count_write(length)
        if heal:
            yield from healed(controller, namespace, fields.sdlba, blocks)
        return None

    due = None
    if controller.timing is not None:
        fua = fields.fua or namespace.write_through
        stream = stream_of(controller, namespace.nsid, placement)
        due = controller.timing.copy(
            namespace.nsid, sources, offset, length, fua=fua, stream=stream
        )
    return (yield from controller.deadlines.not_before(due, written()))


def _reading(media: Media, sources: Sequence[tuple[int, int]], *, dulbe: bool) -> Read:
    def read() -> Sequence[memoryview]:
        buffer = memoryview(bytearray(sum(size for _, size in sources)))
        at = 0
        for first, size in sources:
            if dulbe:
                require_allocated(media, first, size)
            media.read_into([buffer[at : at + size]], first)
            at += size
        return [buffer]

    return read


def _reading_pairs(parts: Sequence[Pairs], *, dulbe: bool) -> Read:
    def read() -> Sequence[memoryview]:
        for part in parts:
            part.fetch(dulbe=dulbe)
            part.check()
        return [
            memoryview(b"".join(part.data for part in parts)),
            memoryview(bytearray(b"".join(part.metadata for part in parts))),
        ]

    return read


def _storing_pairs(command: Command, namespace: Namespace, fields: Copy, blocks: int) -> Store:
    kept = namespace.metadata
    wanted = Wanted.of(kept, fields.prinfow, fields.stcw, Tags.of(command.entry))
    wanted.require_valid(fields.sdlba)
    target = Target(namespace, fields.sdlba, blocks, wanted=wanted)

    def store(content: Sequence[memoryview]) -> None:
        buffers = Pairs(target)
        buffers.data, buffers.metadata = content
        buffers.protect()
        buffers.store(durable=False)

    return store


def _copying(
    namespace: Namespace, read: Read, write: Store, *, durable: bool
) -> Callable[[], MediaError | NvmeError | None]:
    """The work of Copy; it gives the error of a source, or of protection information, and raises
    MediaError for the rest."""

    def move() -> MediaError | NvmeError | None:
        try:
            content = read()
        except (MediaError, NvmeError) as error:
            return error
        namespace.store_claims()
        try:
            write(content)
        except NvmeError as error:
            return error
        if durable:
            namespace.media.flush()
        return None

    return move


def _too_much(what: str) -> NvmeError:
    return NvmeError(Status.COMMAND_SIZE_LIMIT_EXCEEDED, f"{what} are more than one Copy takes")
