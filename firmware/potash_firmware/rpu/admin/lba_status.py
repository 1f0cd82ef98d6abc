"""Get LBA Status: the blocks that cannot be read.

Tracked are the blocks that a host has made uncorrectable. A scan reads the media as well, and ends
when the host's buffer is full.

Source: NVM Command Set Specification 1.0, section 4.2.1."""

from collections.abc import Iterator
from functools import partial

from nvme_spec.logs import CommandByte
from nvme_spec.ranges import (
    LBA_STATUS_DESCRIPTOR_SIZE,
    LBA_STATUS_HEADER_SIZE,
    GetLbaStatus,
    LbaStatusAction,
    LbaStatusCompletion,
    encode_lba_status,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import STEP, Part, carry_out, pieces, read_error
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.uncorrectable import UncorrectableBlocks
from potash_firmware.rpu.transfer import check_size


def get_lba_status(controller: Controller, command: Command) -> Steps:
    """Give the ranges of blocks that cannot be read, of those that the host asks for."""
    fields = GetLbaStatus.decode(command.entry.cdws)
    namespace = controller.namespaces.usable(command.entry.nsid)
    if fields.atype not in (LbaStatusAction.SCAN, LbaStatusAction.TRACKED_ONLY):
        raise NvmeError(Status.INVALID_FIELD, f"action {fields.atype:#x} is not supported")
    check_size(fields.length)
    slba = fields.slba
    namespace.byte_range(slba, max(fields.rl, 1), location=CommandByte.CDW10)
    count = fields.rl or namespace.blocks - slba
    room = max(0, fields.length - LBA_STATUS_HEADER_SIZE) // LBA_STATUS_DESCRIPTOR_SIZE
    bad = UncorrectableBlocks()
    for first, blocks in namespace.uncorrectable.ranges(slba, count):
        bad.add(first, blocks)

    def parts() -> Iterator[Part]:
        for first, length in pieces(
            slba * namespace.block_size, count * namespace.block_size, STEP
        ):
            if len(bad) > room:
                return
            yield Part(first, length, partial(_scan, namespace, first, length, bad))

    if fields.atype == LbaStatusAction.SCAN:
        yield from carry_out(controller, command, namespace, parts(), read_error, writes=False)
    found = bad.ranges()
    reason = LbaStatusCompletion.MORE if len(found) > room else LbaStatusCompletion.COMPLETE
    page = encode_lba_status(found[:room], reason)
    controller.transfer.send(command, page, fields.length)
    return None


def _scan(namespace: Namespace, first: int, length: int, bad: UncorrectableBlocks) -> None:
    """Add the blocks of a range that the media cannot give; waits."""
    media: Media = namespace.media
    end = first + length
    while first < end:
        try:
            media.verify(first, end - first)
        except MediaError as error:
            lba = namespace.lba_of(error)
            bad.add(lba, 1)
            first = (lba + 1) * namespace.block_size
        else:
            return
