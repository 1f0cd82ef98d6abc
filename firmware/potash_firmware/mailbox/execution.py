"""The messages for programs of compute namespaces; `messages` has the others.

Memory and programs are shared once, by a message with a descriptor and a serial number that is
never reused; later messages refer to that number.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import ClassVar, NamedTuple, Self

from potash_device.timing.cores import Work
from potash_firmware.mailbox.counters import ENGINE_ROWS
from potash_firmware.mailbox.datagrams import MailboxError, datagram
from potash_firmware.mailbox.job_time import WORK, pack_work, unpack_work

FIRST_SERIAL = 256
"""Serial numbers begin here. What an `Execute` names below is a device-defined program's index."""

next_serial = count(FIRST_SERIAL).__next__
"""A serial number for memory or for a program; none is given twice."""

MAX_RANGES = 64
"""Memory ranges of one `Execute`."""

NO_DESCRIPTOR = -1

EXECUTED = 40
"""The first byte of an `Executed`."""

_SHARE = struct.Struct("<B7xQQ")
_CHECKED = struct.Struct("<BBxxI")
_EXECUTE = struct.Struct("<BBHIIIQQQ")
_RANGE = struct.Struct("<QQQ")
_EXECUTED = struct.Struct("<BBxxIQ")


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
class _Share:
    serial: int
    length: int
    descriptor: int = field(default=NO_DESCRIPTOR, compare=False)
    """Whoever receives it owns it; the sender keeps its own."""

    KIND: ClassVar[int]

    def pack(self) -> bytes:
        _require_length(self.length)
        return _SHARE.pack(self.KIND, self.serial, self.length)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        _, serial, length = _SHARE.unpack(data)
        if serial < FIRST_SERIAL:
            raise MailboxError(f"{serial} is no serial number")
        _require_length(length)
        return cls(serial, length)


@datagram(32)
@dataclass(frozen=True, slots=True)
class ShareMemory(_Share):
    """RPU to APU, with a descriptor: memory of `length` bytes is `serial`."""

    KIND = 32


@datagram(33)
@dataclass(frozen=True, slots=True)
class ShareProgram(_Share):
    """RPU to APU, with a descriptor: a program of `length` bytes, which never changes, is
    `serial`."""

    KIND = 33


@datagram(34, "<B7xQ")
@dataclass(frozen=True, slots=True)
class Forget:
    """RPU to APU: nothing names this memory or this program any more."""

    serial: int


@datagram(35, "<BxxxIIxxxxQ")
@dataclass(frozen=True, slots=True)
class CheckProgram:
    """RPU to APU: can this program run? `ProgramChecked` answers it; why not, the log of compute
    namespace `nsid` says."""

    tag: int
    nsid: int
    serial: int


@datagram(36)
@dataclass(frozen=True, slots=True)
class ProgramChecked:
    """APU to RPU: whether a program is sound: RETURNED, or REFUSED, or LOST where nobody can
    say."""

    tag: int
    outcome: Outcome

    def pack(self) -> bytes:
        return _CHECKED.pack(36, self.outcome, self.tag)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        _, outcome, tag = _CHECKED.unpack(data)
        if outcome not in VERDICTS:
            raise MailboxError(f"a program is not checked with {outcome}")
        return cls(tag, Outcome(outcome))


@datagram(37, "<BxxxI")
@dataclass(frozen=True, slots=True)
class OpenEngine:
    """RPU to APU: compute namespace `nsid` is there."""

    nsid: int


@datagram(38, "<BxxxI")
@dataclass(frozen=True, slots=True)
class CloseEngine:
    """RPU to APU: it is not there any more. Its executions are cancelled, its log is cleared."""

    nsid: int


@datagram(39)
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

    def pack(self) -> bytes:
        """0 kind, 1 ranges, 2:3 row, 4:7 tag, 8:11 namespace, 12:15 bytes of data, 16:23 program,
        the parameters, then for each range serial, offset and length."""
        _require_places(self)
        head = _EXECUTE.pack(
            39, len(self.ranges), self.row, self.tag, self.nsid, self.data_length, self.program,
            *self.parameters,
        )  # fmt: skip
        return head + b"".join(_RANGE.pack(*item) for item in self.ranges)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Raises MailboxError and struct.error."""
        _, count, row, tag, nsid, length, program, *parameters = _EXECUTE.unpack_from(data)
        if len(data) != _EXECUTE.size + count * _RANGE.size:
            raise MailboxError(f"{len(data)} bytes cannot hold {count} ranges")
        ranges = tuple(map(MemoryRange._make, _RANGE.iter_unpack(data[_EXECUTE.size :])))
        message = cls(tag, nsid, program, (parameters[0], parameters[1]), ranges, length, row=row)
        _require_places(message)
        return message


@datagram(EXECUTED)
@dataclass(frozen=True, slots=True)
class Executed:
    """APU to RPU: how an execution ended. `value` is what a program returned, all 64 bits; `work`
    what it has counted, where that is modelled."""

    tag: int
    outcome: Outcome
    value: int = 0
    work: Work | None = None

    def pack(self) -> bytes:
        """0 kind, 1 outcome, 4:7 tag, 8:15 value; the work, if there is any."""
        work = b"" if self.work is None else pack_work(self.work)
        return _EXECUTED.pack(EXECUTED, self.outcome, self.tag, self.value) + work

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Raises MailboxError and struct.error."""
        counted = len(data) == _EXECUTED.size + WORK.size
        work = unpack_work(data[_EXECUTED.size :]) if counted else None
        _, outcome, tag, value = _EXECUTED.unpack(data[: _EXECUTED.size] if counted else data)
        if outcome > Outcome.CANCELLED or (value and outcome):
            raise MailboxError(f"an execution cannot have ended with {outcome} and {value}")
        return cls(tag, Outcome(outcome), value, work)


@datagram(41, "<BxxxI")
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


def _require_places(m: Execute) -> None:
    if m.row > ENGINE_ROWS:
        raise MailboxError(f"there is no row {m.row} for executions")
    if len(m.ranges) > MAX_RANGES:
        raise MailboxError(f"an execution has {MAX_RANGES} ranges at most, not {len(m.ranges)}")
    if any(item.length == 0 for item in m.ranges):
        raise MailboxError("an execution has an empty range")


def _require_length(length: int) -> None:
    if not length:
        raise MailboxError("what is shared is empty")
