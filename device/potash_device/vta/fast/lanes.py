"""ALU operations on elements of 16 values.

Operations on the same elements are a chain: some elements are read, go through all of its
operations in registers, and are written. Where an operand is also a target at another place, the
elements go through it one after the other, so that it comes out as it should.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

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
NUMBER, STILL, NEXT, MOVING = range(4)
"""What an operand is: a number, an element that is no target, elements that follow each other, or
any; those do not go through a chain abreast."""
KINDS_APART = 8
ABREAST = 14
"""Elements that go through a chain together: rows of images are often multiples of seven."""
MOST_OPERATIONS = 64
LINK = ir.ArrayType(I64, 3)
"""Of a chain: what to do, the operand or its address, and the step to the next one in bytes."""


@intrinsic
def new_chain(typing: Any) -> Any:
    """The address of room for MOST_OPERATIONS, on the stack."""
    signature = types.int64()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        room = ir.ArrayType(LINK, MOST_OPERATIONS)
        return builder.ptrtoint(cgutils.alloca_once(builder, room), I64)  # type: ignore[no-untyped-call]

    return signature, generate


@compiled
def put_link(
    chain: Number, at: Number, kind: Number, opcode: Number, operand: Number, stride: Number
) -> None:
    """Set an operation of a chain. The operand is the number itself, for SHR and SHL from 0 to 31,
    or the address of an element, which goes on by `stride` elements."""
    if opcode > SHL or (opcode == SHL and kind != NUMBER):
        raise NotImplementedError("the fast ALU lacks this opcode")
    _put_link(chain, at, kind * KINDS_APART + opcode, operand, stride * BYTES)


@intrinsic
def _put_link(typing: Any, chain: Any, at: Any, which: Any, operand: Any, stride: Any) -> Any:
    signature = types.void(*[types.int64] * 5)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        chain, at, *values = arguments
        for value, place in zip(values, _places(builder, chain, at), strict=True):
            builder.store(value, place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def run_chain(
    typing: Any, chain: Any, operations: Any, target: Any, count: Any, abreast: Any
) -> Any:
    """Have `count` elements from address `target` on go through a chain, ABREAST as long as there
    are as many, or one by one."""
    signature = types.void(*[types.int64] * 5)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        chain, operations, target, count, abreast = arguments
        zero = ir.Constant(I64, 0)
        none = builder.icmp_unsigned("==", abreast, zero)
        many = builder.select(none, zero, builder.sdiv(count, ir.Constant(I64, ABREAST)))
        done = builder.mul(many, ir.Constant(I64, ABREAST))
        _elements(builder, ABREAST, chain, operations, target, zero, many)
        _elements(builder, 1, chain, operations, target, done, builder.sub(count, done))
        return context.get_dummy_value()

    return signature, generate


def _places(builder: Any, chain: Any, at: Any) -> list[Any]:
    """Of the numbers of a link."""
    links = builder.inttoptr(chain, LINK.as_pointer())
    return [builder.gep(links, [at, ir.Constant(I32, number)]) for number in range(LINK.count)]


def _elements(
    builder: Any, width: int, chain: Any, operations: Any, target: Any, first: Any, times: Any
) -> None:
    """Have so many times `width` elements go through a chain, from number `first` on."""
    with cgutils.for_range(builder, times) as loop:
        number = builder.add(first, builder.mul(loop.index, ir.Constant(I64, width)))
        place = builder.add(target, builder.mul(number, ir.Constant(I64, BYTES)))
        places = [builder.add(place, ir.Constant(I64, BYTES * at)) for at in range(width)]
        values = [_load(builder, one) for one in places]
        before = builder.block
        operation = builder.function.append_basic_block("operation")
        after = builder.function.append_basic_block("operated")
        end = builder.function.append_basic_block("through")
        builder.branch(operation)
        builder.position_at_end(operation)
        at = builder.phi(I64)
        at.add_incoming(ir.Constant(I64, 0), before)
        current = [builder.phi(VECTOR) for _ in range(width)]
        for phi, value in zip(current, values, strict=True):
            phi.add_incoming(value, before)
        which, operand, stride = (builder.load(one) for one in _places(builder, chain, at))
        source = builder.add(operand, builder.mul(number, stride))
        switch = builder.switch(which, after)
        outcomes = [(operation, current)]
        for kind in (NUMBER, STILL, NEXT) if width > 1 else (NUMBER, STILL, NEXT, MOVING):
            for opcode in range(SHL + 1 if kind == NUMBER else SHL):
                case = builder.function.append_basic_block("case")
                switch.add_case(ir.Constant(I64, kind * KINDS_APART + opcode), case)
                builder.position_at_end(case)
                given = _operands(builder, kind, width, operand, source)
                if kind == STILL and opcode == SHR:
                    # Amounts are hardly ever negative.
                    negative = builder.icmp_signed("<", given[0], ir.Constant(VECTOR, [0] * LANES))
                    some = builder.bitcast(negative, ir.IntType(LANES))
                    left = builder.function.append_basic_block("left")
                    right = builder.function.append_basic_block("right")
                    none = ir.Constant(some.type, 0)
                    builder.cbranch(builder.icmp_unsigned("==", some, none), right, left)
                    builder.position_at_end(right)
                    masked = builder.and_(given[0], ir.Constant(VECTOR, [SHIFT_MASK] * LANES))
                    outcomes.append((right, [builder.ashr(value, masked) for value in current]))
                    builder.branch(after)
                    case = left
                    builder.position_at_end(case)
                results = [
                    _result(builder, kind, opcode, value, one)
                    for value, one in zip(current, given, strict=True)
                ]
                outcomes.append((case, results))
                builder.branch(after)
        builder.position_at_end(after)
        found = [builder.phi(VECTOR) for _ in range(width)]
        for block, results in outcomes:
            for phi, value in zip(found, results, strict=True):
                phi.add_incoming(value, block)
        following = builder.add(at, ir.Constant(I64, 1))
        at.add_incoming(following, after)
        for phi, value in zip(current, found, strict=True):
            phi.add_incoming(value, after)
        builder.cbranch(builder.icmp_signed("<", following, operations), operation, end)
        builder.position_at_end(end)
        for value, one in zip(found, places, strict=True):
            builder.store(value, builder.inttoptr(one, VECTOR.as_pointer()), align=4)


def _operands(builder: Any, kind: int, width: int, operand: Any, source: Any) -> list[Any]:
    if kind == NUMBER:
        lane = builder.trunc(operand, I32)
        one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), lane, ir.Constant(I32, 0))
        return [builder.shuffle_vector(one, one, ir.Constant(VECTOR, [0] * LANES))] * width
    if kind == STILL:
        return [_load(builder, operand)] * width
    places = [builder.add(source, ir.Constant(I64, BYTES * at)) for at in range(width)]
    return [_load(builder, place) for place in places]


def _load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, VECTOR.as_pointer()), align=4)


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
