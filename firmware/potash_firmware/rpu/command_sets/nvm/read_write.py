"""Flush, Write and Read.

Data moves between guest memory and media without a copy where nothing can block. Where something
may, the media executor works on a private buffer, and this thread alone copies to or from guest
memory: so a reset never has to wait for a disk.

Source: NVM Command Set Specification 1.0, section 3.2."""

from collections.abc import Sequence
from functools import partial

from nvme_spec.queues import BROADCAST_NSID
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import (
    in_turn,
    must_remove_marks,
    read_error,
    remove_marks,
    require_correctable,
    target,
    write_error,
)
from potash_firmware.rpu.command_sets.nvm.content import Pairs, Plain, require_sound
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.flushing import flushing, require_not_formatting
from potash_firmware.rpu.namespaces.inventory import StoredNamespace
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.scheduler import Wait


def flush(controller: Controller, command: Command) -> Steps:
    """Complete when all that was acknowledged before is on stable storage."""
    if command.entry.nsid == BROADCAST_NSID:
        return flush_all(controller, list(controller.namespaces.attached_stored.values()))
    namespace = controller.namespaces.of_kind(Namespace, command.entry.nsid)
    require_not_formatting(namespace)
    return flush_all(controller, [namespace])


def flush_all(controller: Controller, namespaces: Sequence[StoredNamespace]) -> Steps:
    """Flush these namespaces."""
    future = controller.media_work.shared_flush(tuple(namespaces), flushing(namespaces))
    yield {future}  # a set, as others may wait for it too
    failed = [
        controller.failures.writing(ns.nsid, ns.media, error, 0)
        for ns, error in future.result()
        if error is not None
    ]
    if failed:
        raise failed[0]
    if not controller.uncorrectable.is_saved:
        yield from controller.uncorrectable.save(controller.media_work)
    return None


def read(controller: Controller, command: Command) -> Steps:
    """Media to guest memory."""
    blocks = target(controller, command)
    yield from in_turn(blocks.in_flight, blocks.ranges, writes=False)
    namespace = blocks.namespace
    content = Plain(blocks) if blocks.protection is None else Pairs(blocks)
    content.require_host(controller.transfer, command, write=True)
    if namespace.uncorrectable.firsts:
        require_correctable(namespace, blocks.slba, blocks.blocks)
    dulbe = bool(namespace.features.dulbe) and namespace.dulbe
    try:
        if blocks.fua or dulbe or not content.read_at_once(controller.transfer, command):
            fetch = partial(content.fetch, dulbe=dulbe)
            yield Wait(
                controller.media_work.on_blocks(
                    blocks.in_flight, blocks.ranges, fetch, writes=False
                )
            )
    except MediaError as error:
        raise read_error(controller, namespace, error) from None
    if blocks.protection is not None:
        require_sound(controller, content)
    content.send(controller.transfer, command)
    controller.health.count_read(blocks.length)
    return None


def write(controller: Controller, command: Command) -> Steps:
    """Guest memory to media; durable before it completes if the host wants it so."""
    blocks = target(controller, command)
    yield from in_turn(blocks.in_flight, blocks.ranges, writes=True)
    namespace = blocks.namespace
    content = Plain(blocks) if blocks.protection is None else Pairs(blocks)
    content.require_host(controller.transfer, command, write=False)
    unmark = bool(namespace.uncorrectable.firsts) and must_remove_marks(controller, blocks)
    durable = unmark or blocks.fua or namespace.write_through
    if controller.placement is not None:
        controller.placement.write(namespace.nsid, blocks.placement, blocks.length)
    try:
        namespace.media.require_whole()
        if durable or not content.write_at_once(controller.transfer, command):
            content.receive(controller.transfer, command)
            if blocks.protection is not None:
                content.protect()
            store = partial(content.store, durable=durable)
            work = controller.media_work.on_blocks(
                blocks.in_flight, blocks.ranges, store, writes=True
            )
            yield Wait(work, work.cancel)
    except MediaError as error:
        raise write_error(controller, namespace, error) from None
    controller.health.count_write(blocks.length)
    if unmark:
        yield from remove_marks(controller, blocks)
    return None
