"""The messages between the service, its workers and the fork server, in datagrams as the mailbox's.

A worker runs what a host sent, so it may be compromised: the service checks the form of each
message, and kills a worker that sends anything else.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, cast, get_args

from csd_spec.descriptors import LogEntryType
from potash_device.timing.cores import Work
from potash_firmware.apu.model import ByteRange, Grant
from potash_firmware.mailbox import MailboxError, datagrams, execution
from potash_firmware.mailbox.datagrams import datagram
from potash_firmware.mailbox.job_time import Read, require_order
from potash_wire.records import I32, U64, Number, Range, Stored

MAX_MESSAGE = 64 * 1024

MAX_REQUEST = 64
"""Bytes of a message between the service and the fork server."""

MAX_PERFORM = 4096
"""Bytes of a `Perform`, which names 64 ranges and as many serial numbers at most."""

TEXT_LIMIT = 4096
"""Characters of a text that a worker sends; the log cuts it further."""

RANGES_AT_ONCE = 512
"""Ranges of one `Gathered`, and reads of one `Counted`."""

_Text = Annotated[str, Number("H"), Range(0, TEXT_LIMIT)]
_Ranges = Annotated[tuple[ByteRange, ...], Number("H"), Range(0, MAX_MESSAGE)]


CHECKER = -1
"""The kind of a worker that checks one program, in the place of an accelerator's identifier."""
ENGINE = -2
"""The kind of a worker of a compute namespace."""


class ChannelError(Exception):
    """A message is malformed."""


@datagram(64)
@dataclass(frozen=True, slots=True)
class Run:
    """Service to worker, with a memfd that holds the firmware image and then the argument list.

    Lengths in bytes. Without ranges the input is in the buffer already. The output's ranges are
    not the worker's to write: it is told them for what the program must not write either, and
    `unreadable` for what of the granted blocks it must not read.
    """

    image_length: U64
    arguments_length: U64
    input_length: U64
    output_length: U64
    instructions: U64
    input_ranges: _Ranges = ()
    output_ranges: _Ranges = ()
    granted: Annotated[tuple[Grant, ...], Number("H"), Range(0, MAX_MESSAGE)] = ()
    unreadable: _Ranges = ()

    @property
    def namespaces(self) -> list[int]:
        """Those that the job reads from, by identifier: their media's descriptors come in this
        order, behind that of the image."""
        read = {item.nsid for item in self.input_ranges} | {item.nsid for item in self.granted}
        return sorted(read)


@datagram(65)
@dataclass(frozen=True, slots=True)
class Check:
    """Service to a process that checks programs, with a memfd that holds one."""

    image_length: U64


@datagram(66)
@dataclass(frozen=True, slots=True)
class Sound:
    """The program that was to be checked can run."""


@datagram(67)
@dataclass(frozen=True, slots=True)
class Refused:
    """The program that was to be checked cannot run."""

    text: _Text


@datagram(68)
@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to service: the next job can come."""


@datagram(69)
@dataclass(frozen=True, slots=True)
class Line:
    """Worker to service: a line for the log."""

    kind: Annotated[LogEntryType, Stored("H")]
    text: _Text


@datagram(70)
@dataclass(frozen=True, slots=True)
class Gathered:
    """Worker to service: ranges that the program wants written, if it comes to its end.

    Their bytes lie one behind the other in the arena's part for writes, in the order of all ranges
    that the job has told.
    """

    ranges: Annotated[tuple[ByteRange, ...], Number("H"), Range(0, RANGES_AT_ONCE)]


@datagram(71)
@dataclass(frozen=True, slots=True)
class Counted:
    """Worker to service, in mode `modelled`: what the job has counted, before how it ended.

    Several come where there are more than `RANGES_AT_ONCE` reads; the last has all the work.
    """

    work: Work
    reads: Annotated[tuple[Read, ...], Number("H"), Range(0, RANGES_AT_ONCE)]

    def validate(self) -> None:
        require_order(self.reads)


@datagram(72)
@dataclass(frozen=True, slots=True)
class Returned:
    """Worker to service: the program returned. `length` bytes of output are its result."""

    value: U64
    length: U64
    instructions: U64


@datagram(73)
@dataclass(frozen=True, slots=True)
class Faulted:
    """Worker to service: the program was stopped, or could not be started. A `Line` before it
    says why."""


@dataclass(frozen=True, slots=True)
class Perform:
    """Service to a compute namespace's worker: run a program on ranges.

    Descriptors come with it: first those of `new`, memory and programs that `execute` names and the
    last `Perform` did not, then that of its data. Whatever else the worker has it lets go of.
    `Executed` answers it.
    """

    execute: execution.Execute
    new: tuple[int, ...]


@datagram(80)
@dataclass(frozen=True, slots=True)
class Spawn:
    """Service to fork server: fork a worker of a kind; its end of its channel comes with it."""

    serial: U64
    kind: I32


@datagram(81)
@dataclass(frozen=True, slots=True)
class Kill:
    """Service to fork server: kill a worker, unless it has exited already."""

    serial: U64


@datagram(82)
@dataclass(frozen=True, slots=True)
class Exited:
    """Fork server to service: a worker has exited; its exit code, or a signal's number negated."""

    serial: U64
    code: I32


ToWorker = Run | Check | Perform
FromWorker = (
    Ready | Line | Gathered | Counted | Returned | Faulted | Sound | Refused | execution.Executed
)

_SERIAL_COUNT = struct.Struct("<Q")


def encode(message: ToWorker | FromWorker | Spawn | Kill | Exited) -> bytes:
    if isinstance(message, Perform):
        count = len(message.new)
        return struct.pack(f"<Q{count}Q", count, *message.new) + datagrams.encode(message.execute)
    return datagrams.encode(message)


def decode_request(data: bytes) -> Spawn | Kill:
    """What the service sent to the fork server."""
    return cast(Spawn | Kill, datagrams.decode(data))


def decode_from_fork_server(data: bytes) -> Exited:
    return cast(Exited, datagrams.decode(data))


def decode_run(data: bytes) -> Run:
    """What the service sent to a worker."""
    return cast(Run, datagrams.decode(data))


def decode_check(data: bytes) -> Check:
    """What the service sent to a process that checks programs."""
    return cast(Check, datagrams.decode(data))


def decode_perform(data: bytes) -> Perform:
    """What the service sent to a compute namespace's worker."""
    (count,) = _SERIAL_COUNT.unpack_from(data)
    new = struct.unpack_from(f"<{count}Q", data, _SERIAL_COUNT.size)
    return Perform(datagrams.decode(data[_SERIAL_COUNT.size * (1 + count) :]), new)


def decode(data: bytes) -> FromWorker:
    """What a worker sent. Raises ChannelError."""
    try:
        message = datagrams.decode(data)
    except MailboxError as error:
        raise ChannelError(f"a worker sent {data[:80]!r}: {error}") from None
    if not isinstance(message, get_args(FromWorker)):
        raise ChannelError(f"a worker sent a {type(message).__name__} message")
    return cast(FromWorker, message)
