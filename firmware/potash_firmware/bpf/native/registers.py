"""Which registers an instruction reads and writes."""

from collections.abc import Iterable, Iterator

from potash_firmware.bpf import isa
from potash_firmware.bpf.isa import Alu, Atomic, Class, Instruction, Jump, Mode, Source

_ARGUMENTS = range(1, 6)


def read(instruction: Instruction) -> Iterator[int]:
    """The registers whose values an instruction uses; for some a register more than it does."""
    match instruction.kind:
        case Class.ALU | Class.ALU64:
            if instruction.code != Alu.MOV:
                yield instruction.dst
            if instruction.source == Source.X:
                yield instruction.src
        case Class.LDX:
            yield instruction.src
        case Class.ST:
            yield instruction.dst
        case Class.STX:
            yield from (instruction.dst, instruction.src)
            if instruction.mode == Mode.ATOMIC:
                yield 0
        case Class.JMP | Class.JMP32:
            yield from _read_by_jump(instruction)


def _read_by_jump(instruction: Instruction) -> Iterator[int]:
    match instruction.code:
        case Jump.CALL:
            yield from _ARGUMENTS
            yield instruction.dst
        case Jump.EXIT:
            yield 0
        case Jump.JA:
            pass
        case _:
            yield instruction.dst
            if instruction.source == Source.X:
                yield instruction.src


def written(instruction: Instruction) -> Iterator[int]:
    """The registers that an instruction changes."""
    match instruction.kind:
        case Class.ALU | Class.ALU64 | Class.LD | Class.LDX:
            yield instruction.dst
        case Class.STX if instruction.mode == Mode.ATOMIC and instruction.imm & Atomic.FETCH:
            yield 0 if instruction.imm == Atomic.CMPXCHG else instruction.src
        case Class.JMP if instruction.opcode in (isa.CALL, isa.CALLX):
            yield 0


def read_first(instructions: Iterable[Instruction]) -> set[int]:
    """The registers whose values at the beginning are used on a way through `instructions`."""
    needed: set[int] = set()
    changed: set[int] = set()
    for instruction in instructions:
        needed.update(set(read(instruction)) - changed)
        changed.update(written(instruction))
    return needed
