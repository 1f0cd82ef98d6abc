"""The structures that accelerator commands move: identify, status, log page and argument list.

Each states its own length in bytes. A decode takes a buffer of at least that length (what follows
is padding) and raises DescriptorError for anything that contradicts itself.

Alkali CSD platform documentation, tables 4.1 to 4.10 and section 4.3.2 (Start accelerator)."""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Annotated, NamedTuple, Self

from csd_spec.opcodes import DWORD_SIZE, KEEP_ACTIVE_FIRMWARE
from csd_spec.reporting import Count, Form, Key, Signed64
from csd_spec.status import StatusId
from potash_wire.records import U32, U64, At, Record

Buffer = bytes | bytearray | memoryview

IDENTIFY_MAGIC = b"WDC0"

_IDENTIFY_HEADER = struct.Struct("<4sI8x")
_ACCELERATOR_HEADER = struct.Struct("<IH2x")
_STATUS_HEADER = struct.Struct("<II24x")
_LOG_HEADER = struct.Struct("<II8x")
_LOG_ENTRY = struct.Struct("<IQI")
_LENGTH = struct.Struct("<I")

IDENTIFY_HEADER_SIZE = _IDENTIFY_HEADER.size
STATUS_HEADER_SIZE = _STATUS_HEADER.size
STATUS_DESCRIPTOR_SIZE = 32
LOG_HEADER_SIZE = _LOG_HEADER.size
LOG_ENTRY_HEADER_SIZE = _LOG_ENTRY.size
ARGUMENT_HEADER_SIZE = _LENGTH.size


class DescriptorError(ValueError):
    """A structure's bytes contradict themselves; the message says which and how."""


class CapabilityId(IntEnum):
    """What an accelerator can do (table 4.7)."""

    FIRMWARE = 0
    INPUT_BUFFER = 1
    OUTPUT_BUFFER = 2


class LogEntryType(IntEnum):
    """Entry type IDs (table 4.3); those from 100h are extensions."""

    INVALID_FIRMWARE = 0
    INVALID_INPUT_BUFFER = 1
    INVALID_OUTPUT_BUFFER = 2
    ACCELERATOR_ERROR = 3
    PROGRAM_OUTPUT = 0x100
    JOB_STARTED = 0x101
    JOB_FINISHED = 0x102
    MEMORY_FAULT = 0x103
    LIMIT_EXCEEDED = 0x104
    PROCESS_LOST = 0x105


class Capability(NamedTuple):
    """One capability, 16 bytes (table 4.6): its ID, the size of a buffer in bytes."""

    id: U32
    size: Annotated[U64, At(8)] = 0


_CAPABILITIES = Record(Capability)


class Accelerator(NamedTuple):
    """One accelerator (table 4.5): 0:3 length, 4:5 its ID, 8:N capabilities."""

    id: int
    capabilities: tuple[Capability, ...] = ()

    def size_of(self, capability: CapabilityId) -> int | None:
        """The size of a capability's buffer in bytes; None when it has no such capability."""
        return next((item.size for item in self.capabilities if item.id == capability), None)


class IdentifyData(NamedTuple):
    """Accelerator Identify (table 4.4): 0:3 magic, 4:7 total length, 16:N accelerators."""

    accelerators: tuple[Accelerator, ...] = ()

    def encode(self) -> bytes:
        body = b"".join(_encode_accelerator(item) for item in self.accelerators)
        return _IDENTIFY_HEADER.pack(IDENTIFY_MAGIC, IDENTIFY_HEADER_SIZE + len(body)) + body

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        end = identify_length(buffer)
        body = _body("identify data", buffer, IDENTIFY_HEADER_SIZE, end)
        items = _split("accelerator descriptor", body, _ACCELERATOR_HEADER.size)
        return cls(tuple(_decode_accelerator(item) for item in items))


class StatusDescriptor(NamedTuple):
    """One capability's status, 32 bytes (table 4.9).

    The documentation leaves bytes 4:31 to the capability. 8:15 is the `amount` of bytes consumed
    or produced; for the firmware capability 4:7 is the active firmware's ID and 8:15 the 64-bit
    value that the program returned (as an unsigned number). 16:23 of that one is an extension: the
    nanoseconds that the job took of `modelled` time, 0 where time is not modelled.
    """

    capability: U32
    firmware: U32 = 0
    amount: U64 = 0
    modelled: U64 = 0


_STATUS_DESCRIPTORS = Record(StatusDescriptor, size=STATUS_DESCRIPTOR_SIZE)


_STATUS_NAMES = Form(pattern="^(idle|running|done|failed|stopped|status [0-9]+)$")


