"""Random valid programs for the BPF machine, and how an engine's way with one is observed.

Every opcode of RFC 9669 (but the packet group) occurs, with every operation of MOV, DIV, MOD, END
and the atomics. There are two kinds. What `bpf_structured` makes looks like a compiler's output; in
what `soup` makes, jumps go anywhere.

Encodings are those of `support.bpf`, written out from the RFC, apart from the ones under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from potash_firmware.bpf import reserve
from potash_firmware.bpf.arena import Arena, Layout
from potash_firmware.bpf.counters import InstructionCounters
from potash_firmware.bpf.engine import Engine
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
    run_on,
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
    """What a run of a case is given; `memory` has canaries behind the arena, `calls` notes
    calls."""

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


def observe(engine: Engine, case: Case, counters: InstructionCounters | None = None) -> Observed:
    """Run a case on an engine."""
    space, memory, helpers, calls = surroundings(case)
    try:
        value, executed = run_on(
            engine, case.code, case.entry, space, helpers, case.arguments, case.limit, counters
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


def immediate(random: Random) -> int:
    """An operand of 32 bits, small or at an edge more often than not."""
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
    return insn(kind | operation | K, dst, 0, offset, immediate(random))


def access(random: Random, base: int, offset: int, register: int) -> bytes:
    """Any load, store or atomic operation at `base` plus `offset`."""
    size = random.choice((B, H, W, DW))
    match random.randrange(8):
        case 0 | 1 | 2:
            return insn(LDX | MEM | size, register, base, offset)
        case 3:
            return insn(LDX | MEMSX | random.choice((B, H, W)), register, base, offset)
        case 4:
            return insn(ST | MEM | size, base, 0, offset, immediate(random))
        case 5 | 6:
            return insn(STX | MEM | size, base, register, offset)
    operation = random.choice(ATOMICS)
    return insn(STX | ATOMIC | random.choice((W, DW)), base, register, offset & ~7, operation)


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
                piece = insn(kind | code | K, random.randrange(11), 0, distance, immediate(random))
            else:
                piece = insn(kind | code | X, random.randrange(11), random.randrange(11), distance)
        out += piece
    return finished_case(random, bytes(out))


def finished_case(random: Random, code: bytes) -> Case:
    """A program with random memory and limits."""
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
