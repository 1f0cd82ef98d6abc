"""The messages between the service, its workers and the fork server, in datagrams as the mailbox's.

The service sends a worker the `Execute` that came from the RPU, or an `ExecuteJob` for a job of an
accelerator; an `Executed` or a `JobExecuted` answers it. A worker runs what a host sent, so it may
be compromised: the service checks the form of each message, and kills a worker that sends anything
else.
"""

from typing import Annotated, cast, get_args

from csd_spec.descriptors import LogEntryType
from potash_firmware.apu.model import ByteRange, Grant
from potash_firmware.mailbox import MailboxError
from potash_firmware.mailbox.datagrams import decode, encode, kinds_of, message
from potash_firmware.mailbox.messages import (
    Execute,
    Executed,
    Outcome,
    Read,
    require_order,
)
from potash_firmware.mailbox.values import JobValueRead, ReadJobValue, ReadValue, ValueRead
from potash_wire.records import BOOL, I32, U64, At, Number, Range, Stored

__all__ = ["encode"]

MAX_MESSAGE = 64 * 1024

MAX_REQUEST = 64
"""Bytes of a message to or from the fork server."""

MOST_DESCRIPTORS = 192
"""Descriptors of one execution: memory, a program, data, and the media of namespaces."""

TEXT_LIMIT = 4096
"""Characters of a text that a worker sends; the log cuts it further."""

RANGES_AT_ONCE = 512
"""Ranges of one `Gathered`, and reads of one `BlocksRead`."""

CHECKER = -1
"""The kind of a worker that checks one program, in the place of an accelerator's identifier."""
ENGINE = -2
"""The kind of a worker of a compute namespace."""


def process_name(kind: int) -> str:
    """The name of a worker's process."""
    names = {CHECKER: "potash-checker", ENGINE: "potash-engine"}
    return names.get(kind, f"potash-worker{kind}")


_Ranges = Annotated[tuple[ByteRange, ...], Number("H"), Range(0, MAX_MESSAGE)]


class ChannelError(Exception):
    """A message is malformed, or one that its sender may not send."""


@message(64)
class ExecuteJob(Execute):
    """Service to worker: run a program with an accelerator's buffers; `nsid` is the accelerator.

    Without `input_ranges` the input is in its buffer already, or is the output of the program that
    ran before if the job `is_chained` to it. The worker does not write the
    `output_ranges`; the program must not write them either. Of the granted blocks, the program
    must not read the `unreadable` ones.
    """

    input_length: Annotated[U64, At(40)] = 0
    output_length: U64 = 0
    input_ranges: _Ranges = ()
    output_ranges: _Ranges = ()
    granted: Annotated[tuple[Grant, ...], Number("H"), Range(0, MAX_MESSAGE)] = ()
    unreadable: _Ranges = ()
    is_chained: BOOL = False

    @property
    def namespaces(self) -> list[int]:
        """The namespaces that the job reads; descriptors of their media come in this order."""
        read = {item.nsid for item in self.input_ranges} | {item.nsid for item in self.granted}
        return sorted(read)


@message(65)
class JobExecuted(Executed):
    """Worker to service: how a job's program ended, with `output_length` bytes of output."""

    output_length: Annotated[U64, At(16)] = 0
    instructions: U64 = 0


@message(66)
class Ready:
    """Worker to service: it can run programs."""


@message(67)
class Line:
    """Worker to service: a line for the log."""

    kind: Annotated[LogEntryType, Stored("H")]
    text: Annotated[str, Number("H"), Range(0, TEXT_LIMIT)]


@message(68)
class Gathered:
    """Worker to service: ranges that the program wants written, if it returns.

    Their bytes follow each other in the arena's part for writes, in the order of all ranges that
    the job has sent.
    """

    ranges: Annotated[tuple[ByteRange, ...], Number("H"), Range(0, RANGES_AT_ONCE)]


@message(69)
class BlocksRead:
    """Worker to service, in mode `modelled`: blocks that a job has read, before it has ended."""

    reads: Annotated[tuple[Read, ...], Number("H"), Range(0, RANGES_AT_ONCE)]

    def validate(self) -> None:
        require_order(self.reads)


@message(80)
class Spawn:
    """Service to fork server: fork a worker of a kind; with its end of its channel."""

    number: U64
    kind: I32


@message(81)
class Kill:
    """Service to fork server: kill a worker, unless it has exited already."""

    number: U64


@message(83)
class LoadQueries:
    """Service to fork server: have what queries of tables need in the workers forked from now
    on."""


@message(82)
class Exited:
    """Fork server to service: a worker has exited; its exit code, or a signal's number negated."""

    number: U64
    code: I32


ANSWERS = (Outcome.RETURNED, Outcome.FAULTED, Outcome.REFUSED)
"""The outcomes that a worker may report."""

FromWorker = (
    Ready | Line | Gathered | BlocksRead | Executed | JobExecuted | ReadValue | ReadJobValue
)

ToForkServer = Spawn | Kill | LoadQueries

_TO_WORKER = kinds_of(Execute, ExecuteJob)
_VALUES_READ = kinds_of(ValueRead, JobValueRead)
_FROM_WORKER = kinds_of(*get_args(FromWorker))
_TO_FORK_SERVER = kinds_of(Spawn, Kill, LoadQueries)
_FROM_FORK_SERVER = kinds_of(Exited)


def decode_execution(data: bytes) -> Execute:
    """The execution that the service sent to a worker."""
    return cast(Execute, decode(data, _TO_WORKER))


def decode_value(data: bytes) -> ValueRead | JobValueRead:
    """The answer to a request for a value."""
    return cast(ValueRead | JobValueRead, decode(data, _VALUES_READ))


def decode_request(data: bytes) -> ToForkServer:
    """The request that the service sent to the fork server."""
    return cast(ToForkServer, decode(data, _TO_FORK_SERVER))


def decode_exit(data: bytes) -> Exited:
    """The report that the fork server sent to the service."""
    return cast(Exited, decode(data, _FROM_FORK_SERVER))


def decode_from_worker(data: bytes) -> FromWorker:
    """The message that a worker sent. Raises ChannelError."""
    try:
        return cast(FromWorker, decode(data, _FROM_WORKER))
    except MailboxError as error:
        raise ChannelError(f"a worker sent {data[:80]!r}: {error}") from None
