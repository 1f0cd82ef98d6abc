"""Flush, Write and Read.

Data moves between guest memory and media without a copy where nothing can block, which is memory
media and reads that the page cache can answer. Where something may, the media executor works on a
private buffer, and the copy to or from guest memory is made here, by the one thread that may touch
it: a reset then never has to wait for a disk.

Source: NVM Command Set Specification 1.0, section 3.2.
"""

from concurrent.futures import Future

from nvme_spec.commands import ReadWrite
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_device.controller.dma import gather_into
from potash_device.media import MediaError
from potash_firmware.rpu.command import Command, Pending, Result, nothing_to_undo
from potash_firmware.rpu.controller import MAX_TRANSFER, Controller, Flushed, Namespace, flush_all


def flush(controller: Controller, command: Command) -> Result:
    """Complete when all that was acknowledged before is on stable storage."""
    if command.entry.nsid == BROADCAST_NSID:
        namespaces = list(controller.namespaces.values())
    else:
        namespaces = [controller.namespace(command)]

    def finish(future: Future[list[Flushed]]) -> None:
        failed = [
            controller.failures.writing(one.settings.nsid, one.media, error, 0)
            for one, error in future.result()
            if error is not None
        ]
        if failed:
            raise failed[0]

    return Pending(controller.on_media(lambda: flush_all(namespaces)), finish, nothing_to_undo)


def read(controller: Controller, command: Command) -> Result:
    """Media to guest memory."""
    namespace, offset, length, _ = _target(controller, command)
    media = namespace.media
    views = controller.views(command, length, write=True)
    if namespace.in_flight:
        before = namespace.in_flight.in_the_way(offset, length, writes=False)
        if before:
            return Pending(
                controller.end_of(before), lambda _: read(controller, command), nothing_to_undo
            )
    try:
        done = media.read_at_once(views, offset)
    except MediaError as error:
        raise _read_error(controller, namespace, error) from None
    if done:
        controller.health.count_read(length)
        return None
    buffer = memoryview(bytearray(length))

    def deliver(future: Future[None]) -> None:
        try:
            future.result()
        except MediaError as error:
            raise _read_error(controller, namespace, error) from None
        controller.send(command, buffer)
        controller.health.count_read(length)

    return Pending(
        controller.on_blocks(
            namespace,
            [(offset, length)],
            lambda: media.read_into([buffer], offset),
            writes=False,
        ),
        deliver,
        nothing_to_undo,
    )


def write(controller: Controller, command: Command) -> Result:
    """Guest memory to media; durable before it completes if the host wants it so."""
    namespace, offset, length, fua = _target(controller, command)
    media = namespace.media
    views = controller.views(command, length, write=False)
    if namespace.in_flight:
        before = namespace.in_flight.in_the_way(offset, length, writes=True)
        if before:
            return Pending(
                controller.end_of(before), lambda _: write(controller, command), nothing_to_undo
            )
    durable = fua or controller.features.write_through
    try:
        if not durable and media.write_at_once(views, offset):
            controller.health.count_write(length)
            return None
    except MediaError as error:
        raise _write_error(controller, namespace, error) from None
    buffer = memoryview(bytearray(length))
    gather_into(buffer, views)

    def store() -> None:
        media.write_from([buffer], offset)
        if durable:
            media.flush()

    def finish(future: Future[None]) -> None:
        try:
            future.result()
        except MediaError as error:
            raise _write_error(controller, namespace, error) from None
        controller.health.count_write(length)

    future = controller.on_blocks(namespace, [(offset, length)], store, writes=True)
    return Pending(future, finish, future.cancel)


def _target(controller: Controller, command: Command) -> tuple[Namespace, int, int, bool]:
    """Namespace, first byte, length and FUA of a read or a write. Raises NvmeError."""
    namespace = controller.namespace(command)
    fields = ReadWrite.decode(command.entry.cdws)
    if fields.prinfo or fields.dtype:
        raise NvmeError(
            Status.INVALID_FIELD, detail="the device has no protection information or directives"
        )
    if fields.blocks * namespace.block_size > MAX_TRANSFER:
        raise NvmeError(
            Status.INVALID_FIELD, detail=f"{fields.blocks} blocks are more than MDTS allows"
        )
    offset, length = namespace.byte_range(fields.slba, fields.blocks)
    return namespace, offset, length, fields.fua


def _read_error(controller: Controller, namespace: Namespace, error: MediaError) -> NvmeError:
    return controller.failures.reading(namespace.settings.nsid, error, namespace.lba_of(error))


def _write_error(controller: Controller, namespace: Namespace, error: MediaError) -> NvmeError:
    return controller.failures.writing(
        namespace.settings.nsid, namespace.media, error, namespace.lba_of(error)
    )
