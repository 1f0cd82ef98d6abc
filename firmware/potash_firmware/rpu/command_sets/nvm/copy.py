"""Copy, from blocks of the same namespace or from bytes of memory namespaces, to blocks.

One job of the media executor reads all sources and then writes, so that overlapping ranges are
copied correctly.

Source: NVM Command Set Specification 1.0, section 3.2.2 (Copy); 1.2, figure 41 (format 4h).
"""

from collections.abc import Sequence
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
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import (
    Target,
    in_turn,
    must_remove_marks,
    placement_of,
    read_error,
    remove_marks,
    require_correctable,
    require_known_format,
    require_writable,
    stream_of,
    write_error,
)
from potash_firmware.rpu.command_sets.nvm.content import content_of
from potash_firmware.rpu.command_sets.nvm.limits import copy_limits
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.protection.request import ProtectionRequest, Tags


def copy(controller: Controller, command: Command) -> Steps:
    """Check a Copy command and its source ranges, and copy."""
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
    total = sum(source.blocks for source in listed)
    if max(source.blocks for source in listed) > limits.mssrl or total > limits.mcl:
        raise _too_much(f"{total} blocks in {len(listed)} ranges")
    for source in listed:
        namespace.byte_range(source.slba, source.blocks)
    sources = [_source(namespace, fields, source) for source in listed]
    destination = _destination(command, namespace, fields, total)
    return (yield from _write(controller, fields, destination, sources))


def _source(namespace: Namespace, fields: Copy, listed: SourceRange) -> Target:
    """The blocks of a source range. Raises NvmeError."""
    protection = None
    if namespace.metadata.size:
        tags = Tags(listed.elbt, listed.elbat, listed.elbatm)
        protection = ProtectionRequest.of(namespace.metadata, fields.prinfor, False, tags)
        protection.require_valid(listed.slba)
    return Target(namespace, listed.slba, listed.blocks, protection=protection)


def _destination(command: Command, namespace: Namespace, fields: Copy, blocks: int) -> Target:
    """The blocks that are written. Raises NvmeError."""
    protection = None
    if namespace.metadata.size:
        tags = Tags.of(command.entry)
        protection = ProtectionRequest.of(namespace.metadata, fields.prinfow, fields.stcw, tags)
        protection.require_valid(fields.sdlba)
    namespace.byte_range(fields.sdlba, blocks, location=CommandByte.CDW10)
    return Target(namespace, fields.sdlba, blocks, protection=protection)


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
            f"source ranges of format {fields.desfmt} do not fit the protection information",
        )
    # Both strip and regenerate protection information, or both pass it on.
    if (fields.prinfor ^ fields.prinfow) & PRACT:
        raise NvmeError(Status.INVALID_FIELD, "PRACT has to be equal for reading and for writing")


