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
from potash_device.media import Media, MediaError
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.controller import MAX_TRANSFER, Controller


def flush(controller: Controller, command: Command) -> Result:
    """Complete when all that was acknowledged before is on stable storage."""
    if command.entry.nsid == BROADCAST_NSID:
        media = [namespace.media for namespace in controller.namespaces.values()]
    else:
        media = [controller.namespace(command).media]

    def flush_all() -> None:
        for one in media:
            one.flush()

    return Pending(controller.on_media(flush_all), lambda future: _written(controller, future))


def read(controller: Controller, command: Command) -> Result:
    """Media to guest memory."""
    media, offset, length, _ = _target(controller, command)
    views = controller.views(command, length, write=True)
    try:
        done = media.read_at_once(views, offset)
    except MediaError as error:
        raise _read_error(controller, error) from None
    if done:
        controller.health.count_read(length)
        return None
    buffer = memoryview(bytearray(length))

    def deliver(future: Future[None]) -> None:
        try:
            future.result()
        except MediaError as error:
            raise _read_error(controller, error) from None
        controller.send(command, buffer)
        controller.health.count_read(length)

    return Pending(controller.on_media(lambda: media.read_into([buffer], offset)), deliver)


def write(controller: Controller, command: Command) -> Result:
    """Guest memory to media; durable before it completes if the host wants it so."""
    media, offset, length, fua = _target(controller, command)
    views = controller.views(command, length, write=False)
    durable = fua or controller.features.write_through
    if not durable:
        try:
            if media.write_at_once(views, offset):
                controller.health.count_write(length)
                return None
        except MediaError as error:
            raise _write_error(controller, error) from None
    buffer = memoryview(bytearray(length))
    gather_into(buffer, views)

    def store() -> None:
        media.write_from([buffer], offset)
        if durable:
            media.flush()

    def finish(future: Future[None]) -> None:
        _written(controller, future)
        controller.health.count_write(length)

    return Pending(controller.on_media(store), finish)


def _target(controller: Controller, command: Command) -> tuple[Media, int, int, bool]:
    """Media, first byte, length and FUA of a read or a write. Raises NvmeError."""
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
    return namespace.media, offset, length, fields.fua


def _written(controller: Controller, future: Future[None]) -> None:
    try:
        future.result()
    except MediaError as error:
        raise _write_error(controller, error) from None


def _read_error(controller: Controller, error: MediaError) -> NvmeError:
    controller.health.media_errors += 1
    return NvmeError(Status.UNRECOVERED_READ_ERROR, dnr=False, detail=str(error))


def _write_error(controller: Controller, error: MediaError) -> NvmeError:
    controller.health.media_errors += 1
    return NvmeError(Status.WRITE_FAULT, dnr=False, detail=str(error))
