"""The vfio-user protocol as data: commands, flags, and one tuple for each payload.

Bytes in, tuples out, and back; sockets, file descriptors and devices are somebody else's file.
Whatever does not have the form that the specification gives it raises `ProtocolError`, before
anybody has acted on it.

Source: `docs/interop/vfio-user.rst` in QEMU's sources, section "Protocol Specification"; flags of
regions and interrupts are those of the `VFIO_` structures that it refers to. Everything is in the
byte order of the host, which here is little endian.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, ClassVar, NamedTuple, Self

Buffer = bytes | bytearray | memoryview

MAJOR_VERSION = 0
MINOR_VERSION = 1
"""The newest version that this library speaks; it speaks every minor version before it too."""

DEFAULT_MAX_MSG_FDS = 1
DEFAULT_MAX_TRANSFER = 1 << 20
"""What a peer that does not name `max_msg_fds` and `max_data_xfer_size` accepts (section
"VFIO_USER_VERSION")."""

MAX_VERSION_DATA = 4096
"""Bytes of JSON that a peer may propose; the specification sets no limit."""
MAX_MULTI_WRITES = 200
"""Writes in one REGION_WRITE_MULTI; QEMU coalesces no more than these."""
MULTI_WRITE_DATA = 8
"""Bytes of data in each write of a REGION_WRITE_MULTI; shorter writes leave the rest unused."""


class ProtocolError(Exception):
    """A message is not what the specification allows."""


class Command(IntEnum):
    """Message commands (section "Commands")."""

    VERSION = 1
    DMA_MAP = 2
    DMA_UNMAP = 3
    DEVICE_GET_INFO = 4
    DEVICE_GET_REGION_INFO = 5
    DEVICE_GET_REGION_IO_FDS = 6
    DEVICE_GET_IRQ_INFO = 7
    DEVICE_SET_IRQS = 8
    REGION_READ = 9
    REGION_WRITE = 10
    DMA_READ = 11
    DMA_WRITE = 12
    DEVICE_RESET = 13
    REGION_WRITE_MULTI = 15
    DEVICE_FEATURE = 16
    MIG_DATA_READ = 17
    MIG_DATA_WRITE = 18


class MessageType(IntEnum):
    """Bits 3:0 of the header's flags."""

    COMMAND = 0
    REPLY = 1


TYPE_MASK = 0xF


class MessageFlags(IntFlag):
    """The header's flags above its type."""

    NO_REPLY = 0x10
    ERROR = 0x20


class DmaFlags(IntFlag):
    """DMA_MAP: what the server may do with the region."""

    READABLE = 0x1
    WRITABLE = 0x2


class DmaUnmapFlags(IntFlag):
    """DMA_UNMAP: `VFIO_DMA_UNMAP_FLAG_*`."""

    GET_DIRTY_BITMAP = 0x1
    ALL = 0x2


class DeviceFlags(IntFlag):
    """DEVICE_GET_INFO: `VFIO_DEVICE_FLAGS_*`."""

    RESET = 0x1
    PCI = 0x2


class RegionFlags(IntFlag):
    """DEVICE_GET_REGION_INFO: `VFIO_REGION_INFO_FLAG_*`."""

    READ = 0x1
    WRITE = 0x2
    MMAP = 0x4
    CAPS = 0x8


class IrqFlags(IntFlag):
    """DEVICE_GET_IRQ_INFO: `VFIO_IRQ_INFO_*`."""

    EVENTFD = 0x1
    MASKABLE = 0x2
    AUTOMASKED = 0x4
    NORESIZE = 0x8


class IrqSetFlags(IntFlag):
    """DEVICE_SET_IRQS: one `DATA_` flag and one `ACTION_` flag (`VFIO_IRQ_SET_*`)."""

    DATA_NONE = 0x01
    DATA_BOOL = 0x02
    DATA_EVENTFD = 0x04
    ACTION_MASK = 0x08
    ACTION_UNMASK = 0x10
    ACTION_TRIGGER = 0x20


