"""Moving data to and from the host: PRP entries become views of guest memory, without a copy.

Guest memory that cannot be mapped is reached by messages to the host: then a view to read from is a
copy, and what is written to one reaches the guest when it is stored (`pyvfio_user.memory`). A
stopped engine gives nothing out, so a controller that is not ready touches no guest memory.

Source: NVM Express Base Specification 2.0, section 4.1.1 (Physical Region Page entry and list)."""

import functools
import logging
import struct
from collections.abc import Iterable, Sequence

from nvme_spec.logs import CommandByte
from nvme_spec.registers import CmbUse
from nvme_spec.status import NvmeError, Status
from potash_device.controller.cmb import CmbMisuse, CmbSpace, ControllerMemoryBuffer
from pyvfio_user.memory import AccessFault, AddressSpace

log = logging.getLogger(__name__)

PAGE_SIZE = 4096
"""Bytes of a memory page; CC.MPS other than 0 is not offered in CAP."""

SINGLE_PAGES = 4096
PAGE_LISTS = 256
"""Transfers of one page, or one SGL data block, and of several pages whose views are kept: hosts
use the same buffers again and again, and finding 32 pages takes two thirds of the time of moving
them."""

PRP_ENTRY_SIZE = 8
ADDRESSES = 1 << 8 * PRP_ENTRY_SIZE
PRP_ALIGNMENT = 4
"""The two low bits of every PRP entry are reserved and zero (figure 86)."""


