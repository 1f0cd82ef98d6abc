"""Accesses that share a check, in a segment of instructions without a branch or call.

Accesses whose addresses differ only by a constant are checked together where the first of them is
executed. As all of them will be executed, the check fails only if one of them will fault; the
interpreter, which continues there, finds out which.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from potash_firmware.bpf import isa
from potash_firmware.bpf.arena import LEAST_FRAME
from potash_firmware.bpf.isa import Class, Instruction, Jump, Mode
from potash_firmware.bpf.native import values
from potash_firmware.bpf.native.loops import Symbol, wrap

MOST_INSTRUCTIONS = 128
"""Maximum length of a segment: the checks of an instruction depend on all that follow it."""


MOST_SPAN = 1 << 32
"""Maximum number of bytes of one check, more than the distance of a valid program's accesses."""


class Check(NamedTuple):
    """The check before the instruction at `pc`: bytes `low` to `high`, relative to its address,
    exist.

    It covers the accesses at `covers`, of which `pc` is the first.
    """

    pc: int
    low: int
    high: int
    write: bool
    covers: tuple[int, ...]


class Segment(NamedTuple):
    """Instructions that are all executed once the first of them is, unless one of them faults."""

    pcs: tuple[int, ...]
    checks: dict[int, list[Check]]


def is_access(instruction: Instruction) -> bool:
    return instruction.kind in (Class.LDX, Class.ST, Class.STX)


def is_atomic(instruction: Instruction) -> bool:
    return instruction.kind == Class.STX and instruction.mode == Mode.ATOMIC


def writes(instruction: Instruction) -> bool:
    return instruction.kind != Class.LDX


def in_frame(instruction: Instruction) -> bool:
    """True for an access that is certain to be inside its function's own frame."""
    base = instruction.src if instruction.kind == Class.LDX else instruction.dst
    offset = instruction.offset
    return base == isa.FRAME_POINTER and -LEAST_FRAME <= offset <= -instruction.size


def is_provable(instruction: Instruction) -> bool:
    """True for an access that needs a check, which a guard can make superfluous."""
    return is_access(instruction) and not in_frame(instruction) and not is_atomic(instruction)


def segments(
    instructions: list[Instruction], pcs: Sequence[int], proven: Collection[int]
) -> Iterator[Segment]:
    """Cut a block's instructions behind its calls, and where they get long; `proven` are accesses
    that need no check."""
    begin = 0
    for index, pc in enumerate(pcs, 1):
        instruction = instructions[pc]
        call = instruction.kind == Class.JMP and instruction.code == Jump.CALL
        if call or index == len(pcs) or index - begin == MOST_INSTRUCTIONS:
            part = tuple(pcs[begin:index])
            yield Segment(part, _checks(instructions, part, proven))
            begin = index


def _checks(
    instructions: list[Instruction], pcs: Sequence[int], proven: Collection[int]
) -> dict[int, list[Check]]:
    evaluator = values.Evaluator(instructions, values.extend)
    environment = values.start()
    open_: dict[tuple[frozenset[tuple[Symbol, int]], bool], tuple[int, Check]] = {}
    """Keyed by the address's unknowns: the check that may be widened to further accesses, and the
    constant of its first access."""
    done: list[Check] = []
    for pc in pcs:
        instruction = instructions[pc]
        if (
            is_access(instruction)
            and pc not in proven
            and not in_frame(instruction)
            and not is_atomic(instruction)
        ):
            at, terms = evaluator.address(environment, pc)
            write = writes(instruction)
            origin, check = open_.get((terms, write), (at, Check(pc, 0, 0, write, ())))
            # Addresses wrap, so two that are far apart as numbers may be neighbours.
            distance = wrap(at - origin)
            low, high = min(check.low, distance), max(check.high, distance + instruction.size)
            if high - low > MOST_SPAN:
                done.append(check)
                origin, check, low, high = at, Check(pc, 0, 0, write, ()), 0, instruction.size
            wider = check._replace(low=low, high=high, covers=(*check.covers, pc))
            open_[terms, write] = origin, wider
        evaluator.step(environment, pc)
    checks: dict[int, list[Check]] = {}
    for check in (*done, *(check for _, check in open_.values())):
        checks.setdefault(check.pc, []).append(check)
    return checks
