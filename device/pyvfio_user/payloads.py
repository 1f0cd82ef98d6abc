"""The payloads of vfio-user's messages, one type for each, with the form the specification gives
it.

`decode` takes the bytes behind a header apart and raises `ProtocolError` where they cannot be what
the command wants; `encode` puts them together. Each is a request, a reply, or both.

Source: `docs/interop/vfio-user.rst` in QEMU's sources, section "Protocol Specification".
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from potash_wire.records import U32, U64, Range, Record, Stored, WireError
from pyvfio_user.protocol import (
    IRQ_SET_ACTION,
    IRQ_SET_DATA,
    Buffer,
    IrqSetFlags,
    ProtocolError,
    Structure,
    begun,
    head,
    packed,
    stored,
)

MAX_VERSION_DATA = 4096
"""Bytes of JSON that a peer may propose; the specification sets no limit."""
MAX_MULTI_WRITES = 200
"""Writes in one REGION_WRITE_MULTI; QEMU coalesces no more than these."""
MULTI_WRITE_DATA = 8
"""Bytes of data in each write of a REGION_WRITE_MULTI; shorter writes leave the rest unused."""

_VERSION = struct.Struct("<HH")
_CAPABILITY_TYPES: Mapping[str, type] = {
    "max_msg_fds": int,
    "max_data_xfer_size": int,
    "max_dma_maps": int,
    "pgsizes": int,
    "twin_socket": dict,
    "write_multiple": bool,
}
"""What the specification has; others are left alone."""


class Version(NamedTuple):
    """VERSION, request and reply: a version, and capabilities as JSON with a NUL at its end.

    `capabilities` is what stands under that name, and empty where nothing does.
    """

    major: int
    minor: int
    capabilities: dict[str, Any]

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        major, minor = head(_VERSION, payload, "VERSION")
        data = bytes(payload[_VERSION.size :])
        return cls(major, minor, _capabilities(data) if data else {})

    def encode(self) -> bytes:
        version = packed(_VERSION, (self.major, self.minor), "VERSION")
        if not self.capabilities:
            return version
        data = json.dumps({"capabilities": self.capabilities}, separators=(",", ":"))
        return version + data.encode() + b"\0"

    def limit(self, name: str, default: int) -> int:
        """The number under `name`, or what the specification has where it is not named."""
        value = self.capabilities.get(name, default)
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """The boolean under `name`, False where it is not named."""
        return self.capabilities.get(name, False) is True


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
    for name, kind in _CAPABILITY_TYPES.items():
        value = capabilities.get(name, kind())
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise ProtocolError(f"the capability {name} cannot be {value!r:.40}")
    return capabilities


@dataclass(frozen=True)
class DmaMap(Structure):
    """DMA_MAP: `size` bytes at DMA address `address` are the file's bytes at `offset`."""

    NAME = "DMA_MAP"

    argsz: U32
    flags: U32
    offset: U64
    address: U64
    size: U64


@dataclass(frozen=True)
class DmaUnmap(Structure):
    """DMA_UNMAP, request and reply."""

    NAME = "DMA_UNMAP"

    argsz: U32
    flags: U32
    address: U64
    size: U64


@dataclass(frozen=True)
class DeviceInfo(Structure):
    """DEVICE_GET_INFO, request and reply: how many regions and kinds of interrupt there are."""

    NAME = "DEVICE_GET_INFO"

    argsz: U32
    flags: U32 = 0
    num_regions: U32 = 0
    num_irqs: U32 = 0


@dataclass(frozen=True)
class RegionInfo(Structure):
    """DEVICE_GET_REGION_INFO, request and reply: `size` is the region's, in bytes.

    Capabilities follow it in a reply to a request whose `argsz` has room for them, the first at
    `cap_offset`. `offset` is that of the region in the descriptor that comes with the reply.
    """

    NAME = "DEVICE_GET_REGION_INFO"

    argsz: U32
    flags: U32 = 0
    index: U32 = 0
    cap_offset: U32 = 0
    size: U64 = 0
    offset: U64 = 0


class Area(NamedTuple):
    """Part of a region: `size` bytes from `offset` on."""

    offset: U64
    size: U64


class RegionType(NamedTuple):
    """What a region is for that has no index of its own in PCI: `VFIO_REGION_TYPE_*` and a subtype
    of `<linux/vfio.h>`."""

    type: U32
    subtype: U32


