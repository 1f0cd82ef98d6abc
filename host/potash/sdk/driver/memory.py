"""The memory that the driver shares with the device: queues, and a buffer for each command in
flight.

A buffer is one run of addresses, so its PRP list is written once and serves every transfer.

NVM Express Base Specification 2.0, section 4.1.1 (Physical Region Page entry and list).
"""

import struct

from nvme_spec.queues import COMPLETION_ENTRY_SIZE, SUBMISSION_ENTRY_SIZE
from pyvfio_user.sealed_memory import SealedMemory

PAGE_SIZE = 4096
BASE_ADDRESS = 0x1_0000_0000
"""Its address for the device: above 4 GiB, so that nothing works with half an address."""
QUEUE_ENTRIES = 256
"""Entries of each queue are a multiple of this, so that queues end at a page's end."""
MAX_TRANSFER = 1 << 20
"""Bytes of a data buffer; its PRP list fits in one page."""


class QueueMemory:
    """A submission and a completion queue in shared memory, from byte `start`."""

    def __init__(self, memory: SealedMemory, start: int, entries: int) -> None:
        middle = start + entries * SUBMISSION_ENTRY_SIZE
        self.submission_address = BASE_ADDRESS + start
        self.completion_address = BASE_ADDRESS + middle
        self.submission = memory.view[start:middle]
        self.completion = memory.view[middle : middle + entries * COMPLETION_ENTRY_SIZE]

    def clear(self) -> None:
        """Zero both, so that no old phase tag is taken for a completion."""
        self.submission[:] = bytes(len(self.submission))
        self.completion[:] = bytes(len(self.completion))

    def release(self) -> None:
        self.submission.release()
        self.completion.release()


class DriverMemory:
    """All of it, in one sealed memfd; pages that no command has used take no room.

    A queue has `entries`: twice the commands in flight, an Asynchronous Event Request included.
    """

    def __init__(self, queue_depth: int) -> None:
        self.entries = -(-2 * (queue_depth + 1) // QUEUE_ENTRIES) * QUEUE_ENTRIES
        queues = self.entries * (SUBMISSION_ENTRY_SIZE + COMPLETION_ENTRY_SIZE)
        self._prp_lists = 2 * queues
        self._buffers = self._prp_lists + queue_depth * PAGE_SIZE
        self._size = self._buffers + queue_depth * MAX_TRANSFER
        self.shared = SealedMemory(self._size)
        self.admin = QueueMemory(self.shared, 0, self.entries)
        self.io = QueueMemory(self.shared, queues, self.entries)
        for slot in range(queue_depth):
            start = BASE_ADDRESS + self._buffers + slot * MAX_TRANSFER
            pages = range(start + PAGE_SIZE, start + MAX_TRANSFER, PAGE_SIZE)
            struct.pack_into(
                f"<{len(pages)}Q", self.shared.view, self._prp_lists + slot * PAGE_SIZE, *pages
            )

    def __len__(self) -> int:
        return self._size

    def buffer(self, slot: int, size: int) -> memoryview:
        """The first `size` bytes of a command's buffer."""
        start = self._buffers + slot * MAX_TRANSFER
        return self.shared.view[start : start + size]

    def prps(self, slot: int, size: int) -> tuple[int, int]:
        """PRP1 and PRP2 of a transfer of those bytes."""
        start = BASE_ADDRESS + self._buffers + slot * MAX_TRANSFER
        if size <= PAGE_SIZE:
            return (start, 0) if size else (0, 0)
        if size <= 2 * PAGE_SIZE:
            return start, start + PAGE_SIZE
        return start, BASE_ADDRESS + self._prp_lists + slot * PAGE_SIZE

    def close(self) -> None:
        self.admin.release()
        self.io.release()
        self.shared.close()
