"""Programs for the BPF machine in tests: a tiny assembler, and what runs its output.

Encodings are written out from RFC 9669, apart from the ones under test.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from _pytest.mark import ParameterSet

from csd_spec.program import Context
from potash_firmware.bpf import Outcome, Prepared, Program
from potash_firmware.bpf.arena import Arena, Layout
from potash_firmware.bpf.counters import InstructionCounters
from potash_firmware.bpf.engine import Engine, prepare, unavailable
from potash_firmware.bpf.interpreter import Execution, Helper
from potash_firmware.bpf.interpreter import execute as run
from potash_firmware.bpf.machine import NO_ARGUMENTS

U64 = (1 << 64) - 1

LD, LDX, ST, STX, ALU, JMP, JMP32, ALU64 = range(8)
K, X = 0x00, 0x08
W, H, B, DW = 0x00, 0x08, 0x10, 0x18
IMM, MEM, MEMSX, ATOMIC = 0x00, 0x60, 0x80, 0xC0

ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, NEG, MOD, XOR, MOV, ARSH, END = range(0x00, 0xE0, 0x10)
JA, JEQ, JGT, JGE, JSET, JNE, JSGT, JSGE, CALL, EXIT, JLT, JLE, JSLT, JSLE = range(0x00, 0xE0, 0x10)

WIDTHS = {B: 1, H: 2, W: 4, DW: 8}


def insn(opcode: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    """One basic instruction (RFC 9669, section 3.1)."""
    return struct.pack("<BBhi", opcode, src << 4 | dst, offset, imm)


def lddw(dst: int, value: int, src: int = 0) -> bytes:
    """Load a 64-bit immediate (section 5.4)."""
    low, high = value & 0xFFFF_FFFF, value >> 32 & 0xFFFF_FFFF
    return struct.pack("<BBhIIi", 0x18, src << 4 | dst, 0, low, 0, _signed32(high))


def mov(dst: int, imm: int) -> bytes:
    """`dst = imm`, sign extended to 64 bits."""
    return insn(0xB7, dst, imm=imm)


def mov_reg(dst: int, src: int) -> bytes:
    """`dst = src`."""
    return insn(0xBF, dst, src)


def load(dst: int, src: int, offset: int = 0, size: int = DW) -> bytes:
    """`dst = *(src + offset)`."""
    return insn(LDX | MEM | size, dst, src, offset)


def store(dst: int, src: int, offset: int = 0, size: int = DW) -> bytes:
    """`*(dst + offset) = src`."""
    return insn(STX | MEM | size, dst, src, offset)


def call(helper: int) -> bytes:
    """Call a helper by its number."""
    return insn(0x85, imm=helper)


def call_local(distance: int) -> bytes:
    """Call the function `distance` instructions behind the next one."""
    return insn(0x85, src=1, imm=distance)


exit_ = insn(0x95)


def _signed32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def engines() -> list[ParameterSet]:
    """Both engines for a test's parameters; one that cannot be used here is skipped."""
    found = []
    for engine in (Engine.INTERPRETER, Engine.NATIVE):
        reason = unavailable(engine)
        skip = pytest.mark.skipif(reason is not None, reason=f"{engine.value}: {reason}")
        found.append(pytest.param(engine, marks=skip, id=engine.value))
    return found


def run_program(
    program: Program,
    memory: memoryview,
    *,
    input_length: int,
    output_size: int,
    output_length: int | None = None,
    context: Context = NO_ARGUMENTS,
    **others: Any,
) -> Outcome:
    """Run a program once in an accelerator's memory; see `Prepared` for `others`."""
    prepared = Prepared(program, memory, output_size=output_size, context=context, **others)
    length = output_size if output_length is None else output_length
    return prepared.run(input_length, length, context)


class Result(NamedTuple):
    """r0, and the arena as the program left it."""

    value: int
    memory: bytearray


LAYOUT = Layout(input_size=4096, output_size=4096, data_size=4096, rodata_size=64)


def arena(memory: bytearray | memoryview | None = None) -> Arena:
    """A small arena, over zeroes when no memory is given."""
    return Arena(memoryview(memory if memory is not None else bytearray(LAYOUT.size)), LAYOUT)


def run_on(
    engine: Engine,
    code: bytes,
    entry: int,
    arena: Arena,
    helpers: Mapping[int, Helper],
    arguments: Sequence[int],
    limit: int,
    counters: InstructionCounters | None = None,
) -> Execution:
    """Run code once on an engine."""
    return prepare(engine, code, entry, arena, helpers, limit, counters)(arguments)


def execute(
    *code: bytes,
    registers: Sequence[int] = (),
    helpers: Mapping[int, Helper] | None = None,
    memory: bytes = b"",
    entry: int = 0,
    limit: int = 10_000,
) -> Result:
    """Run the instructions `code` over a small arena whose input begins with `memory`."""
    backing = bytearray(LAYOUT.size)
    start = LAYOUT.input_offset
    backing[start : start + len(memory)] = memory
    value = run(b"".join(code), entry, arena(backing), helpers or {}, registers, limit).value
    return Result(value, backing)