class AcceleratorStatus(NamedTuple):
    """Get Accelerator Status (table 4.8): 0:3 length, 4:7 status ID, 32:N descriptors."""

    status: Annotated[
        Count, Key("status_id"), "The status as a number of the accelerator command set."
    ]
    descriptors: tuple[StatusDescriptor, ...] = ()

    def descriptor(self, capability: CapabilityId) -> StatusDescriptor | None:
        """The descriptor of a capability; None when the status has none."""
        return next((item for item in self.descriptors if item.capability == capability), None)

    @property
    def name(self) -> Annotated[str, _STATUS_NAMES, Key("status", before="status_id")]:
        """Status: idle, running, done, failed or stopped; `status N` for an unknown number."""
        known = self.status in StatusId.__members__.values()
        return StatusId(self.status).name.lower() if known else f"status {self.status}"

    @property
    def firmware(self) -> Annotated[Count | None, Key()]:
        """ID of the active firmware; null if none is active."""
        item = self.descriptor(CapabilityId.FIRMWARE)
        return None if item is None or item.firmware == KEEP_ACTIVE_FIRMWARE else item.firmware

    @property
    def return_value(self) -> Annotated[Signed64, Key()]:
        """What the program returned (r0), as a signed number of 64 bits.

        It is 0 when the status does not say, as are the following.
        """
        value = self._amount(CapabilityId.FIRMWARE)
        return value - (1 << 64) if value >> 63 else value

    @property
    def consumed(self) -> Annotated[Count, Key()]:
        """Number of input bytes that the job read."""
        return self._amount(CapabilityId.INPUT_BUFFER)

    @property
    def produced(self) -> Annotated[Count, Key()]:
        """Number of output bytes that the job produced."""
        return self._amount(CapabilityId.OUTPUT_BUFFER)

    @property
    def modelled(self) -> int:
        """Nanoseconds of modelled time that the job took."""
        item = self.descriptor(CapabilityId.FIRMWARE)
        return item.modelled if item is not None else 0

    @property
    def modelled_ns(self) -> Annotated[Count | None, Key()]:
        """Modelled time that the job took, in ns; null where time is not modelled."""
        return self.modelled or None

    def _amount(self, capability: CapabilityId) -> int:
        item = self.descriptor(capability)
        return item.amount if item is not None else 0

    def encode(self) -> bytes:
        length = STATUS_HEADER_SIZE + STATUS_DESCRIPTOR_SIZE * len(self.descriptors)
        header = _STATUS_HEADER.pack(length, self.status)
        return header + b"".join(map(_STATUS_DESCRIPTORS.encode, self.descriptors))

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        body = _body("status", buffer, STATUS_HEADER_SIZE, leading_length(buffer))
        if len(body) % STATUS_DESCRIPTOR_SIZE:
            raise DescriptorError(
                f"{len(body)} bytes are not a whole number of status descriptors of "
                f"{STATUS_DESCRIPTOR_SIZE} bytes"
            )
        _, status = _STATUS_HEADER.unpack_from(buffer)
        return cls(status, tuple(_STATUS_DESCRIPTORS.decode_all(body)))


class LogEntry(NamedTuple):
    """An entry of an accelerator's log.

    It has its length, timestamp, type and text (table 4.2). The text is UTF-8; bytes that are not
    are shown escaped. Zeroes behind it, which its length includes, make an entry whole dwords: Get
    Log Page moves nothing else.
    """

    timestamp: Annotated[Count, "Time of the entry, in milliseconds since 1970 (UTC)."]
    type: Annotated[Count, "Type of the entry, a number of the accelerator command set."]
    text: Annotated[str, "Description of the event, or the text that the program printed."] = ""

    @property
    def name(self) -> Annotated[str, Key(before="text")]:
        """The type's name."""
        if self.type in LogEntryType.__members__.values():
            return LogEntryType(self.type).name.replace("_", " ").lower()
        return f"type {self.type:X}h"

    def encode(self) -> bytes:
        text = pad_to_dword(self.text.encode("utf-8", "backslashreplace"))
        return _LOG_ENTRY.pack(LOG_ENTRY_HEADER_SIZE + len(text), self.timestamp, self.type) + text

    @classmethod
    def decode(cls, entry: Buffer) -> Self:
        if len(entry) < LOG_ENTRY_HEADER_SIZE:
            raise DescriptorError(f"a log entry of {len(entry)} bytes has no room for its header")
        _, timestamp, type_ = _LOG_ENTRY.unpack_from(entry)
        text = bytes(entry[LOG_ENTRY_HEADER_SIZE:]).rstrip(b"\0")
        return cls(timestamp, type_, text.decode("utf-8", "backslashreplace"))


