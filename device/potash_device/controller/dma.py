"""Moving data to and from the host: PRP entries become views of guest memory.

Nothing here copies: a transfer is a list of memoryviews that media reads into or writes from. The
engine can be stopped; a stopped engine gives nothing out, which is how a controller that is not
ready is known to touch no guest memory.

Source: NVM Express Base Specification 2.0, section 4.1.1 (Physical Region Page entry and list).
"""

import struct
from functools import reduce
from operator import or_

from nvme_spec.status import NvmeError, Status
from pyvfio_user.memory import AccessFault, AddressSpace

PAGE_SIZE = 4096
"""Bytes of a memory page; CC.MPS other than 0 is not offered in CAP."""

PRP_ENTRY_SIZE = 8
PRP_ALIGNMENT = 4
"""The two low bits of every PRP entry are reserved and zero (figure 86)."""


class DmaEngine:
    """Guest memory as the firmware may use it."""

    def __init__(self) -> None:
        self._connected: AddressSpace | None = None
        self._memory: AddressSpace | None = None
        """The host's memory while transfers are allowed."""

    def connect(self, memory: AddressSpace | None) -> None:
        """Use a host's memory, or none, once transfers are allowed."""
        self._connected = memory
        self._memory = None

    def start(self) -> None:
        """Allow transfers."""
        self._memory = self._connected

    def stop(self) -> None:
        """Refuse transfers from now on."""
        self._memory = None

    def view(self, address: int, size: int, *, write: bool) -> memoryview:
        """`size` contiguous bytes of guest memory at `address`.

        Raises AccessFault where they are not all mapped, together and with that right, and when the
        engine is stopped.
        """
        if self._memory is None:
            raise AccessFault(address, size, "the DMA engine is stopped")
        return self._memory.view(address, size, write=write)

    def pieces(self, address: int, size: int, *, write: bool) -> list[memoryview]:
        """`size` bytes of guest memory at `address`, split where the host's mappings meet.

        Raises AccessFault as `view` does.
        """
        if self._memory is None:
            raise AccessFault(address, size, "the DMA engine is stopped")
        return self._memory.views(address, size, write=write)

    def views(self, prp1: int, prp2: int, length: int, *, write: bool) -> list[memoryview]:
        """The pieces of a transfer of `length` bytes, in order; `write` to guest memory or from it.

        Raises NvmeError: Invalid PRP Offset for an entry that is not aligned as it must be, Data
        Transfer Error for memory that the host has not mapped.
        """
        memory = self._memory
        try:
            if memory is None:
                raise AccessFault(prp1, length, "the DMA engine is stopped")
            if 0 < length <= PAGE_SIZE - prp1 % PAGE_SIZE and not prp1 % PRP_ALIGNMENT:
                return [memory.view(prp1, length, write=write)]
            return memory.views_of(self._pieces(prp1, prp2, length), write=write)
        except AccessFault as fault:
            raise NvmeError(Status.DATA_TRANSFER_ERROR, dnr=False, detail=str(fault)) from None

    def _pieces(self, prp1: int, prp2: int, length: int) -> list[tuple[int, int]]:
        """Address and size of each piece, pages that lie side by side being one piece.

        A large transfer's pages often do, and 128 KiB in one view take half the time of 32 views.
        """
        if length == 0:
            return []
        _require_alignment(prp1, PRP_ALIGNMENT)
        first = PAGE_SIZE - prp1 % PAGE_SIZE
        if length <= first:
            return [(prp1, length)]
        if length - first <= PAGE_SIZE:
            _require_alignment(prp2, PAGE_SIZE)
            pages = [prp2]
        else:
            pages = self._listed_pages(prp2, -(-(length - first) // PAGE_SIZE))
        pieces = []
        start, end = prp1, prp1 + first
        for page in pages:
            if page != end:
                pieces.append((start, end - start))
                start = page
            end = page + PAGE_SIZE
        beyond = first + len(pages) * PAGE_SIZE - length
        pieces.append((start, end - beyond - start))
        return pieces

    def _listed_pages(self, list_address: int, needed: int) -> list[int]:
        """The `needed` pages of a PRP list, whose last entry in a page may lead to another page."""
        _require_alignment(list_address, PRP_ENTRY_SIZE)
        pages: list[int] = []
        while needed > (room := (PAGE_SIZE - list_address % PAGE_SIZE) // PRP_ENTRY_SIZE):
            *listed, list_address = self._entries(list_address, room)
            pages += listed
            needed -= len(listed)
        return pages + self._entries(list_address, needed)

    def _entries(self, address: int, count: int) -> list[int]:
        """`count` entries of a PRP list in one page, each the address of a page."""
        view = self.view(address, count * PRP_ENTRY_SIZE, write=False)
        entries = list(struct.unpack(f"<{count}Q", view))
        # One look for all of them, as there are few mistakes and many entries.
        if reduce(or_, entries) % PAGE_SIZE:
            for entry in entries:
                _require_alignment(entry, PAGE_SIZE)
        return entries


def _require_alignment(entry: int, alignment: int) -> None:
    if entry % alignment:
        raise NvmeError(
            Status.INVALID_PRP_OFFSET, detail=f"PRP entry {entry:#x} is not {alignment}-aligned"
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
