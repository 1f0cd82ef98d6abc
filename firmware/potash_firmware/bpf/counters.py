"""Executed instructions by kind, from which a program's modelled time is computed.

Instructions are counted by kind only if a program is executed with counters; otherwise there is
only their total number. All engines that can count give the same numbers, also for a program
that faults; only one that exceeds its instruction limit may have a few more in compiled code.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum

from potash_firmware.bpf.isa import Alu, Class, Instruction, Jump, Mode


class Kind(IntEnum):
    """Kinds of instructions that take different times on a processor."""

    ALU = 0
    """Arithmetic, logic, moves and 64-bit immediates; also invalid instructions."""
    MULTIPLY = 1
    DIVIDE = 2
    """Quotients and remainders."""
    LOAD = 3
    STORE = 4
    ATOMIC = 5
    BRANCH = 6
    """Jumps, taken or not."""
    CALL = 7
    """Calls of functions and helpers, and returns."""


_DIVISIONS = (Alu.DIV, Alu.MOD)
_CALLS = (Jump.CALL, Jump.EXIT)
_OTHERS = {Class.LDX: Kind.LOAD, Class.ST: Kind.STORE, Class.LD: Kind.ALU}


def kind_of(instruction: Instruction) -> Kind:
    match instruction.kind:
        case Class.ALU | Class.ALU64:
            code = instruction.code
            return (
                Kind.MULTIPLY
                if code == Alu.MUL
                else Kind.DIVIDE
                if code in _DIVISIONS
                else Kind.ALU
            )
        case Class.JMP | Class.JMP32:
            return Kind.CALL if instruction.code in _CALLS else Kind.BRANCH
        case Class.STX:
            return Kind.ATOMIC if instruction.mode == Mode.ATOMIC else Kind.STORE
        case other:
            return _OTHERS[Class(other)]


class InstructionCounters:
    """Counters of the instructions that programs have executed: a number for each `Kind`.

    `progress` is called regularly while a program runs. `counts` are up to date then, and when a
    helper is called.
    """

    def __init__(self, progress: Callable[[], None] = lambda: None) -> None:
        self.counts = [0] * len(Kind)
        self.progress = progress

    def add(self, counts: Sequence[int]) -> None:
        self.counts = [total + more for total, more in zip(self.counts, counts, strict=True)]
