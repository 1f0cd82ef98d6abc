"""The messages between the RPU and the APU, in the role that rpmsg has on the board.

This module defines the interface of the two processors; one message is one datagram. Ports
transport datagrams, and bulk data is in the memory of `shared`.

Source: Alkali CSD platform documentation, section 3.4.4 (Userspace custom NVMe command handler).
"""

from dataclasses import field
from enum import IntEnum, IntFlag
from itertools import count
from typing import Annotated, NamedTuple

from potash_device.cores import LARGEST_COUNT, Count, Work
from potash_firmware.mailbox.datagrams import fields, message
from potash_firmware.mailbox.shared import ENGINE_ROWS, SLOT_SIZE, SLOTS
from potash_firmware.mailbox.values import JobValueRead, ReadJobValue, ReadValue, ValueRead
from potash_wire.records import (
    BOOL,
    I32,
    MAY_FOLLOW,
    NOT_STORED,
    U8,
    U16,
    U32,
    U64,
    At,
    Number,
    Range,
    Stored,
)

NO_SLOT = -1
"""The slot of a request without data."""

MAX_RANGES = 512
"""Ranges in one message; the writes of a job may take several messages."""

LARGEST_STATUS = 0x7FF
"""Three bits of status code type above eight of status code."""

_Tag = Annotated[U32, At(4)]
_Length = Annotated[U32, Range(0, SLOT_SIZE)]
_AtLeastOne = Annotated[U64, Range(1, (1 << 64) - 1)]


@message(1)
class Request:
    """RPU to APU: a host's command. Exactly one `Reply` with the same tag answers it.

    `cdws` are command dwords 10 to 15. `slot` is the transfer slot that the command's data is in
    (host to controller) or goes to (controller to host), `length` its bytes.
    """

    tag: _Tag
    admin: Annotated[BOOL, At(1)]
    opcode: U8
    nsid: Annotated[U32, At(8)]
    cdws: Annotated[tuple[int, int, int, int, int, int], Stored("I", 6)]
    slot: Annotated[I32, Range(NO_SLOT, SLOTS - 1)] = NO_SLOT
    length: _Length = 0
    controller: Annotated[U8, At(3)] = 0
    """The controller of the command, which has some of the accelerators."""

    def validate(self) -> None:
        if self.slot == NO_SLOT and self.length:
            raise ValueError(f"a request of {self.length} bytes names no transfer slot")


class ResetScope(IntFlag):
    """The effects of a `Reset` besides that every accelerator is reset and its buffers cleared."""

    DISABLE = 1
    """The subsystem is disabled, as after power-on."""
    FORGET = 2
    """The logs are cleared and workers that have run a program are replaced."""


MOST_ENGINES = 64
"""Compute namespaces of a controller."""

CONTROLLER_RESET = ResetScope.DISABLE
NEXT_HOST = ResetScope.DISABLE | ResetScope.FORGET
ERASE = ResetScope.FORGET


@message(2)
class Reset:
    """RPU to APU: reset every accelerator, or those of one controller. `ResetDone` follows when no
    job of theirs runs any more, and all processes that it has ended are gone.

    Later requests are executed after it.
    """

    tag: _Tag
    scope: Annotated[ResetScope, Stored("B"), Range(0, NEXT_HOST), At(1)] = CONTROLLER_RESET
    only: Annotated[tuple[U32, ...], Number("H", 2), Range(0, MOST_ENGINES + 1)] = ()
    """The identifier of the only controller, and of the compute namespaces that it has; nothing for
    a reset of all."""


@message(3)
class WriteBackDone:
    """RPU to APU: a write-back ended; `error` is its errno, 0 when all blocks are written.

    `modelled` is how many nanoseconds its job has taken, where time is modelled.
    """

    tag: _Tag
    error: U32 = 0
    modelled: Annotated[U64, At(16)] = 0


@message(4)
class Reply:
    """APU to RPU: how a request ends. `status` is `SCT << 8 | SC`, `result` completion dword 0.

    `length` bytes of the request's slot are for the host.
    """

    tag: _Tag
    status: Annotated[U16, Range(0, LARGEST_STATUS), At(2)]
    dnr: Annotated[BOOL, At(1)] = False
    result: Annotated[U32, At(8)] = 0
    length: _Length = 0


@message(5)
class WriteBack:
    """APU to RPU: write a job's output to its blocks. `WriteBackDone` answers it, after a reset
    too.

    The bytes follow each other from byte `source` of the accelerator's arena on; `ranges` are
    (namespace, first byte, length) on its media. If `more` is set, another message with the same
    tag follows. Nothing is written before the last, so that an APU that is lost between two leaves
    no job half written; one answer is for all.
    """

    tag: _Tag
    accelerator: Annotated[U16, At(2)]
    source: Annotated[U64, At(12)]
    ranges: Annotated[
        tuple[tuple[U32, U64, _AtLeastOne], ...], Number("H", 8), Range(1, MAX_RANGES)
    ]
    more: Annotated[BOOL, At(1)] = False


