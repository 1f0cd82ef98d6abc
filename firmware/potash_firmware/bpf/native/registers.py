"""Which registers an instruction reads and writes."""

from collections.abc import Iterator, Mapping, Sequence

from potash_firmware.bpf import isa
from potash_firmware.bpf.isa import Alu, Atomic, Class, Instruction, Jump, Mode, Source
from potash_firmware.bpf.native.blocks import Block

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


def live(
    instructions: Sequence[Instruction], blocks: Mapping[int, Block]
) -> dict[int, frozenset[int]]:
    """The registers whose values may still be used, in front of each instruction of a function."""
    masks = {
        pc: (_mask(read(instructions[pc])), ~_mask(written(instructions[pc])))
        for block in blocks.values()
        for pc in block.pcs
    }
    first = dict.fromkeys(blocks, 0)
    before: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for start in reversed(list(blocks)):
            used = 0
            for successor in blocks[start].successors:
                used |= first[successor]
            for pc in reversed(blocks[start].pcs):
                reads, keeps = masks[pc]
                used = before[pc] = used & keeps | reads
            if used != first[start]:
                first[start] = used
                changed = True
    return {pc: _REGISTERS[used] for pc, used in before.items()}


def _mask(registers: Iterator[int]) -> int:
    return sum(1 << register for register in set(registers))


class _Sets(dict[int, frozenset[int]]):
    def __missing__(self, mask: int) -> frozenset[int]:
        found = self[mask] = frozenset(one for one in range(11) if mask >> one & 1)
        return found


_REGISTERS = _Sets()
