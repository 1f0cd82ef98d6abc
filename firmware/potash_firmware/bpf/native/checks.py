"""Which accesses one check can stand for, in a stretch of instructions without a branch or call.

Accesses whose addresses differ only by a constant are checked together where the first of them is
executed. Because all of them will be executed, the check fails only if one of them will fault;
which one it is the interpreter then finds out, from that place on.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from potash_firmware.bpf import isa
from potash_firmware.bpf.arena import FRAME_SIZE
from potash_firmware.bpf.isa import Class, Instruction, Jump, Mode
from potash_firmware.bpf.native import values
from potash_firmware.bpf.native.linear import Symbol

MOST_INSTRUCTIONS = 128
"""Of a stretch: what is to be known at one of them is gathered from all behind it."""


class Check(NamedTuple):
    """Before the instruction at `pc`: bytes `low` to `high`, from that one's address, are there."""

    pc: int
    low: int
    high: int
    write: bool


class Stretch(NamedTuple):
    """Instructions that are all executed once the first of them is, unless one of them faults."""

    pcs: tuple[int, ...]
    checks: dict[int, list[Check]]


def is_access(instruction: Instruction) -> bool:
    """Whether it loads or stores."""
    return instruction.kind in (Class.LDX, Class.ST, Class.STX)


def is_atomic(instruction: Instruction) -> bool:
    return instruction.kind == Class.STX and instruction.mode == Mode.ATOMIC


def writes(instruction: Instruction) -> bool:
    return instruction.kind != Class.LDX


def in_frame(instruction: Instruction) -> bool:
    """Whether an access is sure to be inside its function's own frame."""
    base = instruction.src if instruction.kind == Class.LDX else instruction.dst
    offset = instruction.offset
    return base == isa.FRAME_POINTER and -FRAME_SIZE <= offset <= -instruction.size


def stretches(
    instructions: list[Instruction], pcs: Sequence[int], proven: Collection[int]
) -> Iterator[Stretch]:
    """Cut a block's instructions behind its calls, and where they get long; `proven` are accesses that need no check."""
    begin = 0
    for index, pc in enumerate(pcs, 1):
        instruction = instructions[pc]
        call = instruction.kind == Class.JMP and instruction.code == Jump.CALL
        if call or index == len(pcs) or index - begin == MOST_INSTRUCTIONS:
            part = tuple(pcs[begin:index])
            yield Stretch(part, _checks(instructions, part, proven))
            begin = index


class _Group(NamedTuple):
    """Accesses that lie at constant distances; the first one's place and constant."""

    pc: int
    origin: int
    low: int
    high: int


def _checks(
    instructions: list[Instruction], pcs: Sequence[int], proven: Collection[int]
) -> dict[int, list[Check]]:
    evaluator = values.Evaluator(instructions, values.forget)
    environment = values.start()
    groups: dict[tuple[frozenset[tuple[Symbol, int]], bool], _Group] = {}
    for pc in pcs:
        instruction = instructions[pc]
        if (
            is_access(instruction)
            and pc not in proven
            and not in_frame(instruction)
            and not is_atomic(instruction)
        ):
            at, terms = evaluator.address(environment, pc)
            key = terms, writes(instruction)
            group = groups.get(key, _Group(pc, at, at, at))
            low, high = min(group.low, at), max(group.high, at + instruction.size)
            groups[key] = group._replace(low=low, high=high)
        evaluator.step(environment, pc)
    checks: dict[int, list[Check]] = {}
    for (_, write), (pc, origin, low, high) in groups.items():
        checks.setdefault(pc, []).append(Check(pc, low - origin, high - origin, write))
    return checks