def _from_memory(
    controller: Controller, command: Command, namespace: Namespace, fields: Copy, data: memoryview
) -> Steps:
    """Copy from memory namespaces (format 4h). Raises NvmeError."""
    limits, block_size = copy_limits(namespace.block_size), namespace.block_size
    listed = list(MemorySourceRange.decode_list(data))
    total = sum(source.nbyte for source in listed)
    if total % block_size or not total:
        raise NvmeError(Status.INVALID_FIELD, f"{total} bytes are not a whole number of blocks")
    largest = max(source.nbyte for source in listed)
    if largest > limits.mssrl * block_size or total > limits.mcl * block_size:
        raise _too_much(f"{total} bytes in {len(listed)} ranges")
    sources = []
    for source in listed:
        controller.namespaces.active(source.snsid)
        memory = source_memory(controller, namespace.nsid, source.snsid, source.sopt)
        memory.require_range(source.saddr, source.nbyte)
        sources.append(memory.memory.bytes[source.saddr : source.saddr + source.nbyte])
    destination = _destination(command, namespace, fields, total // block_size)
    return _write(controller, fields, destination, (), sources)


def _memory_enabled(controller: Controller) -> bool:
    """True if format 4h can be used: there is memory, and the host has enabled it if it has to."""
    if CommandSet.MEMORY not in controller.namespaces.enabled:
        return False
    value = controller.features.read(Select.CURRENT, FeatureId.HOST_BEHAVIOR_SUPPORT)
    enabled = HostBehavior(value.data).copy_formats & 1 << CopyFormat.MEMORY
    return controller.settings.copy_formats_enabled or bool(enabled)


def _write(
    controller: Controller,
    fields: Copy,
    destination: Target,
    sources: Sequence[Target],
    memory: list[memoryview] | None = None,
) -> Steps:
    """Write `sources`, or pieces of memory, to `destination`, with exclusive access to both.

    Raises NvmeError.
    """
    namespace, length = destination.namespace, destination.length
    require_writable(controller, namespace)
    ranges = [blocks.ranges[0] for blocks in (destination, *sources)]
    placement = placement_of(controller, fields.dtype, fields.dspec)

    def steps() -> Steps:
        yield from in_turn(destination.in_flight, ranges, writes=True, alone=True)
        # Only now: the commands that were waited for may have changed the sources.
        for source in sources:
            namespace.require_readable(source.slba, source.blocks)
            require_correctable(namespace, source.slba, source.blocks)
        unmark = must_remove_marks(controller, destination)
        durable = unmark or fields.fua or namespace.write_through
        if controller.placement is not None:
            controller.placement.write(namespace.nsid, placement, length)
        committed = namespace.claim(destination.slba, destination.blocks)
        if committed and controller.timing is not None:
            controller.timing.commit(namespace, committed)
        try:
            error = yield controller.media_work.on_blocks(
                destination.in_flight,
                ranges,
                partial(_move, destination, sources, memory, namespace.dulbe, durable),
                writes=True,
                alone=True,
            )
        except MediaError as failure:
            raise write_error(controller, namespace, failure) from None
        if isinstance(error, NvmeError):
            raise controller.failures.unprotected(namespace.nsid, error)
        if error is not None:
            raise read_error(controller, namespace, error)
        controller.health.count_write(length)
        controller.statistics.moved += length
        if unmark:
            yield from remove_marks(controller, destination)
        return None

    due = None
    if controller.timing is not None:
        fua = fields.fua or namespace.write_through
        stream = stream_of(controller, namespace.nsid, placement)
        due = controller.timing.write(
            namespace.nsid,
            destination.offset,
            length,
            sources=ranges[1:],
            fua=fua,
            stream=stream,
            area=namespace.has_area(destination.slba),
        )
    return (yield from controller.scheduler.not_before(due, steps()))


def _move(
    destination: Target,
    sources: Sequence[Target],
    memory: list[memoryview] | None,
    dulbe: bool,
    durable: bool,
) -> MediaError | NvmeError | None:
    """Read all, then write. Blocks: for the executor's threads only.

    Returns the error of a source or of protection information, so that the caller can tell it from
    that of the destination, which is raised as MediaError.
    """
    parts = [content_of(source) for source in sources]
    try:
        for part in parts:
            part.fetch(dulbe=dulbe)
            part.check()
    except (MediaError, NvmeError) as error:
        return error
    destination.namespace.store_claims()
    pieces = [piece for part in parts for piece in part.pieces] if memory is None else memory
    content = content_of(destination)
    content.put(pieces, b"".join(part.metadata for part in parts))
    try:
        content.protect()
    except NvmeError as error:
        return error
    content.store(durable=durable)
    return None


def _too_much(what: str) -> NvmeError:
    return NvmeError(
        Status.COMMAND_SIZE_LIMIT_EXCEEDED, f"{what} exceed the limits of a Copy command"
    )


def source_memory(controller: Controller, nsid: int, snsid: int, options: int) -> MemoryNamespace:
    """The memory namespace that a source range of a copy to `nsid` names. Raises NvmeError."""
    namespace = controller.namespaces.attached.get(snsid)
    if not isinstance(namespace, MemoryNamespace):
        raise NvmeError(Status.INVALID_NAMESPACE, f"namespace {snsid:#x} is no memory")
    controller.namespaces.require_accessible(snsid)
    controller.reachability.require_copyable(nsid, snsid, options)
    return namespace