# Plain numbers, because `~` of an IntFlag leaves out the bits that have no name.
DMA_FLAGS = int(DmaFlags.READABLE | DmaFlags.WRITABLE)
IRQ_SET_DATA = int(IrqSetFlags.DATA_NONE | IrqSetFlags.DATA_BOOL | IrqSetFlags.DATA_EVENTFD)
IRQ_SET_ACTION = int(
    IrqSetFlags.ACTION_MASK | IrqSetFlags.ACTION_UNMASK | IrqSetFlags.ACTION_TRIGGER
)


class PciRegion(IntEnum):
    """Region indexes of a PCI device (`VFIO_PCI_*_REGION_INDEX`)."""

    BAR0 = 0
    BAR1 = 1
    BAR2 = 2
    BAR3 = 3
    BAR4 = 4
    BAR5 = 5
    ROM = 6
    CONFIG = 7
    VGA = 8


class PciIrq(IntEnum):
    """Interrupt indexes of a PCI device (`VFIO_PCI_*_IRQ_INDEX`)."""

    INTX = 0
    MSI = 1
    MSIX = 2
    ERR = 3
    REQ = 4


class _Payload:
    """A structure of one size, given by `FORM`; its fields are the dataclass's, in order."""

    FORM: ClassVar[struct.Struct]
    NAME: ClassVar[str]
    """What a message that is malformed is told to be."""

    def __init__(self, *fields: int) -> None:
        raise NotImplementedError

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        """Raises ProtocolError for anything of another size."""
        if len(payload) != cls.FORM.size:
            raise ProtocolError(
                f"the payload of {cls.NAME} is {len(payload)} bytes long and must be"
                f" {cls.FORM.size}"
            )
        return cls(*cls.FORM.unpack(payload))

    def encode(self) -> bytes:
        """Raises ProtocolError for a field that is out of its range."""
        return _packed(self.FORM, tuple(vars(self).values()), self.NAME)


def _head(form: struct.Struct, payload: Buffer, name: str) -> tuple[Any, ...]:
    """The fields that a payload of variable size begins with."""
    if len(payload) < form.size:
        raise ProtocolError(
            f"the payload of {name} is {len(payload)} bytes long and needs at least {form.size}"
        )
    return form.unpack_from(payload)


def _packed(form: struct.Struct, values: tuple[Any, ...], name: str) -> bytes:
    try:
        return form.pack(*values)
    except struct.error as error:
        raise ProtocolError(f"a field of {name} is out of its range: {error}") from None


HEADER = struct.Struct("<HHIII")
"""Message ID, command, message size with this header in it, flags, error."""


@dataclass(frozen=True)
class Header(_Payload):
    """What every message begins with (section "Header"); `size` counts the header too."""

    FORM = HEADER
    NAME = "a header"

    message_id: int
    command: int
    size: int
    flags: int = 0
    error: int = 0

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        header = super().decode(payload)
        if header.size < HEADER.size:
            raise ProtocolError(f"a message of {header.size} bytes is shorter than its header")
        if header.flags & TYPE_MASK not in (MessageType.COMMAND, MessageType.REPLY):
            raise ProtocolError(f"{header.flags & TYPE_MASK} is not a type of message")
        return header

    @property
    def is_reply(self) -> bool:
        return self.flags & TYPE_MASK == MessageType.REPLY

    @property
    def is_error(self) -> bool:
        return bool(self.flags & MessageFlags.ERROR)


_POSTED = int(MessageType.COMMAND | MessageFlags.NO_REPLY)
_ERROR = int(MessageType.REPLY | MessageFlags.ERROR)


def encode_command(
    message_id: int, command: int, payload: Buffer = b"", *, no_reply: bool = False
) -> bytes:
    """A whole command message."""
    flags = _POSTED if no_reply else MessageType.COMMAND
    return HEADER.pack(message_id, command, HEADER.size + len(payload), flags, 0) + payload


def encode_reply(message_id: int, command: int, payload: Buffer = b"") -> bytes:
    """A whole reply to a command that succeeded."""
    size = HEADER.size + len(payload)
    return HEADER.pack(message_id, command, size, MessageType.REPLY, 0) + payload


