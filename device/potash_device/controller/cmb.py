"""The controller memory buffer: memory of the device that a host maps through BAR 2, and that
queues, lists and data of commands may be in.

Commands name it by the addresses that the host has chosen for it (CMBMSC.CBA), which may differ
from those of the BAR. They come before the host's own memory.

Source: NVM Express Base Specification 2.0, section 8.5 and 3.1.3.11, 3.1.3.12, 3.1.3.16, 3.1.3.17.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nvme_spec.registers import CmbLocation, CmbMemorySpaceControl, CmbSize, CmbStatus, CmbUse
from potash_device.pcie.bar_memory import BarMemory, require_size
from pyvfio_user.memory import ADDRESS_LIMIT, AccessFault, AddressSpace

BAR = 2
"""CMBLOC.BIR: it is all of this BAR."""
QUEUES = CmbUse.SQS | CmbUse.CQS
EVERY_USE = QUEUES | CmbUse.LISTS | CmbUse.RDS | CmbUse.WDS
NO_USE = CmbUse(0)
"""The use for data that may never be in the buffer, such as shadow doorbells."""

_UNIT = 4096


@dataclass(frozen=True)
class CmbSettings:
    """A buffer of `size` bytes, as `BarMemory` has them. Raises ValueError for another size, and
    for lists without submission queues (CMBSZ.LISTS)."""

    size: int
    uses: CmbUse = EVERY_USE

    def __post_init__(self) -> None:
        require_size(self.size)
        if self.uses & CmbUse.LISTS and not self.uses & CmbUse.SQS:
            raise ValueError("lists may only be where submission queues may be")


class CmbMisuse(AccessFault):
    """A host used the controller memory buffer for data that may not be there, or not in part."""


class CmbRegisters(NamedTuple):
    """The registers of the buffer that a host reads, for a value of CMBMSC."""

    location: CmbLocation
    size: CmbSize
    status: CmbStatus


class ControllerMemoryBuffer(BarMemory):
    """The buffer of one controller; `base` is its first address, None while no address names it."""

    def __init__(self, settings: CmbSettings) -> None:
        super().__init__(settings.size)
        self.uses = settings.uses
        self.base: int | None = None

    def configure(self, control: CmbMemorySpaceControl) -> CmbRegisters:
        """The host has written CMBMSC, or a reset has."""
        self.base = None
        if not control.cre:
            return CmbRegisters(CmbLocation(), CmbSize(), CmbStatus())
        base = control.cba * _UNIT
        valid = base + self.size <= ADDRESS_LIMIT
        if control.cmse and valid:
            self.base = base
        return CmbRegisters(
            # Lists and data may be in it in part and wherever their command is; queues are whole.
            CmbLocation(bir=BAR, cdpmls=1, cdpcils=1, cdmmms=1),
            CmbSize(uses=self.uses, sz=self.size // _UNIT),
            CmbStatus(cbai=control.cmse and not valid),
        )

    def clear_all_but(self, kept: Iterable[tuple[int, int]]) -> None:
        """Zeroes again, but for the parts of it at these addresses, each with a length."""
        base, at = self.base, 0
        for address, length in sorted(kept) if base is not None else ():
            start = address - (base or 0)
            if 0 <= start < self.size:
                if start > at:
                    self.memory.media.punch(at, start - at)
                at = max(at, start + length)
        if at < self.size:
            self.memory.media.punch(at, self.size - at)


class CmbSpace:
    """A host's memory as `AddressSpace` has it, with the buffer over a part of its addresses.

    Its methods raise CmbMisuse where something would be in the buffer that may not; `use` says what
    it is, which is data in the direction of the access unless told otherwise.
    """

    def __init__(self, host: AddressSpace, cmb: ControllerMemoryBuffer, base: int) -> None:
        self._host = host
        self._bytes = cmb.memory.bytes
        self._uses = cmb.uses
        self._start, self._end = base, base + cmb.size

    def mapped(self, address: int, size: int, *, write: bool, use: CmbUse) -> memoryview | None:
        """Implement `AddressSpace.mapped`."""
        if address + size <= self._start or self._end <= address:
            return self._host.mapped(address, size, write=write)
        (whole,) = self.views(address, size, write=write, use=use)  # as queues are
        return whole

    @property
    def copies(self) -> int:
        return self._host.copies

    def views(
        self, address: int, size: int, *, write: bool = False, use: CmbUse | None = None
    ) -> list[memoryview]:
        """Implement `AddressSpace.views`."""
        start, end = max(address, self._start), min(address + size, self._end)
        if start >= end:
            return self._host.views(address, size, write=write)
        if use is None:
            use = CmbUse.RDS if write else CmbUse.WDS
        if not use & self._uses:
            raise CmbMisuse(address, size, "this may not be in the controller memory buffer")
        if use & QUEUES and end - start < size:
            raise CmbMisuse(address, size, "the queue is in the controller memory buffer in part")
        pieces = [self._bytes[start - self._start : end - self._start]]
        if address < start:
            pieces = self._host.views(address, start - address, write=write) + pieces
        if end < address + size:
            pieces += self._host.views(end, address + size - end, write=write)
        return pieces

    def views_of(
        self, ranges: Sequence[tuple[int, int]], *, write: bool = False
    ) -> list[memoryview]:
        """Implement `AddressSpace.views_of`."""
        start, end = self._start, self._end
        if not any(address < end and start < address + size for address, size in ranges):
            return self._host.views_of(ranges, write=write)
        return [piece for one in ranges for piece in self.views(*one, write=write)]