_CAPABILITY = struct.Struct("<HHI")
_AREA_COUNT = struct.Struct("<II")
_TYPES = Record(RegionType)
_AREAS = Record(Area)
_SPARSE_MMAP_ID, _TYPE_ID = 1, 2
_CAPABILITY_VERSION = 1


class RegionCapabilities(NamedTuple):
    """What follows a RegionInfo: the areas of the region that a client can map, None where that is
    all of it (`VFIO_REGION_INFO_CAP_SPARSE_MMAP`), and its type (`VFIO_REGION_INFO_CAP_TYPE`)."""

    areas: tuple[Area, ...] | None = None
    type: RegionType | None = None

    @classmethod
    def decode(cls, reply: Buffer) -> Self:
        """Those in a whole reply to DEVICE_GET_REGION_INFO; others are left alone.

        Raises ProtocolError for a list of capabilities that leaves the reply or does not go
        forward.
        """
        found = cls()
        at, before = RegionInfo.decode_head(reply).cap_offset, RegionInfo.FORM.size - 1
        while at:
            if at <= before:
                raise ProtocolError("the capabilities of a region do not follow each other")
            identity, version, following = head(_CAPABILITY, reply[at:], "a capability")
            body = reply[at + _CAPABILITY.size :]
            if (identity, version) == (_TYPE_ID, _CAPABILITY_VERSION):
                found = found._replace(type=begun(_TYPES, body, "a region's type"))
            elif (identity, version) == (_SPARSE_MMAP_ID, _CAPABILITY_VERSION):
                count, _ = head(_AREA_COUNT, body, "the areas of a region")
                areas = body[_AREA_COUNT.size :][: count * _AREAS.size]
                if len(areas) != count * _AREAS.size:
                    raise ProtocolError(f"a reply has no room for {count} areas of a region")
                found = found._replace(areas=tuple(_AREAS.decode_all(areas)))
            before, at = at, following
        return found

    def encode(self) -> bytes:
        """Their bytes, for right behind a RegionInfo; none without any."""
        bodies = []
        if self.type is not None:
            bodies.append((_TYPE_ID, stored(_TYPES, self.type, "a region's type")))
        if self.areas is not None:
            areas = b"".join(stored(_AREAS, area, "an area of a region") for area in self.areas)
            bodies.append((_SPARSE_MMAP_ID, _AREA_COUNT.pack(len(self.areas), 0) + areas))
        data = b""
        for left, (identity, body) in enumerate(bodies, 1 - len(bodies)):
            following = RegionInfo.FORM.size + len(data) + _CAPABILITY.size + len(body)
            data += _CAPABILITY.pack(identity, _CAPABILITY_VERSION, following if left else 0) + body
        return data


@dataclass(frozen=True)
class RegionIoFds(Structure):
    """DEVICE_GET_REGION_IO_FDS, request and reply, which `count` sub-regions follow."""

    NAME = "DEVICE_GET_REGION_IO_FDS"

    argsz: U32
    flags: U32 = 0
    index: U32 = 0
    count: U32 = 0


@dataclass(frozen=True)
class SubRegion(Structure):
    """Part of a region that file descriptor number `fd_index` of a reply to
    DEVICE_GET_REGION_IO_FDS reports accesses to.

    `data` is the value to match for an ioeventfd with `IoEventFdFlags.DATAMATCH`, and an
    ioregionfd's user data.
    """

    NAME = "a sub-region"

    offset: U64
    size: U64
    fd_index: U32
    type: U32
    flags: U32 = 0
    padding: U32 = 0
    data: U64 = 0

    @classmethod
    def decode_all(cls, reply: Buffer) -> list[Self]:
        """Those of a whole reply to DEVICE_GET_REGION_IO_FDS.

        Raises ProtocolError for a reply without room for as many as it says. "This is 40 bytes for
        both IO FD types, but this is not to be relied on": they may have grown.
        """
        count = RegionIoFds.decode_head(reply).count
        if not count:
            return []
        entries = reply[RegionIoFds.FORM.size :]
        size = len(entries) // count
        if size < cls.FORM.size:
            raise ProtocolError(f"a reply has no room for {count} sub-regions")
        return [cls.decode_head(entries[at * size : (at + 1) * size]) for at in range(count)]


