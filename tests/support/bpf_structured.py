"""Random programs for the BPF machine that look like a compiler's output: counted loops of all
shapes in each other, branches, calls, and accesses near the edges of the arena's parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from support.bpf import (
    ADD,
    ALU,
    ALU64,
    AND,
    ARSH,
    JA,
    JEQ,
    JGE,
    JGT,
    JLE,
    JLT,
    JMP,
    JMP32,
    JNE,
    JSGE,
    JSGT,
    JSLE,
    JSLT,
    LSH,
    RSH,
    U64,
    K,
    X,
    exit_,
    insn,
    lddw,
    mov,
    mov_reg,
)
from support.bpf_programs import (
    CONDITIONS,
    HELPERS,
    PARTS,
    Case,
    access,
    arithmetic,
    finished_case,
    immediate,
)

INPUT, OUTPUT, DATA = 6, 7, 9
"""Registers that mostly point at these parts."""
COUNTERS = (8, 3, 4)
SCRATCH = (0, 1, 2, 3, 4, 5, 8)


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
            return _Jump(kind | code | K, label, random.randrange(11), 0, immediate(random))
        return _Jump(kind | code | X, label, random.randrange(11), random.randrange(11))

    def loop(self, depth: int, counters: tuple[int, ...]) -> None:
        """A counted loop: its test first or last, counting up or down, in 32 or 64 bits."""
        random = self.random
        counter = next(one for one in COUNTERS if one not in counters)
        narrow = random.random() < 0.4
        alu, jump = (ALU, JMP32) if narrow else (ALU64, JMP)
        if random.random() < 0.15:
            jump = JMP if narrow else JMP32
        iterations = random.choice((0, 1, 2, 5, 16, 33))
        step = random.choice((1, 1, 1, 2, 3, 8))
        first = random.choice((0, 0, 0, 1, 5, -3))
        bound = first + iterations * step
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
        step, iterations = random.choice((1, 2, 4, 8, -1, -8)), random.randint(1, 12)
        displacement = random.choice((0, 0, 8, -8, 100))
        edge = random.choice((part, part + size)) + random.choice((-1, 0, 0, 1)) * step
        missed = random.choice((0, 0, 0, 0, 1))
        first = edge - iterations * step
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
        iterations, step = random.randint(1, 6), random.choice((1, 4, 8, -1))
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
        self.add(_Jump(random.choice((JMP, JMP32)) | JLT | K, start, counter, 0, iterations))

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
    return finished_case(random, writer.code())
