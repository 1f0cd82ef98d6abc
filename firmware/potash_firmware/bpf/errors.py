"""Errors of programs, before they run and while they run."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potash_firmware.bpf.debug_info import Place


class ProgramError(Exception):
    """A program that cannot be run at all; its text is one sentence that says why."""


class ElfError(ProgramError):
    """The object file is malformed, or asks the linker for something it does not do."""


class VerificationError(ProgramError):
    """The instruction at index `pc` is not one that the machine would ever run.

    `place` is where that instruction comes from, as far as that is known.
    """

    def __init__(self, pc: int, reason: str) -> None:
        super().__init__(pc, reason)
        self.pc = pc
        self.reason = reason
        self.place: Place | None = None

    def __str__(self) -> str:
        return f"instruction {self.pc}{_in_brackets(self.place)}: {self.reason}"


class EngineUnavailable(ProgramError):
    """The engine that was asked for is not there, or cannot take this program."""


class FaultKind(Enum):
    """Reason for which a running program was stopped."""

    OUT_OF_BOUNDS = "memory access out of bounds"
    READ_ONLY = "write to read-only memory"
    UNALIGNED = "unaligned atomic operation"
    INSTRUCTION_LIMIT = "instruction limit exceeded"
    CALL_DEPTH = "call depth exceeded"
    INVALID_INSTRUCTION = "invalid instruction"
    OUTSIDE_PROGRAM = "jump outside the program"
    UNKNOWN_HELPER = "unknown helper"
    HELPER_FAILED = "helper failed"
    STOPPED = "stopped by libubpf"


class Fault(Exception):
    """The end of a program that did what it may not do.

    `pc` is the index of the instruction that did it, `address` the guest-virtual address it used,
    where there is one. Who raises a fault below the interpreter leaves `pc` None: the interpreter
    fills it in. `place` is where the instruction comes from, as far as that is known.
    """

    def __init__(self, kind: FaultKind, pc: int | None, address: int | None, reason: str) -> None:
        super().__init__(kind, pc, address, reason)
        self.kind = kind
        self.pc = pc
        self.address = address
        self.reason = reason
        self.place: Place | None = None

    def __str__(self) -> str:
        where = "" if self.pc is None else f" at instruction {self.pc}{_in_brackets(self.place)}"
        return f"{self.kind.value}{where}: {self.reason}"


def _in_brackets(place: Place | None) -> str:
    return f" ({place})" if place and str(place) else ""
