"""An ALU operation on many elements and one: the vector of a constant or of a channel's numbers.

LLVM does not see that the one element stays in a register; so the loop is emitted with it there.
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


@compiled
def with_lanes(opcode: Number, target: Number, source: Number, count: Number) -> None:
    """One operation on `count` > 0 elements from address `target` on and the element of `LANES`
    values at address `source`, which is none of them."""
    if opcode == MIN:
        _loop(MIN, target, source, count)
    elif opcode == MAX:
        _loop(MAX, target, source, count)
    elif opcode == ADD:
        _loop(ADD, target, source, count)
    elif opcode == SHR:
        _loop(SHR, target, source, count)
    elif opcode == MUL:
        _loop(MUL, target, source, count)
    else:
        raise NotImplementedError("the fast ALU lacks this opcode")


@intrinsic
def _loop(typing: Any, opcode: Any, target: Any, source: Any, count: Any) -> Any:
    operation = AluOpcode(opcode.literal_value)
    signature = types.void(opcode, types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, target, source, count = arguments
        kind = VECTOR.as_pointer()
        operand = builder.load(builder.inttoptr(source, kind), align=4)
        before = builder.block
        loop = builder.function.append_basic_block("element")
        after = builder.function.append_basic_block("elements")
        builder.branch(loop)
        builder.position_at_end(loop)
        done = builder.phi(I64)
        done.add_incoming(ir.Constant(I64, 0), before)
        offset = builder.mul(done, ir.Constant(I64, BYTES))
        place = builder.inttoptr(builder.add(target, offset), kind)
        result = _result(builder, operation, builder.load(place, align=4), operand)
        builder.store(result, place, align=4)
        following = builder.add(done, ir.Constant(I64, 1))
        done.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return signature, generate


def _result(builder: Any, operation: AluOpcode, values: Any, operand: Any) -> Any:
    match operation:
        case AluOpcode.MIN:
            return builder.select(builder.icmp_signed("<", values, operand), values, operand)
        case AluOpcode.MAX:
            return builder.select(builder.icmp_signed(">", values, operand), values, operand)
        case AluOpcode.ADD:
            return builder.add(values, operand)
        case AluOpcode.MUL:
            return builder.mul(values, operand)
        case AluOpcode.SHR:
            mask = ir.Constant(VECTOR, [SHIFT_MASK] * LANES)
            zero = ir.Constant(VECTOR, [0] * LANES)
            right = builder.ashr(values, builder.and_(operand, mask))
            left = builder.shl(values, builder.and_(builder.sub(zero, operand), mask))
            return builder.select(builder.icmp_signed(">=", operand, zero), right, left)
