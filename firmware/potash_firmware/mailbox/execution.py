"""The messages for programs of compute namespaces; `messages` has the others.

Memory and programs are shared once, by a message with a descriptor and a serial number that is
never reused; later messages refer to that number.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import count
from typing import Any, NamedTuple, Self

from potash_device.timing.cores import Work
from potash_firmware.mailbox.counters import ENGINE_ROWS
from potash_firmware.mailbox.errors import MailboxError
from potash_firmware.mailbox.job_time import WORK, pack_work, unpack_work

FIRST_SERIAL = 256
"""Serial numbers begin here. What an `Execute` names below is a device-defined program's index."""

next_serial = count(FIRST_SERIAL).__next__
"""A serial number for memory or for a program; none is given twice."""

MAX_RANGES = 64
"""Memory ranges of one `Execute`."""

NO_DESCRIPTOR = -1


class Outcome(IntEnum):
    """How an execution ended."""

    RETURNED = 0
    """The program returned a value."""
    FAULTED = 1
    """It met a fault, or a limit of its machine."""
    REFUSED = 2
    """It cannot run at all: no sound program, or parameters that a device-defined one refuses."""
    EXPIRED = 3
    """It took more time than it may."""
    LOST = 4
    """Its process was lost, or the APU."""
    CANCELLED = 5
    """A `Cancel`, a reset, or the end of its engine came before."""


VERDICTS = frozenset({Outcome.RETURNED, Outcome.REFUSED, Outcome.LOST})
"""What can be said of a program that is checked."""


class MemoryRange(NamedTuple):
    """`length` bytes from byte `offset` of the shared memory `serial`, both multiples of a page."""

    serial: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ShareMemory:
    """RPU to APU, with a descriptor: memory of `length` bytes is `serial`.

    Whoever receives `descriptor` owns it; the sender keeps its own.
    """

    serial: int
    length: int
    descriptor: int = field(default=NO_DESCRIPTOR, compare=False)


@dataclass(frozen=True, slots=True)
class ShareProgram:
    """RPU to APU, with a descriptor: a program of `length` bytes, which never changes, is
    `serial`."""

    serial: int
    length: int
    descriptor: int = field(default=NO_DESCRIPTOR, compare=False)


@dataclass(frozen=True, slots=True)
class Forget:
    """RPU to APU: nothing names this memory or this program any more."""

    serial: int


@dataclass(frozen=True, slots=True)
class CheckProgram:
    """RPU to APU: can this program run? `ProgramChecked` answers it; why not, the log of compute
    namespace `nsid` says."""

    tag: int
    nsid: int
    serial: int


@dataclass(frozen=True, slots=True)
class ProgramChecked:
    """APU to RPU: whether a program is sound: RETURNED, or REFUSED, or LOST where nobody can
    say."""

    tag: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """RPU to APU: compute namespace `nsid` is there."""

    nsid: int


@dataclass(frozen=True, slots=True)
class CloseEngine:
    """RPU to APU: it is not there any more. Its executions are cancelled, its log is cleared."""

    nsid: int


@dataclass(frozen=True, slots=True)
class Execute:
    """RPU to APU, with a descriptor where there is `data_length`: run a program on memory ranges.

    Exactly one `Executed` with the same tag answers it, or an `Executed` of the RPU's own where the
    APU is lost. `parameters` are CPARAM1 and CPARAM2.
    """

    tag: int
    nsid: int
    program: int
    parameters: tuple[int, int] = (0, 0)
    ranges: tuple[MemoryRange, ...] = ()
    data_length: int = 0
    descriptor: int = field(default=NO_DESCRIPTOR, compare=False)
    row: int = 0
    """Where in the counters it is to report its modelled time: 1 is the first row behind those of
    the accelerators; 0 nowhere."""

    @property
    def named(self) -> frozenset[int]:
        """The serial numbers of the memory and of the program that it needs."""
        program = () if self.program < FIRST_SERIAL else (self.program,)
        return frozenset((*(one.serial for one in self.ranges), *program))


@dataclass(frozen=True, slots=True)
class Executed:
    """APU to RPU: how an execution ended. `value` is what a program returned, all 64 bits; `work`
    what it has counted, where that is modelled."""

    tag: int
    outcome: Outcome
    value: int = 0
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """RPU to APU: end an execution. One that has ended is left alone; `Executed` comes anyhow."""

    tag: int


ToApu = (
    ShareMemory | ShareProgram | Forget | CheckProgram | OpenEngine | CloseEngine | Execute | Cancel
)
ToRpu = ProgramChecked | Executed

WithDescriptor = ShareMemory | ShareProgram | Execute
"""Those that bring a descriptor, an `Execute` only with data."""


class Codec(NamedTuple):
    """How a kind of message is packed and unpacked; unpacking raises MailboxError, struct.error."""

    message: type[Any]
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]

    @classmethod
    def plain(cls, kind: int, message: type[Any], layout: struct.Struct) -> Self:
        """Of a message whose fields are numbers, in the order of the datagram."""
        names = [one.name for one in fields(message)]
        return cls(
            message,
            lambda m: layout.pack(kind, *(getattr(m, name) for name in names)),
            lambda data: message(*layout.unpack(data)[1:]),
        )


