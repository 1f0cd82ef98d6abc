"""The vfio-user protocol's names and frames: commands, flags, indexes, and the header.

What does not have the form that the specification gives it raises `ProtocolError`, before anybody
has acted on it. Everything is in the byte order of the host, which here is little endian.

Source: QEMU's `docs/interop/vfio-user.rst`, section "Protocol Specification"; flags of regions and
interrupts are those of the `VFIO_` structures that it refers to."""

import struct
from enum import IntEnum, IntFlag

from potash_wire.packed import Packed
from potash_wire.records import U16, U32

Buffer = bytes | bytearray | memoryview

MAJOR_VERSION = 0
MINOR_VERSION = 1
"""The newest version that this library speaks; it speaks every minor version before it too."""

DEFAULT_MAX_MSG_FDS = 1
DEFAULT_MAX_TRANSFER = 1 << 20
DEFAULT_MAX_DMA_MAPS = 65535
"""Limits of a peer that does not state `max_msg_fds`, `max_data_xfer_size` and `max_dma_maps`
(section "VFIO_USER_VERSION")."""


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
    MMAP = 0x4
    """Set by some clients, as is the next: what comes with a descriptor is mapped if it can be."""
    FILE_IO = 0x8


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


class IoFdType(IntEnum):
    """DEVICE_GET_REGION_IO_FDS: `VFIO_USER_IO_FD_TYPE_*`, which the specification names without
    their values; these are libvfio-user's (`include/vfio-user.h`)."""

    IOEVENTFD = 0
    IOREGIONFD = 1


class IoEventFdFlags(IntFlag):
    """A sub-region with an ioeventfd: `KVM_IOEVENTFD_FLAG_*` of `<linux/kvm.h>`."""

    DATAMATCH = 0x1
    PIO = 0x2


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
DMA_FLAGS = int(DmaFlags.READABLE | DmaFlags.WRITABLE | DmaFlags.MMAP | DmaFlags.FILE_IO)
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


class Structure(Packed, error=ProtocolError):
    """A structure of the protocol. Clients may send as many bytes as they have room for in the
    reply, and later versions may append fields, as VFIO does: `decode_head` leaves that alone."""


HEADER = struct.Struct("<HHIII")
"""Parses a header without a `Header`, as every register access has one."""


class Header(Structure):
    """The header of every message (section "Header"); `size` includes it."""

    message_id: U16
    command: U16
    size: U32
    flags: U32 = 0
    error: U32 = 0

    def validate(self) -> None:
        if self.size < HEADER.size:
            raise ProtocolError(f"a message of {self.size} bytes is shorter than its header")
        if self.flags & TYPE_MASK not in (MessageType.COMMAND, MessageType.REPLY):
            raise ProtocolError(f"{self.flags & TYPE_MASK} is not a type of message")

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
