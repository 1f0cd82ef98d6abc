"""Buffers in the DRAM that the core shares with its driver.

`Spans` allocates pieces of a range of numbers; it also places micro-kernels in the core's micro-op
buffer. `Heap` puts buffers into a core's DRAM with it.

Source: the VTA project's `vta/runtime.h`, VTABufferAlloc and VTABufferFree.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from potash_device.vta.core import Core


class VtaMemoryError(MemoryError):
    """The core's DRAM has no room for a buffer."""


class Spans:
    """The free pieces of a range of `size` units, first fit."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)] if size else []

    def take(self, size: int) -> int | None:
        """The start of `size` units that are free no longer, or None where no piece is as long."""
        for number, (start, length) in enumerate(self._free):
            if length >= size:
                if length == size:
                    del self._free[number]
                else:
                    self._free[number] = (start + size, length - size)
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        """Free what `take` gave, joining it with its free neighbours."""
        number = bisect_left(self._free, (start, 0))
        if number < len(self._free) and self._free[number][0] == start + size:
            size += self._free.pop(number)[1]
        if number and sum(self._free[number - 1]) == start:
            start, before = self._free.pop(number - 1)
            size += before
            number -= 1
        self._free.insert(number, (start, size))


class Buffer:
    """`size` bytes of the core's DRAM at physical address `physical`."""

    def __init__(self, heap: "Heap", physical: int, size: int, view: memoryview) -> None:
        self.physical = physical
        self.size = size
        self._heap = heap
        self._view: memoryview | None = view

    @property
    def view(self) -> memoryview:
        """The bytes themselves, writable. Raises ValueError when the buffer was freed."""
        if self._view is None:
            raise ValueError(f"the VTA buffer at {self.physical:#x} was freed")
        return self._view

    @property
    def freed(self) -> bool:
        """True if `free` was called."""
        return self._view is None

    def free(self) -> None:
        """Give the memory back; calling it again does nothing."""
        if self._view is not None:
            self._view = None
            self._heap.release(self)


class Share(Buffer):
    """A piece of another buffer, in which it gets its place later on. Others may have the same
    bytes at other times; freeing it does nothing."""

    def __init__(self, size: int) -> None:
        self.physical = 0
        self.size = size
        self._view = None

    def place(self, whole: Buffer, offset: int) -> None:
        """Be the bytes of `whole` from `offset` on."""
        self.physical = whole.physical + offset
        self._view = whole.view[offset : offset + self.size]

    def free(self) -> None:
        """Have no bytes any more."""
        self._view = None


class Heap:
    """Allocates buffers in a core's DRAM.

    While it is `held`, as it is from the first instruction of a stream to its end, freed memory is
    not allocated again: instructions that have not run yet may still name it.
    """

    def __init__(self, core: Core) -> None:
        self._alignment = core.config.alignment
        # An address that no element has to be rounded for, wherever DRAM begins.
        skipped = -core.base % self._alignment
        self._dram = core.dram[skipped:]
        self._base = core.base + skipped
        self._spans = Spans(len(self._dram) // self._alignment)
        self._released: list[Buffer] = []
        self.held = False

    def allocate(self, size: int) -> Buffer:
        """Zeroed bytes, aligned to the largest element. Raises ValueError, VtaMemoryError."""
        if size <= 0:
            raise ValueError(f"a VTA buffer must have at least one byte, not {size}")
        start = self._spans.take(self._units(size))
        if start is None:
            raise VtaMemoryError(f"the VTA's DRAM has no room for {size} more bytes")
        offset = start * self._alignment
        view = self._dram[offset : offset + size]
        view[:] = bytes(size)
        return Buffer(self, self._base + offset, size, view)

    def release(self, buffer: Buffer) -> None:
        """Free a buffer, immediately or when the heap is no longer locked."""
        if self.held:
            self._released.append(buffer)
        else:
            start = (buffer.physical - self._base) // self._alignment
            self._spans.give_back(start, self._units(buffer.size))

    def let_go(self) -> None:
        """End being held: memory freed meanwhile may be allocated again."""
        self.held = False
        released, self._released = self._released, []
        for buffer in released:
            self.release(buffer)

    def _units(self, size: int) -> int:
        return -(-size // self._alignment)


class UnbackedHeap(Heap):
    """Buffers without bytes, as many as are wanted and at the addresses that they would have in an
    empty DRAM: for streams that are timed, and never run."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._next = 0

    def allocate(self, size: int) -> Buffer:
        """Raises ValueError."""
        if size <= 0:
            raise ValueError(f"a VTA buffer must have at least one byte, not {size}")
        buffer = Buffer(self, self._base + self._next, size, memoryview(b""))
        self._next += self._units(size) * self._alignment
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Nothing is allocated again."""


class Need(NamedTuple):
    """Bytes that are needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def places(needs: Sequence[Need], alignment: int) -> tuple[list[int], int]:
    """Offsets of the buffers, at multiples of `alignment`, and the size of all together: the
    largest first, each at the lowest place that is free as long as it is needed."""
    found = [0] * len(needs)
    placed: list[tuple[int, int, Need]] = []
    for number in sorted(range(len(needs)), key=lambda at: -needs[at].size):
        its, begin = needs[number], 0
        for start, end, other in placed:
            if begin + its.size <= start:
                break
            if other.first <= its.last and its.first <= other.last:
                begin = max(begin, -(-end // alignment) * alignment)
        found[number] = begin
        placed.append((begin, begin + its.size, its))
        placed.sort(key=lambda one: one[0])
    return found, max((end for _, end, _ in placed), default=0)


def settle(
    steps: Iterable[Iterable[Buffer]], allocate: Callable[[int], Buffer], alignment: int
) -> None:
    """Give each `Share` among the buffers of some steps its place in one new buffer.

    Raises VtaMemoryError.
    """
    needs: dict[Share, Need] = {}
    for number, buffers in enumerate(steps):
        for its in buffers:
            if isinstance(its, Share):
                first = needs[its].first if its in needs else number
                needs[its] = Need(its.size, first, number)
    offsets, size = places(list(needs.values()), alignment)
    if needs:
        whole = allocate(size)
        for share, offset in zip(needs, offsets, strict=True):
            share.place(whole, offset)
