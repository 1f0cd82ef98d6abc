"""Decoding, ordering and mapping of errors for all commands that address logical blocks.

Source: NVM Command Set Specification 1.0, sections 3.2 (commands), 2.1 (media and data integrity
errors), 3.2.3.2.1 (deallocated logical blocks).
"""

import errno
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from nvme_spec.commands import ReadWrite
from nvme_spec.logs import CommandByte, parameter_error_location
from nvme_spec.opcodes import IoOpcode
from nvme_spec.placement import DATA_PLACEMENT, VENDOR_DIRECTIVE
from nvme_spec.queues import FLAGS_PSDT_SHIFT, Psdt
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from potash_firmware.ftl.hooks import NO_HINT, Hint
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.media_work import BlocksInFlight
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.protection.request import ProtectionRequest, Tags
from potash_firmware.rpu.scheduler import Wait
from potash_firmware.rpu.transfer import MAX_TRANSFER, check_size

STEP = 4 << 20
"""The most bytes of one step of a long command; others, and resets, are served between steps."""

HOLE_STEP = 256 << 20
"""The same limit for deallocation, which moves no data."""


class DeallocatedError(MediaError):
    """A read met a block that is deallocated or was never written, and DULBE is enabled."""


class Target:
    """The blocks of a command.

    `protection` says what is checked and transferred of metadata, None for a format without;
    `placement` is the placement identifier, 0 on a drive without data placement; `hint` is what a
    write says for a translation layer that uses hints.
    """

    __slots__ = (
        "blocks", "deac", "fua", "hint", "in_flight", "length", "namespace", "offset", "placement",
        "protection", "ranges", "slba",
    )  # fmt: skip

    def __init__(
        self,
        namespace: Namespace,
        slba: int,
        blocks: int,
        *,
        fua: bool = False,
        deac: bool = False,
        protection: ProtectionRequest | None = None,
        placement: int = 0,
        hint: Hint = NO_HINT,
    ) -> None:
        self.namespace, self.slba, self.blocks = namespace, slba, blocks
        self.in_flight = namespace.in_flight
        self.fua, self.deac, self.protection, self.placement = fua, deac, protection, placement
        self.hint = hint
        self.offset = slba * namespace.block_size
        self.length = blocks * namespace.block_size
        """In bytes, as `offset` is."""
        self.ranges = ((self.offset, self.length),)


def target(controller: Controller, command: Command, *, moves_data: bool = True) -> Target:
    """Decode the blocks of a command with the fields of Read and Write.

    MDTS applies if it `moves_data`. Raises NvmeError.
    """
    namespace = controller.namespaces.usable(command.entry.nsid)
    fields = ReadWrite.decode(command.entry.cdws)
    placement, hint = 0, NO_HINT
    if (fields.dtype or fields.dsm) and command.entry.opcode in _WITH_DIRECTIVE:
        placement = placement_of(controller, fields.dtype, fields.dspec)
        if _uses_hints(controller):
            hint = _hint_of(namespace, command, fields)
    count = fields.nlb_z + 1
    if moves_data and count * namespace.block_size > MAX_TRANSFER:
        check_size(count * namespace.block_size)
    if fields.slba + count > namespace.blocks:
        namespace.byte_range(fields.slba, count, location=CommandByte.CDW10)
    protection = None
    if namespace.metadata.size:
        require_known_format(controller, namespace)
        protection = ProtectionRequest.of(
            namespace.metadata, fields.prinfo, fields.stc, Tags.of(command.entry)
        )
        protection.require_valid(fields.slba)
    return Target(
        namespace,
        fields.slba,
        count,
        fua=fields.fua,
        deac=fields.deac,
        protection=protection,
        placement=placement,
        hint=hint,
    )


_WITH_DIRECTIVE = frozenset({IoOpcode.WRITE, IoOpcode.ZONE_APPEND})
"""Commands of these fields whose directive counts. The bits are reserved in Read, and ignored: fio
leaves them set when it reads back what it has written."""