class Kind(IntEnum):
    """The first byte of a datagram; `messages.Kind` has those below."""

    SHARE_MEMORY = 32
    SHARE_PROGRAM = 33
    FORGET = 34
    CHECK_PROGRAM = 35
    PROGRAM_CHECKED = 36
    OPEN_ENGINE = 37
    CLOSE_ENGINE = 38
    EXECUTE = 39
    EXECUTED = 40
    CANCEL = 41


_SHARE = struct.Struct("<B7xQQ")
_FORGET = struct.Struct("<B7xQ")
_CHECK = struct.Struct("<BxxxIIxxxxQ")
_CHECKED = struct.Struct("<BBxxI")
_NUMBER = struct.Struct("<BxxxI")
_EXECUTE = struct.Struct("<BBHIIIQQQ")
_RANGE = struct.Struct("<QQQ")
_EXECUTED = struct.Struct("<BBxxIQ")


def pack_execute(m: Execute) -> bytes:
    """0 kind, 1 ranges, 2:3 row, 4:7 tag, 8:11 namespace, 12:15 bytes of data, 16:23 program, the
    parameters, then for each range serial, offset and length."""
    _require_places(m)
    head = _EXECUTE.pack(
        Kind.EXECUTE, len(m.ranges), m.row, m.tag, m.nsid, m.data_length, m.program, *m.parameters
    )
    return head + b"".join(_RANGE.pack(*item) for item in m.ranges)


def unpack_execute(data: bytes) -> Execute:
    """Raises MailboxError and struct.error."""
    _, count, row, tag, nsid, length, program, *parameters = _EXECUTE.unpack_from(data)
    if len(data) != _EXECUTE.size + count * _RANGE.size:
        raise MailboxError(f"{len(data)} bytes cannot hold {count} ranges")
    ranges = tuple(map(MemoryRange._make, _RANGE.iter_unpack(data[_EXECUTE.size :])))
    message = Execute(tag, nsid, program, (parameters[0], parameters[1]), ranges, length, row=row)
    _require_places(message)
    return message


def _require_places(m: Execute) -> None:
    if m.row > ENGINE_ROWS:
        raise MailboxError(f"there is no row {m.row} for executions")
    if len(m.ranges) > MAX_RANGES:
        raise MailboxError(f"an execution has {MAX_RANGES} ranges at most, not {len(m.ranges)}")
    if any(item.length == 0 for item in m.ranges):
        raise MailboxError("an execution has an empty range")


def _pack_share(kind: Kind, m: ShareMemory | ShareProgram) -> bytes:
    _require_length(m.length)
    return _SHARE.pack(kind, m.serial, m.length)


def _unpack_share(data: bytes) -> tuple[int, int]:
    _, serial, length = _SHARE.unpack(data)
    if serial < FIRST_SERIAL:
        raise MailboxError(f"{serial} is no serial number")
    _require_length(length)
    return serial, length


def _require_length(length: int) -> None:
    if not length:
        raise MailboxError("what is shared is empty")


def _unpack_checked(data: bytes) -> ProgramChecked:
    _, outcome, tag = _CHECKED.unpack(data)
    if outcome not in VERDICTS:
        raise MailboxError(f"a program is not checked with {outcome}")
    return ProgramChecked(tag, Outcome(outcome))


def pack_executed(m: Executed) -> bytes:
    """0 kind, 1 outcome, 4:7 tag, 8:15 value; the work, if there is any."""
    work = b"" if m.work is None else pack_work(m.work)
    return _EXECUTED.pack(Kind.EXECUTED, m.outcome, m.tag, m.value) + work


def unpack_executed(data: bytes) -> Executed:
    """Raises MailboxError and struct.error."""
    counted = len(data) == _EXECUTED.size + WORK.size
    work = unpack_work(data[_EXECUTED.size :]) if counted else None
    _, outcome, tag, value = _EXECUTED.unpack(data[: _EXECUTED.size] if counted else data)
    if outcome > Outcome.CANCELLED or (value and outcome):
        raise MailboxError(f"an execution cannot have ended with {outcome} and {value}")
    return Executed(tag, Outcome(outcome), value, work)


CODECS: dict[int, Codec] = {
    Kind.SHARE_MEMORY: Codec(
        ShareMemory,
        lambda m: _pack_share(Kind.SHARE_MEMORY, m),
        lambda data: ShareMemory(*_unpack_share(data)),
    ),
    Kind.SHARE_PROGRAM: Codec(
        ShareProgram,
        lambda m: _pack_share(Kind.SHARE_PROGRAM, m),
        lambda data: ShareProgram(*_unpack_share(data)),
    ),
    Kind.FORGET: Codec.plain(Kind.FORGET, Forget, _FORGET),
    Kind.CHECK_PROGRAM: Codec.plain(Kind.CHECK_PROGRAM, CheckProgram, _CHECK),
    Kind.PROGRAM_CHECKED: Codec(
        ProgramChecked,
        lambda m: _CHECKED.pack(Kind.PROGRAM_CHECKED, m.outcome, m.tag),
        _unpack_checked,
    ),
    Kind.OPEN_ENGINE: Codec.plain(Kind.OPEN_ENGINE, OpenEngine, _NUMBER),
    Kind.CLOSE_ENGINE: Codec.plain(Kind.CLOSE_ENGINE, CloseEngine, _NUMBER),
    Kind.EXECUTE: Codec(Execute, pack_execute, unpack_execute),
    Kind.EXECUTED: Codec(Executed, pack_executed, unpack_executed),
    Kind.CANCEL: Codec.plain(Kind.CANCEL, Cancel, _NUMBER),
}