class DmaEngine:
    """Guest memory as the firmware may use it: while it is started and the host lets it master."""

    def __init__(self) -> None:
        self.mastering = False
        """The host has set Bus Master Enable."""
        self._started = False
        self._connected: AddressSpace | None = None
        self._cmb: ControllerMemoryBuffer | None = None
        self._memory: AddressSpace | CmbSpace | None = None
        """The host's memory while transfers are allowed, with the controller memory buffer in it
        while addresses name that: a host that has none pays nothing for it."""
        self.remote = False
        """Some of this host's memory is, or was, written by messages: what is written to views has
        to be stored."""
        self.by_messages = False
        """A queue of this host's is in memory that is reached by messages."""

        self.known_views: dict[tuple[int, int, bool], list[memoryview]] = {}
        """The views of transfers within a page, by PRP 1, length and whether they are written."""
        self.known_blocks: dict[tuple[int, int, bool], list[memoryview]] = {}
        """The views of SGL data blocks, by address, length and whether they are written."""
        self._page_lists: dict[tuple[int, int, bool, bytes], list[memoryview]] = {}
        """The views of transfers, by what names their pages."""

    def connect(self, memory: AddressSpace | None) -> None:
        """Use a host's memory, or none, while transfers are allowed."""
        self._connected = memory
        self.remote = self.by_messages = False
        self._choose()

    @property
    def started(self) -> bool:
        """Transfers are allowed, but for what the host says."""
        return self._started

    def start(self) -> None:
        """Allow transfers, while the host does too."""
        self._started = True
        self._choose()

    def stop(self) -> None:
        """Refuse transfers from now on."""
        self._started = False
        self._choose()

    def master(self, allowed: bool) -> None:
        """The host allows transfers, or no longer: Bus Master Enable."""
        self.mastering = allowed
        self._choose()

    def place(self, cmb: ControllerMemoryBuffer) -> None:
        """Replace the controller memory buffer, or its location."""
        self._cmb = cmb
        self._choose()

    def _choose(self) -> None:
        self._memory = self._connected if self._started and self.mastering else None
        cmb = self._cmb
        if self._memory is not None and cmb is not None and cmb.base is not None:
            self._memory = CmbSpace(self._memory, cmb, cmb.base)
        self.forget()

    def forget(self) -> None:
        """Hold no memory that the host may have taken back."""
        self.known_views.clear()
        self.known_blocks.clear()
        self._page_lists.clear()
        self.remote |= self._connected is not None and self._connected.remote > 0

    @property
    def ready(self) -> bool:
        return self._memory is not None

    @property
    def interrupted(self) -> bool:
        """No transfer is possible before the host's next message is handled."""
        return self._connected is not None and self._connected.interrupted

    def store(self, views: Iterable[memoryview], size: int | None = None) -> None:
        """Have guest memory hold what was written to `views`, or to their first `size` bytes.

        They are as they were got for writing. Mapped memory needs it not: ask `remote` first where
        that counts. Raises NvmeError: Data Transfer Error for what the host does not take.
        """
        if self._connected is None or not self.remote:
            return
        try:
            self._connected.store(views, size)
        except AccessFault as fault:
            raise transfer_error(fault) from None

    def write(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Write bytes to guest addresses that cannot be mapped, in this order. Raises AccessFault
        where the host does not take it, and when the engine is stopped."""
        if self._memory is None or self._connected is None:
            raise AccessFault(*_first(pieces), "the DMA engine is stopped")
        self._connected.write(pieces)

    def mapped(self, address: int, size: int, *, write: bool, use: CmbUse) -> memoryview | None:
        """`size` contiguous bytes of guest memory at `address`, for `use`, however many of the
        host's mappings they are in; None for memory that is reached by copies. Raises AccessFault
        where they are not all mapped, with that right, and when the engine is stopped; CmbMisuse
        where they may not be in the controller memory buffer."""
        memory = self._memory
        if memory is None or self._connected is None:
            raise AccessFault(address, size, "the DMA engine is stopped")
        if isinstance(memory, CmbSpace):
            view = memory.mapped(address, size, write=write, use=use)
        else:
            view = memory.mapped(address, size, write=write)
        if view is None:
            self.remote = True
        if view is None and not self.by_messages:
            self.by_messages = True
            log.warning(
                "guest memory cannot be mapped, and is reached by messages, which takes longer: %s",
                self._connected.unmapped_because,
            )
        return view

    def pieces(
        self, address: int, size: int, *, write: bool, use: CmbUse | None = None
    ) -> list[memoryview]:
        """`size` bytes of guest memory at `address`, split where the host's mappings meet.

        They are for data where no `use` is given. Raises AccessFault and CmbMisuse.
        """
        memory = self._memory
        if memory is None:
            raise AccessFault(address, size, "the DMA engine is stopped")
        if isinstance(memory, CmbSpace):
            return memory.views(address, size, write=write, use=use)
        return memory.views(address, size, write=write)

    def ranges(self, ranges: Sequence[tuple[int, int]], *, write: bool) -> list[memoryview]:
        """The pieces of several ranges of guest memory, each an address and a size, in order.
        Raises AccessFault as `mapped` does."""
        if not ranges:
            return []
        if self._memory is None:
            raise AccessFault(*ranges[0], "the DMA engine is stopped")
        return self._memory.views_of(ranges, write=write)

    def views(self, prp1: int, prp2: int, length: int, *, write: bool) -> list[memoryview]:
        """The pieces of a transfer of `length` bytes, in order; `write` to guest memory or from it.
        Raises NvmeError: Invalid PRP Offset for an entry that is not aligned as it must be, and as
        `transfer_error` says."""
        found = self.known_views.get((prp1, length, write))
        if found is not None:
            return found
        memory = self._memory
        try:
            if memory is None:
                raise AccessFault(prp1, length, "the DMA engine is stopped")
            if 0 < length <= PAGE_SIZE - prp1 % PAGE_SIZE and not prp1 % PRP_ALIGNMENT:
                copies = memory.copies
                found = memory.views(prp1, length, write=write)
                if memory.copies != copies:
                    return found
                if len(self.known_views) >= SINGLE_PAGES:
                    self.known_views.clear()
                self.known_views[prp1, length, write] = found
                return found
            entries = self._entries_behind(prp1, prp2, length)
            key = (prp1, length, write, entries)
            found = self._page_lists.get(key)
            if found is None:
                copies = memory.copies
                found = memory.views_of(_pieces(prp1, length, entries), write=write)
                if memory.copies != copies:
                    return found
                if len(self._page_lists) >= PAGE_LISTS:
                    self._page_lists.clear()
                self._page_lists[key] = found
            return found
        except AccessFault as fault:
            raise transfer_error(fault) from None

    def block(self, address: int, length: int, *, write: bool) -> list[memoryview]:
        """The pieces of a transfer whose SGL is one data block of `length` bytes at `address`.
        Raises NvmeError, as `transfer_error` says."""
        found = self.known_blocks.get((address, length, write))
        if found is not None:
            return found
        memory = self._memory
        try:
            if memory is None:
                raise AccessFault(address, length, "the DMA engine is stopped")
            copies = memory.copies
            found = memory.views(address, length, write=write)
        except AccessFault as fault:
            raise transfer_error(fault) from None
        if memory.copies == copies:
            if len(self.known_blocks) >= SINGLE_PAGES:
                self.known_blocks.clear()
            self.known_blocks[address, length, write] = found
        return found

    def _entries_behind(self, prp1: int, prp2: int, length: int) -> bytes:
        """The PRP entries of a transfer's second page and those behind it, as they are stored."""
        behind = length - (PAGE_SIZE - prp1 % PAGE_SIZE)
        if behind <= 0:
            return b""
        if behind <= PAGE_SIZE:
            return prp2.to_bytes(PRP_ENTRY_SIZE, "little")
        _require_alignment(prp2, PRP_ENTRY_SIZE)
        entries = b""
        needed = -(-behind // PAGE_SIZE) * PRP_ENTRY_SIZE
        # The last entry in a page leads to another page of the list, if there is more than fits.
        while needed > (room := PAGE_SIZE - prp2 % PAGE_SIZE):
            page = self._list(prp2, room)
            entries += page[:-PRP_ENTRY_SIZE]
            needed -= room - PRP_ENTRY_SIZE
            prp2 = int.from_bytes(page[-PRP_ENTRY_SIZE:], "little")
            _require_alignment(prp2, PAGE_SIZE)
        return entries + self._list(prp2, needed)

    def _list(self, address: int, size: int) -> bytes:
        """Entries of a PRP list."""
        return b"".join(self.pieces(address, size, write=False, use=CmbUse.LISTS))


def transfer_error(fault: AccessFault, *, dnr: bool = False) -> NvmeError:
    """The error of a command whose memory the host has not mapped, or misuses."""
    if isinstance(fault, CmbMisuse):
        return NvmeError(Status.INVALID_USE_OF_CMB, str(fault))
    return NvmeError(Status.DATA_TRANSFER_ERROR, str(fault), dnr=dnr)


def _pieces(prp1: int, length: int, entries: bytes) -> list[tuple[int, int]]:
    """Address and size of each piece, pages that lie side by side being one piece.

    A large transfer's pages often do, and 128 KiB in one view take half the time of 32 views.
    """
    if length == 0:
        return []
    _require_alignment(prp1, PRP_ALIGNMENT, CommandByte.PRP1)
    start, end = prp1, prp1 + min(length, PAGE_SIZE - prp1 % PAGE_SIZE)
    count = len(entries) // PRP_ENTRY_SIZE
    ones, distances = _side_by_side(count)
    if prp1 + length < ADDRESSES and (int.from_bytes(entries, "little") == end * ones + distances):
        return [(prp1, length)]
    pages = struct.unpack(f"<{count}Q", entries)
    pieces = []
    left = length - (end - start)
    for page in pages:
        _require_alignment(page, PAGE_SIZE)
        if page != end:
            pieces.append((start, end - start))
            start = page
        end = page + min(left, PAGE_SIZE)
        left -= PAGE_SIZE
    pieces.append((start, end - start))
    return pieces


@functools.cache
def _side_by_side(count: int) -> tuple[int, int]:
    """Two numbers with a field of 64 bits for each page: with ones, and with the distances of pages
    that lie side by side from the first. A list of 32 pages is so compared in a fifth of the time
    that it takes to look at each."""
    fields = [1 << 8 * PRP_ENTRY_SIZE * at for at in range(count)]
    return sum(fields), sum(at * PAGE_SIZE * field for at, field in enumerate(fields))


def _first(pieces: Sequence[tuple[int, bytes]]) -> tuple[int, int]:
    address, data = pieces[0]
    return address, len(data)


def _require_alignment(entry: int, alignment: int, location: int = CommandByte.PRP2) -> None:
    if entry % alignment:
        raise NvmeError(
            Status.INVALID_PRP_OFFSET,
            f"PRP entry {entry:#x} is not {alignment}-aligned",
            location=location,
        )


def scatter(views: list[memoryview], data: bytes | memoryview) -> None:
    """Copy `data` over `views`, which together are as long or longer."""
    at, end = 0, len(data)
    for view in views:
        size = min(len(view), end - at)
        view[:size] = data[at : at + size]
        at += size


def gather_into(target: memoryview, views: list[memoryview]) -> None:
    """Copy `views` one behind the other into `target`, which is as long as they are together."""
    at = 0
    for view in views:
        target[at : at + len(view)] = view
        at += len(view)
