"""The messages for programs of compute namespaces; `messages` has the others.

Memory and programs are shared once, by a message with a descriptor and a serial number that is
never reused; later messages refer to that number.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Annotated, NamedTuple

from potash_device.timing.cores import Work
from potash_firmware.mailbox.counters import ENGINE_ROWS
from potash_firmware.mailbox.datagrams import datagram
from potash_wire.records import MAY_FOLLOW, NOT_STORED, U16, U32, U64, At, Number, Range, Stored

FIRST_SERIAL = 256
"""Serial numbers begin here. What an `Execute` names below is a device-defined program's index."""

next_serial = count(FIRST_SERIAL).__next__
"""A serial number for memory or for a program; none is given twice."""

MAX_RANGES = 64
"""Memory ranges of one `Execute`."""

NO_DESCRIPTOR = -1

EXECUTED = 40
"""The first byte of an `Executed`."""

_Tag = Annotated[U32, At(4)]
_Length = Annotated[U64, Range(1, (1 << 64) - 1)]
_Descriptor = Annotated[int, NOT_STORED]
"""It travels beside the message."""


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

    serial: U64
    offset: U64
    length: _Length


@dataclass(frozen=True, slots=True)
class _Share:
    serial: Annotated[U64, Range(FIRST_SERIAL, (1 << 64) - 1), At(8)]
    length: _Length
    descriptor: _Descriptor = field(default=NO_DESCRIPTOR, compare=False)
    """Whoever receives it owns it; the sender keeps its own."""


@datagram(32)
@dataclass(frozen=True, slots=True)
class ShareMemory(_Share):
    """RPU to APU, with a descriptor: memory of `length` bytes is `serial`."""


@datagram(33)
@dataclass(frozen=True, slots=True)
class ShareProgram(_Share):
    """RPU to APU, with a descriptor: a program of `length` bytes, which never changes, is
    `serial`."""


@datagram(34)
@dataclass(frozen=True, slots=True)
class Forget:
    """RPU to APU: nothing names this memory or this program any more."""

    serial: Annotated[U64, At(8)]


@datagram(35)
@dataclass(frozen=True, slots=True)
class CheckProgram:
    """RPU to APU: can this program run? `ProgramChecked` answers it; why not, the log of compute
    namespace `nsid` says."""

    tag: _Tag
    nsid: U32
    serial: Annotated[U64, At(16)]


@datagram(36)
@dataclass(frozen=True, slots=True)
class ProgramChecked:
    """APU to RPU: whether a program is sound: RETURNED, or REFUSED, or LOST where nobody can
    say."""

    tag: _Tag
    outcome: Annotated[Outcome, Stored("B"), At(1)]

    def validate(self) -> None:
        if self.outcome not in VERDICTS:
            raise ValueError(f"a program is not checked with {self.outcome}")


@datagram(37)
@dataclass(frozen=True, slots=True)
class OpenEngine:
    """RPU to APU: compute namespace `nsid` is there."""

    nsid: Annotated[U32, At(4)]


@datagram(38)
@dataclass(frozen=True, slots=True)
class CloseEngine:
    """RPU to APU: it is not there any more. Its executions are cancelled, its log is cleared."""

    nsid: Annotated[U32, At(4)]


@datagram(39)
@dataclass(frozen=True, slots=True)
class Execute:
    """RPU to APU, with a descriptor where there is `data_length`: run a program on memory ranges.

    Exactly one `Executed` with the same tag answers it, or an `Executed` of the RPU's own where the
    APU is lost. `parameters` are CPARAM1 and CPARAM2.
    """

    tag: _Tag
    nsid: U32
    program: Annotated[U64, At(16)]
    parameters: Annotated[tuple[int, int], Stored("Q", 2)] = (0, 0)
    ranges: Annotated[tuple[MemoryRange, ...], Number("B", 1), Range(0, MAX_RANGES)] = ()
    data_length: Annotated[U32, At(12)] = 0
    descriptor: _Descriptor = field(default=NO_DESCRIPTOR, compare=False)
    row: Annotated[U16, Range(0, ENGINE_ROWS), At(2)] = 0
    """Where in the counters it is to report its modelled time: 1 is the first row behind those of
    the accelerators; 0 nowhere."""

    @property
    def named(self) -> frozenset[int]:
        """The serial numbers of the memory and of the program that it needs."""
        program = () if self.program < FIRST_SERIAL else (self.program,)
        return frozenset((*(one.serial for one in self.ranges), *program))


@datagram(EXECUTED)
@dataclass(frozen=True, slots=True)
class Executed:
    """APU to RPU: how an execution ended. `value` is what a program returned, all 64 bits; `work`
    what it has counted, where that is modelled."""

    tag: _Tag
    outcome: Annotated[Outcome, Stored("B"), At(1)]
    value: Annotated[U64, At(8)] = 0
    work: Annotated[Work | None, MAY_FOLLOW] = None

    def validate(self) -> None:
        if self.value and self.outcome:
            raise ValueError(f"what ended with {self.outcome} has returned no value")


@datagram(41)
@dataclass(frozen=True, slots=True)
class Cancel:
    """RPU to APU: end an execution. One that has ended is left alone; `Executed` comes anyhow."""

    tag: _Tag


ToApu = (
    ShareMemory | ShareProgram | Forget | CheckProgram | OpenEngine | CloseEngine | Execute | Cancel
)
ToRpu = ProgramChecked | Executed

WithDescriptor = ShareMemory | ShareProgram | Execute
"""Those that bring a descriptor, an `Execute` only with data."""