class LogPage(NamedTuple):
    """The accelerator log page (table 4.1): 0:3 length, 16:N entries.

    4:7 is an extension, the number of lost entries.
    """

    entries: Annotated[tuple[LogEntry, ...], "The entries, the oldest first."] = ()
    lost: Annotated[
        Count,
        Key(before="entries"),
        "Number of older entries that were dropped because the log was full.",
    ] = 0

    def encode(self) -> bytes:
        body = b"".join(entry.encode() for entry in self.entries)
        return _LOG_HEADER.pack(LOG_HEADER_SIZE + len(body), self.lost) + body

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        body = _body("log page", buffer, LOG_HEADER_SIZE, leading_length(buffer))
        _, lost = _LOG_HEADER.unpack_from(buffer)
        items = _split("log entry", body, LOG_ENTRY_HEADER_SIZE)
        return cls(tuple(LogEntry.decode(item) for item in items), lost)


def identify_length(header: Buffer) -> int:
    """Total bytes of identify data, from its first eight. DescriptorError without the magic."""
    if len(header) < len(IDENTIFY_MAGIC) + _LENGTH.size:
        raise DescriptorError(f"{len(header)} bytes are too few for identify data")
    magic = bytes(header[: len(IDENTIFY_MAGIC)])
    if magic != IDENTIFY_MAGIC:
        raise DescriptorError(f"the identify data starts with {magic!r}, not {IDENTIFY_MAGIC!r}")
    return int(_LENGTH.unpack_from(header, len(IDENTIFY_MAGIC))[0])


def leading_length(header: Buffer) -> int:
    """Total bytes of a status or a log page, from its first four."""
    if len(header) < _LENGTH.size:
        raise DescriptorError(f"{len(header)} bytes are too few for a length")
    return int(_LENGTH.unpack_from(header)[0])


def encode_arguments(values: Iterable[Buffer]) -> bytes:
    """The argument list of Start: for each value its length (these four bytes included) and itself.

    The list is padded with zeroes to whole dwords, which is what a command can carry.
    """
    entries = (_LENGTH.pack(ARGUMENT_HEADER_SIZE + len(value)) + bytes(value) for value in values)
    return pad_to_dword(b"".join(entries))


def decode_arguments(buffer: Buffer) -> tuple[bytes, ...]:
    """The values of an argument list that fills `buffer` but for the padding to a dword."""
    body = memoryview(buffer)
    used = len(body)
    for length in _lengths("argument", body, ARGUMENT_HEADER_SIZE, padded=True):
        used -= length
    if any(body[len(body) - used :]):
        raise DescriptorError("bytes other than zero follow the last argument")
    items = _split("argument", body[: len(body) - used], ARGUMENT_HEADER_SIZE)
    return tuple(bytes(item[ARGUMENT_HEADER_SIZE:]) for item in items)


def pad_to_dword(data: Buffer) -> bytes:
    """`data` with zeroes behind it up to a whole number of dwords."""
    return bytes(data) + bytes(-len(data) % DWORD_SIZE)


def dwords(size: int) -> int:
    """How many dwords hold `size` bytes."""
    return -(-size // DWORD_SIZE)


def _encode_accelerator(item: Accelerator) -> bytes:
    body = b"".join(map(_CAPABILITIES.encode, item.capabilities))
    return _ACCELERATOR_HEADER.pack(_ACCELERATOR_HEADER.size + len(body), item.id) + body


def _decode_accelerator(descriptor: memoryview) -> Accelerator:
    _, identifier = _ACCELERATOR_HEADER.unpack_from(descriptor)
    body = descriptor[_ACCELERATOR_HEADER.size :]
    if len(body) % _CAPABILITIES.size:
        raise DescriptorError(
            f"accelerator {identifier} has {len(body)} bytes of capabilities, which is not a "
            f"multiple of {_CAPABILITIES.size}"
        )
    return Accelerator(identifier, tuple(_CAPABILITIES.decode_all(body)))


def _body(what: str, buffer: Buffer, start: int, end: int) -> memoryview:
    """The bytes between a structure's header and its stated end."""
    if not start <= end <= len(buffer):
        raise DescriptorError(
            f"the {what} states a length of {end} bytes, but it has a header of {start} bytes and "
            f"{len(buffer)} bytes were given"
        )
    return memoryview(buffer)[start:end]


def _lengths(
    what: str, body: memoryview, header_size: int, *, padded: bool = False
) -> Iterator[int]:
    """The lengths that the items of `body` state, each of which has at least a header."""
    at = 0
    while at < len(body):
        left = len(body) - at
        if padded and left < DWORD_SIZE:
            return
        length = leading_length(body[at:])
        if not header_size <= length <= left:
            raise DescriptorError(
                f"the {what} at byte {at} states a length of {length} bytes, which is not between "
                f"{header_size} and {left}"
            )
        yield length
        at += length


def _split(what: str, body: memoryview, header_size: int) -> Iterator[memoryview]:
    """The items of `body`, each with its header."""
    at = 0
    for length in _lengths(what, body, header_size):
        yield body[at : at + length]
        at += length
