"""The memory that the RPU and the APU share, in the role of the board's reserved DDR.

A transfer area of equal slots carries the data of commands; each accelerator has an arena that
holds its input and output buffers and its program's memory; a state area survives the loss of an
APU, so that the next one finds its configuration. Each is a separate memfd with a sealed size, so
no process can shrink it while another one has mapped it.

The counters of each accelerator are a row of 64-bit words. The APU and its workers write them; the
device reads them at any time, which costs the APU nothing. Each word has one writer at a time and
is stored as a whole, so a reader sees an old value or a new one. The device owns the memory, so
counters continue when an APU or a worker is started again.

Source: Alkali CSD platform documentation, section 3.2.3 (RPU-APU shared memory).
"""

import fcntl
import mmap
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Self

from pyvfio_user.sealed_memory import SealedMemory


class MailboxError(Exception):
    """A message, a port or shared memory is not what the two processors agreed on."""


SLOTS = 16
"""Vendor commands that can be in flight, each with its own slot."""

SLOT_SIZE = 512 * 1024
"""Most bytes that one command moves: MDTS."""

STATE_SIZE = 64 * 1024 * 1024
"""Bytes of the state area; pages that are never written cost nothing."""

PAGE_SIZE = mmap.PAGESIZE


def _pages(size: int) -> int:
    return -(-size // PAGE_SIZE) * PAGE_SIZE


@dataclass(frozen=True)
class ArenaPlan:
    """The parts of an accelerator's arena: `stack | input | output | data | writes`.

    Sizes in bytes. Each part starts on a page, so that a buffer is cleared by releasing its pages.
    `data` is the program's, which can access everything before `writes`; that holds the blocks that
    it has written, until its job has ended.
    """

    input_size: int
    output_size: int
    stack_size: int = PAGE_SIZE
    data_size: int = 16 * 1024 * 1024
    writes_size: int = 16 * 1024 * 1024

    @cached_property
    def input_offset(self) -> int:
        return _pages(self.stack_size)

    @cached_property
    def output_offset(self) -> int:
        return self.input_offset + _pages(self.input_size)

    @cached_property
    def data_offset(self) -> int:
        return self.output_offset + _pages(self.output_size)

    @cached_property
    def writes_offset(self) -> int:
        return self.data_offset + _pages(self.data_size)

    @cached_property
    def size(self) -> int:
        return self.writes_offset + _pages(self.writes_size)


class SharedMemory(SealedMemory):
    """Memory that the device's processes share."""

    @classmethod
    def adopt(cls, fd: int, size: int) -> Self:
        """Map memory that another process made, and own `fd`. Raises MailboxError when it is not
        sealed memory of exactly `size` bytes."""
        try:
            present = os.fstat(fd).st_size
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        except OSError as error:
            raise MailboxError(f"descriptor {fd} is no shared memory: {error.strerror}") from None
        if not sealed:
            raise MailboxError(f"the memory of descriptor {fd} is not sealed against shrinking")
        if present != size:
            raise MailboxError(f"descriptor {fd} has {present} bytes where {size} were expected")
        return cls(size, fd=fd)

    def discard(self, offset: int, size: int) -> None:
        """Clear `size` bytes from page `offset` on by releasing their pages."""
        if size:
            self._mapped.madvise(mmap.MADV_REMOVE, offset, size)


class SharedBuffers:
    """All memory of one board that both processors share. A context manager, which releases it."""

    def __init__(
        self, transfer: SharedMemory, state: SharedMemory, arenas: Mapping[int, SharedMemory]
    ) -> None:
        self.transfer = transfer
        self.state = state
        self.arenas = dict(arenas)

    @classmethod
    def create(cls, plans: Mapping[int, ArenaPlan]) -> Self:
        """Make the memory for accelerators with these arenas, by their identifiers."""
        with ExitStack() as undo:

            def make(name: str, size: int) -> SharedMemory:
                memory = SharedMemory(size, name)
                undo.callback(memory.close)
                return memory

            transfer = make("potash-transfer", SLOTS * SLOT_SIZE)
            state = make("potash-state", STATE_SIZE)
            arenas = {key: make(f"potash-arena{key}", plan.size) for key, plan in plans.items()}
            undo.pop_all()
        return cls(transfer, state, arenas)

    @classmethod
    def adopt(cls, transfer: int, state: int, arenas: Mapping[int, tuple[int, ArenaPlan]]) -> Self:
        """Map the memory of another process; `arenas` are (descriptor, plan) by identifier. Raises
        MailboxError for a wrong descriptor."""
        return cls(
            SharedMemory.adopt(transfer, SLOTS * SLOT_SIZE),
            SharedMemory.adopt(state, STATE_SIZE),
            {key: SharedMemory.adopt(fd, plan.size) for key, (fd, plan) in arenas.items()},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything; calling it again does nothing."""
        for memory in (self.transfer, self.state, *self.arenas.values()):
            memory.close()

    def clear_arena(self, accelerator: int) -> None:
        """Clear an accelerator's arena."""
        memory = self.arenas[accelerator]
        memory.discard(0, memory.size)

    def clear_slot(self, index: int) -> None:
        self.transfer.discard(index * SLOT_SIZE, SLOT_SIZE)

    def clear_state(self) -> None:
        self.state.discard(0, self.state.size)

    def slot(self, index: int) -> memoryview:
        """The bytes of one transfer slot. Raises MailboxError if it does not exist."""
        if not 0 <= index < SLOTS:
            raise MailboxError(f"there is no transfer slot {index}")
        return self.transfer.view[index * SLOT_SIZE : (index + 1) * SLOT_SIZE]

    def arena(self, accelerator: int) -> memoryview:
        """The bytes of an accelerator's arena. Raises MailboxError if it does not exist."""
        memory = self.arenas.get(accelerator)
        if memory is None:
            raise MailboxError(f"there is no accelerator {accelerator}")
        return memory.view

    def descriptors(self) -> dict[str, int]:
        """Descriptors for the APU's process, by name."""
        named = {"state": self.state.fd, "transfer": self.transfer.fd}
        return named | {f"arena{key}": memory.fd for key, memory in self.arenas.items()}


def seal(name: str, contents: bytes | memoryview) -> int:
    """A memfd with `contents`, sealed against changes; the caller closes it. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, contents)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


WORD = 8
ROW_WORDS = 32
"""Bytes of a counter, and counters of a row."""

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
    READ = 21
    """Bytes of local storage that jobs have read; the worker's, too."""
    DRAM = 22
    """Nanoseconds of `MODELLED` in which the job has moved bytes in DRAM."""


Row = memoryview
"""The words of one accelerator."""


def add(row: Row, word: Word, amount: int) -> None:
    """Add to a counter. A compromised worker may have stored any value, so the sum may wrap."""
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
