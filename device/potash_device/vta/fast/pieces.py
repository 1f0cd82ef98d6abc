"""Operations of the ALU on the elements of a group of steps, piece by piece.

A convolution ends with a dozen operations on all its accumulators. If each went through all of
them, most would be loaded from memory again and again. So the group is divided into pieces of 96
elements, and a piece goes through all operations while it is in the processor's first-level cache.
Operations that often occur together share a loop (`lanes`). For example, MAX 0 and MIN 6 on 200
elements, a ReLU6, are one CLAMP loop, which is executed for 96, 96 and 8 elements.
"""

from typing import Any

import numpy as np

from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Flag, Number, by_type, compiled, least, most
from potash_device.vta.fast.lanes import (
    A_JUMP,
    BYTES,
    CHAIN_BASE,
    CHAINS,
    CLAMP,
    JOIN,
    LANES,
    LAST,
    LONGEST_CHAIN,
    MORE,
    MOVING,
    ROUND,
    SCALE,
    SET,
    SHIFT_MASK,
    SHL,
    SIGN,
    STRIDE,
    WEIGH,
    WHICH,
    A,
    B,
    C,
    X,
    Y,
    Z,
    get,
    has_negative,
    narrow_down,
    new_program,
    put,
    put_number,
    run_chain,
    run_loop,
)
from potash_device.vta.fast.paths import Loops
from potash_device.vta.isa import AluOpcode

MIN, MAX, ADD, SHR, MUL = (int(opcode) for opcode in AluOpcode)
PIECE = 96
"""Elements: 6 KiB."""


@by_type
def elementwise(buffers: Any, members: Any, acc: Any, narrow: Any) -> Any:
    """Execute a group of steps. `narrow` is the address of the narrow memory."""

    def any_core(buffers: Any, members: Any, acc: Any, narrow: Number) -> None:
        lanes = buffers.batch * buffers.block_out
        if lanes == LANES:
            in_loops(members, acc, narrow)
        else:
            for at in range(members.shape[0]):
                of_any_size(members[at], lanes, acc)

    if buffers.instance_class is Loops:
        return any_core
    return lambda buffers, members, acc, narrow: in_loops(members, acc, narrow)


