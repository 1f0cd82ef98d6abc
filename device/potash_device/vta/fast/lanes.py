"""An ALU operation on elements of 16 values.

Each element is read and written as one vector, element after element, so that an operand that is
also a target comes out as it should. What stays the same is in a register, which LLVM does not see
by itself.
"""

from typing import Any

from llvmlite import ir
from numba.core import types

from potash_device.vta.fast.compiling import Number, compiled, intrinsic
from potash_device.vta.isa import AluOpcode

LANES = 16
"""The values of an element of most cores."""
SHIFT_MASK = 31

I32, I64 = ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(I32, LANES)
BYTES = 4 * LANES
MIN, MAX, ADD, SHR, MUL = (int(opcode) for opcode in AluOpcode)
SHL = len(AluOpcode)
"""SHR by a number below zero, with its magnitude."""
NUMBER, STILL, MOVING = range(3)
"""What an operand is: a number, an element that is no target, or elements."""
KINDS_APART = 8


@compiled
def with_lanes(
    kind: Number, opcode: Number, target: Number, operand: Number, stride: Number, count: Number
) -> None:
    """One operation on `count` > 0 elements from address `target` on. The operand is the number
    itself, for SHR and SHL from 0 to 31, or the address of an element, which goes on by `stride`
    elements."""
    if opcode > SHL or (opcode == SHL and kind != NUMBER):
        raise NotImplementedError("the fast ALU lacks this opcode")
    _loops(kind * KINDS_APART + opcode, target, operand, stride * BYTES, count)


@intrinsic
def _loops(typing: Any, which: Any, target: Any, operand: Any, stride: Any, count: Any) -> Any:
    """A loop for each kind of operand and each opcode, of which one is executed."""
    signature = types.void(*[types.int64] * 5)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        which, *others = arguments
        after = builder.function.append_basic_block("elements")
        switch = builder.switch(which, after)
        for kind in (NUMBER, STILL, MOVING):
            for opcode in range(SHL + 1 if kind == NUMBER else SHL):
                begin = builder.function.append_basic_block("operation")
                switch.add_case(ir.Constant(I64, kind * KINDS_APART + opcode), begin)
                builder.position_at_end(begin)
                _loop(builder, kind, opcode, *others)
                builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return signature, generate


def _loop(
    builder: Any, kind: int, opcode: int, target: Any, operand: Any, stride: Any, count: Any
) -> None:
    pointer = VECTOR.as_pointer()
    still = None
    if kind == NUMBER:
        lane = builder.trunc(operand, I32)
        one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), lane, ir.Constant(I32, 0))
        still = builder.shuffle_vector(one, one, ir.Constant(VECTOR, [0] * LANES))
    elif kind == STILL:
        still = builder.load(builder.inttoptr(operand, pointer), align=4)
    before = builder.block
    loop = builder.function.append_basic_block("element")
    after = builder.function.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    done, place, source = builder.phi(I64), builder.phi(I64), builder.phi(I64)
    for phi, value in ((done, ir.Constant(I64, 0)), (place, target), (source, operand)):
        phi.add_incoming(value, before)
    at = builder.inttoptr(place, pointer)
    given = still
    if given is None:
        given = builder.load(builder.inttoptr(source, pointer), align=4)
    result = _result(builder, kind, opcode, builder.load(at, align=4), given)
    builder.store(result, at, align=4)
    steps = ((done, ir.Constant(I64, 1)), (place, ir.Constant(I64, BYTES)), (source, stride))
    for phi, step in steps:
        phi.add_incoming(builder.add(phi, step), loop)
    builder.cbranch(builder.icmp_signed("<", done.incomings[1][0], count), loop, after)
    builder.position_at_end(after)


def _result(builder: Any, kind: int, opcode: int, values: Any, operand: Any) -> Any:
    if opcode == MIN:
        return builder.select(builder.icmp_signed("<", values, operand), values, operand)
    if opcode == MAX:
        return builder.select(builder.icmp_signed(">", values, operand), values, operand)
    if opcode == ADD:
        return builder.add(values, operand)
    if opcode == MUL:
        return builder.mul(values, operand)
    if opcode == SHL:
        return builder.shl(values, operand)
    if opcode != SHR:
        raise NotImplementedError("the fast ALU lacks this opcode")
    if kind == NUMBER:
        return builder.ashr(values, operand)
    mask = ir.Constant(VECTOR, [SHIFT_MASK] * LANES)
    zero = ir.Constant(VECTOR, [0] * LANES)
    right = builder.ashr(values, builder.and_(operand, mask))
    left = builder.shl(values, builder.and_(builder.sub(zero, operand), mask))
    return builder.select(builder.icmp_signed(">=", operand, zero), right, left)
