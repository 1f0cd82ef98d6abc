"""The messages between the RPU and the APU, in the role that rpmsg has on the board.

One message is one datagram: a kind, then the fields of that kind, little endian and of fixed size
but for the ranges of a write-back. This module defines the interface of the
two processors; `port` transports datagrams, and bulk data is in the memory of `shared`.

Source: Alkali CSD platform documentation, section 3.4.4 (Userspace custom NVMe command handler).
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import Annotated, get_args

from potash_firmware.mailbox import execution, job_time
from potash_firmware.mailbox.datagrams import RECORDS, datagram, decode, encode
from potash_firmware.mailbox.shared import SLOT_SIZE, SLOTS
from potash_wire.records import BOOL, I32, U8, U16, U32, U64, At, Number, Range, Stored

__all__ = ["decode", "encode"]

NO_SLOT = -1
"""The slot of a request that moves no data."""

MAX_RANGES = 512
"""Ranges that one message holds; what a job writes may take several."""

LARGEST_STATUS = 0x7FF
"""Three bits of status code type above eight of status code."""

_Tag = Annotated[U32, At(4)]
_Length = Annotated[U32, Range(0, SLOT_SIZE)]
_AtLeastOne = Annotated[U64, Range(1, (1 << 64) - 1)]


@datagram(1)
@dataclass(frozen=True, slots=True)
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

    def validate(self) -> None:
        if self.slot == NO_SLOT and self.length:
            raise ValueError(f"a request of {self.length} bytes names no transfer slot")


class ResetScope(IntFlag):
    """What a `Reset` does beside a Reset of every accelerator, which always clears the buffers."""

    DISABLE = 1
    """The subsystem is disabled, as after power-on."""
    FORGET = 2
    """The logs are cleared and workers that have run a program are replaced."""


CONTROLLER_RESET = ResetScope.DISABLE
NEXT_HOST = ResetScope.DISABLE | ResetScope.FORGET
ERASE = ResetScope.FORGET


@datagram(2)
@dataclass(frozen=True, slots=True)
class Reset:
    """RPU to APU: reset every accelerator. `ResetDone` follows when no job runs any more.

    Requests behind it are carried out after it.
    """

    tag: _Tag
    scope: Annotated[ResetScope, Stored("B"), Range(0, NEXT_HOST), At(1)] = CONTROLLER_RESET


@datagram(3)
@dataclass(frozen=True, slots=True)
class WriteBackDone:
    """RPU to APU: a write-back ended; `error` is its errno, 0 when all blocks are written.

    `modelled` are the nanoseconds that its job has taken, where time is modelled.
    """

    tag: _Tag
    error: U32 = 0
    modelled: Annotated[U64, At(16)] = 0


@datagram(4)
@dataclass(frozen=True, slots=True)
class Reply:
    """APU to RPU: how a request ends. `status` is `SCT << 8 | SC`, `result` completion dword 0.

    `length` bytes of the request's slot are for the host.
    """

    tag: _Tag
    status: Annotated[U16, Range(0, LARGEST_STATUS), At(2)]
    dnr: Annotated[BOOL, At(1)] = False
    result: Annotated[U32, At(8)] = 0
    length: _Length = 0


@datagram(5)
@dataclass(frozen=True, slots=True)
class WriteBack:
    """APU to RPU: write a job's output to its blocks. `WriteBackDone` answers it, after a reset
    too.

    The bytes lie one behind the other from byte `source` of the accelerator's arena on; `ranges`
    are (namespace, first byte, length) on its media. Where `more` is set, another one of the same
    tag follows: nothing is written before the last has come, so that an APU that is lost between
    two leaves no job half written, and one answer is for all.
    """

    tag: _Tag
    accelerator: Annotated[U16, At(2)]
    source: Annotated[U64, At(12)]
    ranges: Annotated[
        tuple[tuple[U32, U64, _AtLeastOne], ...], Number("H", 8), Range(1, MAX_RANGES)
    ]
    more: Annotated[BOOL, At(1)] = False


@datagram(8)
@dataclass(frozen=True, slots=True)
class ReadCheck:
    """APU to RPU: may a job read these blocks? `ReadChecked` answers it, after a reset too.

    `ranges` are (first byte, length) on the media of namespace `nsid`.
    """

    tag: _Tag
    nsid: U32
    ranges: Annotated[tuple[tuple[U64, _AtLeastOne], ...], Number("H", 2), Range(1, MAX_RANGES)]


@datagram(9)
@dataclass(frozen=True, slots=True)
class ReadChecked:
    """RPU to APU: 0 where all the blocks may be read; else an errno, and the first byte `at` that
    may not."""

    tag: _Tag
    error: U32 = 0
    at: Annotated[U64, At(16)] = 0


@datagram(6)
@dataclass(frozen=True, slots=True)
class ResetDone:
    """APU to RPU: no job runs, and all is as the `Reset` wanted it."""

    tag: _Tag


@datagram(7)
@dataclass(frozen=True, slots=True)
class JobEnded:
    """APU to RPU: a job ended, well or not; `log_page` is where the host reads about it."""

    accelerator: Annotated[U16, At(2)]
    log_page: U8


@datagram(10)
@dataclass(frozen=True, slots=True)
class Ping:
    """RPU to APU: are you still there? `Alive` with the same tag answers it at once."""

    tag: _Tag


@datagram(11)
@dataclass(frozen=True, slots=True)
class Alive:
    """APU to RPU: its loop runs; said once when it begins, with tag 0, and to a `Ping`."""

    tag: _Tag = 0


ToApu = (
    Request
    | Reset
    | WriteBackDone
    | ReadChecked
    | Ping
    | job_time.JobDue
    | job_time.JobOverdue
    | execution.ToApu
)
ToRpu = (
    Reply
    | WriteBack
    | ReadCheck
    | ResetDone
    | JobEnded
    | Alive
    | job_time.JobBegan
    | job_time.JobCounted
    | job_time.JobLeft
    | execution.ToRpu
)
Message = ToApu | ToRpu

MAX_DATAGRAM = max(RECORDS[kind].largest for kind in get_args(Message))
