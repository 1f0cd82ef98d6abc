"""Flush, Write and Read.

Data moves between guest memory and media without a copy where nothing can block. Where something
may, the media executor works on a private buffer, and this thread alone copies to or from guest
memory: so a reset never has to wait for a disk.

Source: NVM Command Set Specification 1.0, section 3.2."""

from concurrent.futures import Future

from nvme_spec.queues import BROADCAST_NSID
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Pending, Result, nothing_to_undo
from potash_firmware.rpu.command_sets.nvm import paired
from potash_firmware.rpu.command_sets.nvm.blocks import (
    after,
    commit,
    healed,
    heals,
    read_error,
    require_allocated,
    require_correctable,
    target,
    write_error,
)
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import Namespace, flushing


def flush(controller: Controller, command: Command) -> Result:
    """Complete when all that was acknowledged before is on stable storage."""
    if command.entry.nsid == BROADCAST_NSID:
        namespaces = list(controller.namespaces.attached_blocks.values())
    else:
        namespace = controller.namespaces.of_kind(Namespace, command.entry.nsid)
        namespace.require_not_formatting()
        namespaces = [namespace]

    future = controller.media_work.shared_flush(tuple(namespaces), flushing(namespaces))

    def finish(_: object) -> Result:
        failed = [
            controller.failures.writing(one.nsid, one.media, error, 0)
            for one, error in future.result()
            if error is not None
        ]
        if failed:
            raise failed[0]
        return None if controller.uncorrectable.is_saved else controller.uncorrectable.save()

    return Pending(controller.media_work.end_of({future}), finish, nothing_to_undo)


def read(controller: Controller, command: Command) -> Result:
    """Media to guest memory."""
    blocks = target(controller, command)
    if blocks.wanted is not None:
        return paired.read(controller, command, blocks)
    namespace, offset, length = blocks.namespace, blocks.offset, blocks.length
    media = namespace.media
    views = controller.transfer.views(command, length, write=True)
    wait = after(
        controller, namespace, ((offset, length),), lambda: read(controller, command), writes=False
    )
    if wait is not None:
        return wait
    require_correctable(namespace, blocks.slba, blocks.blocks)
    dulbe = namespace.dulbe
    try:
        done = (
            not blocks.fua
            and not dulbe
            and controller.transfer.at_once(
                command, media.read_at_once, views, offset, to_host=True
            )
        )
    except MediaError as error:
        raise read_error(controller, namespace, error) from None
    if done:
        controller.health.count_read(length)
        return None
    buffer = controller.transfer.buffer(length)

    def fetch() -> None:
        if blocks.fua:
            commit(media)
        if dulbe:
            require_allocated(media, offset, length)
        media.read_into([buffer], offset)

    def deliver(future: Future[None]) -> None:
        try:
            future.result()
        except MediaError as error:
            raise read_error(controller, namespace, error) from None
        controller.transfer.send(command, buffer)
        controller.health.count_read(length)

    return Pending(
        controller.media_work.on_blocks(
            namespace.in_flight, [(offset, length)], fetch, writes=False
        ),
        deliver,
        nothing_to_undo,
    )


def write(controller: Controller, command: Command) -> Result:
    """Guest memory to media; durable before it completes if the host wants it so."""
    blocks = target(controller, command)
    if blocks.wanted is not None:
        return paired.write(controller, command, blocks)
    namespace, offset, length = blocks.namespace, blocks.offset, blocks.length
    media = namespace.media
    views = controller.transfer.views(command, length, write=False)
    wait = after(
        controller, namespace, ((offset, length),), lambda: write(controller, command), writes=True
    )
    if wait is not None:
        return wait
    heal = heals(controller, namespace, blocks.slba, blocks.blocks)
    durable = heal or blocks.fua or namespace.write_through
    if controller.placement is not None:
        controller.placement.write(namespace.nsid, blocks.placement, length)
    try:
        media.require_whole()
        if not durable and controller.transfer.at_once(
            command, media.write_at_once, views, offset, to_host=False
        ):
            controller.health.count_write(length)
            return None
    except MediaError as error:
        raise write_error(controller, namespace, error) from None
    buffer = controller.transfer.buffer(length)
    controller.transfer.gather(command, views, buffer)

    def store() -> None:
        media.write_from([buffer], offset)
        if durable:
            media.flush()

    def finish(future: Future[None]) -> Result:
        try:
            future.result()
        except MediaError as error:
            raise write_error(controller, namespace, error) from None
        controller.health.count_write(length)
        return healed(controller, namespace, blocks.slba, blocks.blocks) if heal else None

    future = controller.media_work.on_blocks(
        namespace.in_flight, [(offset, length)], store, writes=True
    )
    return Pending(future, finish, future.cancel)
