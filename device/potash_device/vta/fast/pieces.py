"""Operations of the ALU, piece by piece.

A piece of the elements that a group of steps works on goes through all of them while it is in the
processor's first cache.
"""

from typing import Any

import numpy as np

from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Number, compiled, implements, least, most
from potash_device.vta.fast.lanes import (
    LANES,
    MOVING,
    NEXT,
    NUMBER,
    SHIFT_MASK,
    SHL,
    STILL,
    new_chain,
    put_link,
    run_chain,
)
from potash_device.vta.fast.paths import Loops
from potash_device.vta.isa import AluOpcode

MIN, MAX, ADD, SHR, MUL = (int(opcode) for opcode in AluOpcode)
PIECE = 56
"""Elements: 3.5 KiB."""


@compiled
def elementwise(buffers: Any, members: Any, acc: Any) -> None:
    """Execute a group of steps."""
    leader = members[0]
    total, cut = np.int64(leader[s.COUNT]), np.int64(leader[s.PIECES])
    begin = np.int64(0)
    number = 0
    while begin < total:
        for within in range(0, cut, PIECE):
            piece = (begin + within, least(cut - within, PIECE), number, within)
            on_piece(buffers, members, piece, acc)
        begin += cut
        number += 1


def on_piece(buffers: Any, members: Any, piece: Any, acc: Any) -> None:
    """Execute a group of steps on a piece: its first element, how many there are, the number of the
    cut that it is in, and the element that it begins with there."""
    raise NotImplementedError("compiled code only")


@implements(on_piece)
def _on_piece(buffers: Any, members: Any, piece: Any, acc: Any) -> Any:
    def any_core(buffers: Any, members: Any, piece: Any, acc: Any) -> None:
        lanes = buffers.batch * buffers.block_out
        if lanes == LANES:
            in_chains(members, piece, acc)
        else:
            for at in range(members.shape[0]):
                of_any_size(members, at, piece, lanes, acc)

    if buffers.instance_class is Loops:
        return any_core
    return lambda buffers, members, piece, acc: in_chains(members, piece, acc)


@compiled
def operand_of(members: Any, at: Number, piece: Any) -> Any:
    """What a step's operand is, the number or its first element in a piece, and its stride."""
    operand, stride = np.int64(members[at, s.OPERAND]), np.int64(members[at, s.STRIDE])
    if members[at, s.IMMEDIATE]:
        return NUMBER, operand, np.int64(0)
    first, _, number, within = piece
    if members[at, s.CUT] == members[at, s.COUNT]:
        operand += first * stride
    else:
        operand += number * np.int64(members[at, s.JUMP]) + within * stride
    if stride == 1:
        return NEXT, operand, stride
    return STILL if stride == 0 and members[at, s.SIMPLE] else MOVING, operand, stride


@compiled
def in_chains(members: Any, piece: Any, acc: Any) -> None:
    """On elements of 16 values: steps with one target, one behind the other, are a chain."""
    chain = new_chain()
    base, size = acc.ctypes.data, LANES * acc.itemsize
    first, count = piece[:2]
    at = 0
    while at < members.shape[0]:
        target, abreast = np.int64(members[at, s.TARGET]), np.int64(members[at, s.SIMPLE])
        operations = 0
        while at < members.shape[0] and members[at, s.TARGET] == target:
            kind, operand, stride = operand_of(members, at, piece)
            if kind != NUMBER:
                # Those before it have not written the target yet.
                if operations and members[at, s.OPERAND] == target:
                    break
                operand = base + operand * size
                if kind == MOVING:
                    abreast = np.int64(0)
            put_link(chain, operations, kind, np.int64(members[at, s.OPCODE]), operand, stride)
            operations += 1
            at += 1
        run_chain(chain, operations, base + (target + first) * size, count, abreast)


@compiled
def of_any_size(members: Any, at: Number, piece: Any, lanes: Number, acc: Any) -> None:
    """On elements of `lanes` values."""
    kind, operand, stride = operand_of(members, at, piece)
    opcode, count = members[at, s.OPCODE], piece[1]
    first = members[at, s.TARGET] + piece[0]
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
