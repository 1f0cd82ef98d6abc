"""The messages about the modelled time of jobs; `messages` has the others.

They are sent in mode `modelled` only. A job on an accelerator ends in two steps then: the APU says
what the job has counted, and the RPU, which has the models and the clock, when its time has come.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple, Self

from potash_device.timing.cores import KINDS, Work
from potash_firmware.mailbox.datagrams import MailboxError, datagram

MAX_READS = 512
"""Reads of one `JobCounted`; a job may have any number of these messages."""

LARGEST_COUNT = (1 << 63) - 1


class Read(NamedTuple):
    """`length` bytes from byte `first` of a namespace, read when the job had taken `at` ns of its
    core, other reads not counted."""

    at: int
    nsid: int
    first: int
    length: int


@datagram(48, "<BxHI")
@dataclass(frozen=True, slots=True)
class JobBegan:
    """APU to RPU: a host has started a job, which is `job` until it is due or has left."""

    accelerator: int
    job: int


@datagram(49)
@dataclass(frozen=True, slots=True)
class JobCounted:
    """APU to RPU: what a job has counted, and which blocks it has read. `JobDue` answers it.

    Where `more` is set, another one with further reads follows, and the last has all `work`.
    """

    accelerator: int
    job: int
    work: Work
    reads: tuple[Read, ...] = ()
    more: bool = False

    def pack(self) -> bytes:
        """0 kind, 1 more, 2:3 accelerator, 4:7 job, 8:11 reads; the work; the reads."""
        _require_reads(self.reads)
        head = _COUNTED.pack(49, self.more, self.accelerator, self.job, len(self.reads))
        reads = (_READ.pack(one.at, one.first, one.length, one.nsid) for one in self.reads)
        return head + pack_work(self.work) + b"".join(reads)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Raises MailboxError and struct.error."""
        _, more, accelerator, job, count = _COUNTED.unpack_from(data)
        at = _COUNTED.size + WORK.size
        if more > 1 or len(data) != at + count * _READ.size:
            raise MailboxError(f"{len(data)} bytes cannot hold {count} reads")
        reads = tuple(
            Read(at, nsid, first, length)
            for at, first, length, nsid in _READ.iter_unpack(data[at:])
        )
        _require_reads(reads)
        work = unpack_work(data[_COUNTED.size : at])
        return cls(accelerator, job, work, reads, bool(more))


@datagram(50, "<BxHI")
@dataclass(frozen=True, slots=True)
class JobLeft:
    """APU to RPU: a job was stopped, or has failed, before it was due."""

    accelerator: int
    job: int


@datagram(51, "<BxHIQ")
@dataclass(frozen=True, slots=True)
class JobDue:
    """RPU to APU: the modelled time of a job's program has passed, `modelled` nanoseconds."""

    accelerator: int
    job: int
    modelled: int = 0


@datagram(52, "<BxHI")
@dataclass(frozen=True, slots=True)
class JobOverdue:
    """RPU to APU: a job takes too long; it is ended as one that exceeds its limit."""

    accelerator: int
    job: int


WORK = struct.Struct(f"<{len(KINDS) + len(Work._fields) - 1}Q")
_COUNTED = struct.Struct("<BBHII")
_READ = struct.Struct("<QQQI")

LARGEST = _COUNTED.size + WORK.size + MAX_READS * _READ.size
"""Bytes of a datagram."""


def pack_work(work: Work) -> bytes:
    """Instructions by kind, then the other counts. Raises MailboxError."""
    instructions, *others = work
    counts = (*instructions, *others)
    _require_counts(counts)
    return WORK.pack(*counts)


def unpack_work(data: bytes) -> Work:
    """Raises MailboxError and struct.error."""
    counts = WORK.unpack(data)
    _require_counts(counts)
    return Work(counts[: len(KINDS)], *counts[len(KINDS) :])


def _require_counts(counts: tuple[int, ...]) -> None:
    if max(counts) > LARGEST_COUNT:
        raise MailboxError("a job has counted more than any job can")


def _require_reads(reads: tuple[Read, ...]) -> None:
    if len(reads) > MAX_READS:
        raise MailboxError(f"a message has {MAX_READS} reads at most, not {len(reads)}")
    before = 0
    for one in reads:
        if not before <= one.at <= LARGEST_COUNT or not 0 < one.length <= LARGEST_COUNT:
            raise MailboxError(f"a job cannot have read {one}")
        before = one.at