@compiled
def in_loops(members: Any, acc: Any, narrow: Number) -> None:
    """Execute a group of steps on elements of 16 values."""
    program = new_program()
    leader = members[0]
    total, cut = np.int64(leader[s.COUNT]), np.int64(leader[s.PIECES])
    at, loops = np.int64(0), np.int64(0)
    while at < members.shape[0]:
        at += add_loop(program, loops, members, at, acc)
        if is_overwritten(program, loops):
            put(program, loops - 1, WHICH, MORE)
        loops += 1
    result = np.int64(members[members.shape[0] - 1, s.TARGET])
    narrow += result * LANES
    chain = chain_of(program, loops)
    narrowed = leader[s.NARROWED] != 0
    if chain:
        kept = np.int64(leader[s.LIVE] or not narrowed)
        for number in range(total // cut):
            place = narrow + number * cut * LANES if narrowed else np.int64(0)
            run_chain(program, chain, number, number * cut, cut, place, kept)
        return
    target = address_of(acc, result)
    for number in range(total // cut):
        for within in range(0, cut, PIECE):
            first, count = number * cut + within, least(cut - within, PIECE)
            for loop in range(loops):
                run_loop(program, loop, number, first, within, count)
            if narrowed:
                narrow_down(target + first * BYTES, narrow + first * LANES, count)


@compiled
def chain_of(program: Number, loops: Number) -> Number:
    """The number of the chain (`CHAINS`) that is all of the loops; 0 where there is none."""
    number = np.int64(0)
    first = 0 if get(program, 0, WHICH) == WEIGH else 1
    x, y = get(program, 0, X), get(program, first, Y)
    for loop in range(least(loops, LONGEST_CHAIN + 1)):
        which = get(program, loop, WHICH)
        number = number * CHAIN_BASE + which
        if get(program, loop, X) != x:
            return 0
        if which != CLAMP and which != ROUND and get(program, loop, Y) != y:
            return 0
    for chain in CHAINS:
        if chain == number:
            return number
    return 0


@compiled
def is_overwritten(program: Number, loop: Number) -> Flag:
    """True for a loop that overwrites the product of the loop before it."""
    if loop == 0 or get(program, loop, WHICH) != LAST or get(program, loop - 1, WHICH) != LAST:
        return False
    return get(program, loop, Z) == get(program, loop - 1, Z)


@compiled
def add_loop(program: Number, loop: Number, members: Any, at: Number, acc: Any) -> Number:
    """Add a loop for the operations from number `at` on. Returns how many operations it has."""
    if members[0, s.SIMPLE]:
        count = add_several(program, loop, members, at, acc)
        if count:
            return count
    count = 2 if copies(members, at) else 1
    step = members[at + count - 1]
    opcode = np.int64(step[s.OPCODE] if count == 1 else SET)
    if opcode > SET:
        raise NotImplementedError("the fast ALU lacks this opcode")
    target = address_of(acc, step[s.TARGET])
    start(program, loop, opcode, target, target, target)
    put_operand(program, loop, A, members, at + count - 1, acc)
    if not is_same(step):
        stride, jump = np.int64(step[s.STRIDE]), np.int64(step[s.JUMP])
        if step[s.CUT] == step[s.COUNT]:
            jump = np.int64(members[0, s.PIECES]) * stride
        put(program, loop, WHICH, opcode + MOVING)
        put(program, loop, A_JUMP, jump * BYTES)
        put(program, loop, STRIDE, stride * BYTES)
    return count


@compiled
def start(program: Number, loop: Number, which: Number, x: Number, y: Number, z: Number) -> None:
    """Begin a loop on elements at these addresses. Its operands are zero until they are set."""
    put(program, loop, WHICH, which)
    put(program, loop, X, x)
    put(program, loop, Y, y)
    put(program, loop, Z, z)
    nothing = put_number(program, 0, 0)
    for operand in range(3):
        put(program, loop, A + operand, nothing)
        put(program, loop, A_JUMP + operand, 0)
    put(program, loop, STRIDE, 0)


@compiled
def add_several(program: Number, loop: Number, members: Any, at: Number, acc: Any) -> Number:
    """Add a loop of several operations from number `at` on. Returns how many, or 0 if no such loop
    begins with them. The loops, with operations that may be missing in parentheses, are

    SCALE  y = x, y *= a, y >>= b             JOIN   x *= a, x += y, (x += b), (x >>= c)
    LAST   z = x, z *= a, y += z, (y >>= b)   ROUND  (x += a), x >>= b
    SIGN   y = x, y >>= a, (y <<= b), x += y  CLAMP  (x += a), x = max(x, b), x = min(x, c)
    WEIGH  x *= a, y *= b, x += y
    """
    target = np.int64(members[at, s.TARGET])
    a, b, c, count = np.int64(-1), np.int64(-1), np.int64(-1), np.int64(0)
    which, x, y = np.int64(0), target, target
    if copies(members, at) and at + 2 < members.shape[0]:
        x = np.int64(members[at + 1, s.OPERAND])
        if is_with_all(members, at + 2, target, MUL):
            a = at + 2
            if is_right(members, at + 3, target, acc):
                which, b, count = np.int64(SCALE), at + 3, np.int64(4)
            elif is_with(members, at + 3, ADD, target):
                which, y, count = np.int64(LAST), np.int64(members[at + 3, s.TARGET]), np.int64(4)
                if y == x or y == target:
                    return 0
                if is_right(members, at + 4, y, acc):
                    b, count = at + 4, np.int64(5)
        elif is_right(members, at + 2, target, acc):
            which, a, count = np.int64(SIGN), at + 2, np.int64(4)
            if is_with_all(members, at + 3, target, SHL):
                b, count = at + 3, np.int64(5)
            last = at + count - 1
            if not is_with(members, last, ADD, target) or members[last, s.TARGET] != x:
                return 0
    elif is_with_all(members, at, target, MUL) and at + 1 < members.shape[0]:
        y = np.int64(members[at + 1, s.OPERAND])
        of_target = members[at + 1, s.TARGET] == target and y != target
        if of_target and is_with(members, at + 1, ADD, y):
            which, a, count = np.int64(JOIN), at, np.int64(2)
            if is_with_all(members, at + 2, target, ADD):
                b, count = at + 2, np.int64(3)
            if is_right(members, at + count, target, acc):
                c, count = at + count, count + 1
        other = np.int64(members[at + 1, s.TARGET])
        weighs = other != target and is_with_all(members, at + 1, other, MUL)
        if weighs and is_with(members, at + 2, ADD, other) and members[at + 2, s.TARGET] == target:
            which, y, a, b, count = np.int64(WEIGH), other, at, at + 1, np.int64(3)
    elif is_with_all(members, at, target, ADD):
        if is_right(members, at + 1, target, acc):
            which, a, b, count = np.int64(ROUND), at, at + 1, np.int64(2)
        elif is_clamp(members, at + 1, target):
            which, a, b, c, count = np.int64(CLAMP), at, at + 1, at + 2, np.int64(3)
    elif is_clamp(members, at, target):
        which, b, c, count = np.int64(CLAMP), at, at + 1, np.int64(2)
    elif is_right(members, at, target, acc):
        which, b, count = np.int64(ROUND), at, np.int64(1)
    if count:
        start(program, loop, which, address_of(acc, x), address_of(acc, y), address_of(acc, target))
        put_operand(program, loop, A, members, a, acc)
        put_operand(program, loop, B, members, b, acc)
        put_operand(program, loop, C, members, c, acc)
    return count


@compiled
def copies(members: Any, at: Number) -> Flag:
    """True where operation `at` and the next one copy other elements to a target."""
    if at + 1 == members.shape[0]:
        return False
    step, operand = members[at], members[at + 1, s.OPERAND]
    clears = step[s.IMMEDIATE] and step[s.OPCODE] == MUL and step[s.OPERAND] == 0
    same = members[at + 1, s.TARGET] == step[s.TARGET] and operand != step[s.TARGET]
    return clears and same and is_with(members, at + 1, ADD, operand)


@compiled
def is_with(members: Any, at: Number, opcode: Number, source: Number) -> Flag:
    """True for an operation that has one operand per element: those from `source` on."""
    if at >= members.shape[0]:
        return False
    step = members[at]
    whole = step[s.CUT] == step[s.COUNT] and step[s.STRIDE] == 1 and not step[s.IMMEDIATE]
    return whole and step[s.OPCODE] == opcode and step[s.OPERAND] == source


@compiled
def is_with_all(members: Any, at: Number, target: Number, opcode: Number) -> Flag:
    """True for an operation on a target that has one operand for all elements of a cut."""
    if at >= members.shape[0]:
        return False
    step = members[at]
    return step[s.TARGET] == target and step[s.OPCODE] == opcode and is_same(step)


@compiled
def is_clamp(members: Any, at: Number, target: Number) -> Flag:
    """True where operation `at` is a lower limit, and the next one an upper limit."""
    return is_with_all(members, at, target, MAX) and is_with_all(members, at + 1, target, MIN)


@compiled
def is_same(step: Any) -> Flag:
    return step[s.IMMEDIATE] or (step[s.STRIDE] == 0 and step[s.SIMPLE])


@compiled
def is_right(members: Any, at: Number, target: Number, acc: Any) -> Flag:
    """True for an operation that shifts right, by numbers that are not negative."""
    if not is_with_all(members, at, target, SHR):
        return False
    if members[at, s.IMMEDIATE]:
        return True
    address = address_of(acc, members[at, s.OPERAND])
    for number in range(members[0, s.COUNT] // members[0, s.PIECES]):
        if has_negative(address + number * np.int64(members[at, s.JUMP]) * BYTES):
            return False
    return True


@compiled
def put_operand(
    program: Number, loop: Number, column: Number, members: Any, at: Number, acc: Any
) -> None:
    """Set an operand of a loop to that of operation `at`. It stays zero where `at` is negative."""
    jump = np.int64(0)
    if at < 0:
        return
    if members[at, s.IMMEDIATE]:
        address = put_number(program, at + 1, np.int64(members[at, s.OPERAND]))
    else:
        address = address_of(acc, members[at, s.OPERAND])
        jump = np.int64(members[at, s.JUMP])
    put(program, loop, column, address)
    put(program, loop, column + A_JUMP - A, jump * BYTES)


@compiled
def address_of(acc: Any, element: Number) -> Number:
    return acc.ctypes.data + np.int64(element) * BYTES


@compiled
def of_any_size(step: Any, lanes: Number, acc: Any) -> None:
    """Execute a step on elements of `lanes` values."""
    opcode, total, first = step[s.OPCODE], np.int64(step[s.COUNT]), np.int64(step[s.TARGET])
    operand = np.int64(step[s.OPERAND])
    if step[s.IMMEDIATE]:
        target = acc[first * lanes : (first + total) * lanes]
        if opcode == SHL:
            with_immediate(target, SHR, np.int32(-operand))
        else:
            with_immediate(target, opcode, np.int32(operand))
        return
    for number in range(total):
        at = first + number
        cut, within = divmod(number, np.int64(step[s.CUT]))
        source = operand + cut * np.int64(step[s.JUMP]) + within * np.int64(step[s.STRIDE])
        target = acc[at * lanes : (at + 1) * lanes]
        with_source(target, acc[source * lanes : (source + 1) * lanes], opcode)


@compiled
def with_immediate(target: Any, opcode: Number, imm: Number) -> None:
    """Execute an operation on `target` and a number."""
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
    """Execute an operation on `target` and `source`, value by value."""
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
