"""The memory of a program: one arena, one bounds check.

    stack | input | output | data | rodata

The regions are in this order in one contiguous memory, each on separate pages. A program sees them
at virtual addresses from `BASE` on, which are the same in each run, so that a linked program does
not depend on the memory's location in the APU; libubpf translates no addresses, so it has programs
use the process's own. Accesses outside the arena fault, and so do writes
to rodata, which is therefore the last region.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from potash_firmware.bpf.errors import Fault, FaultKind

BASE = 0x1000_0000
"""Guest-virtual address of the arena's first byte."""

REACH = 1 << 32
"""The end of every arena's addresses: what compiled code accesses has 32-bit addresses."""

PAGE = 4096

LEAST_FRAME = 512
"""Stack bytes that each active function has at least."""

FRAME_SIZE = 4096
"""Stack bytes that each active function has unless the configuration says otherwise."""

MAX_CALL_DEPTH = 8
"""Maximum depth of calls, including the entry function."""


def page_aligned(size: int) -> int:
    """`size` rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class Layout:
    """Sizes of the regions in bytes, and where they begin, in bytes from the arena's start."""

    input_size: int
    output_size: int
    stack_size: int = MAX_CALL_DEPTH * LEAST_FRAME
    data_size: int = 0
    rodata_size: int = 0
    input_offset: int = field(init=False, compare=False)
    output_offset: int = field(init=False, compare=False)
    data_offset: int = field(init=False, compare=False)
    rodata_offset: int = field(init=False, compare=False)
    size: int = field(init=False, compare=False)
    """Bytes of the whole arena."""

    REGIONS: ClassVar[Sequence[str]] = ("stack", "input", "output", "data", "rodata")
    """Names of the regions, in order."""

    def __post_init__(self) -> None:
        sizes = [getattr(self, f"{region}_size") for region in self.REGIONS]
        if min(sizes) < 0:
            raise ValueError("a region of an arena cannot have a negative size")
        *offsets, _ = accumulate(map(page_aligned, sizes), initial=0)
        for region, offset in zip(self.REGIONS, offsets, strict=True):
            object.__setattr__(self, f"{region}_offset", offset)
        object.__setattr__(self, "size", offsets[-1] + sizes[-1])
        if BASE + self.size > REACH:
            raise ValueError(f"an arena of {self.size} bytes exceeds {REACH - BASE}")

    @cached_property
    def frame_size(self) -> int:
        """Stack bytes of one function."""
        return self.stack_size // MAX_CALL_DEPTH

    @cached_property
    def rodata_end(self) -> int:
        """The end of the pages of rodata, or of the arena."""
        return min(self.rodata_offset + page_aligned(self.rodata_size), self.size)

    @cached_property
    def writable_size(self) -> int:
        """Limit of all writes, which nothing but this number stops."""
        return self.rodata_offset if self.REGIONS[-1] == "rodata" else self.size


@dataclass(frozen=True)
class RangesLayout(Layout):
    """The arena of a program that runs on memory ranges:

        stack | data | context | rodata | ranges

    What is the program's own comes first, so that it is linked and compiled once, whatever ranges
    it runs on: `input_size` is the length of the first, `output_size` that of all others. Rodata is
    whole pages, which are mapped read-only, as its end is not the arena's.
    """

    context_size: int = 0
    context_offset: int = field(init=False, compare=False)

    REGIONS = ("stack", "data", "context", "rodata", "input", "output")


class Arena:
    """The memory behind the addresses of one program.

    `memory` is writable and at least `layout.size` bytes long; what lies behind that is not part
    of the arena. Every access raises Fault unless all its bytes are inside.
    """

    def __init__(self, memory: memoryview, layout: Layout, base: int = BASE) -> None:
        if len(memory) < layout.size:
            raise ValueError(f"an arena of {layout.size} bytes does not fit in {len(memory)}")
        self.layout = layout
        self.base = base
        """Guest-virtual address of its first byte."""
        self._memory = memory[: layout.size].cast("B")

    @property
    def memory(self) -> memoryview:
        """All of it, for who does its own checks."""
        return self._memory

    @property
    def stack_top(self) -> int:
        """The frame pointer of the entry function."""
        return self.base + self.layout.stack_size

    @property
    def input(self) -> int:
        return self.base + self.layout.input_offset

    @property
    def output(self) -> int:
        return self.base + self.layout.output_offset

    @property
    def data(self) -> int:
        return self.base + self.layout.data_offset

    @property
    def rodata(self) -> int:
        return self.base + self.layout.rodata_offset

    def read(self, address: int, size: int, lowest: int = 0) -> int:
        """The unsigned little endian value of `size` bytes, none of them below `lowest`."""
        start = self._offset(address, size, write=False, lowest=lowest)
        return int.from_bytes(self._memory[start : start + size], "little")

    def write(self, address: int, size: int, value: int, lowest: int = 0) -> None:
        """Store the low `size` bytes of an unsigned value, none of them below `lowest`."""
        start = self._offset(address, size, write=True, lowest=lowest)
        value &= (1 << 8 * size) - 1
        self._memory[start : start + size] = value.to_bytes(size, "little")

    def bytes_at(self, address: int, size: int, *, write: bool = False) -> memoryview:
        """A view of `size` bytes; read-only unless it is asked for with `write`."""
        start = self._offset(address, size, write=write)
        view = self._memory[start : start + size]
        return view if write else view.toreadonly()

    def string_at(self, address: int, limit: int) -> bytes:
        """The NUL-terminated string at `address` without its end, cut after `limit` bytes."""
        start = self._offset(address, 1, write=False)
        found = bytes(self._memory[start : start + limit])
        text, end, _ = found.partition(b"\0")
        if not end and len(found) < limit:
            reason = f"the string at 0x{address:x} has no end inside the arena"
            raise Fault(FaultKind.OUT_OF_BOUNDS, None, address, reason)
        return text

    def _reaches_rodata(self, offset: int, size: int) -> bool:
        begin, end = self.layout.rodata_offset, self.layout.rodata_end
        return begin < end and begin < offset + size and offset < end

    def _offset(self, address: int, size: int, *, write: bool, lowest: int = 0) -> int:
        """Offset of an access in the memory, after the only bounds check that there is."""
        offset = address - self.base
        if 0 <= offset <= self.layout.size - size and address >= lowest:
            if not write or not self._reaches_rodata(offset, size):
                return offset
            kind, why = FaultKind.READ_ONLY, "it reaches into the read-only data"
        else:
            kind = FaultKind.OUT_OF_BOUNDS
            why = f"the arena spans 0x{self.base:x} to 0x{self.base + self.layout.size:x}"
            if self.base <= address < lowest:
                why = f"it is below the function's stack frame of {self.layout.frame_size} bytes"
        access = f"a {'write' if write else 'read'} of {size} byte{'s' if size != 1 else ''}"
        raise Fault(kind, None, address, f"{access} at 0x{address:x} was refused: {why}")
