"""The function's 4096-byte configuration space: a type 0 header with 64-bit memory BARs, and the
capabilities power management, PCI Express (with function level reset), MSI-X and, on demand,
MSI.

Source: PCI Local Bus Specification 3.0, section 6.1 and 6.8.2; PCI Express Base Specification, 7.8.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from potash_device.pcie import layout
from potash_device.register_bytes import RegisterBytes

POWER_MANAGEMENT_AT = 0x40
MSI_AT = 0x50
PCI_EXPRESS_AT = 0x80
MSIX_AT = 0xC0


def _initiates_reset(offset: int, data: bytes) -> bool:
    """True if a write sets Initiate Function Level Reset."""
    at = PCI_EXPRESS_AT + layout.PciExpress.DEVICE_CONTROL + 1 - offset
    return 0 <= at < len(data) and bool(data[at] << 8 & layout.DEVICE_CONTROL_INITIATE_FLR)


@dataclass(frozen=True)
class PciIdentity:
    """Identity of the function in its header."""

    vendor_id: int = 0x1B96
    device_id: int = 0x0010
    subsystem_vendor_id: int = 0x1B96
    subsystem_id: int = 0x0010
    revision_id: int = 0
    class_code: int = 0x010802  # mass storage, non-volatile memory, NVM Express I/O controller
    msi_vectors: int = 0
    """MSI beside MSI-X: a power of two up to 32, or 0 for none."""


@dataclass(frozen=True)
class BarLayout:
    """BAR 0: its size and where MSI-X keeps its structures in it, in bytes."""

    size: int
    msix_table: int
    msix_pending: int


class ConfigSpace:
    """Reads and masked writes; a function level reset is reported through `on_reset`.

    `memory_bars` are sizes of memory by the number of its BAR, 2 or 4: 64 bits wide, prefetchable.
    Raises ValueError when a size is not a power of two or `vectors` is out of range.
    """

    def __init__(
        self,
        identity: PciIdentity,
        bar: BarLayout,
        vectors: int,
        on_reset: Callable[[], None] = lambda: None,
        memory_bars: Mapping[int, int] | None = None,
    ) -> None:
        if bar.size < 16 or bar.size & (bar.size - 1):
            raise ValueError(f"BAR 0 must be a power of two of at least 16 bytes, not {bar.size}")
        self._memory_bars = memory_bars or {}
        for size in self._memory_bars.values():
            if size < 16 or size & (size - 1):
                raise ValueError(f"a BAR must be a power of two of at least 16 bytes, not {size}")
        if identity.msi_vectors not in (0, 1, 2, 4, 8, 16, layout.MSI_MAX_VECTORS):
            raise ValueError(f"MSI has a power of two of vectors, not {identity.msi_vectors}")
        if not 1 <= vectors <= layout.MSIX_MAX_VECTORS:
            raise ValueError(f"MSI-X has 1 to {layout.MSIX_MAX_VECTORS} vectors, not {vectors}")
        self._identity = identity
        self._bar = bar
        self._vectors = vectors
        self.on_reset = on_reset
        self.reset()

    def reset(self) -> None:
        """Everything back to its power-on value, as a function level reset demands."""
        self._registers = RegisterBytes(layout.CONFIG_SPACE_SIZE)
        for offset, width, value, writable, cleared in self._rows():
            self._registers.define(offset, width, value, writable=writable, cleared_by_one=cleared)

    @property
    def bus_master(self) -> bool:
        """Bus Master Enable: the function may access the host's memory, be it for an interrupt."""
        return bool(self._registers.get(layout.Header.COMMAND, 2) & layout.Command.BUS_MASTER)

    def memory_address(self, bar: int) -> int | None:
        """The address of memory in BAR 2 or 4; None while the function does not decode one."""
        if not self._registers.get(layout.Header.COMMAND, 2) & layout.Command.MEMORY_SPACE:
            return None
        value = self._registers.get(layout.Header.BAR0 + 4 * bar, 8)
        return value & _address_bits(self._memory_bars[bar]) or None

    def save(self) -> bytes:
        return self._registers.save()

    def load(self, values: bytes) -> None:
        """Take values that were saved. Raises ValueError for those of another device."""
        self._registers.load(values)

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`; bytes past the end read as zero."""
        return self._registers.read(offset, count)

    def write(self, offset: int, data: bytes) -> None:
        """Apply a host's write of any length at any offset."""
        self._registers.write(offset, data)
        if _initiates_reset(offset, data):
            self.reset()
            self.on_reset()

    def stops(self, offset: int, data: bytes) -> bool:
        """True if a write would end bus mastering, or reset the function."""
        at = layout.Header.COMMAND - offset
        ends = 0 <= at < len(data) and not data[at] & layout.Command.BUS_MASTER
        return _initiates_reset(offset, data) or (ends and self.bus_master)

    def _rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Offset, width, reset value, writable bits, bits cleared by a 1 of every register."""
        identity, command = self._identity, layout.Command
        writable_command = (
            command.MEMORY_SPACE
            | command.BUS_MASTER
            | command.PARITY_ERROR_RESPONSE
            | command.SERR_ENABLE
            | command.INTERRUPT_DISABLE
        )
        yield layout.Header.VENDOR_ID, 2, identity.vendor_id, 0, 0
        yield layout.Header.DEVICE_ID, 2, identity.device_id, 0, 0
        yield layout.Header.COMMAND, 2, 0, writable_command, 0
        yield layout.Header.STATUS, 2, layout.STATUS_CAPABILITIES_LIST, 0, layout.STATUS_ERROR_BITS
        yield layout.Header.REVISION_ID, 1, identity.revision_id, 0, 0
        yield layout.Header.CLASS_CODE, 3, identity.class_code, 0, 0
        yield layout.Header.CACHE_LINE_SIZE, 1, 0, 0xFF, 0
        yield layout.Header.BAR0, 8, layout.BAR_64_BIT_MEMORY, _address_bits(self._bar.size), 0
        for bar, size in self._memory_bars.items():
            at, kind = layout.Header.BAR0 + 4 * bar, layout.BAR_64_BIT_PREFETCHABLE
            yield at, 8, kind, _address_bits(size), 0
        yield layout.Header.SUBSYSTEM_VENDOR_ID, 2, identity.subsystem_vendor_id, 0, 0
        yield layout.Header.SUBSYSTEM_ID, 2, identity.subsystem_id, 0, 0
        yield layout.Header.CAPABILITIES_POINTER, 1, POWER_MANAGEMENT_AT, 0, 0
        # Interrupt Pin stays 0: this function signals by MSI-X alone.
        yield layout.Header.INTERRUPT_LINE, 1, 0, 0xFF, 0

        at, following = POWER_MANAGEMENT_AT, MSI_AT if identity.msi_vectors else PCI_EXPRESS_AT
        state = layout.PMCSR_POWER_STATE
        yield at, 2, layout.CapabilityId.POWER_MANAGEMENT | following << 8, 0, 0
        yield at + layout.PowerManagement.PMC, 2, layout.PMC_VERSION_3, 0, 0
        yield at + layout.PowerManagement.PMCSR, 2, layout.PMCSR_NO_SOFT_RESET, state, 0

        if identity.msi_vectors:
            at, capable = MSI_AT, (identity.msi_vectors - 1).bit_length()
            control = layout.MSI_64_BIT | capable << layout.MSI_MULTIPLE_CAPABLE_SHIFT
            yield at, 2, layout.CapabilityId.MSI | PCI_EXPRESS_AT << 8, 0, 0
            yield at + layout.Msi.MESSAGE_CONTROL, 2, control, layout.MSI_WRITABLE, 0
            yield at + layout.Msi.ADDRESS, 8, 0, layout.MSI_ADDRESS_WRITABLE, 0
            yield at + layout.Msi.DATA, 2, 0, 0xFFFF, 0

        at, reg = PCI_EXPRESS_AT, layout.PciExpress
        capabilities = layout.DEVICE_CAPABILITIES_ROLE_BASED_ERRORS | layout.DEVICE_CAPABILITIES_FLR
        timeout, writable = (
            layout.DEVICE_CAPABILITIES_2_TIMEOUT_DISABLE,
            layout.DEVICE_CONTROL_WRITABLE,
        )
        yield at, 2, layout.CapabilityId.PCI_EXPRESS | MSIX_AT << 8, 0, 0
        yield at + reg.CAPABILITIES, 2, layout.EXPRESS_VERSION_2_ENDPOINT, 0, 0
        yield at + reg.DEVICE_CAPABILITIES, 4, capabilities, 0, 0
        yield at + reg.DEVICE_CONTROL, 2, layout.DEVICE_CONTROL_DEFAULT, writable, 0
        yield at + reg.DEVICE_STATUS, 2, 0, 0, layout.DEVICE_STATUS_ERROR_BITS
        yield at + reg.LINK_CAPABILITIES, 4, layout.LINK_8_GT_X4, 0, 0
        yield at + reg.LINK_CONTROL, 2, 0, layout.LINK_CONTROL_WRITABLE, 0
        yield at + reg.LINK_STATUS, 2, layout.LINK_8_GT_X4, 0, 0
        yield at + reg.DEVICE_CAPABILITIES_2, 4, timeout, 0, 0
        yield at + reg.DEVICE_CONTROL_2, 2, 0, layout.DEVICE_CONTROL_2_WRITABLE, 0
        yield at + reg.LINK_CONTROL_2, 2, 3, 0x000F, 0

        at, bar_index = MSIX_AT, 0
        enable = layout.MSIX_ENABLE | layout.MSIX_FUNCTION_MASK
        yield at, 2, layout.CapabilityId.MSI_X, 0, 0
        yield at + layout.MsiX.MESSAGE_CONTROL, 2, self._vectors - 1, enable, 0
        yield at + layout.MsiX.TABLE, 4, self._bar.msix_table | bar_index, 0, 0
        yield at + layout.MsiX.PENDING_BITS, 4, self._bar.msix_pending | bar_index, 0, 0


def _address_bits(size: int) -> int:
    """The bits of a 64-bit BAR of `size` bytes that a host writes."""
    return ~(size - 1) & (1 << 64) - 1
