"""ALU operations on elements of 16 values.

A group of steps is a program of loops. A loop has one operation, or several of those that occur
together at the end of a convolution. It processes elements one after the other, so an operand that
is also a target has the right value.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import types

from potash_device.vta.fast.compiling import emits
from potash_device.vta.fast.emitting import I8, I32, I64, integer, load, on_stack, shuffle, store
from potash_device.vta.isa import AluOpcode

LANES = 16
"""The values of an element of most cores."""
SHIFT_MASK = 31
MOST_OPERATIONS = 64
"""Maximum number of operations, and so of loops, of a group."""

BYTES = 4 * LANES
VECTOR = ir.VectorType(I32, LANES)
MIN, MAX, ADD, SHR, MUL = (int(opcode) for opcode in AluOpcode)
SHL = len(AluOpcode)
"""SHR by a number below zero, with its magnitude."""
SET = SHL + 1
"""The target becomes the operand."""
CLAMP, SCALE, MORE, LAST, JOIN, ROUND, SIGN, WEIGH = range(SET + 1, SET + 9)
"""Loops of several operations, on elements x, y and z with operands a, b and c for all of them:

CLAMP x = min(max(x + a, b), c)
SCALE y = x * a >> b
MORE  y = y + x * a >> b, and LAST the same with z = x * a
JOIN  x = x * a + y + b >> c
ROUND x = x + a >> b
SIGN  y = x >> a << b, x = x + y
WEIGH y = y * b, x = x * a + y

They do not shift by negative numbers."""
_ENDS = (JOIN,), (JOIN, ROUND), (JOIN, SIGN, ROUND)
_PARTS = (), (LAST,), (MORE, LAST), (MORE, MORE, LAST)
_CHAINS = [(CLAMP, SCALE, *parts, *end) for parts in _PARTS for end in _ENDS]
_CHAINS.append((WEIGH, ROUND, CLAMP))
CHAIN_BASE = 32
LONGEST_CHAIN = max(len(loops) for loops in _CHAINS)
CHAINS = tuple(
    sum(which * CHAIN_BASE**place for place, which in enumerate(reversed(loops)))
    for loops in _CHAINS
)
"""Sequences of loops with the same x and y, in which convolutions and additions end: x and y stay
in registers from the first to the last. The number of one has a digit to the base CHAIN_BASE for
each loop."""
MOVING = 16
"""Added to an opcode or SET where each element has an operand of its own: `a` is the address of the
first one, followed by the others at a constant step."""

OPAQUE = ir.InlineAsm(ir.FunctionType(I64, [I64]), "", "=r,0")
"""The identity function, opaque to LLVM, which would unroll a loop by eight whose iterations it can
count: that is not faster, and takes half a second more to compile."""

LOOP = ir.ArrayType(I64, 11)
WHICH, X, Y, Z, A, B, C, A_JUMP, B_JUMP, C_JUMP, STRIDE = range(LOOP.count)
"""Columns of a loop: its kind, the addresses of its first elements and operands, and the steps in
bytes from one cut to the next and from one element's operand to the next."""


