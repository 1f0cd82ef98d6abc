"""Memory in BARs that the drives of one guest share with each other.

Each drive writes to a table in shared memory at which address its host has placed BAR 4. Another
drive finds the address there, and maps the memfd behind that BAR, so that data go from drive to
drive without the host's memory (peer-to-peer DMA). The process that starts the drives makes the
table and the memfds (`potash.cli.device.drives`).
"""

import mmap
import os
from collections.abc import Mapping, Sequence

from pyvfio_user.sealed_memory import fix_size

_WORD = 8
"""Bytes of a row of the table: the address of a BAR, 0 for none."""


class Peers:
    """The other drives of the guest, as drive number `own` sees them: descriptors of the table that
    `Shared` has made, and of the memory in BARs, by the numbers of the drives that share it."""

    def __init__(self, table: int, memories: Mapping[int, int], own: int) -> None:
        self._rows = memoryview(mmap.mmap(table, 0)).cast("Q")
        self._memories = dict(memories)
        self._own = own
        self._mapped: dict[int, memoryview] = {}

    def claim(self, size: int) -> int | None:
        """A descriptor of memory of `size` bytes for this drive's BAR, which it shares; None if it
        shares none. Raises OSError without memory."""
        fd = self._memories.get(self._own)
        if fd is None:
            return None
        fix_size(fd, size)
        return os.dup(fd)

    def publish(self, address: int | None) -> None:
        """Say where the host has placed this drive's BAR; None while it is nowhere."""
        if self._own in self._memories:
            self._rows[self._own] = address or 0

    def withdraw(self) -> None:
        """Share nothing any more, as this drive's next host has other memory."""
        self.publish(None)
        self._memories.pop(self._own, None)

    def find(self, address: int, length: int) -> memoryview | None:
        """The bytes at an address, read-only; None unless all are in the BAR of one other drive."""
        for number in self._memories:
            start = self._rows[number]
            if number != self._own and 0 < start <= address:
                memory, first = self._memory(number), address - start
                if first + length <= len(memory):
                    return memory[first : first + length]
        return None

    def _memory(self, number: int) -> memoryview:
        if number not in self._mapped:
            mapped = mmap.mmap(self._memories[number], 0, access=mmap.ACCESS_READ)
            self._mapped[number] = memoryview(mapped)
        return self._mapped[number]


class Shared:
    """Files that the drives of a guest have in common: `table`, and `memories` of those that share
    theirs, by number. Raises OSError without memory.

    This process maps none of it, as processes that must not have it are forked from it.
    """

    def __init__(self, shares: Sequence[bool]) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.memories = {
            number: os.memfd_create(f"potash-bar{number}", flags)
            for number, shared in enumerate(shares)
            if shared
        }
        self.table = os.memfd_create("potash-peers", flags)
        fix_size(self.table, len(shares) * _WORD)

    @property
    def descriptors(self) -> list[int]:
        return [self.table, *self.memories.values()]

    def withdraw(self, number: int) -> None:
        """Remove a drive that has ended."""
        os.pwrite(self.table, bytes(_WORD), number * _WORD)


inherited: Peers | None = None
"""The peers of the drive that this process is to become, if it was forked with others."""
