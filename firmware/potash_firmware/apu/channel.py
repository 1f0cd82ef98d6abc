"""The messages between the service and a worker: one JSON object in each datagram.

A compute namespace's worker and the service use the mailbox's own form for what they say most.

A worker runs what a host sent, so what it says is believed no further than a message's form: the
service treats anything else as the worker's end.
"""

import json
import struct
from dataclasses import asdict, dataclass

from csd_spec.descriptors import LogEntryType
from potash_device.timing.cores import KINDS, LARGEST_COUNT, Work
from potash_firmware.apu.model import ByteRange, Grant
from potash_firmware.mailbox import MailboxError, datagrams, execution
from potash_firmware.mailbox.job_time import Read

MAX_MESSAGE = 64 * 1024

MAX_PERFORM = 4096
"""Bytes of a `Perform`, which names 64 ranges and as many serial numbers at most."""

TEXT_LIMIT = 4096
"""Characters of a text that a worker sends; the log cuts it further."""

RANGES_AT_ONCE = 512
"""Ranges of one `Gathered`: so many fit in a message, however long their numbers are."""


class ChannelError(Exception):
    """A message is malformed."""


@dataclass(frozen=True, slots=True)
class Run:
    """Service to worker, with a memfd that holds the firmware image and then the argument list.

    Lengths in bytes. Without ranges the input is in the buffer already. The output's ranges are
    not the worker's to write: it is told them for what the program must not write either, and
    `unreadable` for what of the granted blocks it must not read.
    """

    image_length: int
    arguments_length: int
    input_length: int
    output_length: int
    instructions: int
    input_ranges: tuple[ByteRange, ...] = ()
    output_ranges: tuple[ByteRange, ...] = ()
    granted: tuple[Grant, ...] = ()
    unreadable: tuple[ByteRange, ...] = ()

    @property
    def namespaces(self) -> list[int]:
        """Those that the job reads from, by identifier: their media's descriptors come in this
        order, behind that of the image."""
        read = {item.nsid for item in self.input_ranges} | {item.nsid for item in self.granted}
        return sorted(read)


@dataclass(frozen=True, slots=True)
class Check:
    """Service to a process that checks programs, with a memfd that holds one."""

    image_length: int


@dataclass(frozen=True, slots=True)
class Sound:
    """The program that was to be checked can run."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The program that was to be checked cannot run."""

    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to service: the next job can come."""


@dataclass(frozen=True, slots=True)
class Line:
    """Worker to service: a line for the log."""

    kind: LogEntryType
    text: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """Worker to service: ranges that the program wants written, if it comes to its end.

    Their bytes lie one behind the other in the arena's part for writes, in the order of all ranges
    that the job has told.
    """

    ranges: tuple[ByteRange, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """Worker to service, in mode `modelled`: what the job has counted, before how it ended.

    Several come where there are more than `RANGES_AT_ONCE` reads; the last has all the work.
    """

    work: Work
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Returned:
    """Worker to service: the program returned. `length` bytes of output are its result."""

    value: int
    length: int
    instructions: int


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


FromWorker = (
    Ready | Line | Gathered | Counted | Returned | Faulted | Sound | Refused | execution.Executed
)

_FROM_WORKER: dict[str, type[FromWorker]] = {
    kind.__name__: kind
    for kind in (Ready, Line, Gathered, Counted, Returned, Faulted, Sound, Refused)
}


_SERIAL_COUNT = struct.Struct("<Q")


def encode(message: Run | Check | Perform | FromWorker) -> bytes:
    if isinstance(message, execution.Executed):
        return datagrams.encode(message)
    if isinstance(message, Perform):
        count = len(message.new)
        return struct.pack(f"<Q{count}Q", count, *message.new) + datagrams.encode(message.execute)
    return json.dumps([type(message).__name__, asdict(message)]).encode()


def decode_run(data: bytes) -> Run:
    """What the service sent to a worker."""
    _, fields = json.loads(data)
    return Run(
        **fields
        | {
            "input_ranges": tuple(ByteRange(*item) for item in fields["input_ranges"]),
            "output_ranges": tuple(ByteRange(*item) for item in fields["output_ranges"]),
            "unreadable": tuple(ByteRange(*item) for item in fields["unreadable"]),
            "granted": tuple(Grant(*item) for item in fields["granted"]),
        }
    )


def decode_check(data: bytes) -> Check:
    """What the service sent to a process that checks programs."""
    _, fields = json.loads(data)
    return Check(**fields)


def decode_perform(data: bytes) -> Perform:
    """What the service sent to a compute namespace's worker."""
    (count,) = _SERIAL_COUNT.unpack_from(data)
    new = struct.unpack_from(f"<{count}Q", data, _SERIAL_COUNT.size)
    return Perform(datagrams.decode(data[_SERIAL_COUNT.size * (1 + count) :]), new)


def decode(data: bytes) -> FromWorker:
    """What a worker sent. Raises ChannelError."""
    if data[:1] == bytes((execution.EXECUTED,)):
        try:
            executed: execution.Executed = datagrams.decode(data)
            return executed
        except MailboxError as error:
            raise ChannelError(f"a worker sent {data[:80]!r}: {error}") from None
    try:
        name, fields = json.loads(data)
        message = _FROM_WORKER[name](**fields)
        _check(message)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ChannelError(f"a worker sent {data[:80]!r}: {error}") from None
    match message:
        case Line():
            return Line(LogEntryType(message.kind), message.text)
        case Gathered():
            return Gathered(tuple(ByteRange(*item) for item in message.ranges))
        case Counted():
            instructions, *others = message.work
            reads = tuple(Read(*item) for item in message.reads)
            return Counted(Work(tuple(instructions), *others), reads)
    return message


def _check(message: FromWorker) -> None:
    match message:
        case Returned(value=int(value), length=int(length), instructions=int(instructions)):
            if min(length, instructions) < 0 or not 0 <= value < 1 << 64:
                raise ValueError("a number is out of range")
        case Line(kind=int(kind), text=str()):
            LogEntryType(kind)
        case Gathered():
            _check_ranges(message.ranges)
        case Counted():
            _check_counted(message)
        case Refused(text=str()) | Ready() | Sound() | Faulted():
            pass
        case _:
            raise TypeError("a field has the wrong type")


def _check_counted(message: Counted) -> None:
    instructions, *others = message.work
    reads: object = message.reads
    if not isinstance(instructions, list) or not isinstance(reads, list):
        raise TypeError("there is no list of counts, or of reads")
    counts = [*instructions, *others]
    if len(instructions) != len(KINDS) or len(others) != len(Work._fields) - 1:
        raise TypeError("there are other counts")
    if len(reads) > RANGES_AT_ONCE:
        raise ValueError("there are too many reads")
    before = 0
    for at, nsid, first, length in reads:
        counts += (at, nsid, first, length)
        if at < before or not length:
            raise ValueError("a read is out of order, or empty")
        before = at
    if not all(type(one) is int and 0 <= one <= LARGEST_COUNT for one in counts):
        raise ValueError("a count is out of range")


def _check_ranges(ranges: object) -> None:
    if not isinstance(ranges, list) or len(ranges) > RANGES_AT_ONCE:
        raise TypeError("there is no list of ranges, or too long a one")
    for nsid, first, length in ranges:
        if not all(isinstance(number, int) for number in (nsid, first, length)):
            raise TypeError("a range has something that is no number")
        if min(nsid, first) < 0 or length <= 0:
            raise ValueError("a range is out of range")