def placement_of(controller: Controller, dtype: int, dspec: int) -> int:
    """The placement identifier of a directive. Raises NvmeError for one that the drive has not."""
    if dtype == VENDOR_DIRECTIVE and _uses_hints(controller):
        return 0
    placement = controller.placement
    if dtype and (dtype != DATA_PLACEMENT or placement is None or not placement.enabled):
        raise NvmeError(Status.INVALID_FIELD, f"the drive does not have directive type {dtype}")
    return dspec if dtype else 0


def _uses_hints(controller: Controller) -> bool:
    return controller.timing is not None and controller.timing.drive.hints


def _hint_of(namespace: Namespace, command: Command, fields: ReadWrite) -> Hint:
    """The hint of a write.

    The host's own dword is that of the vendor specific directive: bits 15:0 are DSPEC, which
    nvme-cli has an option for, and bits 31:16 are those of command dword 3, which has tags only for
    blocks with protection information.
    """
    hint = NO_HINT.with_attributes(fields.dsm) if fields.dsm else NO_HINT
    if fields.dtype == VENDOR_DIRECTIVE:
        upper = 0 if namespace.metadata.size else command.entry.cdw3 & 0xFFFF_0000
        hint = hint._replace(host=upper | fields.dspec)
    return hint


def add_data(controller: Controller, command: Command, blocks: Target) -> None:
    """Add the data of a write to its hint, for a translation layer that uses them; not those of
    blocks with metadata. Raises NvmeError."""
    timing = controller.timing
    if timing is not None and timing.drive.data and not blocks.namespace.metadata.size:
        data = bytes(controller.transfer.receive(command, blocks.length))
        blocks.hint = blocks.hint._replace(data=data)


def stream_of(controller: Controller, nsid: int, placement: int) -> int:
    """The modelled drive's write stream for a placement identifier; no stream of a directive."""
    return 0 if controller.placement is None else controller.placement.stream(nsid, placement)


def require_known_format(controller: Controller, namespace: Namespace) -> None:
    """Raise NvmeError for an extended LBA format unless the host has enabled those (LBAFEE)."""
    if (
        namespace.metadata.protection
        and namespace.format.extended
        and not controller.features.extended_formats
    ):
        raise NvmeError(
            Status.INVALID_NAMESPACE, "the host has not enabled extended LBA formats (LBAFEE)"
        )


def require_pointer(command: Command) -> None:
    """Raise NvmeError for a reserved kind of data pointer, or an SGL in an admin command."""
    psdt = command.entry.psdt
    if psdt is not Psdt.PRP and (psdt is Psdt.RESERVED or not command.queue.qid):
        raise NvmeError(
            Status.INVALID_FIELD,
            "SGLs are for the data of I/O commands",
            location=parameter_error_location(CommandByte.FLAGS, FLAGS_PSDT_SHIFT),
        )


# Blocks that cannot be read.


def require_correctable(namespace: Namespace, slba: int, blocks: int) -> None:
    """Raise NvmeError for blocks that Write Uncorrectable has marked."""
    lba = namespace.uncorrectable.first_in(slba, blocks)
    if lba is not None:
        raise NvmeError(
            Status.UNRECOVERED_READ_ERROR, f"block {lba} was made uncorrectable", dnr=True, lba=lba
        )


def require_allocated(media: Media, offset: int, length: int) -> None:
    """Raise DeallocatedError if any byte is deallocated: in a hole of the file. Blocks."""
    at = offset
    for first, size in media.data_ranges(offset, length):
        if first > at:
            break
        at = first + size
    if at < offset + length:
        error = DeallocatedError(errno.ENODATA, "a block is deallocated or was never written")
        error.at = at
        raise error


def commit(media: Media) -> None:
    """Flush, so that a read with FUA returns durable data only. Blocks. Raises MediaError.

    After a flush has failed nothing more becomes durable, and what is left there is still read.
    """
    if media.lost is None:
        media.flush()


