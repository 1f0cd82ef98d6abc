"""Compare, Verify, Write Zeroes, Write Uncorrectable and Dataset Management.

All of their work on media is the executor's, and long ones are done in steps: MDTS limits only what
is moved to or from the host, so some of these commands touch 65536 blocks, or all that there are.

Source: NVM Command Set Specification 1.0, section 3.2.
"""

from collections.abc import Iterator
from functools import partial

from nvme_spec.commands import DatasetManagement, DatasetRange
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import (
    HOLE_STEP,
    STEP,
    Part,
    Target,
    carry_out,
    commit,
    full,
    in_turn,
    must_remove_marks,
    pieces,
    read_error,
    remove_marks,
    require_allocated,
    require_correctable,
    require_writable,
    target,
    write_error,
)
from potash_firmware.rpu.command_sets.nvm.content import (
    Pairs,
    content_of,
    expected_of,
    require_sound,
)
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.protection.request import CHECKS


def compare(controller: Controller, command: Command) -> Steps:
    """Succeed if the blocks, and their metadata but for protection information, are the host's."""
    blocks = target(controller, command)
    yield from in_turn(blocks.in_flight, blocks.ranges, writes=False)
    namespace = blocks.namespace
    expected = expected_of(controller, command, blocks)
    require_correctable(namespace, blocks.slba, blocks.blocks)
    stored = content_of(blocks)
    try:
        yield controller.media_work.on_blocks(
            blocks.in_flight,
            blocks.ranges,
            partial(stored.fetch, dulbe=namespace.dulbe),
            writes=False,
        )
    except MediaError as error:
        raise read_error(controller, namespace, error) from None
    require_sound(controller, stored)
    controller.health.count_read(blocks.length)
    at = expected.unlike(stored)
    if at is not None:
        raise differs(namespace, at)
    return None


def differs(namespace: Namespace, at: int) -> NvmeError:
    """The error of a comparison that has found a difference in byte `at` of the media."""
    lba = at // namespace.block_size
    return NvmeError(Status.COMPARE_FAILURE, f"block {lba} holds something else", dnr=True, lba=lba)


def verify(controller: Controller, command: Command) -> Steps:
    """Succeed if the blocks can be read, and match their protection information."""
    blocks = target(controller, command, moves_data=False)
    namespace, media, protection = blocks.namespace, blocks.namespace.media, blocks.protection
    if protection is not None and protection.action:
        raise NvmeError(Status.INVALID_FIELD, "Verify moves no protection information")
    require_correctable(namespace, blocks.slba, blocks.blocks)
    dulbe, size, wrong = namespace.dulbe, namespace.block_size, list[NvmeError]()

    def verify_part(first: int, length: int) -> None:
        if protection is None:
            if dulbe:
                require_allocated(media, first, length)
            media.verify(first, length)
            return
        part = Target(namespace, first // size, length // size, protection=protection)
        content = Pairs(part)
        content.fetch(dulbe=dulbe)
        try:
            content.check(part.slba - blocks.slba)
        except NvmeError as error:
            wrong.append(error)

    def parts() -> Iterator[Part]:
        if blocks.fua:
            yield Part(blocks.offset, blocks.length, lambda: commit(media))
        for first, length in pieces(blocks.offset, blocks.length, STEP):
            yield Part(first, length, partial(verify_part, first, length))
            if wrong:
                raise controller.failures.unprotected(namespace.nsid, wrong[0])

    yield from carry_out(controller, command, namespace, parts(), read_error, writes=False)
    controller.health.count_read(blocks.length)
    return None


def write_zeroes(controller: Controller, command: Command) -> Steps:
    """Zeroes to media, or with DEAC (deallocate) holes that read as zeroes.

    Metadata is zeroes, with protection information that fits if that is asked for, and else with
    such that is not checked.
    """
    blocks = target(controller, command, moves_data=False)
    namespace, media = blocks.namespace, blocks.namespace.media
    protection = None if blocks.deac else blocks.protection
    if protection is not None and (protection.prinfo & CHECKS or protection.checks_storage_tag):
        raise NvmeError(Status.INVALID_PROTECTION_INFORMATION, "Write Zeroes checks nothing")
    require_writable(controller, namespace)
    unmark = must_remove_marks(controller, blocks)
    durable = unmark or blocks.fua or namespace.write_through
    block_size, size = namespace.block_size, HOLE_STEP if blocks.deac else STEP

    def clear(first: int, length: int) -> None:
        if blocks.deac:
            media.punch(first, length)
        elif protection is None:
            media.write_zeroes(first, length)
        else:
            part = Target(
                namespace, first // block_size, length // block_size, protection=protection
            )
            content = Pairs(part)
            content.clear(part.slba - blocks.slba)
            content.store(durable=False)

    def parts() -> Iterator[Part]:
        for first, length in pieces(blocks.offset, blocks.length, size):
            yield Part(first, length, partial(clear, first, length))
        if durable:
            yield Part(blocks.offset, blocks.length, media.flush)

    yield from carry_out(controller, command, namespace, parts(), write_error, writes=True)
    if unmark:
        yield from remove_marks(controller, blocks)
    return None


def write_uncorrectable(controller: Controller, command: Command) -> Steps:
    """Have the blocks read as errors until they are written."""
    blocks = target(controller, command, moves_data=False)
    yield from in_turn(blocks.in_flight, blocks.ranges, writes=True)
    namespace = blocks.namespace
    require_writable(controller, namespace)
    uncorrectable = namespace.uncorrectable
    if controller.uncorrectable.is_full and not uncorrectable.touches(blocks.slba, blocks.blocks):
        raise full()
    uncorrectable.add(blocks.slba, blocks.blocks)
    media_work = controller.media_work
    return (yield from controller.uncorrectable.save(media_work, blocks.in_flight, blocks.ranges))


def dataset_management(controller: Controller, command: Command) -> Steps:
    """Deallocate ranges with AD; the other attributes are hints for a modelled drive.

    Blocks that are uncorrectable stay so: only a write makes them good.
    """
    fields = DatasetManagement.decode(command.entry.cdws)
    namespace = controller.namespaces.usable(command.entry.nsid)
    media = namespace.media
    listed = [*DatasetRange.decode_list(controller.transfer.receive(command, fields.length))]
    ranges = [namespace.byte_range(item.slba, item.blocks) for item in listed]
    for item in listed:
        namespace.require_readable(item.slba, item.blocks)
    if controller.timing is not None and controller.timing.drive.hints:
        for item, (first, length) in zip(listed, ranges, strict=True):
            controller.timing.advise(namespace.nsid, first, length, item.dsm)
    if not fields.ad:
        return None
    require_writable(controller, namespace)
    durable = namespace.write_through

    def parts() -> Iterator[Part]:
        for first, length in ranges:
            for at, size in pieces(first, length, HOLE_STEP):
                yield Part(at, size, partial(media.punch, at, size))
        if durable:
            yield Part(0, 0, media.flush)

    due = None if controller.timing is None else controller.timing.trim(namespace.nsid, ranges)
    steps = carry_out(controller, command, namespace, parts(), write_error, writes=True)
    return (yield from controller.scheduler.not_before(due, steps))
