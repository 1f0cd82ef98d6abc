"""Counters of each accelerator, in memory that the board's processors share.

One row of 64-bit words for each accelerator. The APU and its workers write them; the device reads
them at any time, which costs the APU nothing. Each word has one writer at
a time and is stored at once, so a reader sees an old value or a new one. The device owns the
memory, so counters continue when an APU or a worker is started again.
"""

from enum import IntEnum
from typing import Self

from potash_firmware.mailbox.shared import PAGE_SIZE, SharedMemory

WORD = 8
ROW_WORDS = 32


ENGINE_ROWS = 64
"""Rows after those of the accelerators, in mode `modelled`, for simultaneous executions."""


class Word(IntEnum):
    """Indices of numbers in a row."""

    STATE = 0
    """The state of the accelerator: a `csd_spec.status.StatusId`."""
    BEGAN = 1
    """The time at which the running job began, in nanoseconds of the monotonic clock; 0 without a
    job."""
    STARTED = 2
    DONE = 3
    FAILED = 4
    STOPPED = 5
    """Jobs, by how they ended."""
    BUSY = 6
    """Nanoseconds that jobs which have ended took."""
    INPUT = 7
    OUTPUT = 8
    """Bytes that jobs which have returned were given, and made."""
    MODELS = 16
    """Runs of models. These and those below are the worker's."""
    STREAMS = 17
    INSTRUCTIONS = 18
    CYCLES = 19
    """Counters of the tensor accelerator; modelled cycles only with `Config.count_cycles`."""
    MODELLED = 20
    """Nanoseconds of its core that the job has taken so far, in mode `modelled`."""


Row = memoryview
"""The words of one accelerator."""


def add(row: Row, word: Word, amount: int) -> None:
    """Count on. A worker that is an attacker's may have put anything there, so the sum may wrap."""
    row[word] = (row[word] + amount) % (1 << 8 * WORD)


def unshared_row() -> Row:
    """A row that is not shared."""
    return memoryview(bytearray(ROW_WORDS * WORD)).cast("Q")


class Counters:
    """The rows of a board with so many accelerators, in their order. A context manager."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    @classmethod
    def create(cls, accelerators: int) -> Self:
        """New rows, all zero. Raises OSError."""
        return cls(SharedMemory(_size(accelerators), "potash-counters"))

    @classmethod
    def adopt(cls, fd: int, accelerators: int) -> Self:
        """The rows that `create` made in another process. Raises MailboxError."""
        return cls(SharedMemory.adopt(fd, _size(accelerators)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()

    @property
    def fd(self) -> int:
        """The descriptor that another process adopts."""
        return self._memory.fd

    def row(self, place: int) -> Row:
        """The words of the accelerator at that place."""
        size = ROW_WORDS * WORD
        return self._memory.view[place * size : (place + 1) * size].cast("Q")


def _size(accelerators: int) -> int:
    return -(-max(accelerators, 1) * ROW_WORDS * WORD // PAGE_SIZE) * PAGE_SIZE
