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
from potash_device.media.store import Media
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm import paired
from potash_firmware.rpu.command_sets.nvm.blocks import (
    HOLE_STEP,
    STEP,
    Part,
    carry_out,
    commit,
    full,
    healed,
    heals,
    in_the_way,
    pieces,
    read_error,
    require_allocated,
    require_correctable,
    require_writable,
    target,
    write_error,
)
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import Namespace


def compare(controller: Controller, command: Command) -> Steps:
    """Succeed if the blocks hold what guest memory does."""
    blocks = target(controller, command)
    while before := in_the_way(blocks.namespace, blocks.ranges, writes=False):
        yield before
        blocks = target(controller, command)  # the namespace may be gone, or another
    if blocks.wanted is not None:
        return (yield from paired.compare(controller, command, blocks, differs))
    expected = controller.transfer.receive(command, blocks.length)
    namespace, offset, fua = blocks.namespace, blocks.offset, blocks.fua
    require_correctable(namespace, blocks.slba, blocks.blocks)
    media, dulbe = namespace.media, namespace.dulbe

    def difference() -> int | None:
        return first_difference(media, offset, expected, fua=fua, dulbe=dulbe)

    try:
        at = yield controller.media_work.on_blocks(
            namespace.in_flight, blocks.ranges, difference, writes=False
        )
    except MediaError as error:
        raise read_error(controller, namespace, error) from None
    controller.health.count_read(blocks.length)
    if at is not None:
        raise differs(namespace, at)
    return None


def first_difference(
    media: Media, offset: int, expected: memoryview, *, fua: bool, dulbe: bool
) -> int | None:
    """A byte of the media at or before which they hold something else; waits. Raises MediaError."""
    if fua:
        commit(media)
    if dulbe:
        require_allocated(media, offset, len(expected))
    found = memoryview(bytearray(len(expected)))
    media.read_into([found], offset)
    if found == expected:
        return None
    return offset + next(at for at, one in enumerate(found) if one != expected[at])


def differs(namespace: Namespace, at: int) -> NvmeError:
    """The error of a comparison that has found a difference in byte `at` of the media."""
    lba = at // namespace.block_size
    return NvmeError(Status.COMPARE_FAILURE, f"block {lba} holds something else", dnr=True, lba=lba)


def verify(controller: Controller, command: Command) -> Steps:
    """Succeed if the blocks can be read."""
    blocks = target(controller, command, moves_data=False)
    if blocks.wanted is not None:
        return (yield from paired.verify(controller, command, blocks))
    namespace, media = blocks.namespace, blocks.namespace.media
    require_correctable(namespace, blocks.slba, blocks.blocks)
    dulbe = namespace.dulbe

    def check(first: int, length: int) -> None:
        if dulbe:
            require_allocated(media, first, length)
        media.verify(first, length)

    def parts() -> Iterator[Part]:
        if blocks.fua:
            yield Part(blocks.offset, blocks.length, lambda: commit(media))
        for first, length in pieces(blocks.offset, blocks.length, STEP):
            yield Part(first, length, partial(check, first, length))

    yield from carry_out(controller, command, namespace, parts(), read_error, writes=False)
    controller.health.count_read(blocks.length)
    return None


def write_zeroes(controller: Controller, command: Command) -> Steps:
    """Zeroes to media, or with DEAC (deallocate) holes that read as zeroes."""
    blocks = target(controller, command, moves_data=False)
    if blocks.wanted is not None and not blocks.deac:
        return (yield from paired.write_zeroes(controller, command, blocks))
    namespace, media = blocks.namespace, blocks.namespace.media
    require_writable(controller, namespace)
    heal = heals(controller, namespace, blocks.slba, blocks.blocks)
    durable = heal or blocks.fua or namespace.write_through
    clear, size = (media.punch, HOLE_STEP) if blocks.deac else (media.write_zeroes, STEP)

    def parts() -> Iterator[Part]:
        for first, length in pieces(blocks.offset, blocks.length, size):
            yield Part(first, length, partial(clear, first, length))
        if durable:
            yield Part(blocks.offset, blocks.length, media.flush)

    yield from carry_out(controller, command, namespace, parts(), write_error, writes=True)
    if heal:
        yield from healed(controller, namespace, blocks.slba, blocks.blocks)
    return None


def write_uncorrectable(controller: Controller, command: Command) -> Steps:
    """Have the blocks read as errors until they are written."""
    blocks = target(controller, command, moves_data=False)
    namespace = blocks.namespace
    require_writable(controller, namespace)
    uncorrectable = namespace.uncorrectable
    if controller.uncorrectable.is_full and not uncorrectable.touches(blocks.slba, blocks.blocks):
        raise full()
    uncorrectable.add(blocks.slba, blocks.blocks)
    return controller.uncorrectable.save()


def dataset_management(controller: Controller, command: Command) -> Steps:
    """Deallocate ranges with AD; the other attributes are hints for which there is no use.

    Blocks that are uncorrectable stay so: only a write makes them good.
    """
    fields = DatasetManagement.decode(command.entry.cdws)
    namespace = controller.namespaces.usable(command.entry.nsid)
    media = namespace.media
    listed = [*DatasetRange.decode_list(controller.transfer.receive(command, fields.length))]
    ranges = [namespace.byte_range(one.slba, one.blocks) for one in listed]
    for one in listed:
        namespace.require_readable(one.slba, one.blocks)
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
    return (yield from controller.deadlines.not_before(due, steps))
