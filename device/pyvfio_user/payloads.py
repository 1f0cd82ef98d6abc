"""The payloads of vfio-user's messages, one type for each, with the form the specification gives
it.

`decode` parses the bytes behind a header and raises `ProtocolError` where they cannot be what
the command wants; `encode` puts them together. Each is a request, a reply, or both.

Source: `docs/interop/vfio-user.rst` in QEMU's sources, section "Protocol Specification".
"""

import json
import struct
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self

from potash_wire.records import REST, U16, U32, U64, Converted, Number, Range, Stored
from pyvfio_user.protocol import (
    IRQ_SET_ACTION,
    IRQ_SET_DATA,
    Buffer,
    IrqSetFlags,
    ProtocolError,
    Structure,
)

MAX_VERSION_DATA = 4096
"""Bytes of JSON that a peer may propose; the specification sets no limit."""
MAX_MULTI_WRITES = 200
"""Writes in one REGION_WRITE_MULTI; QEMU coalesces no more than these."""
MULTI_WRITE_DATA = 8
"""Bytes of data in each write of a REGION_WRITE_MULTI; shorter writes leave the rest unused."""

_CAPABILITY_TYPES: Mapping[str, type] = {
    "max_msg_fds": int,
    "max_data_xfer_size": int,
    "max_dma_maps": int,
    "pgsizes": int,
    "twin_socket": dict,
    "write_multiple": bool,
}
"""Capabilities of the specification; others are ignored."""


def _capabilities_json(capabilities: Mapping[str, Any]) -> bytes:
    if not capabilities:
        return b""
    return json.dumps({"capabilities": capabilities}, separators=(",", ":")).encode() + b"\0"


