"""The structures that accelerator commands move: identify, status, log page and argument list.

Each states its own length in bytes. A decode takes a buffer of at least that length (what follows
is padding) and raises DescriptorError for anything that contradicts itself.

Alkali CSD platform documentation, tables 4.1 to 4.10 and section 4.3.2 (Start accelerator)."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, Self

from csd_spec.opcodes import DWORD_SIZE, KEEP_ACTIVE_FIRMWARE
from csd_spec.reporting import Count, Form, Key, Signed64
from csd_spec.status import StatusId
from potash_wire.packed import Packed
from potash_wire.records import REST, U16, U32, U64, At, Converted, Number

Buffer = bytes | bytearray | memoryview

IDENTIFY_MAGIC = b"WDC0"

IDENTIFY_HEADER_SIZE = 16
STATUS_HEADER_SIZE = 32
STATUS_DESCRIPTOR_SIZE = 32
LOG_HEADER_SIZE = 16
LOG_ENTRY_HEADER_SIZE = 16
ARGUMENT_HEADER_SIZE = 4


class DescriptorError(ValueError):
    """A structure's bytes contradict themselves; the message says which and how."""


class Descriptor(Packed, error=DescriptorError):
    """A structure of this command set."""


class CapabilityId(IntEnum):
    """A capability of an accelerator (table 4.7)."""

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
    STEP_FINISHED = 0x106


class Capability(Descriptor):
    """One capability, 16 bytes (table 4.6): its ID, the size of a buffer in bytes."""

    id: U32
    size: Annotated[U64, At(8)] = 0


class Accelerator(Descriptor, least_size=8, total=Number("I", 0)):
    """One accelerator (table 4.5): its length and ID, then capabilities."""

    id: Annotated[U16, At(4)]
    capabilities: Annotated[tuple[Capability, ...], REST] = ()

    def size_of(self, capability: CapabilityId) -> int | None:
        """The size of a capability's buffer in bytes; None when it has no such capability."""
        return next((item.size for item in self.capabilities if item.id == capability), None)


class IdentifyData(
    Packed,
    prefix=IDENTIFY_MAGIC,
    least_size=IDENTIFY_HEADER_SIZE,
    total=Number("I", 4),
    error=DescriptorError,
):
    """Accelerator Identify (table 4.4): magic and total length, then accelerators."""

    accelerators: Annotated[tuple[Accelerator, ...], REST] = ()

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        identify_length(data)
        return super().decode(data)


class StatusDescriptor(Descriptor, least_size=STATUS_DESCRIPTOR_SIZE):
    """One capability's status, 32 bytes (table 4.9).

    The documentation leaves bytes 4:31 to the capability. 8:15 is the `amount` of bytes consumed
    or produced; for the firmware capability 4:7 is the active firmware's ID and 8:15 the 64-bit
    value that the program returned (as an unsigned number). 16:31 of that one is an extension: the
    nanoseconds that the job took of `modelled` time, 0 where time is not modelled, and for a chain
    its number of `steps` and how many of these have `ended` without a fault, 0 for other jobs.
    """

    capability: U32
    firmware: U32 = 0
    amount: U64 = 0
    modelled: U64 = 0
    steps: U32 = 0
    ended: U32 = 0


_STATUS_NAMES = Form(pattern="^(idle|running|done|failed|stopped|status [0-9]+)$")


