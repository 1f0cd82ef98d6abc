"""Moving data to and from the host: PRP entries become views of guest memory.

Nothing here copies: a transfer is a list of memoryviews that media reads into or writes from. The
engine can be stopped; a stopped engine gives nothing out, which is how a controller that is not
ready is known to touch no guest memory.

Source: NVM Express Base Specification 2.0, section 4.1.1 (Physical Region Page entry and list).
"""

import struct
from collections.abc import Iterable, Iterator

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
        self._memory: AddressSpace | None = None
        self._running = False

    def connect(self, memory: AddressSpace | None) -> None:
        """Use a host's memory, or none."""
        self._memory = memory

    def start(self) -> None:
        """Allow transfers."""
        self._running = True

    def stop(self) -> None:
        """Refuse transfers from now on."""
        self._running = False

    def view(self, address: int, size: int, *, write: bool) -> memoryview:
        """`size` contiguous bytes of guest memory at `address`.

        Raises AccessFault where they are not all mapped, together and with that right, and when the
        engine is stopped.
        """
        if self._memory is None or not self._running:
            raise AccessFault(address, size, "the DMA engine is stopped")
        return self._memory.view(address, size, write=write)

    def pieces(self, address: int, size: int, *, write: bool) -> list[memoryview]:
        """`size` bytes of guest memory at `address`, split where the host's mappings meet.

        Raises AccessFault as `view` does.
        """
        if self._memory is None or not self._running:
            raise AccessFault(address, size, "the DMA engine is stopped")
        return self._memory.views(address, size, write=write)

    def views(self, prp1: int, prp2: int, length: int, *, write: bool) -> list[memoryview]:
        """The pieces of a transfer of `length` bytes, in order; `write` to guest memory or from it.

        Raises NvmeError: Invalid PRP Offset for an entry that is not aligned as it must be, Data
        Transfer Error for memory that the host has not mapped.
        """
        try:
            if 0 < length <= PAGE_SIZE - prp1 % PAGE_SIZE and not prp1 % PRP_ALIGNMENT:
                return [self.view(prp1, length, write=write)]
            pieces = _merged(self._pieces(prp1, prp2, length))
            return [view for piece in pieces for view in self.pieces(*piece, write=write)]
        except AccessFault as fault:
            raise NvmeError(Status.DATA_TRANSFER_ERROR, dnr=False, detail=str(fault)) from None

    def _pieces(self, prp1: int, prp2: int, length: int) -> Iterator[tuple[int, int]]:
        """Address and size of each piece."""
        if length == 0:
            return
        _require_alignment(prp1, PRP_ALIGNMENT)
        first = min(length, PAGE_SIZE - prp1 % PAGE_SIZE)
        yield prp1, first
        length -= first
        if 0 < length <= PAGE_SIZE:
            _require_alignment(prp2, PAGE_SIZE)
            yield prp2, length
        elif length:
            yield from self._list_pieces(prp2, length)

    def _list_pieces(self, list_address: int, length: int) -> Iterator[tuple[int, int]]:
        """The pieces that a PRP list names; its last entry in a page may lead to another page."""
        _require_alignment(list_address, PRP_ENTRY_SIZE)
        while length:
            room = (PAGE_SIZE - list_address % PAGE_SIZE) // PRP_ENTRY_SIZE
            needed = -(-length // PAGE_SIZE)
            chained = needed > room
            count = room if chained else needed
            entries = struct.unpack(
                f"<{count}Q", self.view(list_address, count * PRP_ENTRY_SIZE, write=False)
            )
            for entry in entries[:-1] if chained else entries:
                _require_alignment(entry, PAGE_SIZE)
                piece = min(length, PAGE_SIZE)
                yield entry, piece
                length -= piece
            if chained:
                list_address = entries[-1]
                _require_alignment(list_address, PAGE_SIZE)


def _merged(pieces: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same memory in fewer pieces: pages that lie side by side are one.

    A large transfer's pages often do, and 128 KiB in one view take half the time of 32 views.
    """
    start = end = 0
    for address, size in pieces:
        if address != end:
            if end > start:
                yield start, end - start
            start = address
        end = address + size
    if end > start:
        yield start, end - start


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