@dataclass(frozen=True)
class IrqInfo(Structure):
    """DEVICE_GET_IRQ_INFO, request and reply: `count` interrupts of the kind `index`."""

    NAME = "DEVICE_GET_IRQ_INFO"

    argsz: U32
    flags: U32 = 0
    index: U32 = 0
    count: U32 = 0


_SET_IRQS = struct.Struct("<IIIII")


@dataclass(frozen=True)
class SetIrqs:
    """DEVICE_SET_IRQS: an action on the interrupts `start` to `start + count` of kind `index`.

    `data` has one byte for each of them with DATA_BOOL, and is empty otherwise: eventfds travel
    beside the message, and `argsz` may count them or not. A trigger with DATA_NONE, and neither a
    start nor a count, disables all interrupts of the kind.
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
        argsz, flags, index, start, count = head(_SET_IRQS, payload, "DEVICE_SET_IRQS")
        data = payload[_SET_IRQS.size :] if flags & IrqSetFlags.DATA_BOOL else b""
        request = cls(argsz, flags, index, start, count, bytes(data))
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
        if argsz < _SET_IRQS.size + expected:
            raise ProtocolError(f"argsz is {argsz} and does not count all of DEVICE_SET_IRQS")
        return request

    def encode(self) -> bytes:
        fields = (self.argsz, self.flags, self.index, self.start, self.count)
        return packed(_SET_IRQS, fields, "DEVICE_SET_IRQS") + self.data

    @property
    def end(self) -> int:
        """One past the last interrupt."""
        return self.start + self.count


REGION_ACCESS = struct.Struct("<QII")
"""Offset, region, count: REGION_READ, and what comes before the data of a REGION_WRITE."""


@dataclass(frozen=True)
class RegionAccess(Structure):
    """REGION_READ's request and REGION_WRITE's reply: `count` bytes at `offset` of a region."""

    NAME = "a region access"

    offset: U64
    region: U32
    count: U32


class RegionData(NamedTuple):
    """REGION_WRITE's request and REGION_READ's reply: an access and its data."""

    offset: int
    region: int
    data: bytes

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        offset, region, count = head(REGION_ACCESS, payload, "a region access")
        data = bytes(payload[REGION_ACCESS.size :])
        if len(data) != count:
            raise ProtocolError(
                f"a region access of {count} bytes comes with {len(data)} bytes of data"
            )
        return cls(offset, region, data)

    def encode(self) -> bytes:
        fields = (self.offset, self.region, len(self.data))
        return packed(REGION_ACCESS, fields, "a region access") + self.data


_MULTI_COUNT = struct.Struct("<Q")


class _Write(NamedTuple):
    offset: U64
    region: U32
    size: Annotated[U32, Range(0, MULTI_WRITE_DATA)]
    data: Annotated[bytes, Stored(f"{MULTI_WRITE_DATA}s")]


_WRITES = Record(_Write)


class RegionWriteMulti(NamedTuple):
    """REGION_WRITE_MULTI's request: several writes of at most 8 bytes, in order."""

    writes: tuple[RegionData, ...]

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        (count,) = head(_MULTI_COUNT, payload, "REGION_WRITE_MULTI")
        if count > MAX_MULTI_WRITES:
            raise ProtocolError(f"{count} writes in one message are more than {MAX_MULTI_WRITES}")
        if len(payload) != _MULTI_COUNT.size + count * _WRITES.size:
            raise ProtocolError(
                f"the payload of {count} coalesced writes cannot be {len(payload)} bytes long"
            )
        try:
            writes = [*_WRITES.decode_all(payload[_MULTI_COUNT.size :])]
        except WireError as error:
            raise ProtocolError(f"a coalesced write is malformed: {error}") from None
        return cls(
            tuple(RegionData(offset, region, data[:size]) for offset, region, size, data in writes)
        )

    def encode(self) -> bytes:
        writes = [_Write(one.offset, one.region, len(one.data), one.data) for one in self.writes]
        return _MULTI_COUNT.pack(len(writes)) + b"".join(
            stored(_WRITES, one, "REGION_WRITE_MULTI") for one in writes
        )


@dataclass(frozen=True)
class RegionWriteMultiReply(Structure):
    """REGION_WRITE_MULTI's reply: how many writes were done."""

    NAME = "a reply to REGION_WRITE_MULTI"

    count: U64
