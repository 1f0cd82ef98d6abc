"""Compare, Verify, Write Zeroes, Write Uncorrectable and Dataset Management.

All of their work on media is the executor's, and long ones are done in steps: MDTS limits only what
is moved to or from the host, so some of these commands touch 65536 blocks, or all that there are.

Source: NVM Command Set Specification 1.0, section 3.2.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

from nvme_spec.commands import DatasetManagement, DatasetRange
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.command_sets.nvm import paired
from potash_firmware.rpu.command_sets.nvm.blocks import (
    HOLE_STEP,
    STEP,
    Step,
    after,
    commit,
    full,
    healed,
    heals,
    one_by_one,
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


def compare(controller: Controller, command: Command) -> Result:
    """Succeed if the blocks hold what guest memory does."""
    blocks = target(controller, command)
    if blocks.wanted is not None:
        return paired.compare(controller, command, blocks, differs)
    namespace, offset, length = blocks.namespace, blocks.offset, blocks.length
    expected = controller.transfer.receive(command, length)
    ranges = ((offset, length),)
    wait = after(controller, namespace, ranges, lambda: compare(controller, command), writes=False)
    if wait is not None:
        return wait
    require_correctable(namespace, blocks.slba, blocks.blocks)
    media, dulbe = namespace.media, namespace.dulbe

    def difference() -> int | None:
        return first_difference(media, offset, expected, fua=blocks.fua, dulbe=dulbe)

    def finish(future: "Future[int | None]") -> None:
        try:
            at = future.result()
        except MediaError as error:
            raise read_error(controller, namespace, error) from None
        controller.health.count_read(length)
        if at is not None:
            raise differs(namespace, at)

    return Pending(
        controller.media_work.on_blocks(namespace.in_flight, ranges, difference, writes=False),
        finish,
    )


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
    """What a comparison ends with that has found a difference in byte `at` of the media."""
    lba = at // namespace.block_size
    return NvmeError(Status.COMPARE_FAILURE, f"block {lba} holds something else", dnr=True, lba=lba)


def verify(controller: Controller, command: Command) -> Result:
    blocks = target(controller, command, moves_data=False)
    if blocks.wanted is not None:
        return paired.verify(controller, command, blocks)
    namespace, media = blocks.namespace, blocks.namespace.media
    require_correctable(namespace, blocks.slba, blocks.blocks)
    dulbe = namespace.dulbe

    def steps() -> Iterator[Step]:
        if blocks.fua:
            yield Step(blocks.offset, blocks.length, lambda: commit(media))
        for first, length in pieces(blocks.offset, blocks.length, STEP):

            def check(first: int = first, length: int = length) -> None:
                if dulbe:
                    require_allocated(media, first, length)
                media.verify(first, length)

            yield Step(first, length, check)

    def finish() -> None:
        controller.health.count_read(blocks.length)

    return one_by_one(controller, command, namespace, steps(), read_error, finish, writes=False)


def write_zeroes(controller: Controller, command: Command) -> Result:
    """Zeroes to media, or with DEAC (deallocate) holes that read as zeroes."""
    blocks = target(controller, command, moves_data=False)
    if blocks.wanted is not None and not blocks.deac:
        return paired.write_zeroes(controller, command, blocks)
    namespace, media = blocks.namespace, blocks.namespace.media
    require_writable(controller, namespace)
    heal = heals(controller, namespace, blocks.slba, blocks.blocks)
    durable = heal or blocks.fua or namespace.write_through
    clear, size = (media.punch, HOLE_STEP) if blocks.deac else (media.write_zeroes, STEP)

    def steps() -> Iterator[Step]:
        for first, length in pieces(blocks.offset, blocks.length, size):
            yield Step(first, length, partial(clear, first, length))
        if durable:
            yield Step(blocks.offset, blocks.length, media.flush)

    def finish() -> Result:
        return healed(controller, namespace, blocks.slba, blocks.blocks) if heal else None

    return one_by_one(controller, command, namespace, steps(), write_error, finish, writes=True)


def write_uncorrectable(controller: Controller, command: Command) -> Result:
    """Have the blocks read as errors until they are written."""
    blocks = target(controller, command, moves_data=False)
    namespace = blocks.namespace
    require_writable(controller, namespace)
    uncorrectable = namespace.uncorrectable
    if controller.uncorrectable.is_full and not uncorrectable.touches(blocks.slba, blocks.blocks):
        raise full()
    uncorrectable.add(blocks.slba, blocks.blocks)
    return controller.uncorrectable.save()


def dataset_management(controller: Controller, command: Command) -> Result:
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

    def steps() -> Iterator[Step]:
        for first, length in ranges:
            for at, size in pieces(first, length, HOLE_STEP):
                yield Step(at, size, partial(media.punch, at, size))
        if durable:
            yield Step(0, 0, media.flush)

    due = None if controller.timing is None else controller.timing.trim(namespace.nsid, ranges)
    return controller.deadlines.keep(
        due, lambda: one_by_one(controller, command, namespace, steps(), write_error, writes=True)
    )