@message(8)
class ReadCheck:
    """APU to RPU: may a job read these blocks? `ReadChecked` answers it, after a reset too.

    `ranges` are (first byte, length) on the media of namespace `nsid`.
    """

    tag: _Tag
    nsid: U32
    ranges: Annotated[tuple[tuple[U64, _AtLeastOne], ...], Number("H", 2), Range(1, MAX_RANGES)]
    accelerator: Annotated[U8, At(1)] = 0


@message(9)
class ReadChecked:
    """RPU to APU: 0 if all the blocks may be read; else an errno, and the first byte `at` that
    may not be read."""

    tag: _Tag
    error: U32 = 0
    at: Annotated[U64, At(16)] = 0


@message(6)
class ResetDone:
    """APU to RPU: no job runs, and the `Reset` is complete."""

    tag: _Tag


@message(7)
class JobEnded:
    """APU to RPU: a job has ended or failed; `log_page` is where the host reads about it."""

    accelerator: Annotated[U16, At(2)]
    log_page: U8


@message(10)
class Ping:
    """RPU to APU: a probe, which `Alive` with the same tag answers immediately."""

    tag: _Tag


@message(11)
class Alive:
    """APU to RPU: its loop runs; sent once when it begins, with tag 0, and for each `Ping`."""

    tag: _Tag = 0


# Programs of compute namespaces. Memory and programs are shared once, by a message with a
# descriptor and a handle that is never reused; later messages refer to that number.

FIRST_HANDLE = 256
"""Handles begin here; lower numbers in an `Execute` are indexes of device-defined programs."""

next_handle = count(FIRST_HANDLE).__next__
"""A handle for memory or for a program, never used before."""

MAX_MEMORY_RANGES = 64
"""Memory ranges of one `Execute`."""

NO_DESCRIPTOR = -1

EXECUTE, EXECUTED = 39, 40
"""The first bytes of an `Execute` and an `Executed`."""

_Descriptor = Annotated[int, NOT_STORED]
"""A descriptor, which is sent along with the message."""


class Outcome(IntEnum):
    """The end of an execution."""

    RETURNED = 0
    """The program returned a value."""
    FAULTED = 1
    """The program met a fault, or a limit of its machine."""
    REFUSED = 2
    """The program is not sound, or refuses its parameters."""
    EXPIRED = 3
    """It exceeded its time."""
    LOST = 4
    """Its process or the APU was lost."""
    CANCELLED = 5
    """It was ended by a `Cancel`, a reset, or the end of its engine."""


VERDICTS = frozenset({Outcome.RETURNED, Outcome.REFUSED, Outcome.LOST})
"""The outcomes of a check."""


class MemoryRange(NamedTuple):
    """`length` bytes from byte `offset` of the shared memory `handle`, both multiples of a page."""

    handle: U64
    offset: U64
    length: _AtLeastOne


@fields
class _Share:
    handle: Annotated[U64, Range(FIRST_HANDLE, (1 << 64) - 1), At(8)]
    length: _AtLeastOne
    descriptor: _Descriptor = field(default=NO_DESCRIPTOR, compare=False)
    """The receiver owns it; the sender keeps its own."""


@message(32)
class ShareMemory(_Share):
    """RPU to APU, with a descriptor: `handle` is memory of `length` bytes."""


@message(33)
class ShareProgram(_Share):
    """RPU to APU, with a descriptor: a program of `length` bytes, which never changes, is
    `handle`."""


@message(34)
class Forget:
    """RPU to APU: no further message names this memory or program."""

    handle: Annotated[U64, At(8)]


@message(35)
class CheckProgram:
    """RPU to APU: check a program; `ProgramChecked` answers it. The log of compute namespace `nsid`
    gets the reason why it is refused."""

    tag: _Tag
    nsid: U32
    handle: Annotated[U64, At(16)]


@message(36)
class ProgramChecked:
    """APU to RPU: a program is sound (RETURNED), or not (REFUSED), or the check was LOST."""

    tag: _Tag
    outcome: Annotated[Outcome, Stored("B"), At(1)]
    priority: Annotated[U8, At(2)] = 0
    """The priority that a sound program declares."""

    def validate(self) -> None:
        if self.outcome not in VERDICTS:
            raise ValueError(f"a program is not checked with {self.outcome}")


@message(37)
class OpenEngine:
    """RPU to APU: compute namespace `nsid` has been created."""

    nsid: Annotated[U32, At(4)]


@message(38)
class CloseEngine:
    """RPU to APU: it has been deleted. Its executions are cancelled, its log is cleared."""

    nsid: Annotated[U32, At(4)]


