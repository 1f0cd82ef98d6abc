"""The PCI function behind a vfio-user socket: BAR 0, MSI-X, bus mastering.

PCI Local Bus Specification 3.0, sections 6.1 (header), 6.2.5 (BARs), 6.7 (capabilities) and 6.8.2
(MSI-X).
"""

import errno
from enum import IntEnum

from potash.sdk.errors import DeviceGone, DeviceMisbehaved, PotashError
from pyvfio_user.client import Client, VfioUserError
from pyvfio_user.protocol import DeviceFlags, PciIrq, PciRegion

BAR0_ADDRESS = 0xFE00_0000
"""Address of BAR 0: below 4 GiB, as by firmware, and aligned for any size up to 32 MiB."""


class Header(IntEnum):
    """Byte offsets of the header's registers."""

    COMMAND = 0x04
    STATUS = 0x06
    CLASS_CODE = 0x09
    BAR0 = 0x10
    CAPABILITIES_POINTER = 0x34


COMMAND_MEMORY_SPACE = 1 << 1
COMMAND_BUS_MASTER = 1 << 2
STATUS_CAPABILITIES_LIST = 1 << 4
CLASS_NVM_EXPRESS = 0x010802
BAR_IO_SPACE = 1 << 0
BAR_TYPE_MASK = 0x6
BAR_64_BIT = 0x4
BAR_ADDRESS_MASK = ~0xF

FIRST_CAPABILITY = 0x40
CAPABILITY_MSI_X = 0x11
MSIX_MESSAGE_CONTROL = 2
MSIX_ENABLE = 1 << 15
HEADER_SPACE_SIZE = 256

_GONE = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.EBADF})


class PciFunction:
    """The function, through a client that has negotiated."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.bar0_size = 0
        self.vectors = 0
        self._msix = 0

    def enable(self) -> None:
        """Reset it, place BAR 0, let it answer and reach memory. DeviceMisbehaved if it cannot."""
        info = self.client.device_info()
        if not info.flags & DeviceFlags.PCI:
            raise DeviceMisbehaved("the device is not a PCI device")
        if info.flags & DeviceFlags.RESET:
            self.client.device_reset()
        self.bar0_size = self.client.region_info(PciRegion.BAR0).size
        self.vectors = self.client.irq_info(PciIrq.MSIX).count
        config = self.client.region_read(PciRegion.CONFIG, 0, HEADER_SPACE_SIZE)
        class_code = int.from_bytes(config[Header.CLASS_CODE : Header.CLASS_CODE + 3], "little")
        if class_code != CLASS_NVM_EXPRESS:
            raise DeviceMisbehaved(f"the device has class {class_code:06X}h, which is not NVMe's")
        self._msix = _find_capability(config, CAPABILITY_MSI_X)
        if not self.vectors:
            raise DeviceMisbehaved("the device has no MSI-X vectors")
        self._place_bar0()
        self._write(Header.COMMAND, COMMAND_MEMORY_SPACE | COMMAND_BUS_MASTER)

    def enable_interrupts(self, eventfds: list[int]) -> None:
        """Signal vector i through the i-th eventfd; there are not more than `vectors`."""
        self.client.set_irqs(PciIrq.MSIX, 0, eventfds)
        self._write(self._msix + MSIX_MESSAGE_CONTROL, MSIX_ENABLE)

    def disable(self) -> None:
        """Take interrupts and bus mastering away."""
        self._write(self._msix + MSIX_MESSAGE_CONTROL, 0)
        self.client.disable_irqs(PciIrq.MSIX)
        self._write(Header.COMMAND, 0)

    def read_register(self, offset: int, width: int) -> int:
        try:
            return int.from_bytes(self.client.region_read(PciRegion.BAR0, offset, width), "little")
        except VfioUserError as error:
            raise translated(error) from error

    def write_register(self, offset: int, width: int, value: int) -> None:
        """A posted write, as a memory write on PCI Express is."""
        data = value.to_bytes(width, "little")
        try:
            self.client.region_write(PciRegion.BAR0, offset, data, posted=True)
        except VfioUserError as error:
            raise translated(error) from error

    def _place_bar0(self) -> None:
        """Size BAR 0 as firmware does, by what stays of all ones, and give it an address."""
        kind = self._read(Header.BAR0, 4)
        if kind & BAR_IO_SPACE or kind & BAR_TYPE_MASK != BAR_64_BIT:
            raise DeviceMisbehaved("BAR 0 is not a 64-bit memory BAR")
        self._write(Header.BAR0, (1 << 64) - 1, 8)
        size = (1 << 64) - (self._read(Header.BAR0, 8) & BAR_ADDRESS_MASK)
        if size != self.bar0_size:
            raise DeviceMisbehaved(
                f"BAR 0 says {size} bytes in configuration space, but the region has "
                f"{self.bar0_size}"
            )
        self._write(Header.BAR0, BAR0_ADDRESS, 8)

    def _read(self, offset: int, size: int) -> int:
        return int.from_bytes(self.client.region_read(PciRegion.CONFIG, offset, size), "little")

    def _write(self, offset: int, value: int, size: int = 2) -> None:
        self.client.region_write(PciRegion.CONFIG, offset, value.to_bytes(size, "little"))


def translated(error: VfioUserError) -> PotashError:
    """The SDK's error for one of the protocol's."""
    if error.errno in _GONE:
        return DeviceGone(f"the device is gone: {error.strerror}")
    if error.errno == errno.ETIMEDOUT:
        return DeviceGone(f"the device does not answer any more: {error.strerror}")
    if error.errno == errno.EPROTO:
        return DeviceMisbehaved(f"what listens there does not speak vfio-user: {error.strerror}")
    return DeviceMisbehaved(f"the device refused an access: {error.strerror}")


def _find_capability(config: bytes, wanted: int) -> int:
    """Offset of a capability in the header's linked list. DeviceMisbehaved without it."""
    seen: set[int] = set()
    at = config[Header.CAPABILITIES_POINTER] & ~3
    if not config[Header.STATUS] & STATUS_CAPABILITIES_LIST:
        at = 0
    while at >= FIRST_CAPABILITY and at not in seen:
        if config[at] == wanted:
            return at
        seen.add(at)
        at = config[at + 1] & ~3
    raise DeviceMisbehaved(f"the device has no capability {wanted:02X}h")
