"""Copies between the tensors of a runtime in C and a core's DRAM: what a driver packs and unpacks.

A copy has up to four loops around runs of bytes. The runtime's tensors are structures; each time,
their addresses are read there, and their shapes are compared with those that the copies are for.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numpy.typing import NDArray

from potash_device.vta.fast.binding import arguments_at
from potash_device.vta.fast.compiling import Flag, Number, compiled, emits, entry, most

DATA, SIZE, SHAPE, BYTES = range(4)
"""Columns of `Copies.tensors`: the positions of a tensor's address, of its size in bytes and of its
shape's address, in bytes from the first structure on, and the size that it has to have."""

TENSOR, OFFSET, PLACE, RUN = range(4)
COUNT, INNER, OUTER = 4, 8, 12
"""Columns of `Copies.rows`: the number of the tensor, the first byte there, the address of the
first byte in DRAM, and the bytes of a run; for each of `LOOPS` loops, outermost first, its count,
and the bytes from one iteration to the next in the tensor and in DRAM."""
LOOPS = 4
COLUMNS = COUNT + 3 * LOOPS


class Copies(NamedTuple):
    """Copies of some tensors."""

    tensors: NDArray[np.int64]
    shapes: NDArray[np.int32]
    """For each tensor, the number of its dimensions, and their extents."""
    rows: NDArray[np.int64]


NOTHING = Copies(
    np.empty((0, BYTES + 1), np.int64),
    np.empty((0, 1), np.int32),
    np.empty((0, COLUMNS), np.int64),
)


@entry
def copy(address: Any, first: Number, packs: Number) -> Number:
    """Copy tensors to DRAM where `packs` is 1, from there where it is 0. The tensors' structures
    begin at address `first`. Returns the number of copies, or -1, with nothing copied, where a
    tensor has another shape or no memory."""
    copies = arguments_at(address)
    tensors = copies.tensors
    for number in range(tensors.shape[0]):
        size, data = long_at(first + tensors[number, SIZE]), long_at(first + tensors[number, DATA])
        if size != tensors[number, BYTES] or data == 0:
            return -1
        if not has_shape(long_at(first + tensors[number, SHAPE]), copies.shapes[number]):
            return -1
    rows = copies.rows
    for number in range(rows.shape[0]):
        row = rows[number]
        data = long_at(first + tensors[row[TENSOR], DATA]) + row[OFFSET]
        if packs:
            copy_runs(row[PLACE], row[OUTER:], data, row[INNER:], row)
        else:
            copy_runs(data, row[INNER:], row[PLACE], row[OUTER:], row)
    return rows.shape[0]


@compiled
def has_shape(address: Number, shape: Any) -> Flag:
    """True where the array of `int` at an address, behind their number, is that shape."""
    if address == 0 or int_at(address) != shape[0]:
        return False
    same = True
    for number in range(1, np.int64(shape[0]) + 1):
        same &= int_at(address + 4 * number) == shape[number]
    return same


@compiled
def copy_runs(target: Number, to: Any, source: Number, of: Any, row: Any) -> None:
    """Copy runs to addresses from `target` on, which the strides `to` are apart, from `source`."""
    for first in range(row[COUNT]):
        for second in range(row[COUNT + 1]):
            for third in range(row[COUNT + 2]):
                at = first * to[0] + second * to[1] + third * to[2]
                begin = first * of[0] + second * of[1] + third * of[2]
                copy_line(target + at, to[3], source + begin, of[3], row[COUNT + 3], row[RUN])


@compiled
def copy_line(
    target: Number, to: Number, source: Number, of: Number, count: Number, run: Number
) -> None:
    """Copy `count` runs."""
    if run == 16:
        for _ in range(count):
            copy_16(target, source)
            target += to
            source += of
    elif run > 16:
        for _ in range(count):
            copy_bytes(target, source, run)
            target += to
            source += of
    elif run >= 8:
        for _ in range(count):
            copy_8(target, source)
            copy_8(target + run - 8, source + run - 8)
            target += to
            source += of
    else:
        # Eight bytes at a time, as far as runs that follow cover what is read; the target keeps
        # what it has behind a run.
        wide = count - -(-8 // most(of, 1)) if to >= 8 else 0
        mask = (np.int64(1) << 8 * run) - 1
        for _ in range(wide):
            put_long(target, long_at(source) & mask | long_at(target) & ~mask)
            target += to
            source += of
        for _ in range(most(wide, 0), count):
            for number in range(run):
                copy_bytes(target + number, source + number, 1)
            target += to
            source += of


def _at(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


@emits(types.int64)
def long_at(builder: Any, address: Any) -> Any:
    """The 64 bits at any address."""
    return builder.load(_at(builder, address, 64), align=1)


@emits(types.int32)
def int_at(builder: Any, address: Any) -> Any:
    """The 32 bits at any address."""
    return builder.load(_at(builder, address, 32), align=1)


@emits()
def put_long(builder: Any, address: Any, value: Any) -> None:
    """Write 64 bits."""
    builder.store(value, _at(builder, address, 64), align=1)


@emits()
def copy_8(builder: Any, target: Any, source: Any) -> None:
    """Copy eight bytes."""
    builder.store(builder.load(_at(builder, source, 64), align=1), _at(builder, target, 64), 1)


@emits()
def copy_16(builder: Any, target: Any, source: Any) -> None:
    """Copy 16 bytes."""
    builder.store(builder.load(_at(builder, source, 128), align=1), _at(builder, target, 128), 1)


@emits()
def copy_bytes(builder: Any, target: Any, source: Any, size: Any) -> None:
    """Copy any number of bytes."""
    to, of = _at(builder, target, 8), _at(builder, source, 8)
    cgutils.raw_memcpy(builder, to, of, size, 1)  # type: ignore[no-untyped-call]
