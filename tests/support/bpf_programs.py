"""Random valid programs for the BPF machine, and how an engine's way with one is observed.

Every opcode of RFC 9669 (but the packet group) occurs, with every operation of MOV, DIV, MOD, END
and the atomics. There are two kinds. What `structured` makes looks like a compiler's output:
counted loops of all shapes in each other, branches, calls, and accesses whose addresses are near
the edges of the arena's parts. What `soup` makes does not: jumps go anywhere.

Encodings are those of `support.bpf`, written out from the RFC, apart from the ones under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from potash_firmware.bpf import reserve
from potash_firmware.bpf.arena import Arena, Layout
from potash_firmware.bpf.engine import Engine, execute
from potash_firmware.bpf.errors import Fault
from potash_firmware.bpf.interpreter import Helper
from support.bpf import (
    ADD,
    ALU,
    ALU64,
    AND,
    ARSH,
    ATOMIC,
    DIV,
    DW,
    END,
    JA,
    JEQ,
    JGE,
    JGT,
    JLE,
    JLT,
    JMP,
    JMP32,
    JNE,
    JSET,
    JSGE,
    JSGT,
    JSLE,
    JSLT,
    LDX,
    LSH,
    MEM,
    MEMSX,
    MOD,
    MOV,
    MUL,
    NEG,
    OR,
    RSH,
    ST,
    STX,
    SUB,
    U64,
    XOR,
    B,
    H,
    K,
    W,
    X,
    arena,
    exit_,
    insn,
    lddw,
    mov,
    mov_reg,
)
from support.bpf import LAYOUT as ARENA

BASE = 0x1000_0000
CODE_BASE = 1 << 40
PARTS: Mapping[str, tuple[int, int]] = {
    "stack": (BASE, 4096),
    "input": (BASE + 4096, 4096),
    "output": (BASE + 8192, 4096),
    "data": (BASE + 12288, 4096),
    "rodata": (BASE + 16384, 64),
}
SIZES = {B: 1, H: 2, W: 4, DW: 8}
CONDITIONS = (JEQ, JGT, JGE, JSET, JNE, JSGT, JSGE, JLT, JLE, JSLT, JSLE)
ATOMICS = (0x00, 0x40, 0x50, 0xA0, 0x01, 0x41, 0x51, 0xA1, 0xE1, 0xF1)
OPERATIONS = (ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, NEG, MOD, XOR, MOV, ARSH, END)
HELPERS = (1, 2, 3, 9)
CANARIES = b"\xa5" * 4096

INPUT, OUTPUT, DATA = 6, 7, 9
"""Registers that mostly point at these parts."""
COUNTERS = (8, 3, 4)
SCRATCH = (0, 1, 2, 3, 4, 5, 8)


@dataclass(frozen=True)
class Case:
    """A program and all that it is given."""

    code: bytes
    entry: int
    arguments: tuple[int, ...]
    memory: bytes
    limit: int

    @property
    def layout(self) -> Layout:
        return ARENA


@dataclass(frozen=True)
class Observed:
    """What can be seen of a run: how it ended, the memory, and the helpers that were called."""

    value: int | None
    fault: tuple[object, ...] | None
    executed: int | None
    memory: bytes
    calls: tuple[tuple[int, ...], ...]


class Surroundings(NamedTuple):
    """What a run of a case is given; `memory` has canaries behind the arena, `calls` notes calls."""

    arena: Arena
    memory: memoryview
    helpers: dict[int, Helper]
    calls: list[tuple[int, ...]]


def surroundings(case: Case) -> Surroundings:
    """All that a run changes, made anew."""
    memory = reserve.allocate(len(case.memory) + len(CANARIES))
    memory[:] = case.memory + CANARIES
    space = arena(memory)
    calls: list[tuple[int, ...]] = []

    def helper(number: int) -> Callable[[int, int, int, int, int], int]:
        def call(*arguments: int) -> int:
            calls.append((number, *arguments))
            if number == 9:
                space.write(arguments[0], 4, arguments[1])  # may fault
            return sum(arguments) * number

        return call

    return Surroundings(space, memory, {number: helper(number) for number in HELPERS}, calls)


def observe(engine: Engine, case: Case) -> Observed:
    """Run a case on an engine."""
    space, memory, helpers, calls = surroundings(case)
    try:
        value, executed = execute(
            engine, case.code, case.entry, space, helpers, case.arguments, case.limit
        )
    except Fault as fault:
        return seen(fault, 0, memory, calls)
    return seen(value, executed, memory, calls)


def seen(
    ended: Fault | int, executed: int, memory: memoryview, calls: list[tuple[int, ...]]
) -> Observed:
    """A run that ended with a fault or a value."""
    if isinstance(ended, Fault):
        told = (ended.kind, ended.pc, ended.address, ended.reason)
        return Observed(None, told, None, bytes(memory), tuple(calls))
    return Observed(ended, None, executed, bytes(memory), tuple(calls))


# Single instructions


def _imm(random: Random) -> int:
    return random.choice(
        (
            random.randint(-8, 8),
            random.choice((0, 1, -1, 2**31 - 1, -(2**31), 255, 256, 65535, 31, 32, 63, 64)),
            random.randint(-(2**31), 2**31 - 1),
        )
    )


def arithmetic(random: Random, dst: int, src: int) -> bytes:
    """Any ALU or ALU64 instruction."""
    kind, operation = random.choice((ALU, ALU64)), random.choice(OPERATIONS)
    source = random.choice((K, X))
    if operation == END:
        source = K if kind == ALU64 else source
        return insn(kind | operation | source, dst, imm=random.choice((16, 32, 64)))
    if operation == NEG:
        return insn(kind | NEG, dst)
    offset = 0
    if operation in (DIV, MOD):
        offset = random.choice((0, 1))
    elif operation == MOV and source == X:
        offset = random.choice((0, 8, 16) if kind == ALU else (0, 8, 16, 32))
    if source == X:
        return insn(kind | operation | X, dst, src, offset)
    return insn(kind | operation | K, dst, 0, offset, _imm(random))


def access(random: Random, base: int, offset: int, register: int) -> bytes:
    """Any load, store or atomic operation at `base` plus `offset`."""
    size = random.choice((B, H, W, DW))
    match random.randrange(8):
        case 0 | 1 | 2:
            return insn(LDX | MEM | size, register, base, offset)
        case 3:
            return insn(LDX | MEMSX | random.choice((B, H, W)), register, base, offset)
        case 4:
            return insn(ST | MEM | size, base, 0, offset, _imm(random))
        case 5 | 6:
            return insn(STX | MEM | size, base, register, offset)
    operation = random.choice(ATOMICS)
    return insn(STX | ATOMIC | random.choice((W, DW)), base, register, offset & ~7, operation)


# Programs as a compiler would make them


@dataclass
class _Jump:
    """A jump to a label that is placed later, or earlier."""

    opcode: int
    label: int
    dst: int = 0
    src: int = 0
    imm: int = 0


@dataclass
class _Place:
    label: int


@dataclass
class _Call:
    """A call of a local function, or its address in a register."""

    function: int
    register: int | None = None


@dataclass
class _Writer:
    """Writes functions, whose jumps and calls are settled at the end."""

    random: Random
    items: list[bytes | _Jump | _Place | _Call] = field(default_factory=list)
    labels: int = 0
    functions: int = 1

    def add(self, *items: bytes | _Jump | _Place | _Call) -> None:
        self.items.extend(items)

    def label(self) -> int:
        self.labels += 1
        return self.labels

    def code(self) -> bytes:
        def slots(item: bytes | _Jump | _Place | _Call) -> int:
            match item:
                case bytes():
                    return len(item) // 8
                case _Place():
                    return 0
                case _Call(register=None) | _Jump():
                    return 1
            return 2

        places: dict[int, int] = {}
        at = 0
        for item in self.items:
            if isinstance(item, _Place):
                places[item.label] = at
            at += slots(item)
        out = bytearray()
        for item in self.items:
            here = len(out) // 8
            match item:
                case bytes():
                    out += item
                case _Jump(opcode, label, dst, src, imm):
                    distance = places[label] - here - 1
                    if opcode == JMP32 | JA:
                        out += insn(opcode, imm=distance)
                    else:
                        out += insn(opcode, dst, src, distance, imm)
                case _Call(function, register):
                    distance = places[-function] - here - 1
                    if register is None:
                        out += insn(0x85, src=1, imm=distance)
                    else:
                        out += lddw(register, distance & 0xFFFF_FFFF, src=4)
        return bytes(out)

    # Statements

    def body(self, depth: int, counters: tuple[int, ...], length: int) -> None:
        for _ in range(length):
            self.statement(depth, counters)

    def statement(self, depth: int, counters: tuple[int, ...]) -> None:
        """`counters` are registers that enclosing loops count with."""
        random = self.random
        free = [one for one in SCRATCH if one not in counters]
        choice = random.randrange(26)
        if choice < 4:
            self.add(arithmetic(random, random.choice(free), random.randrange(11)))
        elif choice < 10:
            self.use_memory(counters, free)
        elif choice < 12:
            self.branch(depth, counters)
        elif choice < 17 and depth < 3 and len(counters) < len(COUNTERS):
            self.loop(depth, counters)
        elif choice < 18:
            self.call_helper(free)
        elif choice < 19 and self.functions < 3:
            self.call(free)
        elif choice < 22 and len(free) > 2:
            self.walk(free)
        elif choice < 25 and len(free) > 3:
            self.second_counter(free)
        else:
            self.add(lddw(random.choice(free), random.getrandbits(64)))

    def use_memory(self, counters: tuple[int, ...], free: list[int]) -> None:
        random = self.random
        register = random.choice(free)
        if counters and random.random() < 0.7:
            self.use_indexed(random.choice(counters), free)
            return
        base = random.choice((INPUT, OUTPUT, DATA, 10, 10))
        offset = self.offset(base)
        if random.random() < 0.2:
            part, size = PARTS[random.choice(tuple(PARTS))]
            pointer = random.choice(free)
            self.add(lddw(pointer, part + random.choice((0, 8, size - 8, size - 1, size, -1))))
            base, offset = pointer, random.choice((0, 0, 0, 1, -1, -8))
        if random.random() < 0.2:  # addresses fit in 32 bits
            pointer = random.choice(free)
            self.add(insn(0xBC, pointer, base))
            base = pointer
        for _ in range(random.choice((1, 1, 2, 4))):
            self.add(access(random, base, offset, register))
            offset += random.choice((0, 1, 2, 4, 8, -8))
            if base == register and random.random() < 0.7:
                break

    def offset(self, base: int) -> int:
        random = self.random
        if base == 10:
            return random.choice(
                (-8, -16, -24, -512, -505, -4, -1, 0, -513, -random.randint(1, 512))
            )
        return random.choice((0, 8, 16, 4088, 4089, 4096, -8, random.randint(0, 4090)))

    def use_indexed(self, counter: int, free: list[int]) -> None:
        """An access at a pointer plus a multiple of a counter, written as compilers do."""
        random = self.random
        pointer, register = random.sample(free, 2) if len(free) > 1 else (free[0], free[0])
        scale = random.choice((0, 0, 1, 2, 3))
        wide = random.choice((0xBF, 0xBF, 0xBC))  # MOV64, MOV32
        self.add(insn(wide, pointer, counter))
        if random.random() < 0.2:
            self.add(
                insn(0xBF, pointer, counter, 32)
                if random.random() < 0.5
                else mov_reg(pointer, counter)
            )
        if random.random() < 0.2:
            self.add(
                insn(ALU64 | LSH, pointer, imm=32),
                insn(ALU64 | random.choice((RSH, ARSH)), pointer, imm=32),
            )
        if random.random() < 0.3:
            self.add(
                insn(random.choice((ALU, ALU64)) | AND, pointer, imm=random.choice((7, 255, 1023)))
            )
        if scale:
            self.add(insn(ALU64 | LSH, pointer, imm=scale))
        self.add(insn(ALU64 | ADD | X, pointer, random.choice((INPUT, OUTPUT, DATA))))
        for _ in range(random.choice((1, 1, 2, 3))):
            self.add(access(random, pointer, random.choice((0, 0, 8, 4, -8, 4032)), register))
            if pointer == register:
                break
        if random.random() < 0.3:  # use what was loaded as an index
            self.add(
                insn(random.choice((ALU, ALU64)) | AND, register, imm=random.choice((63, 511)))
            )
            self.add(insn(ALU64 | ADD | X, register, random.choice((INPUT, OUTPUT, DATA))))
            self.add(access(random, register, 0, pointer))

    def branch(self, depth: int, counters: tuple[int, ...]) -> None:
        random = self.random
        end = self.label()
        self.add(self.condition(end))
        self.body(depth, counters, random.choice((1, 2)))
        if random.random() < 0.4:
            other, end = end, self.label()
            self.add(_Jump(random.choice((JMP | JA, JMP32 | JA)), end), _Place(other))
            self.body(depth, counters, 1)
        self.add(_Place(end))

    def condition(self, label: int) -> _Jump:
        random = self.random
        kind, code = random.choice((JMP, JMP32)), random.choice(CONDITIONS)
        if random.random() < 0.5:
            return _Jump(kind | code | K, label, random.randrange(11), 0, _imm(random))
        return _Jump(kind | code | X, label, random.randrange(11), random.randrange(11))

    def loop(self, depth: int, counters: tuple[int, ...]) -> None:
        """A counted loop: its test first or last, counting up or down, in 32 or 64 bits."""
        random = self.random
        counter = next(one for one in COUNTERS if one not in counters)
        narrow = random.random() < 0.4
        alu, jump = (ALU, JMP32) if narrow else (ALU64, JMP)
        if random.random() < 0.15:
            jump = JMP if narrow else JMP32
        turns = random.choice((0, 1, 2, 5, 16, 33))
        step = random.choice((1, 1, 1, 2, 3, 8))
        first = random.choice((0, 0, 0, 1, 5, -3))
        bound = first + turns * step
        if random.random() < 0.2:
            bound += random.choice((-1, 1))
        goes_on = random.choice((JLT, JLT, JNE, JSLT, JLE, JSLE))
        if random.random() < 0.25:
            first, bound, step = bound, first, -step
            goes_on = random.choice((JGT, JNE, JSGT, JGE, JSGE))
        at_top = random.random() < 0.4
        self.add(mov(counter, first) if random.random() < 0.8 else insn(0xB4, counter, imm=first))
        limit: int | None = None
        if random.random() < 0.5:  # the bound in a register that nothing in the loop changes
            limit = random.choice([one for one in (1, 2, 5) if one not in counters])
            self.add(mov(limit, bound))
        start, end = self.label(), self.label()
        self.add(_Place(start))
        if at_top:
            self.add(self.test(jump | _OPPOSITE[goes_on], end, counter, limit, bound))
        inner = (*counters, counter) if limit is None else (*counters, counter, limit)
        self.body(depth + 1, inner, random.choice((1, 1, 2, 3)))
        if random.random() < 0.15:
            self.add(self.condition(end))
        self.add(insn(alu | ADD, counter, imm=step))
        if at_top:
            self.add(_Jump(JMP | JA, start))
        else:
            self.add(self.test(jump | goes_on, start, counter, limit, bound))
        self.add(_Place(end))

    def walk(self, free: list[int]) -> None:
        """A pointer that walks up to an edge, or a step too far, or not so far."""
        random = self.random
        pointer, register, end = random.sample(free, 3)
        part, size = PARTS[random.choice(tuple(PARTS))]
        step, turns = random.choice((1, 2, 4, 8, -1, -8)), random.randint(1, 12)
        displacement = random.choice((0, 0, 8, -8, 100))
        edge = random.choice((part, part + size)) + random.choice((-1, 0, 0, 1)) * step
        missed = random.choice((0, 0, 0, 0, 1))
        first = edge - turns * step
        start = self.label()
        self.add(
            lddw(pointer, first - displacement & U64), lddw(end, edge + missed - displacement & U64)
        )
        self.add(_Place(start), access(random, pointer, displacement, register))
        alu = ALU64 if random.random() < 0.8 else ALU
        self.add(insn(alu | ADD, pointer, imm=step))
        goes_on = (
            JNE if register in (pointer, end) else random.choice((JNE, JLT if step > 0 else JGT))
        )
        self.add(_Jump(JMP | goes_on | X, start, pointer, end))

    def second_counter(self, free: list[int]) -> None:
        """A loop in which another register than the one it ends by says where to."""
        random = self.random
        counter, index, pointer, register = random.sample(free, 4)
        first = random.choice((0, 0, 3, -8, -8, 0xFFFF_FFF8, 0x7FFF_FFFC))
        turns, step = random.randint(1, 6), random.choice((1, 4, 8, -1))
        base = random.choice((INPUT, OUTPUT, DATA))
        displacement = random.choice((0, 0, 16, 64))
        copy = random.choice(
            (insn(0xBF, pointer, index), insn(0xBC, pointer, index), insn(0xBF, pointer, index, 32))
        )
        start = self.label()
        self.add(mov(counter, 0), lddw(index, first & U64), _Place(start))
        self.add(copy, insn(ALU64 | ADD | X, pointer, base))
        self.add(access(random, pointer, displacement, register))
        if random.random() < 0.3:
            skip = self.label()
            self.add(self.condition(skip), insn(ALU64 | ADD, index, imm=step), _Place(skip))
        self.add(insn(random.choice((ALU, ALU64)) | ADD, index, imm=step))
        self.add(insn(ALU64 | ADD, counter, imm=1))
        self.add(_Jump(random.choice((JMP, JMP32)) | JLT | K, start, counter, 0, turns))

    def test(self, opcode: int, label: int, counter: int, limit: int | None, bound: int) -> _Jump:
        if limit is None:
            return _Jump(opcode | K, label, counter, 0, bound)
        if self.random.random() < 0.3 and opcode & 0xF0 in _MIRRORED:
            return _Jump(opcode & 0xF | _MIRRORED[opcode & 0xF0] | X, label, limit, counter)
        return _Jump(opcode | X, label, counter, limit)

    def call_helper(self, free: list[int]) -> None:
        random = self.random
        number = random.choice(HELPERS)
        if random.random() < 0.3:
            pointer = random.choice(free)
            self.add(mov(pointer, number), insn(0x8D, pointer))
            return
        self.add(insn(0x85, imm=number))

    def call(self, free: list[int]) -> None:
        random = self.random
        function = random.randint(1, 2)
        self.functions += 1
        if random.random() < 0.4:
            pointer = random.choice(free)
            self.add(_Call(function, pointer), insn(0x8D, pointer))
        else:
            self.add(_Call(function))


_OPPOSITE = {
    JLT: JGE,
    JLE: JGT,
    JGT: JLE,
    JGE: JLT,
    JNE: JEQ,
    JSLT: JSGE,
    JSLE: JSGT,
    JSGT: JSLE,
    JSGE: JSLT,
}
_MIRRORED = {
    JLT: JGT,
    JLE: JGE,
    JGT: JLT,
    JGE: JLE,
    JNE: JNE,
    JEQ: JEQ,
    JSLT: JSGT,
    JSLE: JSGE,
    JSGT: JSLT,
    JSGE: JSLE,
}


def structured(random: Random) -> Case:
    """A program of three functions."""
    writer = _Writer(random)
    writer.add(mov_reg(INPUT, 1), mov_reg(OUTPUT, 2), lddw(DATA, PARTS["data"][0]))
    writer.body(0, (), random.choice((2, 4, 6)))
    writer.add(exit_)
    for function in (1, 2):
        writer.add(_Place(-function))
        writer.add(
            *(
                lddw(one, PARTS[part][0])
                for one, part in ((INPUT, "input"), (OUTPUT, "output"), (DATA, "data"))
            )
        )
        writer.body(1, (), random.choice((1, 3)))
        writer.add(exit_)
    return _case(random, writer.code())


def soup(random: Random) -> Case:
    """Instructions that are valid, and jumps to any of them."""
    count = random.randint(3, 24)
    pieces: list[bytes] = []
    for _ in range(count):
        match random.randrange(10):
            case 0 | 1 | 2:
                pieces.append(arithmetic(random, random.randrange(10), random.randrange(11)))
            case 3 | 4:
                base = random.choice((1, 2, 5, 10, random.randrange(11)))
                offset = random.choice((0, -8, 8, -4, 4088, 4092))
                pieces.append(access(random, base, offset, random.randrange(10)))
            case 5 | 6 | 7:
                pieces.append(b"")  # a jump, filled in below
            case 8:
                pieces.append(
                    lddw(random.randrange(10), random.choice((0, 1, BASE, random.getrandbits(64))))
                )
            case _:
                pieces.append(
                    random.choice(
                        (
                            exit_,
                            insn(0x85, imm=random.choice(HELPERS)),
                            insn(0x8D, random.randrange(10)),
                            insn(0x85, src=1),
                        )
                    )
                )
    pieces.append(exit_)
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + max(len(piece) // 8, 1))
    out = bytearray()
    for index, piece in enumerate(pieces):
        distance = random.choice(starts[:-1]) - starts[index] - 1
        if piece == insn(0x85, src=1):
            piece = insn(0x85, src=1, imm=distance)
        elif not piece:
            kind, code = random.choice((JMP, JMP32)), random.choice((JA, *CONDITIONS))
            if code == JA:
                piece = (
                    insn(JMP | JA, offset=distance)
                    if kind == JMP
                    else insn(JMP32 | JA, imm=distance)
                )
            elif random.random() < 0.5:
                piece = insn(kind | code | K, random.randrange(11), 0, distance, _imm(random))
            else:
                piece = insn(kind | code | X, random.randrange(11), random.randrange(11), distance)
        out += piece
    return _case(random, bytes(out))


def _case(random: Random, code: bytes) -> Case:
    memory = bytearray(ARENA.size)
    for part in ("input", "output", "data", "rodata"):
        start, size = PARTS[part][0] - BASE, PARTS[part][1]
        memory[start : start + size] = random.randbytes(size)
    arguments = (
        PARTS["input"][0],
        PARTS["output"][0],
        random.choice((0, 1, 64, 4096, U64)),
        4096,
        PARTS["data"][0],
    )
    limit = random.choice((50, 300, 3000, 3000, 3000))
    return Case(code, 0, arguments, bytes(memory), limit)


__all__ = ["Case", "Observed", "access", "arithmetic", "observe", "soup", "structured"]
