"""Lowering of ALU instructions to steps.

Micro-ops whose targets follow each other, and whose operands advance by equal steps, become one
step. Where several such steps work on the same elements, as those at the end of a convolution's
tile do, they are a group, which is executed piece by piece.
"""

from typing import Any

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Flag, Number, compiled, least, most
from potash_device.vta.fast.lanes import MOST_OPERATIONS, SHIFT_MASK, SHL
from potash_device.vta.isa import AluOpcode

SHR = int(AluOpcode.SHR)
MOST_MEMBERS = MOST_OPERATIONS


@compiled
def lower_alu(row: Any, words: Any, geometry: layout.Geometry, sink: s.Sink) -> None:
    """The steps of an ALU instruction that stays in ACC."""
    outer = row[layout.ITER_OUT]
    if is_one_step(row, words, 0, outer, geometry, sink):
        return
    for iteration in range(outer):
        if is_one_step(row, words, iteration, iteration + 1, geometry, sink):
            continue
        for inner in range(row[layout.ITER_IN]):
            begin = 0
            while begin < words.size:
                count, stride = run_of(row, words, begin, geometry)
                dst, src = first_of(row, words, begin, iteration, inner, geometry)
                add_step(row, (dst, count, src, stride, count, 0), geometry, sink)
                begin += count


@compiled
def is_one_step(
    row: Any, words: Any, begin: Number, end: Number, geometry: layout.Geometry, sink: s.Sink
) -> Flag:
    """Add a step for the outer loop's iterations from `begin` on, before `end`, where these are one
    step: runs of micro-ops of one length, one behind the other, whose operands advance by equal
    steps from run to run."""
    length, stride = run_of(row, words, 0, geometry)
    if words.size % length:
        return False
    first, source = first_of(row, words, 0, begin, 0, geometry)
    jump = 0
    runs = 0
    for outer in range(begin, end):
        for inner in range(row[layout.ITER_IN]):
            for at in range(0, words.size, length):
                dst, src = first_of(row, words, at, outer, inner, geometry)
                if dst != first + runs * length:
                    return False
                if runs == 1:
                    jump = src - source
                if src != source + runs * jump:
                    return False
                if outer == begin and inner == 0:
                    count, its_stride = run_of(row, words, at, geometry)
                    if count != length or its_stride != stride:
                        return False
                runs += 1
    total = runs * length
    if length == 1:
        stride = jump
    cut = length
    if runs == 1 or jump == stride * length:
        cut, jump = total, 0
    add_step(row, (first, total, source, stride, cut, jump), geometry, sink)
    return True


@compiled
def first_of(
    row: Any, words: Any, at: Number, outer: Number, inner: Number, geometry: layout.Geometry
) -> tuple[Number, Number]:
    """Target and operand of a micro-op; an immediate counts as element 0."""
    word = np.int64(words[at])
    dst = word & (1 << geometry.dst_bits) - 1
    dst += outer * row[layout.DST_OUT] + inner * row[layout.DST_IN]
    if row[layout.USE_IMM]:
        return dst, np.int64(0)
    src = word >> geometry.dst_bits & (1 << geometry.src_bits) - 1
    return dst, src + outer * row[layout.SRC_OUT] + inner * row[layout.SRC_IN]


@compiled
def run_of(row: Any, words: Any, begin: Number, geometry: layout.Geometry) -> tuple[Number, Number]:
    """Number of micro-ops from `begin` on whose targets follow each other and whose operands
    advance by equal steps; and the size of these steps."""
    last, source = first_of(row, words, begin, 0, 0, geometry)
    stride = 0
    count = 1
    while begin + count < words.size:
        dst, src = first_of(row, words, begin + count, 0, 0, geometry)
        if count == 1:
            stride = src - source
        if dst != last + 1 or src != source + stride:
            break
        last, source = dst, src
        count += 1
    return count, stride if count > 1 else 0


@compiled
def add_step(row: Any, run: Any, geometry: layout.Geometry, sink: s.Sink) -> None:
    """Add a step to the last group, or begin another one with it."""
    dst, total, src, stride, cut, jump = run
    group = sink.filled[s.GROUP]
    at = s.new_step(sink, s.ELEMENTWISE)
    step = sink.steps[at]
    opcode, immediate, operand = row[layout.ALU_OPCODE], row[layout.USE_IMM], src
    if immediate:
        operand = row[layout.IMM]
        if opcode == SHR:
            opcode, operand = SHR if operand >= 0 else SHL, abs(operand) & SHIFT_MASK
    step[s.COUNT], step[s.TARGET] = total, dst
    step[s.OPCODE], step[s.IMMEDIATE], step[s.OPERAND] = opcode, immediate, operand
    step[s.STRIDE], step[s.CUT], step[s.JUMP] = stride, cut, jump
    step[s.MEMBERS], step[s.PIECES] = 1, cut
    step[s.SIMPLE] = not reads(step, step)
    step[s.NARROWED], step[s.LIVE] = 0, 0
    if group >= 0 and fits_into(sink.steps, group, step):
        leader = sink.steps[group]
        leader[s.MEMBERS] += 1
        leader[s.PIECES] = least(leader[s.PIECES], cut)
        sink.filled[s.GROUP] = group
    else:
        sink.filled[s.GROUP] = at


@compiled
def fits_into(steps: Any, group: Number, step: Any) -> Flag:
    """True for a step that can be executed piece by piece together with a group: an element that
    one of them writes is read and written by the others at the same place of their targets, or not
    at all."""
    leader = steps[group]
    total, cut = step[s.COUNT], step[s.CUT]
    if leader[s.COUNT] != total or not (leader[s.SIMPLE] and step[s.SIMPLE]):
        return False
    if leader[s.MEMBERS] == MOST_MEMBERS:
        return False
    if cut != total and leader[s.PIECES] != total and cut != leader[s.PIECES]:
        return False
    for number in range(group, group + leader[s.MEMBERS]):
        member = steps[number]
        apart = abs(member[s.TARGET] - step[s.TARGET])
        if 0 < apart < total or reads(member, step) or reads(step, member):
            return False
    return True


@compiled
def reads(step: Any, other: Any) -> Flag:
    """True for a step that has operands among the other step's targets, at different places."""
    if step[s.IMMEDIATE]:
        return False
    total = step[s.COUNT]
    first = step[s.OPERAND]
    if step[s.CUT] == total and step[s.STRIDE] == 1 and first == other[s.TARGET]:
        return False
    along = (step[s.CUT] - 1) * step[s.STRIDE]
    across = (total // step[s.CUT] - 1) * step[s.JUMP]
    lowest = first + least(along, 0) + least(across, 0)
    highest = first + most(along, 0) + most(across, 0)
    return lowest < other[s.TARGET] + other[s.COUNT] and highest >= other[s.TARGET]