@message(EXECUTE)
class Execute:
    """RPU to APU, with a descriptor of its data if there is any: run a program on memory ranges.

    Exactly one `Executed` with the same tag answers it; the RPU makes one itself if the APU is
    lost. `parameters` are CPARAM1 and CPARAM2.
    """

    tag: _Tag
    nsid: U32
    program: Annotated[U64, At(16)]
    parameters: Annotated[tuple[int, int], Stored("Q", 2)] = (0, 0)
    ranges: Annotated[tuple[MemoryRange, ...], Number("B", 1), Range(0, MAX_MEMORY_RANGES)] = ()
    data_length: Annotated[U32, At(12)] = 0
    descriptor: _Descriptor = field(default=NO_DESCRIPTOR, compare=False)
    row: Annotated[U16, Range(0, ENGINE_ROWS), At(2)] = 0
    """The row of the counters where it reports its modelled time: 1 is the first one after those
    of the accelerators, 0 none."""

    @property
    def named(self) -> frozenset[int]:
        """The handles of the memory and of the program that it needs."""
        program = () if self.program < FIRST_HANDLE else (self.program,)
        return frozenset((*(item.handle for item in self.ranges), *program))


@message(EXECUTED)
class Executed:
    """APU to RPU: how an execution ended, with the program's 64-bit `value`, and the `work` that it
    has counted where time is modelled."""

    tag: _Tag
    outcome: Annotated[Outcome, Stored("B"), At(1)]
    value: Annotated[U64, At(8)] = 0
    work: Annotated[Work | None, MAY_FOLLOW] = None

    def validate(self) -> None:
        if self.value and self.outcome:
            raise ValueError(f"what ended with {self.outcome} has returned no value")


@message(41)
class Cancel:
    """RPU to APU: end an execution, unless it has ended; `Executed` comes in any case."""

    tag: _Tag


ExecutionToApu = (
    ShareMemory
    | ShareProgram
    | Forget
    | CheckProgram
    | OpenEngine
    | CloseEngine
    | Execute
    | Cancel
    | ValueRead
)

WithDescriptor = ShareMemory | ShareProgram | Execute
"""The messages with a descriptor; an `Execute` has one only with data."""


# The modelled time of jobs, in mode `modelled` only. An accelerator's job then ends in two steps:
# the APU reports its counts, and the RPU, which has the models and the clock, that its time has
# passed.

MAX_READS = 512
"""Reads in one `JobCounted`; a job may have any number of these messages."""


class Read(NamedTuple):
    """`length` bytes from byte `first` of a namespace, read when the job had taken `at` ns of its
    core, other reads not counted, in which the core had moved `moved` bytes in DRAM."""

    at: Count
    nsid: Annotated[U32, At(24)]
    first: Annotated[U64, At(8)]
    length: Annotated[U64, Range(1, LARGEST_COUNT)]
    moved: Annotated[Count, At(32)] = 0


@fields
class _OfJob:
    accelerator: Annotated[U16, At(2)]
    job: U32


@message(48)
class JobBegan(_OfJob):
    """APU to RPU: a host has started a job, with the number `job` until it is due or has left."""


@message(49)
class JobCounted(_OfJob):
    """APU to RPU: a job's counts, and the blocks that it has read. `JobDue` answers it.

    If `more` is set, another message with further reads follows.
    """

    work: Annotated[Work, At(12)]
    reads: Annotated[tuple[Read, ...], Number("I", 8), Range(0, MAX_READS)] = ()
    more: Annotated[BOOL, At(1)] = False

    def validate(self) -> None:
        require_order(self.reads)


@message(50)
class JobLeft(_OfJob):
    """APU to RPU: a job was stopped, or has failed, before it was due."""


@message(51)
class JobDue(_OfJob):
    """RPU to APU: the modelled time of a job's program has passed, `modelled` nanoseconds."""

    modelled: U64 = 0


@message(52)
class JobOverdue(_OfJob):
    """RPU to APU: a job takes too long, and is to be ended as one that exceeds its limit."""


def require_order(reads: tuple[Read, ...]) -> None:
    """Raise ValueError for reads that are not in the order of their times."""
    times = [read.at for read in reads]
    if times != sorted(times):
        raise ValueError("reads are out of order")


JobMessage = ReadChecked | WriteBackDone | JobDue | JobOverdue | JobValueRead
"""The messages about a job in progress."""

ToApu = Request | Reset | Ping | JobMessage | ExecutionToApu
_AboutJobs = JobEnded | JobBegan | JobCounted | JobLeft
_AboutPrograms = ProgramChecked | Executed | ReadValue | ReadJobValue
ToRpu = Reply | WriteBack | ReadCheck | ResetDone | Alive | _AboutJobs | _AboutPrograms
Message = ToApu | ToRpu

MAX_DATAGRAM = 20_668
"""Bytes of the longest message."""
