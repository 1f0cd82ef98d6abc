"""Decoding a stream, checking it, and deciding its order, as `simulator` and `stream` do.

This gives no reason where a stream may not run; `simulator` does.
"""

from typing import Any

import numpy as np

from potash_device.vta.config import MemoryId
from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import Flag, Number, compiled, entry
from potash_device.vta.isa import AluOpcode, Dependencies, Stage

OPCODE_MASK = 7
OPCODES = layout.ALU + 1
MEMORIES = len(MemoryId)
ALU_OPCODES = len(AluOpcode)

POP_PREV, POP_NEXT, PUSH_PREV, PUSH_NEXT = (int(bit) for bit in Dependencies if bit)
LOAD_STAGE, COMPUTE_STAGE, STORE_STAGE = (int(stage) for stage in Stage)
STAGES = len(Stage)

LENGTH, HEAD, FROM_PREV, FROM_NEXT, QUEUE = range(5)
"""Columns of a module's row of `waiting`: instructions in its queue and those of them that have
executed, tokens from the module before it and from the one after it; then its queue."""


@entry
def admit(
    words: Any,
    fields: layout.Fields,
    geometry: layout.Geometry,
    dram_size: Number,
    in_order: Flag,
    rows: Any,
    order: Any,
    waiting: Any,
) -> Flag:
    """Decode `words`, two 64-bit ones an instruction, into `rows`, and put their indices into
    `order`; `waiting` is memory for each module's queue. False where the stream cannot run."""
    count = words.shape[0]
    steps = 0
    for index in range(count):
        row = rows[index]
        if not decode(words[index], fields, row):
            return False
        opcode = row[layout.OPCODE]
        if (opcode == layout.FINISH) != (index == count - 1):
            return False
        if opcode == layout.GEMM or opcode == layout.ALU:
            if (
                row[layout.UOP_BGN] > row[layout.UOP_END]
                or row[layout.UOP_END] > geometry.depths[layout.UOP]
            ):
                return False
            steps += (
                row[layout.ITER_OUT]
                * row[layout.ITER_IN]
                * (row[layout.UOP_END] - row[layout.UOP_BGN])
            )
            if steps > geometry.step_limit:
                return False
        elif opcode != layout.FINISH and row[layout.X_SIZE] and not fits(row, geometry, dram_size):
            return False
    if count == 0:
        return False
    return schedule(rows, in_order, order, waiting)


@compiled
def decode(words: Any, fields: layout.Fields, row: Any) -> Flag:
    """Decode an instruction. False for one that the encoding does not have."""
    opcode = np.int64(words[0] & np.uint64(OPCODE_MASK))
    if opcode >= OPCODES:
        return False
    for word in range(2):
        if words[word] & ~fields.defined[opcode, word]:
            return False
    for column in range(fields.number[opcode]):
        word = words[fields.word[opcode, column]]
        value = np.int64((word >> fields.low[opcode, column]) & fields.mask[opcode, column])
        sign = fields.sign[opcode, column]
        row[column] = value - 2 * sign if sign and value >= sign else value
    if opcode == layout.LOAD or opcode == layout.STORE:
        return row[layout.MEMORY_TYPE] < MEMORIES
    if opcode == layout.ALU:
        return row[layout.ALU_OPCODE] < ALU_OPCODES
    return True


@compiled
def fits(row: Any, geometry: layout.Geometry, dram_size: Number) -> Flag:
    """True for a LOAD or STORE that stays in its buffer and in DRAM. It has to move something."""
    memory = row[layout.MEMORY_TYPE]
    if (row[layout.OPCODE] == layout.STORE) != (memory == layout.OUT):
        return False
    pads = row[layout.Y_PAD_0] + row[layout.Y_PAD_1] + row[layout.X_PAD_0] + row[layout.X_PAD_1]
    if row[layout.OPCODE] == layout.STORE and pads:
        return False
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    height = row[layout.Y_PAD_0] + row[layout.Y_SIZE] + row[layout.Y_PAD_1]
    if row[layout.SRAM_BASE] + width * height > geometry.depths[memory]:
        return False
    if row[layout.Y_SIZE] == 0:
        return True
    first = row[layout.DRAM_BASE] * geometry.sizes[memory] - geometry.base
    elements = (row[layout.Y_SIZE] - 1) * row[layout.X_STRIDE] + row[layout.X_SIZE]
    return first >= 0 and first + elements * geometry.sizes[memory] <= dram_size


@compiled
def stage_of(row: Any) -> Number:
    """The module that executes an instruction."""
    if row[layout.OPCODE] == layout.STORE:
        return STORE_STAGE
    if row[layout.OPCODE] == layout.LOAD and (
        row[layout.MEMORY_TYPE] == layout.INP or row[layout.MEMORY_TYPE] == layout.WGT
    ):
        return LOAD_STAGE
    return COMPUTE_STAGE


@compiled
def schedule(rows: Any, in_order: Flag, order: Any, waiting: Any) -> Flag:
    """The canonical order. False for a deadlock and for a dependency that has no queue."""
    count = rows.shape[0]
    waiting[:, :QUEUE] = 0
    for index in range(count):
        order[index] = index
        stage = stage_of(rows[index])
        bits = rows[index][layout.DEPENDENCIES]
        if stage == LOAD_STAGE and bits & (POP_PREV | PUSH_PREV) and not in_order:
            return False
        if stage == STORE_STAGE and bits & (POP_NEXT | PUSH_NEXT) and not in_order:
            return False
        waiting[stage, QUEUE + waiting[stage, LENGTH]] = index
        waiting[stage, LENGTH] += 1
    if in_order:
        return True
    done = 0
    moved = True
    while moved:
        moved = False
        for stage in range(STAGES):
            own = waiting[stage]
            while own[HEAD] < own[LENGTH]:
                index = own[QUEUE + own[HEAD]]
                bits = rows[index][layout.DEPENDENCIES]
                if bits & POP_PREV and not own[FROM_PREV]:
                    break
                if bits & POP_NEXT and not own[FROM_NEXT]:
                    break
                if bits & POP_PREV:
                    own[FROM_PREV] -= 1
                if bits & POP_NEXT:
                    own[FROM_NEXT] -= 1
                if bits & PUSH_PREV:
                    waiting[stage - 1, FROM_NEXT] += 1
                if bits & PUSH_NEXT:
                    waiting[stage + 1, FROM_PREV] += 1
                order[done] = index
                done += 1
                own[HEAD] += 1
                moved = True
    return done == count
