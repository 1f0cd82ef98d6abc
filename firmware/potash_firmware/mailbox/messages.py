"""The messages between the RPU and the APU, in the role that rpmsg has on the board.

One message is one datagram: a kind, then the fields of that kind, little endian and of fixed size
but for the ranges of a write-back. This module defines the interface of the
two processors; `port` transports datagrams, and bulk data is in the memory of `shared`.

Source: Alkali CSD platform documentation, section 3.4.4 (Userspace custom NVMe command handler).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Self

from potash_firmware.mailbox import execution, job_time
from potash_firmware.mailbox.datagrams import CODECS, PACKERS, MailboxError, datagram
from potash_firmware.mailbox.shared import SLOT_SIZE, SLOTS

NO_SLOT = -1
"""The slot of a request that moves no data."""

MAX_RANGES = 512
"""Ranges that one message holds; what a job writes may take several."""

LARGEST_STATUS = 0x7FF
"""Three bits of status code type above eight of status code."""


@datagram(1)
@dataclass(frozen=True, slots=True)
class Request:
    """RPU to APU: a host's command. Exactly one `Reply` with the same tag answers it.

    `cdws` are command dwords 10 to 15. `slot` is the transfer slot that the command's data is in
    (host to controller) or goes to (controller to host), `length` its bytes.
    """

    tag: int
    admin: bool
    opcode: int
    nsid: int
    cdws: tuple[int, int, int, int, int, int]
    slot: int = NO_SLOT
    length: int = 0

    def pack(self) -> bytes:
        _require_slot(self.slot, self.length)
        return _REQUEST.pack(
            1, self.admin, self.opcode, self.tag, self.nsid, *self.cdws, self.slot, self.length
        )

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        _, admin, opcode, tag, nsid, *cdws, slot, length = _REQUEST.unpack(data)
        _require_slot(slot, length)
        ten, eleven, twelve, thirteen, fourteen, fifteen = cdws
        dwords = (ten, eleven, twelve, thirteen, fourteen, fifteen)
        return cls(tag, _boolean(admin), opcode, nsid, dwords, slot, length)


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

    tag: int
    scope: ResetScope = CONTROLLER_RESET

    def pack(self) -> bytes:
        return _RESET.pack(2, self.scope, self.tag)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        _, scope, tag = _RESET.unpack(data)
        if scope > NEXT_HOST:
            raise MailboxError(f"{scope:#x} is no scope of a reset")
        return cls(tag, ResetScope(scope))


@datagram(3, "<BxxxIIxxxxQ")
@dataclass(frozen=True, slots=True)
class WriteBackDone:
    """RPU to APU: a write-back ended; `error` is its errno, 0 when all blocks are written.

    `modelled` are the nanoseconds that its job has taken, where time is modelled.
    """

    tag: int
    error: int = 0
    modelled: int = 0


@datagram(4)
@dataclass(frozen=True, slots=True)
class Reply:
    """APU to RPU: how a request ends. `status` is `SCT << 8 | SC`, `result` completion dword 0.

    `length` bytes of the request's slot are for the host.
    """

    tag: int
    status: int
    dnr: bool = False
    result: int = 0
    length: int = 0

    def pack(self) -> bytes:
        _require_reply(self.status, self.length)
        return _REPLY.pack(4, self.dnr, self.status, self.tag, self.result, self.length)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        _, dnr, status, tag, result, length = _REPLY.unpack(data)
        _require_reply(status, length)
        return cls(tag, status, _boolean(dnr), result, length)


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

    tag: int
    accelerator: int
    source: int
    ranges: tuple[tuple[int, int, int], ...]
    more: bool = False

    def pack(self) -> bytes:
        _require_ranges(self.ranges)
        count = len(self.ranges)
        head = _WRITE_BACK.pack(5, self.more, self.accelerator, self.tag, count, self.source)
        return head + b"".join(_PIECE.pack(*item) for item in self.ranges)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        _, more, accelerator, tag, count, source = _WRITE_BACK.unpack_from(data)
        tail = _tail(data, _WRITE_BACK.size, count, _PIECE)
        pieces = tuple((nsid, first, length) for nsid, first, length in _PIECE.iter_unpack(tail))
        _require_ranges(pieces)
        return cls(tag, accelerator, source, pieces, _boolean(more))


@datagram(8)
@dataclass(frozen=True, slots=True)
class ReadCheck:
    """APU to RPU: may a job read these blocks? `ReadChecked` answers it, after a reset too.

    `ranges` are (first byte, length) on the media of namespace `nsid`.
    """

    tag: int
    nsid: int
    ranges: tuple[tuple[int, int], ...]

    def pack(self) -> bytes:
        _require_ranges(self.ranges)
        head = _READ_CHECK.pack(8, len(self.ranges), self.tag, self.nsid)
        return head + b"".join(_RANGE.pack(*item) for item in self.ranges)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        _, count, tag, nsid = _READ_CHECK.unpack_from(data)
        tail = _tail(data, _READ_CHECK.size, count, _RANGE)
        ranges = tuple((first, length) for first, length in _RANGE.iter_unpack(tail))
        _require_ranges(ranges)
        return cls(tag, nsid, ranges)


@datagram(9, "<BxxxIIxxxxQ")
@dataclass(frozen=True, slots=True)
class ReadChecked:
    """RPU to APU: 0 where all the blocks may be read; else an errno, and the first byte `at` that
    may not."""

    tag: int
    error: int = 0
    at: int = 0


@datagram(6, "<BxxxI")
@dataclass(frozen=True, slots=True)
class ResetDone:
    """APU to RPU: no job runs, and all is as the `Reset` wanted it."""

    tag: int


@datagram(7, "<BxHB")
@dataclass(frozen=True, slots=True)
class JobEnded:
    """APU to RPU: a job ended, well or not; `log_page` is where the host reads about it."""

    accelerator: int
    log_page: int


@datagram(10, "<BxxxI")
@dataclass(frozen=True, slots=True)
class Ping:
    """RPU to APU: are you still there? `Alive` with the same tag answers it at once."""

    tag: int


@datagram(11, "<BxxxI")
@dataclass(frozen=True, slots=True)
class Alive:
    """APU to RPU: its loop runs; said once when it begins, with tag 0, and to a `Ping`."""

    tag: int = 0


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


_REQUEST = struct.Struct("<BBBxI I6I iI")
_RESET = struct.Struct("<BBxxI")
_REPLY = struct.Struct("<BBHIII")
_WRITE_BACK = struct.Struct("<BBHIHxxQ")
_PIECE = struct.Struct("<IQQ")
_READ_CHECK = struct.Struct("<BxHII")
_RANGE = struct.Struct("<QQ")

MAX_DATAGRAM = max(_WRITE_BACK.size + MAX_RANGES * _PIECE.size, job_time.LARGEST)


def _require_slot(slot: int, length: int) -> None:
    if slot == NO_SLOT:
        if length:
            raise MailboxError(f"a request of {length} bytes names no transfer slot")
    elif not 0 <= slot < SLOTS:
        raise MailboxError(f"there is no transfer slot {slot}")
    elif not 0 <= length <= SLOT_SIZE:
        raise MailboxError(f"{length} bytes do not fit in a transfer slot")


def _require_reply(status: int, length: int) -> None:
    if not 0 <= status <= LARGEST_STATUS:
        raise MailboxError(f"{status:#x} is no status")
    if not 0 <= length <= SLOT_SIZE:
        raise MailboxError(f"{length} bytes do not fit in a transfer slot")


def _tail(data: bytes, at: int, count: int, item: struct.Struct) -> memoryview:
    """The ranges at the end of a message."""
    tail = memoryview(data)[at:]
    if len(tail) != count * item.size:
        raise MailboxError(f"{len(tail)} bytes cannot hold {count} ranges")
    return tail


def _require_ranges(ranges: Sequence[tuple[int, ...]]) -> None:
    if not 0 < len(ranges) <= MAX_RANGES:
        raise MailboxError(f"a message has 1 to {MAX_RANGES} ranges, not {len(ranges)}")
    if any(item[-1] == 0 for item in ranges):
        raise MailboxError("a message has an empty range")


def _boolean(value: int) -> bool:
    if value > 1:
        raise MailboxError(f"{value} is neither true nor false")
    return bool(value)


def encode(message: Message) -> bytes:
    """One datagram. Raises MailboxError where a field's value has no place in it."""
    try:
        return PACKERS[type(message)](message)
    except struct.error as error:
        raise MailboxError(f"{message} cannot be sent: {error}") from None


def decode(data: bytes) -> Message:
    """The message in a datagram. Raises MailboxError for anything that `encode` did not make."""
    codec = CODECS.get(data[0]) if data else None
    if codec is None:
        raise MailboxError(f"a datagram starts with {data[:1].hex() or 'nothing'}, no known kind")
    try:
        message: Message = codec.unpack(data)
        return message
    except struct.error:
        name = codec.message.__name__
        raise MailboxError(f"{len(data)} bytes are no {name} message") from None
