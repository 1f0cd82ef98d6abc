"""ALU: micro-op after micro-op, or a run of them at once where there are runs.

Going through a contiguous row value by value is going through its micro-ops in their order, so a
row that overlaps its own source comes out as it should.
"""

from typing import Any

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import Flag, Number, compiled
from potash_device.vta.fast.lanes import LANES, SHIFT_MASK, with_lanes
from potash_device.vta.fast.runs import ALONG, ANYHOW, STILL, run_of
from potash_device.vta.isa import AluOpcode

MIN, MAX, ADD, SHR, MUL = (int(opcode) for opcode in AluOpcode)


@compiled
def alu(row: Any, uop: Any, ahead: Any, geometry: layout.Geometry, acc: Any, scratch: Any) -> None:
    """Execute an ALU instruction that stays in ACC."""
    words = uop[row[layout.UOP_BGN] : row[layout.UOP_END]]
    count = words.size
    if count * row[layout.ITER_OUT] * row[layout.ITER_IN] == 0:
        return
    alone = row[layout.USE_IMM] != 0
    src_low = geometry.dst_bits
    dst_mask = (1 << geometry.dst_bits) - 1
    src_mask = (1 << geometry.src_bits) - 1
    outer, inner = row[layout.ITER_OUT], row[layout.ITER_IN]
    begin, end = row[layout.UOP_BGN], row[layout.UOP_END]
    fixed = False
    if alone:
        length = run_of(ahead[ANYHOW], begin, end)
    else:
        length = run_of(ahead[ALONG], begin, end)
        if length == 1:
            # One source for all of a run, as for a constant.
            length = run_of(ahead[STILL], begin, end)
            still = (row[layout.SRC_IN] if inner > 1 else row[layout.SRC_OUT]) == 0
            fixed = length > 1 or (count == 1 and still)
    step = length
    if length == count and (
        inner == 1 or length == step_of(row, layout.DST_IN, layout.SRC_IN, alone, fixed)
    ):
        length *= inner
        inner = 1
    if (
        step == count
        and inner == 1
        and length == step_of(row, layout.DST_OUT, layout.SRC_OUT, alone, fixed)
    ):
        length *= outer
        outer = 1
    size = length * geometry.lanes
    for outer_at in range(outer):
        for inner_at in range(inner):
            for number in range(0, count, step):
                word = np.int64(words[number])
                dst = (
                    (word & dst_mask)
                    + outer_at * row[layout.DST_OUT]
                    + inner_at * row[layout.DST_IN]
                )
                src = word >> src_low & src_mask
                src += outer_at * row[layout.SRC_OUT] + inner_at * row[layout.SRC_IN]
                target = acc[dst * geometry.lanes : dst * geometry.lanes + size]
                source = acc[src * geometry.lanes : src * geometry.lanes + size]
                if alone:
                    with_immediate(target, row[layout.ALU_OPCODE], np.int32(row[layout.IMM]))
                elif fixed:
                    source = source[: geometry.lanes]
                    own = dst <= src < dst + length
                    with_one_source(target, source, row[layout.ALU_OPCODE], own, scratch)
                else:
                    with_source(target, source, row[layout.ALU_OPCODE])


@compiled
def step_of(row: Any, dst: Number, src: Number, alone: Flag, fixed: Flag) -> Number:
    """By how many elements a loop goes on, in the source as in the destination where it is not
    `alone`, or not at all there where it is `fixed`; else 0."""
    return row[dst] if alone or row[src] == (0 if fixed else row[dst]) else 0


@compiled
def with_one_source(target: Any, source: Any, opcode: Number, own: Flag, scratch: Any) -> None:
    """One operation on every element of `target` and the one element `source`, which is one of
    them where they are its `own`."""
    width = source.size
    if width == LANES and not own:
        with_lanes(opcode, target.ctypes.data, source.ctypes.data, target.size // width)
        return
    if own or target.size < scratch.size or scratch.size % width:
        for at in range(0, target.size, width):
            with_source(target[at : at + width], source, opcode)
        return
    for at in range(width):
        scratch[at] = source[at]
    while width < scratch.size:
        for at in range(width):
            scratch[width + at] = scratch[at]
        width *= 2
    for at in range(0, target.size, scratch.size):
        part = target[at : at + scratch.size]
        with_source(part, scratch[: part.size], opcode)


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
    elif opcode == MUL:
        for at in range(target.size):
            target[at] *= imm
    else:
        raise NotImplementedError("the fast ALU lacks this opcode")


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
    elif opcode == MUL:
        for at in range(target.size):
            target[at] *= source[at]
    else:
        raise NotImplementedError("the fast ALU lacks this opcode")