@emits(types.int64)
def new_program(builder: Any) -> Any:
    """The address of stack memory for loops, followed by memory for numbers."""
    room = ir.ArrayType(ir.ArrayType(I64, LOOP.count + BYTES // 8), MOST_OPERATIONS + 1)
    return on_stack(builder, room)


@emits()
def put(builder: Any, program: Any, loop: Any, column: Any, value: Any) -> None:
    """Set a column of a loop."""
    builder.store(value, builder.gep(_loops(builder, program), [loop, column]))


@emits(types.int64)
def get(builder: Any, program: Any, loop: Any, column: Any) -> Any:
    """The value of a column of a loop."""
    return builder.load(builder.gep(_loops(builder, program), [loop, column]))


@emits(types.int64)
def put_number(builder: Any, program: Any, at: Any, number: Any) -> Any:
    """Store a number in all lanes of an element of the program's memory. Returns its address."""
    place = builder.ptrtoint(
        builder.gep(_loops(builder, program), [integer(MOST_OPERATIONS + 1)]), I64
    )
    place = builder.add(place, builder.mul(at, integer(BYTES)))
    lane = builder.trunc(number, I32)
    vector = builder.insert_element(_all(0), lane, ir.Constant(I32, 0))
    store(builder, shuffle(builder, vector, vector, [0] * LANES), place)
    return place


@emits(types.boolean)
def has_negative(builder: Any, address: Any) -> Any:
    """True for an element with a value below zero."""
    negative = builder.icmp_signed("<", load(builder, address, 0), _all(0))
    bits = builder.bitcast(negative, ir.IntType(LANES))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


@emits()
def run_loop(
    builder: Any, program: Any, at: Any, cut: Any, first: Any, within: Any, count: Any
) -> None:
    """Execute a loop on `count` elements from number `first` on, which is number `within` of its
    cut."""
    loop = [
        builder.load(builder.gep(_loops(builder, program), [at, ir.Constant(I32, column)]))
        for column in range(LOOP.count)
    ]
    for column in (X, Y, Z):
        loop[column] = builder.add(loop[column], builder.mul(first, integer(BYTES)))
    for column, jump in ((A, A_JUMP), (B, B_JUMP), (C, C_JUMP)):
        loop[column] = builder.add(loop[column], builder.mul(cut, loop[jump]))
    loop[A] = builder.add(loop[A], builder.mul(within, loop[STRIDE]))
    after = builder.function.append_basic_block("after")
    switch = builder.switch(loop[WHICH], after)
    for opcode in range(WEIGH + 1):
        for moving in (0, MOVING) if opcode <= SET else (0,):
            case = builder.function.append_basic_block("loop")
            switch.add_case(integer(opcode + moving), case)
            builder.position_at_end(case)
            _emit(builder, opcode, moving != 0, loop, count)
            builder.branch(after)
    builder.position_at_end(after)


@emits()
def run_chain(
    builder: Any, program: Any, chain: Any, cut: Any, first: Any, count: Any, narrow: Any, kept: Any
) -> None:
    """Execute a chain, whose loops are those of the program, on `count` elements from number
    `first` on, those of number `cut`. Put the low bytes of x into memory at the address `narrow`,
    if that is not 0; write x, y and z only where they are `kept`."""
    after = builder.function.append_basic_block("after")
    switch = builder.switch(chain, after)
    for number, loops in zip(CHAINS, _CHAINS, strict=True):
        case = builder.function.append_basic_block("chain")
        switch.add_case(integer(number), case)
        builder.position_at_end(case)
        _emit_chain(builder, program, loops, cut, first, count, narrow, kept)
        builder.branch(after)
    builder.position_at_end(after)


def _emit_chain(
    builder: Any,
    program: Any,
    loops: Sequence[int],
    cut: Any,
    first: Any,
    count: Any,
    narrow: Any,
    kept: Any,
) -> None:
    def column(loop: int, number: int) -> Any:
        place = [integer(loop), ir.Constant(I32, number)]
        return builder.load(builder.gep(_loops(builder, program), place))

    def operand(loop: int, number: int) -> Any:
        jump = builder.mul(cut, column(loop, number + A_JUMP - A))
        return load(builder, builder.add(column(loop, number), jump), 0)

    operands = [[operand(loop, number) for number in (A, B, C)] for loop in range(len(loops))]
    along = builder.mul(first, integer(BYTES))
    last = loops.index(LAST) if LAST in loops else 0
    weighs = loops[0] == WEIGH
    places = {X: column(0, X), Y: column(0 if weighs else 1, Y), Z: column(last, Z)}
    places = {name: builder.add(place, along) for name, place in places.items()}
    is_kept = builder.icmp_unsigned("!=", kept, integer(0))
    is_narrow = builder.icmp_unsigned("!=", narrow, integer(0))
    with _elements(builder, count) as number:
        offset = builder.mul(number, integer(BYTES))
        x = load(builder, builder.add(places[X], offset), 0)
        values = {X: x, Y: load(builder, builder.add(places[Y], offset), 0) if weighs else x}
        for which, (a, b, c) in zip(loops, operands, strict=True):
            values |= dict(_results(builder, which, values[X], values[Y], a, b, c))
        with builder.if_then(is_kept):
            for name, value in values.items():
                store(builder, value, builder.add(places[name], offset))
        with builder.if_then(is_narrow):
            _store_low(builder, values[X], narrow, number)


@emits()
def narrow_down(builder: Any, source: Any, target: Any, count: Any) -> None:
    """Put the low bytes of `count` elements at the address `source` to the address `target`."""
    with _elements(builder, count) as number:
        element = load(builder, builder.add(source, builder.mul(number, integer(BYTES))), 0)
        _store_low(builder, element, target, number)


def _store_low(builder: Any, element: Any, target: Any, number: Any) -> None:
    low = builder.trunc(element, ir.VectorType(I8, LANES))
    store(builder, low, builder.add(target, builder.mul(number, integer(LANES))))


@contextmanager
def _elements(builder: Any, count: Any) -> Iterator[Any]:
    """A loop over numbers from 0 to `count` - 1, which is executed at least once."""
    before, body, after = (
        builder.block,
        *(builder.function.append_basic_block(name) for name in ("element", "elements")),
    )
    builder.branch(body)
    builder.position_at_end(body)
    number = builder.phi(I64)
    number.add_incoming(integer(0), before)
    yield number
    following = builder.call(OPAQUE, [builder.add(number, integer(1))])
    number.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)


def _emit(builder: Any, opcode: int, moving: bool, loop: list[Any], count: Any) -> None:
    """Emit a loop, which is executed for at least one element."""
    a, b, c = (load(builder, loop[column], 0) for column in (A, B, C))
    with _elements(builder, count) as number:
        along = builder.mul(number, integer(BYTES))
        x, y = (load(builder, builder.add(loop[column], along), 0) for column in (X, Y))
        if moving:
            a = load(builder, builder.add(loop[A], builder.mul(number, loop[STRIDE])), 0)
        for column, value in _results(builder, opcode, x, y, a, b, c):
            store(builder, value, builder.add(loop[column], along))


def _results(
    builder: Any, opcode: int, x: Any, y: Any, a: Any, b: Any, c: Any
) -> list[tuple[int, Any]]:
    """Results for an element, each with the column of its address. LLVM drops unused ones."""
    add = builder.add
    if opcode == CLAMP:
        return [(X, _least(builder, _most(builder, add(x, a), b), c))]
    if opcode == SCALE:
        return [(Y, _right(builder, builder.mul(x, a), b))]
    if opcode in (MORE, LAST):
        product = builder.mul(x, a)
        results = [(Y, _right(builder, add(y, product), b))]
        return [*results, (Z, product)] if opcode == LAST else results
    if opcode == JOIN:
        return [(X, _right(builder, add(add(builder.mul(x, a), y), b), c))]
    if opcode == WEIGH:
        weighed = builder.mul(y, b)
        return [(X, add(builder.mul(x, a), weighed)), (Y, weighed)]
    if opcode == ROUND:
        return [(X, _right(builder, add(x, a), b))]
    if opcode == SIGN:
        sign = _left(builder, _right(builder, x, a), b)
        return [(Y, sign), (X, add(x, sign))]
    return [(X, _result(builder, opcode, x, a))]


def _result(builder: Any, opcode: int, value: Any, operand: Any) -> Any:
    if opcode == MIN:
        return _least(builder, value, operand)
    if opcode == MAX:
        return _most(builder, value, operand)
    if opcode == ADD:
        return builder.add(value, operand)
    if opcode == MUL:
        return builder.mul(value, operand)
    if opcode == SHL:
        return _left(builder, value, operand)
    if opcode == SET:
        return operand
    if opcode != SHR:
        raise NotImplementedError("the fast ALU lacks this opcode")
    left = _left(builder, value, builder.sub(_all(0), operand))
    is_right = builder.icmp_signed(">=", operand, _all(0))
    return builder.select(is_right, _right(builder, value, operand), left)


def _least(builder: Any, left: Any, right: Any) -> Any:
    return builder.select(builder.icmp_signed("<", left, right), left, right)


def _most(builder: Any, left: Any, right: Any) -> Any:
    return builder.select(builder.icmp_signed(">", left, right), left, right)


def _right(builder: Any, value: Any, amount: Any) -> Any:
    return builder.ashr(value, builder.and_(amount, _all(SHIFT_MASK)))


def _left(builder: Any, value: Any, amount: Any) -> Any:
    return builder.shl(value, builder.and_(amount, _all(SHIFT_MASK)))


def _all(value: int) -> Any:
    return ir.Constant(VECTOR, [value] * LANES)


def _loops(builder: Any, program: Any) -> Any:
    return builder.inttoptr(program, LOOP.as_pointer())
