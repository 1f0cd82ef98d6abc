"""Offsets in configuration space.

Names and offsets follow the PCI Local Bus Specification 3.0 (type 0 header, MSI-X), the PCI Bus
Power Management Interface Specification 1.2 and the PCI Express Base Specification (PCI Express
capability). Only what this function implements is named.
"""

from enum import IntEnum, IntFlag

CONFIG_SPACE_SIZE = 4096
"""Bytes; a function with 256 would be taken for a conventional PCI one."""


class Header(IntEnum):
    """Byte offsets of the type 0 header's registers."""

    VENDOR_ID = 0x00
    DEVICE_ID = 0x02
    COMMAND = 0x04
    STATUS = 0x06
    REVISION_ID = 0x08
    CLASS_CODE = 0x09
    CACHE_LINE_SIZE = 0x0C
    BAR0 = 0x10
    SUBSYSTEM_VENDOR_ID = 0x2C
    SUBSYSTEM_ID = 0x2E
    CAPABILITIES_POINTER = 0x34
    INTERRUPT_LINE = 0x3C


class Command(IntFlag):
    """Bits of the Command register that can be written."""

    MEMORY_SPACE = 1 << 1
    BUS_MASTER = 1 << 2
    PARITY_ERROR_RESPONSE = 1 << 6
    SERR_ENABLE = 1 << 8
    INTERRUPT_DISABLE = 1 << 10


STATUS_CAPABILITIES_LIST = 1 << 4
STATUS_ERROR_BITS = 0xF900
"""The write-1-to-clear bits of the Status register."""


class CapabilityId(IntEnum):
    """PCI capability identifiers."""

    POWER_MANAGEMENT = 0x01
    MSI = 0x05
    PCI_EXPRESS = 0x10
    MSI_X = 0x11


class PowerManagement(IntEnum):
    """Offsets in the Power Management capability."""

    PMC = 2
    PMCSR = 4
    SIZE = 8


PMC_VERSION_3 = 3
PMCSR_POWER_STATE = 0x0003
PMCSR_NO_SOFT_RESET = 1 << 3


class PciExpress(IntEnum):
    """Offsets in the PCI Express capability of an endpoint (version 2)."""

    CAPABILITIES = 0x02
    DEVICE_CAPABILITIES = 0x04
    DEVICE_CONTROL = 0x08
    DEVICE_STATUS = 0x0A
    LINK_CAPABILITIES = 0x0C
    LINK_CONTROL = 0x10
    LINK_STATUS = 0x12
    DEVICE_CAPABILITIES_2 = 0x24
    DEVICE_CONTROL_2 = 0x28
    LINK_CONTROL_2 = 0x30
    SIZE = 0x3C


EXPRESS_VERSION_2_ENDPOINT = 0x0002
DEVICE_CAPABILITIES_ROLE_BASED_ERRORS = 1 << 15
DEVICE_CAPABILITIES_FLR = 1 << 28
DEVICE_CONTROL_WRITABLE = 0x7FFF
DEVICE_CONTROL_DEFAULT = 0x2810
"""Relaxed ordering, no snoop, 512-byte read requests."""
DEVICE_CONTROL_INITIATE_FLR = 1 << 15
DEVICE_STATUS_ERROR_BITS = 0x000F
LINK_CONTROL_WRITABLE = 0x0FC3
LINK_8_GT_X4 = 3 | 4 << 4
"""Speed (8 GT/s) and width (x4), the layout of both Link Capabilities and Link Status."""
DEVICE_CAPABILITIES_2_TIMEOUT_DISABLE = 1 << 4
DEVICE_CONTROL_2_WRITABLE = 0x001F


class Msi(IntEnum):
    """Offsets in the MSI capability with 64-bit addresses."""

    MESSAGE_CONTROL = 2
    ADDRESS = 4
    DATA = 12
    SIZE = 14


MSI_64_BIT = 1 << 7
MSI_MULTIPLE_CAPABLE_SHIFT = 1
MSI_WRITABLE = 0x0071
"""Enable, and Multiple Message Enable."""
MSI_ADDRESS_WRITABLE = 0xFFFF_FFFF_FFFF_FFFC
MSI_MAX_VECTORS = 32


class MsiX(IntEnum):
    """Offsets in the MSI-X capability."""

    MESSAGE_CONTROL = 2
    TABLE = 4
    PENDING_BITS = 8
    SIZE = 12


MSIX_ENABLE = 1 << 15
MSIX_FUNCTION_MASK = 1 << 14
MSIX_TABLE_ENTRY_SIZE = 16
MSIX_VECTOR_CONTROL = 12
"""Offset of an entry's dword whose bit 0 masks the vector."""
MSIX_MASKED = 1 << 0
MSIX_MAX_VECTORS = 2048

BAR_64_BIT_MEMORY = 0x4
BAR_64_BIT_PREFETCHABLE = 0xC
