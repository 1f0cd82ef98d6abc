"""The narrow memory: low bytes of accumulators that are about to be stored.

A tile ends with ALU operations on its accumulators, and a STORE of their low bytes. Instead of
writing accumulators of 64 bytes, and reading them again for the STORE, the operations put the low
bytes into a memory of their own, from where the STORE takes them. The accumulators are not written
at all where nobody reads them before they are overwritten, as those of most tiles.

`find_narrow` finds such groups of operations in the steps of a whole stream. It goes through them
once, and knows of each element of ACC the group that wrote it last, if one did.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Flag, Number, compiled, emits
from potash_device.vta.fast.emitting import I8, on_stack
from potash_device.vta.fast.lanes import LANES
from potash_device.vta.isa import AluOpcode

MUL = int(AluOpcode.MUL)
ROOM = 2048
"""Elements of the narrow memory, which are those of ACC from the first one on: 32 KiB."""
NOBODY = -1


@emits(types.int64)
def new_narrow(builder: Any) -> Any:
    """The address of a narrow memory on the stack."""
    return on_stack(builder, ir.ArrayType(I8, ROOM * LANES))


@compiled
def find_narrow(sink: s.Sink, geometry: layout.Geometry) -> None:
    """Mark the groups whose last targets are stored before they are overwritten, and the STOREs of
    these."""
    if geometry.lanes != LANES or geometry.sizes[layout.OUT] != LANES:
        return
    steps, writer = sink.steps, sink.writer
    writer[:] = NOBODY
    at = np.int64(0)
    while at < sink.filled[s.STEPS]:
        step = steps[at]
        kind = step[s.KIND]
        following = at + 1
        if kind == s.ELEMENTWISE:
            following = at + np.int64(step[s.MEMBERS])
            for member in range(at, following):
                operate(steps, steps[member], at, writer)
        elif kind == s.PRODUCTS:
            multiply(steps, step, writer)
        elif kind == s.ZERO:
            writer[step[s.TARGET] : step[s.TARGET] + step[s.COUNT]] = NOBODY
        else:
            transfer(steps, step, writer)
        at = following
    for element in range(writer.size):
        read(steps, element, NOBODY, writer)


@compiled
def read(steps: Any, element: Number, reader: Number, writer: Any) -> None:
    """Record that an element is read, by a step that is not of the group `reader`."""
    group = writer[element]
    if group != NOBODY and group != reader:
        steps[group, s.LIVE] = 1


@compiled
def operate(steps: Any, step: Any, group: Number, writer: Any) -> None:
    """Record what an operation of a group reads and writes."""
    first, total = np.int64(step[s.TARGET]), np.int64(step[s.COUNT])
    cut, stride = np.int64(step[s.CUT]), np.int64(step[s.STRIDE])
    # Targets of a group are the same or have no element in common, so the first one tells.
    if not step[s.IMMEDIATE] and writer[step[s.OPERAND]] != group:
        for run in range(total // cut):
            operand = np.int64(step[s.OPERAND]) + run * np.int64(step[s.JUMP])
            for within in range(cut if stride else 1):
                read(steps, operand + within * stride, group, writer)
    if writer[first] == group:
        return
    clears = step[s.IMMEDIATE] and step[s.OPCODE] == MUL and step[s.OPERAND] == 0
    for element in range(first, first + total):
        if not clears:
            read(steps, element, group, writer)
        writer[element] = group


@compiled
def multiply(steps: Any, step: Any, writer: Any) -> None:
    """Record what products read and write."""
    for block in range(step[s.BLOCKS]):
        for line in range(step[s.LINES]):
            element = np.int64(step[s.TARGET]) + block * np.int64(step[s.BLOCK_STEP])
            element += line * np.int64(step[s.LINE_STEP])
            for _ in range(step[s.COUNT]):
                if not step[s.FRESH]:
                    read(steps, element, NOBODY, writer)
                writer[element] = NOBODY
                element += np.int64(step[s.DST_STEP])


@compiled
def transfer(steps: Any, step: Any, writer: Any) -> None:
    """Record what a transfer reads and writes. Mark a STORE of elements that the narrow memory can
    have, and their groups."""
    row = step[s.ROW :]
    memory = row[layout.MEMORY_TYPE]
    if memory == layout.INP or memory == layout.WGT:
        return
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    height = row[layout.Y_PAD_0] + row[layout.Y_SIZE] + row[layout.Y_PAD_1]
    begin, end = np.int64(row[layout.SRAM_BASE]), row[layout.SRAM_BASE] + width * height
    if row[layout.OPCODE] == layout.LOAD:
        writer[begin:end] = NOBODY
        return
    narrow = end <= ROOM
    for element in range(begin, end):
        narrow &= is_result(steps, element, writer[element])
    step[s.NARROW] = narrow
    for element in range(begin, end):
        if narrow:
            steps[writer[element], s.NARROWED] = 1
        else:
            read(steps, element, NOBODY, writer)


@compiled
def is_result(steps: Any, element: Number, group: Number) -> Flag:
    """True for an element of the last target of a group that wrote it last. With the narrow memory
    for all of them, an element of it has the low bytes of the one of ACC."""
    if group == NOBODY or not steps[group, s.SIMPLE]:
        return False
    last = steps[group + steps[group, s.MEMBERS] - 1]
    first = np.int64(last[s.TARGET])
    return first <= element < first + last[s.COUNT] <= ROOM
