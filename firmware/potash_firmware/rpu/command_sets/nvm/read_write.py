"""Flush, Write and Read.

Data moves between guest memory and media without a copy where nothing can block. Where something
may, the media executor works on a private buffer, and this thread alone copies to or from guest
memory: so a reset never has to wait for a disk.

Source: NVM Command Set Specification 1.0, section 3.2."""

from nvme_spec.queues import BROADCAST_NSID
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm import paired
from potash_firmware.rpu.command_sets.nvm.blocks import (
    commit,
    healed,
    heals,
    in_the_way,
    read_error,
    require_allocated,
    require_correctable,
    target,
    write_error,
)
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import Namespace, flushing
from potash_firmware.rpu.scheduler import Wait


def flush(controller: Controller, command: Command) -> Steps:
    """Complete when all that was acknowledged before is on stable storage."""
    if command.entry.nsid == BROADCAST_NSID:
        namespaces = list(controller.namespaces.attached_blocks.values())
    else:
        namespace = controller.namespaces.of_kind(Namespace, command.entry.nsid)
        namespace.require_not_formatting()
        namespaces = [namespace]
    future = controller.media_work.shared_flush(tuple(namespaces), flushing(namespaces))
    yield {future}  # a set, as others may wait for it too
    failed = [
        controller.failures.writing(one.nsid, one.media, error, 0)
        for one, error in future.result()
        if error is not None
    ]
    if failed:
        raise failed[0]
    if not controller.uncorrectable.is_saved:
        yield from controller.uncorrectable.save()
    return None


def read(controller: Controller, command: Command) -> Steps:
    """Media to guest memory."""
    blocks = target(controller, command)
    while before := in_the_way(blocks.namespace, blocks.ranges, writes=False):
        yield before
        blocks = target(controller, command)  # the namespace may be gone, or another
    if blocks.wanted is not None:
        return (yield from paired.read(controller, command, blocks))
    views = controller.transfer.views(command, blocks.length, write=True)
    namespace, offset, length = blocks.namespace, blocks.offset, blocks.length
    media = namespace.media
    if namespace.uncorrectable.firsts:
        require_correctable(namespace, blocks.slba, blocks.blocks)
    dulbe = namespace.dulbe
    try:
        if not (
            not blocks.fua
            and not dulbe
            and controller.transfer.at_once(
                command, media.read_at_once, views, offset, to_host=True
            )
        ):
            buffer = controller.transfer.buffer(length)

            def fetch() -> None:
                if blocks.fua:
                    commit(media)
                if dulbe:
                    require_allocated(media, offset, length)
                media.read_into([buffer], offset)

            work = controller.media_work.on_blocks(
                namespace.in_flight, blocks.ranges, fetch, writes=False
            )
            yield Wait(work)
            controller.transfer.send(command, buffer)
    except MediaError as error:
        raise read_error(controller, namespace, error) from None
    controller.health.count_read(length)
    return None


def write(controller: Controller, command: Command) -> Steps:
    """Guest memory to media; durable before it completes if the host wants it so."""
    blocks = target(controller, command)
    while before := in_the_way(blocks.namespace, blocks.ranges, writes=True):
        yield before
        blocks = target(controller, command)  # the namespace may be gone, or another
    if blocks.wanted is not None:
        return (yield from paired.write(controller, command, blocks))
    views = controller.transfer.views(command, blocks.length, write=False)
    namespace, offset, length = blocks.namespace, blocks.offset, blocks.length
    media = namespace.media
    heal = heals(controller, namespace, blocks.slba, blocks.blocks)
    durable = heal or blocks.fua or namespace.write_through
    if controller.placement is not None:
        controller.placement.write(namespace.nsid, blocks.placement, length)
    try:
        media.require_whole()
        if durable or not controller.transfer.at_once(
            command, media.write_at_once, views, offset, to_host=False
        ):
            buffer = controller.transfer.buffer(length)
            controller.transfer.gather(command, views, buffer)

            def store() -> None:
                media.write_from([buffer], offset)
                if durable:
                    media.flush()

            work = controller.media_work.on_blocks(
                namespace.in_flight, blocks.ranges, store, writes=True
            )
            yield Wait(work, work.cancel)
    except MediaError as error:
        raise write_error(controller, namespace, error) from None
    controller.health.count_write(length)
    if heal:
        yield from healed(controller, namespace, blocks.slba, blocks.blocks)
    return None
