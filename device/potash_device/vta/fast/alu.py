"""ALU: micro-op after micro-op, or a row of them at once where the rows are contiguous.

Going through a contiguous row value by value is going through its micro-ops in their order, so a
row that overlaps its own source comes out as it should.
"""

from typing import Any

import numpy as np

from potash_device.vta.fast.compiling import Flag, Number, compiled
from potash_device.vta.fast.layout import (
    ALU_OPCODE,
    DST_IN,
    DST_OUT,
    IMM,
    ITER_IN,
    ITER_OUT,
    SRC_IN,
    SRC_OUT,
    UOP_BGN,
    UOP_END,
    USE_IMM,
    Geometry,
)
from potash_device.vta.isa import AluOpcode

MIN, MAX, ADD, SHR, MUL = (int(opcode) for opcode in AluOpcode)
SHIFT_MASK = 31


@compiled
def alu(row: Any, uop: Any, geometry: Geometry, acc: Any, room: Any) -> None:
    """Execute an ALU instruction that stays in ACC."""
    words = uop[row[UOP_BGN] : row[UOP_END]]
    count = words.size
    if count * row[ITER_OUT] * row[ITER_IN] == 0:
        return
    alone = row[USE_IMM] != 0
    src_low = geometry.dst_bits
    # One source for all, as for a constant.
    fixed = not alone and count == 1 and row[SRC_OUT] == 0 and row[SRC_IN] == 0
    dst_mask = (1 << geometry.dst_bits) - 1
    src_mask = (1 << geometry.src_bits) - 1
    outer, inner = row[ITER_OUT], row[ITER_IN]
    length = contiguous(words, geometry, alone or fixed)
    if length and (inner == 1 or length == step_of(row, DST_IN, SRC_IN, alone or fixed)):
        length *= inner
        inner = 1
    if length and inner == 1 and length == step_of(row, DST_OUT, SRC_OUT, alone or fixed):
        length *= outer
        outer = 1
    lines = 1 if length else count
    size = max(length, 1) * geometry.lanes
    for turn in range(outer):
        for step in range(inner):
            for number in range(lines):
                word = np.int64(words[number])
                dst = (word & dst_mask) + turn * row[DST_OUT] + step * row[DST_IN]
                src = word >> src_low & src_mask
                src += turn * row[SRC_OUT] + step * row[SRC_IN]
                target = acc[dst * geometry.lanes : dst * geometry.lanes + size]
                source = acc[src * geometry.lanes : src * geometry.lanes + size]
                if alone:
                    with_immediate(target, row[ALU_OPCODE], np.int32(row[IMM]))
                elif fixed:
                    source = source[: geometry.lanes]
                    own = dst <= src < dst + length
                    with_one_source(target, source, row[ALU_OPCODE], own, room)
                else:
                    with_source(target, source, row[ALU_OPCODE])


@compiled
def step_of(row: Any, dst: Number, src: Number, alone: Flag) -> Number:
    """By how many elements a loop goes on, in the source as in the destination where it is not
    `alone`; else 0."""
    return row[dst] if alone or row[src] == row[dst] else 0


@compiled
def contiguous(words: Any, geometry: Geometry, alone: Flag) -> Number:
    """How many elements the micro-ops are in one piece, in their order, the sources as the
    destinations where these are not `alone`; 0 where they are not."""
    step = 1 if alone else 1 + (1 << geometry.dst_bits)
    dst_mask = (1 << geometry.dst_bits) - 1
    mask = dst_mask
    if not alone:
        mask |= ((1 << geometry.src_bits) - 1) << geometry.dst_bits
    first = np.int64(words[0]) & mask
    same = True
    for number in range(words.size):
        same &= (np.int64(words[number]) & mask) - first == number * step
    # A carry would let one field's end be another's beginning.
    fits = (first & dst_mask) + words.size - 1 <= dst_mask
    return words.size if same and fits else 0


@compiled
def with_one_source(target: Any, source: Any, opcode: Number, own: Flag, room: Any) -> None:
    """One operation on every element of `target` and the one element `source`, which is one of
    them where they are its `own`."""
    width = source.size
    if own or target.size < room.size or room.size % width:
        for at in range(0, target.size, width):
            with_source(target[at : at + width], source, opcode)
        return
    for at in range(width):
        room[at] = source[at]
    while width < room.size:
        for at in range(width):
            room[width + at] = room[at]
        width *= 2
    for at in range(0, target.size, room.size):
        part = target[at : at + room.size]
        with_source(part, room[: part.size], opcode)


@compiled
def with_immediate(target: Any, opcode: Number, imm: Number) -> None:
    """One operation on `target` and a number."""
    if opcode == MIN:
        for at in range(target.size):
            target[at] = min(target[at], imm)
    elif opcode == MAX:
        for at in range(target.size):
            target[at] = max(target[at], imm)
    elif opcode == ADD:
        for at in range(target.size):
            target[at] += imm
    elif opcode == SHR and imm >= 0:
        for at in range(target.size):
            target[at] >>= imm & SHIFT_MASK
    elif opcode == SHR:
        for at in range(target.size):
            target[at] <<= -imm & SHIFT_MASK
    else:
        for at in range(target.size):
            target[at] *= imm


@compiled
def with_source(target: Any, source: Any, opcode: Number) -> None:
    """One operation on `target` and `source`, value after value."""
    if opcode == MIN:
        for at in range(target.size):
            target[at] = min(target[at], source[at])
    elif opcode == MAX:
        for at in range(target.size):
            target[at] = max(target[at], source[at])
    elif opcode == ADD:
        for at in range(target.size):
            target[at] += source[at]
    elif opcode == SHR:
        for at in range(target.size):
            amount = source[at]
            if amount >= 0:
                target[at] >>= amount & SHIFT_MASK
            else:
                target[at] <<= -amount & SHIFT_MASK
    else:
        for at in range(target.size):
            target[at] *= source[at]
