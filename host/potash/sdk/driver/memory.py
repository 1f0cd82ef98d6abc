"""The memory that the driver shares with the device: queues, one PRP list, one data buffer.

The buffer is one run of addresses, so its PRP list is written once and serves every transfer.

NVM Express Base Specification 2.0, section 4.1.1 (Physical Region Page entry and list).
"""

from __future__ import annotations

import struct

from nvme_spec.queues import COMPLETION_ENTRY_SIZE, SUBMISSION_ENTRY_SIZE
from pyvfio_user.client import SealedMemory

PAGE_SIZE = 4096
BASE_ADDRESS = 0x1_0000_0000
"""Where the device sees it: above 4 GiB, so that nothing works with half an address."""
QUEUE_ENTRIES = PAGE_SIZE // SUBMISSION_ENTRY_SIZE
"""Entries of each queue: one page of commands."""
MAX_TRANSFER = 1 << 20
"""Bytes of the data buffer; its PRP list fits in one page."""

_ADMIN_SQ, _ADMIN_CQ, _IO_SQ, _IO_CQ, _PRP_LIST, _DATA = (page * PAGE_SIZE for page in range(6))

assert QUEUE_ENTRIES * COMPLETION_ENTRY_SIZE <= PAGE_SIZE


class QueueMemory:
    """Two pages of shared memory: a submission and a completion queue."""

    def __init__(self, memory: SealedMemory, submission: int, completion: int) -> None:
        self.submission_address = BASE_ADDRESS + submission
        self.completion_address = BASE_ADDRESS + completion
        self.submission = memory.view[submission : submission + PAGE_SIZE]
        self.completion = memory.view[completion : completion + PAGE_SIZE]

    def clear(self) -> None:
        """Zero both, so that no old phase tag is taken for a completion."""
        self.submission[:] = bytes(PAGE_SIZE)
        self.completion[:] = bytes(PAGE_SIZE)

    def release(self) -> None:
        self.submission.release()
        self.completion.release()


class DriverMemory:
    """All of it, in one sealed memfd."""

    def __init__(self) -> None:
        self.shared = SealedMemory(_DATA + MAX_TRANSFER)
        self.admin = QueueMemory(self.shared, _ADMIN_SQ, _ADMIN_CQ)
        self.io = QueueMemory(self.shared, _IO_SQ, _IO_CQ)
        self.data = self.shared.view[_DATA : _DATA + MAX_TRANSFER]
        pages = range(BASE_ADDRESS + _DATA + PAGE_SIZE, BASE_ADDRESS + len(self), PAGE_SIZE)
        struct.pack_into(f"<{len(pages)}Q", self.shared.view, _PRP_LIST, *pages)

    def __len__(self) -> int:
        return _DATA + MAX_TRANSFER

    def prps(self, size: int) -> tuple[int, int]:
        """PRP1 and PRP2 of a transfer of the buffer's first `size` bytes."""
        if size == 0:
            return 0, 0
        if size <= PAGE_SIZE:
            return BASE_ADDRESS + _DATA, 0
        if size <= 2 * PAGE_SIZE:
            return BASE_ADDRESS + _DATA, BASE_ADDRESS + _DATA + PAGE_SIZE
        return BASE_ADDRESS + _DATA, BASE_ADDRESS + _PRP_LIST

    def close(self) -> None:
        self.admin.release()
        self.io.release()
        self.data.release()
        self.shared.close()
