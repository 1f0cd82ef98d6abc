"""The controller's register file: what the host sees of it, and what the firmware sees.

Each of the host's writes is stored and put into the host-write FIFO, value and all: a host that
clears CC.EN and sets it again before the firmware looks has reset the controller all the same.

Source: NVM Express Base Specification 2.0, section 3.1.3; Alkali CSD platform documentation,
section 3.1.2 (NVMe module)."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from nvme_spec.registers import (
    DOORBELL_BASE,
    Access,
    Capabilities,
    CmbMemorySpaceControl,
    Register,
    doorbell_offset,
)
from potash_device.controller.cmb import ControllerMemoryBuffer
from potash_device.controller.interrupts import InterruptLines
from potash_device.register_bytes import RegisterBytes
from potash_wire.records import U32

DWORD = 4

PRESENT = (
    Register.CAP,
    Register.VS,
    Register.CC,
    Register.CSTS,
    Register.NSSR,
    Register.AQA,
    Register.ASQ,
    Register.ACQ,
)
"""Registers that every controller has; the others are reserved and read as zero."""

CMB = (Register.CMBLOC, Register.CMBSZ, Register.CMBMSC, Register.CMBSTS)
"""Registers of a controller with a controller memory buffer."""

MASKS = (Register.INTMS, Register.INTMC)
"""Registers of a controller that offers MSI: MSI-X has masks of its own, with which a host must not
touch these."""


_MASK_OFFSETS = frozenset(register.offset for register in MASKS)


class HostWrite(NamedTuple):
    """One entry of the host-write FIFO: the byte offset of a register and the dword written."""

    offset: U32
    value: U32


class SavedRegisters(NamedTuple):
    """Contents of a register file: its bytes, masked vectors, and the host-write FIFO."""

    values: bytes
    mask: U32
    host_writes: tuple[HostWrite, ...]


class RegisterFile:
    """Registers of a controller with `queue_pairs` pairs of doorbells, the admin pair included.

    `on_cmb` is called when addresses may name another place of `cmb`, or no longer.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        queue_pairs: int,
        interrupts: InterruptLines,
        *,
        maskable: bool = False,
        cmb: ControllerMemoryBuffer | None = None,
        on_cmb: Callable[[], None] = lambda: None,
    ) -> None:
        self.host_writes: deque[HostWrite] = deque()
        self._capabilities = capabilities
        self.interrupts = interrupts
        self._maskable = maskable
        self._cmb = cmb
        self._on_cmb = on_cmb
        self._mask = 0
        self._behind_doorbells = doorbell_offset(queue_pairs, completion=False)
        self.reset()

    def reset(self, *, keep_cmb: bool = False) -> None:
        """Power-on values everywhere, and nothing written; CMBMSC keeps its value for
        `keep_cmb`."""
        kept = self.read(Register.CMBMSC) if keep_cmb else 0
        self.host_writes.clear()
        self._values = RegisterBytes(DOORBELL_BASE)
        for register in PRESENT if self._cmb is None else PRESENT + CMB:
            cleared = register.mask if register.access is Access.RW1C else 0
            writable = register.mask if register.access is Access.RW else 0
            self._values.define(
                register.offset,
                register.width,
                register.reset,
                writable=writable,
                cleared_by_one=cleared,
            )
        self.unmask()
        self.write(Register.CAP, self._capabilities.encode())
        self.write(Register.CMBMSC, kept)
        self._configure_cmb()

    def unmask(self) -> None:
        """No vector is masked, as after any reset of the controller."""
        self._set_mask(0)

    def _set_mask(self, mask: int) -> None:
        self._mask = mask
        for register in MASKS:
            self.write(register, mask)
        self.interrupts.mask(mask)

    def _configure_cmb(self) -> None:
        """Apply CMBMSC before the firmware sees it: a host reads CMBSZ after it has set CRE."""
        if self._cmb is None:
            return
        before = self._cmb.base
        control = CmbMemorySpaceControl(self.read(Register.CMBMSC))
        location, size, status = self._cmb.configure(control)
        self.write(Register.CMBLOC, location.encode())
        self.write(Register.CMBSZ, size.encode())
        self.write(Register.CMBSTS, status.encode())
        if self._cmb.base != before:
            self._on_cmb()

    def moves_cmb(self, offset: int, size: int) -> bool:
        """True if a write may move the controller memory buffer."""
        start = Register.CMBMSC.offset
        return self._cmb is not None and start - size < offset < start + Register.CMBMSC.width

    def save(self) -> "SavedRegisters":
        return SavedRegisters(self._values.save(), self._mask, tuple(self.host_writes))

    def load(self, saved: "SavedRegisters") -> None:
        """Go on from what was saved. Raises ValueError where that makes no sense."""
        own = (Register.CSTS, *MASKS, Register.CMBLOC, Register.CMBSZ, Register.CMBSTS)
        offsets = {at for one in own for at in range(one.offset, one.offset + one.width)}
        self._values.load(saved.values, own=offsets)
        self._set_mask(saved.mask)
        self._configure_cmb()
        self.host_writes.clear()
        self.host_writes.extend(saved.host_writes)

    # What the host does, through BAR 0.

    def host_read(self, offset: int, count: int) -> bytes:
        """Registers as the host reads them; doorbells and all behind them read as zero."""
        return self._values.read(offset, count)

    def host_write(self, offset: int, data: bytes) -> None:
        """Store aligned dwords and tell the firmware. Any other access has no effect.

        Registers are accessed in dwords or in their native width (section 3.1.2).
        """
        if offset % DWORD or len(data) % DWORD:
            return
        for at in range(0, len(data), DWORD):
            target = offset + at
            if target >= self._behind_doorbells:
                break
            dword = data[at : at + DWORD]
            if target < DOORBELL_BASE:
                self._values.write(target, dword)
                if self._maskable and target in _MASK_OFFSETS:
                    bits = int.from_bytes(dword, "little")
                    setting = target == Register.INTMS.offset
                    self._set_mask(self._mask | bits if setting else self._mask & ~bits)
            self.host_writes.append(HostWrite(target, int.from_bytes(dword, "little")))
        if self._cmb is not None and self.moves_cmb(offset, len(data)):
            self._configure_cmb()

    # What the firmware does.

    def read(self, register: Register) -> int:
        return self._values.get(register.offset, register.width)

    def write(self, register: Register, value: int) -> None:
        """Store a value, read-only bits included; the FIFO is for the host's writes."""
        self._values.put(register.offset, register.width, value)
