"""Operations of the ALU, piece by piece.

A piece of the elements that a group of steps works on goes through all of them while it is in the
processor's first cache.
"""

from typing import Any

import numpy as np

from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Number, compiled
from potash_device.vta.fast.lanes import LANES, MOVING, NUMBER, SHIFT_MASK, SHL, STILL, with_lanes
from potash_device.vta.isa import AluOpcode

MIN, MAX, ADD, SHR, MUL = (int(opcode) for opcode in AluOpcode)
PIECE = 64
"""Elements: 4 KiB."""


@compiled
def elementwise(members: Any, lanes: Number, acc: Any) -> None:
    """Execute a group of steps."""
    leader = members[0]
    total, cut = np.int64(leader[s.COUNT]), np.int64(leader[s.PIECES])
    base = acc.ctypes.data
    begin = np.int64(0)
    number = 0
    while begin < total:
        for within in range(0, cut, PIECE):
            count = min(cut - within, PIECE)
            for at in range(members.shape[0]):
                step = members[at]
                operand = np.int64(step[s.OPERAND])
                stride = np.int64(step[s.STRIDE])
                kind = NUMBER
                if not step[s.IMMEDIATE]:
                    if step[s.CUT] == total:
                        operand += (begin + within) * stride
                    else:
                        operand += number * np.int64(step[s.JUMP]) + within * stride
                    kind = STILL if stride == 0 and step[s.SIMPLE] else MOVING
                first = np.int64(step[s.TARGET]) + begin + within
                if lanes == LANES:
                    if kind != NUMBER:
                        operand = base + operand * lanes * acc.itemsize
                    place = base + first * lanes * acc.itemsize
                    with_lanes(kind, step[s.OPCODE], place, operand, stride, count)
                else:
                    of_any_size(kind, step[s.OPCODE], first, operand, stride, count, lanes, acc)
        begin += cut
        number += 1


@compiled
def of_any_size(
    kind: Number,
    opcode: Number,
    first: Number,
    operand: Number,
    stride: Number,
    count: Number,
    lanes: Number,
    acc: Any,
) -> None:
    """One operation on `count` elements of `lanes` values from element `first` on."""
    if kind == NUMBER:
        target = acc[first * lanes : (first + count) * lanes]
        if opcode == SHL:
            with_immediate(target, SHR, np.int32(-operand))
        else:
            with_immediate(target, opcode, np.int32(operand))
        return
    for number in range(count):
        at = first + number
        target = acc[at * lanes : (at + 1) * lanes]
        source = operand + number * stride
        with_source(target, acc[source * lanes : (source + 1) * lanes], opcode)


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
