"""Operations of the ALU, piece by piece.

A piece of the elements that a group of steps works on goes through all of them while it is in the
processor's first cache.
"""

from typing import Any

import numpy as np

from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Number, compiled, implements, least, most
from potash_device.vta.fast.lanes import LANES, MOVING, NUMBER, SHIFT_MASK, SHL, STILL, with_lanes
from potash_device.vta.fast.paths import Loops
from potash_device.vta.isa import AluOpcode

MIN, MAX, ADD, SHR, MUL = (int(opcode) for opcode in AluOpcode)
PIECE = 64
"""Elements: 4 KiB."""


@compiled
def elementwise(buffers: Any, members: Any, acc: Any) -> None:
    """Execute a group of steps."""
    leader = members[0]
    total, cut = np.int64(leader[s.COUNT]), np.int64(leader[s.PIECES])
    begin = np.int64(0)
    number = 0
    while begin < total:
        for within in range(0, cut, PIECE):
            count = least(cut - within, PIECE)
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
                operation = (kind, np.int64(step[s.OPCODE]), first, operand, stride, count)
                operate(buffers, operation, acc)
        begin += cut
        number += 1


def operate(buffers: Any, operation: Any, acc: Any) -> None:
    """One operation: an operand's kind, the opcode, the first element, the operand, its stride in
    elements, and the number of elements."""
    raise NotImplementedError("compiled code only")


@implements(operate)
def _operate(buffers: Any, operation: Any, acc: Any) -> Any:
    def any_core(buffers: Any, operation: Any, acc: Any) -> None:
        lanes = buffers.batch * buffers.block_out
        if lanes == LANES:
            of_16(operation, acc)
        else:
            of_any_size(operation, lanes, acc)

    if buffers.instance_class is Loops:
        return any_core
    return lambda buffers, operation, acc: of_16(operation, acc)


@compiled
def of_16(operation: Any, acc: Any) -> None:
    """On elements of 16 values."""
    kind, opcode, first, operand, stride, count = operation
    base, size = acc.ctypes.data, LANES * acc.itemsize
    if kind != NUMBER:
        operand = base + operand * size
    with_lanes(kind, opcode, base + first * size, operand, stride, count)


@compiled
def of_any_size(operation: Any, lanes: Number, acc: Any) -> None:
    """On elements of `lanes` values."""
    kind, opcode, first, operand, stride, count = operation
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
            target[at] = least(target[at], imm)
    elif opcode == MAX:
        for at in range(target.size):
            target[at] = most(target[at], imm)
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
            target[at] = least(target[at], source[at])
    elif opcode == MAX:
        for at in range(target.size):
            target[at] = most(target[at], source[at])
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
