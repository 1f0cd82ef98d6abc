"""The messages about the modelled time of jobs; `messages` has the others.

They are sent in mode `modelled` only. A job on an accelerator ends in two steps then: the APU says
what the job has counted, and the RPU, which has the models and the clock, when its time has come.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from potash_device.timing.cores import LARGEST_COUNT, Count, Work
from potash_firmware.mailbox.datagrams import datagram
from potash_wire.records import BOOL, U16, U32, U64, At, Number, Range

MAX_READS = 512
"""Reads of one `JobCounted`; a job may have any number of these messages."""


class Read(NamedTuple):
    """`length` bytes from byte `first` of a namespace, read when the job had taken `at` ns of its
    core, other reads not counted."""

    at: Count
    nsid: Annotated[U32, At(24)]
    first: Annotated[U64, At(8)]
    length: Annotated[U64, Range(1, LARGEST_COUNT)]


@datagram(48)
@dataclass(frozen=True, slots=True)
class JobBegan:
    """APU to RPU: a host has started a job, which is `job` until it is due or has left."""

    accelerator: Annotated[U16, At(2)]
    job: U32


@datagram(49)
@dataclass(frozen=True, slots=True)
class JobCounted:
    """APU to RPU: what a job has counted, and which blocks it has read. `JobDue` answers it.

    Where `more` is set, another one with further reads follows, and the last has all `work`.
    """

    accelerator: Annotated[U16, At(2)]
    job: U32
    work: Annotated[Work, At(12)]
    reads: Annotated[tuple[Read, ...], Number("I", 8), Range(0, MAX_READS)] = ()
    more: Annotated[BOOL, At(1)] = False

    def validate(self) -> None:
        require_order(self.reads)


@datagram(50)
@dataclass(frozen=True, slots=True)
class JobLeft:
    """APU to RPU: a job was stopped, or has failed, before it was due."""

    accelerator: Annotated[U16, At(2)]
    job: U32


@datagram(51)
@dataclass(frozen=True, slots=True)
class JobDue:
    """RPU to APU: the modelled time of a job's program has passed, `modelled` nanoseconds."""

    accelerator: Annotated[U16, At(2)]
    job: U32
    modelled: U64 = 0


@datagram(52)
@dataclass(frozen=True, slots=True)
class JobOverdue:
    """RPU to APU: a job takes too long; it is ended as one that exceeds its limit."""

    accelerator: Annotated[U16, At(2)]
    job: U32


def require_order(reads: tuple[Read, ...]) -> None:
    """Raise ValueError for reads that are not in the order of their times."""
    times = [one.at for one in reads]
    if times != sorted(times):
        raise ValueError("reads are out of order")