def encode_error(message_id: int, command: int, error: int) -> bytes:
    """A whole reply to a command that failed with `error`, an errno: the header alone."""
    return HEADER.pack(message_id, command, HEADER.size, _ERROR, error)


_VERSION = struct.Struct("<HH")


class Version(NamedTuple):
    """VERSION, request and reply: a version, and capabilities as JSON with a NUL at its end.

    `capabilities` is what stands under that name, and empty where nothing does.
    """

    major: int
    minor: int
    capabilities: dict[str, Any]

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        major, minor = _head(_VERSION, payload, "VERSION")
        data = bytes(payload[_VERSION.size :])
        return cls(major, minor, _capabilities(data) if data else {})

    def encode(self) -> bytes:
        head = _packed(_VERSION, (self.major, self.minor), "VERSION")
        if not self.capabilities:
            return head
        data = json.dumps({"capabilities": self.capabilities}, separators=(",", ":"))
        return head + data.encode() + b"\0"

    def limit(self, name: str, default: int) -> int:
        """The number under `name`, or what the specification has where it is not named."""
        value = self.capabilities.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ProtocolError(f"the capability {name} must be a number and not {value!r:.40}")
        return value


def _capabilities(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_VERSION_DATA:
        raise ProtocolError(f"{len(data)} bytes of version data are more than {MAX_VERSION_DATA}")
    if data[-1:] != b"\0":
        raise ProtocolError("the version data does not end with a NUL")
    try:
        document = json.loads(data[:-1])
    except (ValueError, RecursionError):
        raise ProtocolError("the version data is not JSON") from None
    capabilities = document.get("capabilities", {}) if isinstance(document, dict) else None
    if not isinstance(capabilities, dict):
        raise ProtocolError("the version data must be an object with an object of capabilities")
    return capabilities


@dataclass(frozen=True)
class DmaMap(_Payload):
    """DMA_MAP: `size` bytes at DMA address `address` are the file's bytes at `offset`."""

    FORM = struct.Struct("<IIQQQ")
    NAME = "DMA_MAP"

    argsz: int
    flags: int
    offset: int
    address: int
    size: int


@dataclass(frozen=True)
class DmaUnmap(_Payload):
    """DMA_UNMAP, request and reply."""

    FORM = struct.Struct("<IIQQ")
    NAME = "DMA_UNMAP"

    argsz: int
    flags: int
    address: int
    size: int


@dataclass(frozen=True)
class DeviceInfo(_Payload):
    """DEVICE_GET_INFO, request and reply: how many regions and kinds of interrupt there are."""

    FORM = struct.Struct("<IIII")
    NAME = "DEVICE_GET_INFO"

    argsz: int
    flags: int = 0
    num_regions: int = 0
    num_irqs: int = 0


@dataclass(frozen=True)
class RegionInfo(_Payload):
    """DEVICE_GET_REGION_INFO, request and reply: `size` is the region's, in bytes.

    Capabilities may follow it in a reply to a request whose `argsz` has room for them.
    """

    FORM = struct.Struct("<IIIIQQ")
    NAME = "DEVICE_GET_REGION_INFO"

    argsz: int
    flags: int = 0
    index: int = 0
    cap_offset: int = 0
    size: int = 0
    offset: int = 0


@dataclass(frozen=True)
class IrqInfo(_Payload):
    """DEVICE_GET_IRQ_INFO, request and reply: `count` interrupts of the kind `index`."""

    FORM = struct.Struct("<IIII")
    NAME = "DEVICE_GET_IRQ_INFO"

    argsz: int
    flags: int = 0
    index: int = 0
    count: int = 0


_SET_IRQS = struct.Struct("<IIIII")


@dataclass(frozen=True)
class SetIrqs:
    """DEVICE_SET_IRQS: an action on the interrupts `start` to `start + count` of kind `index`.

    `data` has one byte for each of them with DATA_BOOL, and is empty otherwise: eventfds travel
    beside the message. `argsz` may count them too and is not compared with anything.
    """

    SIZE: ClassVar[int] = _SET_IRQS.size
    """Bytes of the request without `data`."""

    argsz: int
    flags: int
    index: int
    start: int
    count: int
    data: bytes = b""

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        argsz, flags, index, start, count = _head(_SET_IRQS, payload, "DEVICE_SET_IRQS")
        request = cls(argsz, flags, index, start, count, bytes(payload[_SET_IRQS.size :]))
        if request.flags & ~(IRQ_SET_DATA | IRQ_SET_ACTION):
            raise ProtocolError(f"DEVICE_SET_IRQS has unknown flags: {request.flags:#x}")
        if (request.flags & IRQ_SET_DATA).bit_count() != 1:
            raise ProtocolError("DEVICE_SET_IRQS must have exactly one kind of data")
        if (request.flags & IRQ_SET_ACTION).bit_count() != 1:
            raise ProtocolError("DEVICE_SET_IRQS must have exactly one action")
        expected = request.count if request.flags & IrqSetFlags.DATA_BOOL else 0
        if len(request.data) != expected:
            raise ProtocolError(
                f"DEVICE_SET_IRQS has {len(request.data)} bytes of data and must have {expected}"
            )
        return request

    def encode(self) -> bytes:
        fields = (self.argsz, self.flags, self.index, self.start, self.count)
        return _packed(_SET_IRQS, fields, "DEVICE_SET_IRQS") + self.data

    @property
    def end(self) -> int:
        """One past the last interrupt."""
        return self.start + self.count


REGION_ACCESS = struct.Struct("<QII")
"""Offset, region, count: REGION_READ, and what comes before the data of a REGION_WRITE."""


@dataclass(frozen=True)
class RegionAccess(_Payload):
    """REGION_READ's request and REGION_WRITE's reply: `count` bytes at `offset` of a region."""

    FORM = REGION_ACCESS
    NAME = "a region access"

    offset: int
    region: int
    count: int


class RegionData(NamedTuple):
    """REGION_WRITE's request and REGION_READ's reply: an access and its data."""

    offset: int
    region: int
    data: bytes

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        offset, region, count = _head(REGION_ACCESS, payload, "a region access")
        data = bytes(payload[REGION_ACCESS.size :])
        if len(data) != count:
            raise ProtocolError(
                f"a region access of {count} bytes comes with {len(data)} bytes of data"
            )
        return cls(offset, region, data)

    def encode(self) -> bytes:
        fields = (self.offset, self.region, len(self.data))
        return _packed(REGION_ACCESS, fields, "a region access") + self.data


_MULTI_COUNT = struct.Struct("<Q")
_MULTI_WRITE = struct.Struct(f"<QII{MULTI_WRITE_DATA}s")


class RegionWriteMulti(NamedTuple):
    """REGION_WRITE_MULTI's request: several writes of at most 8 bytes, in order."""

    writes: tuple[RegionData, ...]

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        (count,) = _head(_MULTI_COUNT, payload, "REGION_WRITE_MULTI")
        if count > MAX_MULTI_WRITES:
            raise ProtocolError(f"{count} writes in one message are more than {MAX_MULTI_WRITES}")
        if len(payload) != _MULTI_COUNT.size + count * _MULTI_WRITE.size:
            raise ProtocolError(
                f"the payload of {count} coalesced writes cannot be {len(payload)} bytes long"
            )
        writes = []
        for offset, region, size, data in _MULTI_WRITE.iter_unpack(payload[_MULTI_COUNT.size :]):
            if size > MULTI_WRITE_DATA:
                raise ProtocolError(f"a coalesced write cannot have {size} bytes")
            writes.append(RegionData(offset, region, data[:size]))
        return cls(tuple(writes))

    def encode(self) -> bytes:
        return _packed(_MULTI_COUNT, (len(self.writes),), "REGION_WRITE_MULTI") + b"".join(
            _packed(
                _MULTI_WRITE,
                (write.offset, write.region, len(write.data), write.data),
                "REGION_WRITE_MULTI",
            )
            for write in self.writes
        )


@dataclass(frozen=True)
class RegionWriteMultiReply(_Payload):
    """REGION_WRITE_MULTI's reply: how many writes were done."""

    FORM = _MULTI_COUNT
    NAME = "a reply to REGION_WRITE_MULTI"

    count: int