def read_error(controller: Controller, namespace: Namespace, error: MediaError) -> NvmeError:
    """The NVMe error for a read that failed on the media, or for the flush before it (`commit`)."""
    if isinstance(error, DeallocatedError):
        return NvmeError(
            Status.DEALLOCATED_OR_UNWRITTEN_BLOCK,
            str(error.strerror),
            dnr=True,
            lba=namespace.lba_of(error),
        )
    if error is namespace.media.lost:
        return write_error(controller, namespace, error)
    return controller.failures.reading(namespace.nsid, error, namespace.lba_of(error))


# Blocks that are written.


def write_error(controller: Controller, namespace: Namespace, error: MediaError) -> NvmeError:
    """The NVMe error for a write that failed on the media."""
    return controller.failures.writing(
        namespace.nsid, namespace.media, error, namespace.lba_of(error)
    )


def require_writable(controller: Controller, namespace: Namespace) -> None:
    """Raise NvmeError for media that take no writes."""
    try:
        namespace.media.require_writable()
    except MediaError as error:
        raise write_error(controller, namespace, error) from None


def must_remove_marks(controller: Controller, blocks: Target) -> bool:
    """Return True if a write of these blocks has to remove marks of Write Uncorrectable.

    Such a write must be durable before the marks are removed: otherwise a power loss could bring
    back the older data. Raises NvmeError if a marked range would be split while the table is full.
    """
    uncorrectable = blocks.namespace.uncorrectable
    if uncorrectable.first_in(blocks.slba, blocks.blocks) is None:
        return False
    if uncorrectable.splits(blocks.slba, blocks.blocks) and controller.uncorrectable.is_full:
        raise full()
    return True


def remove_marks(controller: Controller, blocks: Target) -> Steps:
    """Remove the marks of blocks that were written, and save that before the command ends."""
    blocks.namespace.uncorrectable.remove(blocks.slba, blocks.blocks)
    return controller.uncorrectable.save(controller.media_work, blocks.in_flight, blocks.ranges)


def full() -> NvmeError:
    """The error for a full table of uncorrectable ranges."""
    return NvmeError(Status.WRITE_FAULT, "the drive's list of uncorrectable blocks has no room")


# Ordering, and long commands.


def in_turn(
    in_flight: BlocksInFlight,
    ranges: Iterable[tuple[int, int]],
    *,
    writes: bool,
    alone: bool = False,
) -> Iterable[Wait]:
    """Waits that a command has to yield before it may touch `ranges` of first byte and length
    (`BlocksInFlight.turns`).

    The command excludes reads if it `writes`, and all others if `alone`. `in_flight` is that of the
    namespace when `ranges` were computed. Raises NvmeError if it was closed since: a command that
    waited, or was held while Bus Master Enable was 0, must not touch blocks that are or were
    formatted.
    """
    if not in_flight.busy:  # a closed namespace is busy, too
        return ()
    return in_flight.turns(ranges, writes=writes, alone=alone)


class Part(NamedTuple):
    """A part of a long command: bytes on the media, and what the executor does with them."""

    first: int
    length: int
    call: Callable[[], None]


def pieces(first: int, length: int, size: int) -> Iterator[tuple[int, int]]:
    """First byte and length of each piece of at most `size` bytes."""
    for at in range(first, first + length, size):
        yield at, min(size, first + length - at)


def carry_out(
    controller: Controller,
    command: Command,
    namespace: Namespace,
    parts: Iterable[Part],
    failed: Callable[[Controller, Namespace, MediaError], NvmeError],
    *,
    writes: bool,
) -> Steps:
    """Do the parts of a long command one after the other on the media executor.

    Other commands are served between two of them; a reset or the deletion of the queue ends it.
    """
    in_flight = namespace.in_flight
    for part in parts:
        ranges = ((part.first, part.length),)
        yield from in_turn(in_flight, ranges, writes=writes)
        try:
            yield controller.media_work.on_blocks(in_flight, ranges, part.call, writes=writes)
        except MediaError as error:
            raise failed(controller, namespace, error) from None
        require_queue(command)
    return None


def require_queue(command: Command) -> None:
    """Raise NvmeError for a command of a queue that is being deleted."""
    if command.queue.closed:
        raise NvmeError(Status.SQ_DELETION_ABORTED, "the queue is being deleted", dnr=False)