def _capabilities(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
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


class Version(Structure):
    """VERSION, request and reply: a version, and capabilities as JSON with a NUL at its end.

    `capabilities` is what stands under that name, and empty where nothing does.
    """

    major: U16
    minor: U16
    capabilities: Annotated[
        dict[str, Any], REST, Converted(bytes, _capabilities_json, _capabilities)
    ]

    def limit(self, name: str, default: int) -> int:
        """The number under `name`, or what the specification has where it is not named."""
        value = self.capabilities.get(name, default)
        assert isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """The boolean under `name`, False where it is not named."""
        return self.capabilities.get(name, False) is True


class DmaMap(Structure):
    """DMA_MAP: `size` bytes at DMA address `address` are the file's bytes at `offset`."""

    argsz: U32
    flags: U32
    offset: U64
    address: U64
    size: U64


class DmaUnmap(Structure):
    """DMA_UNMAP, request and reply."""

    argsz: U32
    flags: U32
    address: U64
    size: U64


class DeviceInfo(Structure):
    """DEVICE_GET_INFO, request and reply: how many regions and kinds of interrupt there are."""

    argsz: U32
    flags: U32 = 0
    num_regions: U32 = 0
    num_irqs: U32 = 0


class RegionInfo(Structure):
    """DEVICE_GET_REGION_INFO, request and reply: `size` is the region's, in bytes.

    Capabilities follow it in a reply to a request whose `argsz` has room for them, the first at
    `cap_offset`. `offset` is that of the region in the descriptor that comes with the reply.
    """

    argsz: U32
    flags: U32 = 0
    index: U32 = 0
    cap_offset: U32 = 0
    size: U64 = 0
    offset: U64 = 0


class Area(Structure):
    """Part of a region: `size` bytes from `offset` on."""

    offset: U64
    size: U64


class RegionType(Structure):
    """Purpose of a region that has no index of its own in PCI: `VFIO_REGION_TYPE_*` and a subtype
    of `<linux/vfio.h>`."""

    type: U32
    subtype: U32


class _Capability(Structure):
    identity: U16
    version: U16
    following: U32


class _Areas(Structure, least_size=8):
    areas: Annotated[tuple[Area, ...], Number("I")]


_SPARSE_MMAP_ID, _TYPE_ID = 1, 2
_CAPABILITY_VERSION = 1


class RegionCapabilities(NamedTuple):
    """Capabilities behind a RegionInfo: the areas of the region that a client can map, None if
    all of it (`VFIO_REGION_INFO_CAP_SPARSE_MMAP`), and its type (`VFIO_REGION_INFO_CAP_TYPE`)."""

    areas: tuple[Area, ...] | None = None
    type: RegionType | None = None

    @classmethod
    def decode(cls, reply: Buffer) -> Self:
        """Decode a whole reply to DEVICE_GET_REGION_INFO; other capabilities are ignored. Raises
        ProtocolError for a list of capabilities that leaves the reply or does not go forward."""
        found, reply = cls(), memoryview(reply)
        at, before = RegionInfo.decode_head(reply).cap_offset, RegionInfo.RECORD.size - 1
        while at:
            if at <= before:
                raise ProtocolError("the capabilities of a region do not follow each other")
            identity, version, following = _Capability.decode_head(reply[at:])
            body = reply[at + _Capability.RECORD.size :]
            if (identity, version) == (_TYPE_ID, _CAPABILITY_VERSION):
                found = found._replace(type=RegionType.decode_head(body))
            elif (identity, version) == (_SPARSE_MMAP_ID, _CAPABILITY_VERSION):
                found = found._replace(areas=_Areas.decode_head(body).areas)
            before, at = at, following
        return found

    def encode(self) -> bytes:
        """Their bytes, for right behind a RegionInfo; none without any."""
        bodies = []
        if self.type is not None:
            bodies.append((_TYPE_ID, self.type.encode()))
        if self.areas is not None:
            bodies.append((_SPARSE_MMAP_ID, _Areas(self.areas).encode()))
        data = b""
        for left, (identity, body) in enumerate(bodies, 1 - len(bodies)):
            end = RegionInfo.RECORD.size + len(data) + _Capability.RECORD.size + len(body)
            data += _Capability(identity, _CAPABILITY_VERSION, end if left else 0).encode() + body
        return data


class RegionIoFds(Structure):
    """DEVICE_GET_REGION_IO_FDS, request and reply, which `count` sub-regions follow."""

    argsz: U32
    flags: U32 = 0
    index: U32 = 0
    count: U32 = 0


class SubRegion(Structure):
    """Part of a region that file descriptor number `fd_index` of a reply to
    DEVICE_GET_REGION_IO_FDS reports accesses to.

    `data` is the value to match for an ioeventfd with `IoEventFdFlags.DATAMATCH`, and an
    ioregionfd's user data.
    """

    offset: U64
    size: U64
    fd_index: U32
    type: U32
    flags: U32 = 0
    padding: U32 = 0
    data: U64 = 0

    @classmethod
    def decode_all(cls, reply: Buffer) -> list[Self]:
        """Decode all sub-regions of a whole reply to DEVICE_GET_REGION_IO_FDS. Raises ProtocolError
        for a reply without room for as many as it says. "This is 40 bytes for both IO FD types, but
        this is not to be relied on": they may have grown."""
        count = RegionIoFds.decode_head(reply).count
        if not count:
            return []
        entries = reply[RegionIoFds.RECORD.size :]
        size = len(entries) // count
        if size < cls.RECORD.size:
            raise ProtocolError(f"a reply has no room for {count} sub-regions")
        return [cls.decode_head(entries[at * size : (at + 1) * size]) for at in range(count)]


class IrqInfo(Structure):
    """DEVICE_GET_IRQ_INFO, request and reply: `count` interrupts of the kind `index`."""

    argsz: U32
    flags: U32 = 0
    index: U32 = 0
    count: U32 = 0


class SetIrqs(Structure):
    """DEVICE_SET_IRQS: an action on the interrupts `start` to `start + count` of kind `index`.

    `data` has one byte for each of them with DATA_BOOL, and is empty otherwise: eventfds travel
    beside the message, and `argsz` may count them or not. A trigger with DATA_NONE, and neither a
    start nor a count, disables all interrupts of the kind.
    """

    argsz: U32
    flags: U32
    index: U32
    start: U32
    count: U32
    data: Annotated[bytes, REST] = b""

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        request = super().decode(data)
        if request.flags & ~(IRQ_SET_DATA | IRQ_SET_ACTION):
            raise ProtocolError(f"DEVICE_SET_IRQS has unknown flags: {request.flags:#x}")
        if (request.flags & IRQ_SET_DATA).bit_count() != 1:
            raise ProtocolError("DEVICE_SET_IRQS must have exactly one kind of data")
        if (request.flags & IRQ_SET_ACTION).bit_count() != 1:
            raise ProtocolError("DEVICE_SET_IRQS must have exactly one action")
        expected = 0
        if not request.flags & IrqSetFlags.DATA_BOOL:
            request = request._replace(data=b"")
        elif len(request.data) != (expected := request.count):
            raise ProtocolError(
                f"DEVICE_SET_IRQS has {len(request.data)} bytes of data and must have {expected}"
            )
        if request.argsz < cls.RECORD.size + expected:
            raise ProtocolError(
                f"argsz is {request.argsz} and does not count all of DEVICE_SET_IRQS"
            )
        return request

    @property
    def end(self) -> int:
        """One past the last interrupt."""
        return self.start + self.count


REGION_ACCESS = struct.Struct("<QII")
"""Offset, region, count: REGION_READ, and what comes before the data of a REGION_WRITE."""


class RegionAccess(Structure):
    """REGION_READ's request and REGION_WRITE's reply: `count` bytes at `offset` of a region."""

    offset: U64
    region: U32
    count: U32


class RegionData(Structure):
    """REGION_WRITE's request and REGION_READ's reply: an access and its data."""

    offset: U64
    region: U32
    data: Annotated[bytes, Number("I")]


_Write = tuple[
    U64,
    U32,
    Annotated[U32, Range(0, MULTI_WRITE_DATA)],
    Annotated[bytes, Stored(f"{MULTI_WRITE_DATA}s")],
]
"""Offset, region, number of bytes, and these."""


class _Writes(Structure):
    writes: Annotated[tuple[_Write, ...], Number("Q"), Range(0, MAX_MULTI_WRITES)]


def region_writes(payload: Buffer) -> list[tuple[int, int, bytes]]:
    """Offset, region and data of each write of a REGION_WRITE_MULTI. Raises ProtocolError."""
    (writes,) = _Writes.decode(payload)
    return [(offset, region, data[:size]) for offset, region, size, data in writes]


class RegionWriteMulti(NamedTuple):
    """REGION_WRITE_MULTI's request: several writes of at most 8 bytes, in order."""

    writes: tuple[RegionData, ...]

    @classmethod
    def decode(cls, payload: Buffer) -> Self:
        return cls(tuple(map(RegionData._make, region_writes(payload))))

    def encode(self) -> bytes:
        writes = [(offset, region, len(data), data) for offset, region, data in self.writes]
        return _Writes(tuple(writes)).encode()


class RegionWriteMultiReply(Structure):
    """REGION_WRITE_MULTI's reply: how many writes were done."""

    count: U64
