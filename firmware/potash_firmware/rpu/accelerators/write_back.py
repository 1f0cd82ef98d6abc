"""Write-back of a job's output to its blocks, which the APU requests and the RPU executes.

A job is done when its output is on the media, so killing a worker or the APU cannot tear a block.
The blocks that a job reads are checked here, too, as the APU does not know uncorrectable blocks.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from nvme_spec.commands import PRACT
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.status import NvmeError
from potash_device.media.errors import MediaError
from potash_firmware.mailbox import MailboxError
from potash_firmware.mailbox.messages import ReadCheck, ReadChecked, WriteBack, WriteBackDone
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.deadlines import Timer
from potash_firmware.rpu.faults import Faults
from potash_firmware.rpu.host_reservations import HostReservations
from potash_firmware.rpu.media_work import MediaFailures, MediaWork
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.uncorrectable_record import UncorrectableRecord
from potash_firmware.rpu.operations.sanitize import Sanitizing
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.protection.request import ProtectionRequest
from potash_firmware.rpu.reservations import Access
from potash_firmware.rpu.scheduler import Scheduler, Steps
from potash_firmware.rpu.statistics import Statistics

if TYPE_CHECKING:  # it takes NumPy, as in the controller
    from potash_firmware.rpu.timing.jobs import JobTime


def write_bytes(namespace: Namespace, first: int, content: memoryview) -> None:
    """Write from byte `first` on; waits. Raises MediaError.

    The blocks get protection information that fits, with an application tag of 0, and other
    metadata of zeroes.
    """
    size, kept = namespace.block_size, namespace.metadata
    slba, end = first // size, -(-(first + len(content)) // size)
    blocks = memoryview(bytearray((end - slba) * size))
    metadata = memoryview(bytearray((end - slba) * kept.size))
    at = first - slba * size
    if len(content) < len(blocks):
        namespace.pairs.read(slba, blocks, metadata)
    blocks[at : at + len(content)] = content
    if kept.protection:
        from potash_firmware.rpu.protection import information  # NumPy delays a start

        protection = ProtectionRequest(kept, PRACT)
        tags = slba & (1 << protection.reference_bits) - 1
        information.insert(replace(protection, tags=tags), blocks, metadata, end - slba)
    namespace.pairs.write(slba, blocks, metadata)


log = logging.getLogger(__name__)


PARTS_LIMIT = 256
"""Messages of one write-back: more than the writes of any job take."""


class Piece(NamedTuple):
    """Bytes of the arena from `source` on, which go to the media from `first` on."""

    source: int
    first: int
    length: int


@dataclass(eq=False, slots=True)
class _Work:
    """A job's write-back in progress: the number of namespaces that are still written, and the
    error that it has met."""

    tag: int
    left: int
    error: int = 0
    due: int | None = None
    """The time at which the modelled drive has written it, in nanoseconds of guest time."""
    modelled: int = 0
    """Nanoseconds that the job has taken then."""


@dataclass(eq=False, repr=False)
class WriteBacks(Part):
    """The write-backs of one controller in flight for the APU that is running."""

    apu: ApuLink
    controller: int
    namespaces: Namespaces
    uncorrectable: UncorrectableRecord
    media_work: MediaWork
    failures: MediaFailures
    faults: Faults
    sanitizing: Sanitizing
    scheduler: Scheduler
    job_time: JobTime | None
    statistics: Statistics
    reservations: HostReservations
    _parts: dict[int, list[WriteBack]] = field(default_factory=dict)
    _writing: int = 0
    """Writes of which the media executor reads the arenas."""
    _not_due: dict[Timer, _Work] = field(default_factory=dict)
    """Write-backs that are done, and whose answer waits for their modelled time."""

    @property
    def waiting(self) -> int:
        """Number of write-backs that are done, and wait for their modelled time."""
        return len(self._not_due)

    def __bool__(self) -> bool:
        return self._writing > 0

    def start(self, message: WriteBack) -> None:
        """Do what `message` asks; it is answered when that has ended, or at once if it is wrong.

        One of several messages is held until the last of them has come.
        """
        parts = self._parts.setdefault(message.tag, [])
        parts.append(message)
        if message.more and len(parts) < PARTS_LIMIT:
            return
        del self._parts[message.tag]
        pieces = _by_namespace(parts)
        error = errno.EINVAL if message.more else self._refusal(message.accelerator, pieces)
        if error:
            self._answer(message.tag, error)
            return
        work = _Work(message.tag, len(pieces))
        if self.job_time is not None:
            self._charge(self.job_time, work, message.accelerator, pieces)
            if work.error:
                self._answer(message.tag, work.error)
                return
        for nsid, items in pieces.items():
            namespace = self.namespaces.attached_blocks[nsid]
            self.scheduler.start(self._write(work, message.accelerator, namespace, items))

    def _charge(
        self, job_time: JobTime, work: _Work, accelerator: int, pieces: Mapping[int, list[Piece]]
    ) -> None:
        """Find out when the modelled drive has written what it is asked to; it may refuse."""
        for nsid, items in pieces.items():
            for item in items:
                try:
                    due, modelled = job_time.write(accelerator, nsid, item.first, item.length)
                except NvmeError as error:
                    log.error("a job's output could not be written: %s", error)
                    work.error = errno.EROFS
                    return
                work.due = max(work.due or due, due)
                work.modelled = max(work.modelled, modelled)

    def apu_lost(self) -> None:
        """Nobody will send the rest of what has come in part, or wants an answer."""
        self._parts.clear()
        for timer in self._not_due:
            timer.cancel()
        self._not_due.clear()

    def _refusal(self, accelerator: int, pieces: Mapping[int, list[Piece]]) -> int:
        """The errno of what cannot be written, and then none of it is; 0 where all can be."""
        if self.apu.is_resetting(self.controller):
            return errno.ECANCELED
        try:
            size = len(self.apu.buffers.arena(accelerator))
        except MailboxError:
            size = 0
        for nsid, items in pieces.items():
            namespace = self.namespaces.attached_blocks.get(nsid)
            if namespace is None or any(
                item.source + item.length > size or item.first + item.length > namespace.size
                for item in items
            ):
                log.error("the APU asked for a write-back that cannot be: %d, %s", nsid, items)
                return errno.EINVAL
            if namespace.csi is CommandSet.ZONED:
                log.error("a job's output is lost: namespace %d has zones", nsid)
                return errno.EROFS
            if not self.reservations.allows(nsid, Access.WRITE):
                log.error("a job's output is lost: another host has reserved namespace %d", nsid)
                return errno.EACCES
            if namespace.in_flight.closed is not None:
                log.error("a job's output is lost: the blocks of namespace %d are closed", nsid)
                return errno.EBUSY
        return 0

    def _write(
        self, work: _Work, accelerator: int, namespace: Namespace, pieces: list[Piece]
    ) -> Steps[None]:
        """Write the part of one namespace; the APU has its answer when all parts are written."""
        self.sanitizing.data_written()
        arena, media = self.apu.buffers.arena(accelerator), namespace.media
        marked = [
            blocks
            for item in pieces
            if (blocks := namespace.whole_blocks(item.first, item.length))
            and namespace.uncorrectable.first_in(*blocks) is not None
        ]
        durable = bool(marked) or namespace.write_through

        def write() -> None:
            for source, first, length in pieces:
                content = arena[source : source + length]
                if namespace.metadata.size:
                    write_bytes(namespace, first, content)
                else:
                    media.write_from([content], first)
            if durable:
                media.flush()

        in_flight = namespace.in_flight
        ranges = [(item.first, item.length) for item in pieces]
        self._writing += 1
        future = self.media_work.on_blocks(in_flight, ranges, write, writes=True)
        yield {future}
        error = future.exception()
        if isinstance(error, MediaError):
            log.error("a job's output could not be written: %s", error.strerror)
            self.failures.writing(namespace.nsid, namespace.media, error, namespace.lba_of(error))
        if error is not None:
            marked = []
            number = isinstance(error, OSError) and error.errno
            work.error = work.error or number or errno.EIO
        for blocks in marked:
            namespace.uncorrectable.remove(*blocks)
        self._writing -= 1
        if error is None:
            self.statistics.moved += sum(item.length for item in pieces)
        work.left -= 1
        if not work.left:
            self._ended(work)
        if marked:
            with suppress(NvmeError):  # the blocks are as good as saved by the next flush
                yield from self.uncorrectable.save(self.media_work, in_flight, ranges)

    def check(self, message: ReadCheck) -> None:
        """Say whether a job may read the blocks of its input, as a host's Read would find."""
        if self.apu.port is not None:
            self.apu.send(ReadChecked(message.tag, *self._readable(message)))

    def _readable(self, message: ReadCheck) -> tuple[int, int]:
        """An errno, and the first byte that cannot be read; 0 and 0 where all can."""
        namespace = self.namespaces.attached_blocks.get(message.nsid)
        if namespace is None:
            return errno.ENODEV, message.ranges[0][0]
        if namespace.in_flight.closed is not None:
            return errno.EBUSY, message.ranges[0][0]
        if not self.reservations.allows(message.nsid, Access.READ):
            return errno.EACCES, message.ranges[0][0]
        for first, length in message.ranges:
            lba = first // namespace.block_size
            count = -(-(first + length) // namespace.block_size) - lba
            bad = namespace.uncorrectable.first_in(lba, count)
            if bad is not None:
                return errno.EIO, bad * namespace.block_size
            failing = self.faults.unreadable_at(message.nsid, first, length)
            if failing is not None:
                return errno.EIO, failing
        return 0, 0

    def _ended(self, work: _Work) -> None:
        """All of it is on the media, and on the modelled drive when it is due."""
        if work.due is None:
            self._answer(work.tag, work.error)
        else:
            timer = self.scheduler.deadlines.call(work.due, lambda: self._due(timer))
            self._not_due[timer] = work

    def _due(self, timer: Timer) -> None:
        work = self._not_due.pop(timer)
        self._answer(work.tag, work.error, work.modelled)

    def reset(self, *, next_host: bool = False) -> None:
        """Answer what is not due, as a reset waits for that."""
        for timer in list(self._not_due):
            timer.cancel()
            self._due(timer)

    def _answer(self, tag: int, error: int, modelled: int = 0) -> None:
        if self.apu.port is not None:
            self.apu.send(WriteBackDone(tag, error, modelled))


def _by_namespace(parts: Iterable[WriteBack]) -> dict[int, list[Piece]]:
    pieces: dict[int, list[Piece]] = {}
    for part in parts:
        source = part.source
        for nsid, first, length in part.ranges:
            pieces.setdefault(nsid, []).append(Piece(source, first, length))
            source += length
    return pieces