class AcceleratorStatus(Descriptor, least_size=STATUS_HEADER_SIZE, total=Number("I", 0)):
    """Get Accelerator Status (table 4.8): its length and a status ID, then descriptors."""

    status: Annotated[
        U32,
        At(4),
        Form(minimum=0),
        Key("status_id"),
        "The status as a number of the accelerator command set.",
    ]
    descriptors: Annotated[tuple[StatusDescriptor, ...], REST] = ()

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
        """The program's return value (r0), as a signed number of 64 bits.

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
        """Modelled time that the job took, in ns; null if time is not modelled."""
        return self.modelled or None

    @property
    def steps(self) -> int:
        """Number of steps of a chain; 0 for another job."""
        item = self.descriptor(CapabilityId.FIRMWARE)
        return item.steps if item is not None else 0

    @property
    def ended_steps(self) -> int:
        """Number of steps of a chain that have ended without a fault."""
        item = self.descriptor(CapabilityId.FIRMWARE)
        return item.ended if item is not None else 0

    def _amount(self, capability: CapabilityId) -> int:
        item = self.descriptor(capability)
        return item.amount if item is not None else 0


class LogEntry(Descriptor, total=Number("I", 0)):
    """An entry of an accelerator's log.

    It has its length, timestamp, type and text (table 4.2). The text is UTF-8; bytes that are not
    are shown escaped. Zeroes behind it, which its length includes, make an entry whole dwords: Get
    Log Page moves nothing else.
    """

    timestamp: Annotated[
        U64, At(4), Form(minimum=0), "Time of the entry, in milliseconds since 1970 (UTC)."
    ]
    type: Annotated[
        U32, Form(minimum=0), "Type of the entry, a number of the accelerator command set."
    ]
    text: Annotated[
        str,
        REST,
        Converted(
            bytes,
            lambda text: pad_to_dword(text.encode(errors="backslashreplace")),
            lambda data: data.rstrip(b"\0").decode(errors="backslashreplace"),
        ),
        "Description of the event, or the text that the program printed.",
    ] = ""

    @property
    def name(self) -> Annotated[str, Key(before="text")]:
        """The type's name."""
        if self.type in LogEntryType.__members__.values():
            return LogEntryType(self.type).name.replace("_", " ").lower()
        return f"type {self.type:X}h"


class LogPage(Descriptor, least_size=LOG_HEADER_SIZE, total=Number("I", 0)):
    """The accelerator log page (table 4.1): its length, then entries.

    The number of lost entries is an extension.
    """

    entries: Annotated[tuple[LogEntry, ...], REST, "The entries, the oldest first."] = ()
    lost: Annotated[
        U32,
        At(4),
        Form(minimum=0),
        Key(before="entries"),
        "Number of older entries that were dropped because the log was full.",
    ] = 0


class _Argument(Descriptor, total=Number("I", 0)):
    value: Annotated[bytes, REST]


def identify_length(header: Buffer) -> int:
    """Total bytes of identify data, from its first eight. DescriptorError without the magic."""
    if len(header) < len(IDENTIFY_MAGIC) + 4:
        raise DescriptorError(f"{len(header)} bytes are too few for identify data")
    magic = bytes(header[: len(IDENTIFY_MAGIC)])
    if magic != IDENTIFY_MAGIC:
        raise DescriptorError(f"the identify data starts with {magic!r}, not {IDENTIFY_MAGIC!r}")
    return leading_length(header[len(IDENTIFY_MAGIC) :])


def leading_length(header: Buffer) -> int:
    """Total bytes of a status or a log page, from its first four."""
    if len(header) < 4:
        raise DescriptorError(f"{len(header)} bytes are too few for a length")
    return int.from_bytes(header[:4], "little")


def encode_arguments(values: Iterable[Buffer]) -> bytes:
    """The argument list of Start: for each value its length (these four bytes included) and itself.

    The list is padded with zeroes to whole dwords, which is what a command can carry.
    """
    # Not by `_Argument`, as each execution of a program encodes a list.
    entries: list[bytes] = []
    for value in map(bytes, values):
        entries += (ARGUMENT_HEADER_SIZE + len(value)).to_bytes(DWORD_SIZE, "little"), value
    return pad_to_dword(b"".join(entries))


def decode_arguments(buffer: Buffer) -> tuple[bytes, ...]:
    """The values of an argument list that fills `buffer` but for the padding to a dword."""
    values, left = [], memoryview(buffer)
    while len(left) >= DWORD_SIZE:
        (value,) = _Argument.decode(left)
        values.append(value)
        left = left[ARGUMENT_HEADER_SIZE + len(value) :]
    if any(left):
        raise DescriptorError("bytes other than zero follow the last argument")
    return tuple(values)


def pad_to_dword(data: Buffer) -> bytes:
    """`data` with zeroes behind it up to a whole number of dwords."""
    return bytes(data) + bytes(-len(data) % DWORD_SIZE)


def dwords(size: int) -> int:
    """Number of dwords that hold `size` bytes."""
    return -(-size // DWORD_SIZE)
