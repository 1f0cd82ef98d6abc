"""The verifier: checks of a program before it runs.

The checks are those of the encoding: every field legal, every jump to the beginning of an
instruction inside the program, every helper known. Properties that depend on values (addresses,
loops, call depth) are checked while the program runs.
"""

from collections.abc import Container

from potash_firmware.bpf import isa
from potash_firmware.bpf.errors import VerificationError


def verify(code: bytes, entry: int, helpers: Container[int]) -> None:
    """Check all of `code`, also what the function at index `entry` never reaches.

    Raises VerificationError for the first instruction that is wrong.
    """
    if not code or len(code) % isa.INSTRUCTION_SIZE:
        raise VerificationError(0, f"{len(code)} bytes are not a program")
    instructions = isa.decode(code)
    starts = _starts(instructions)
    if entry not in starts:
        raise VerificationError(entry, "the program cannot be entered here")
    for index in sorted(starts):
        instruction = instructions[index]
        target = isa.target(index, instruction)
        if target is not None and target not in starts:
            where = "the middle of an LDDW" if 0 <= target < len(instructions) else "no instruction"
            raise VerificationError(index, f"its target {target} is {where}")
        if (
            instruction.opcode == isa.CALL
            and instruction.src == isa.CallKind.HELPER
            and instruction.imm not in helpers
        ):
            raise VerificationError(index, f"there is no helper {instruction.imm}")
    last = max(starts)
    if instructions[last].opcode not in (isa.EXIT, isa.JA, isa.JA32):
        raise VerificationError(last, "the program runs past its last instruction")


def _starts(instructions: list[isa.Instruction]) -> set[int]:
    """Where instructions begin, each of them legal in itself."""
    starts = set()
    index = 0
    while index < len(instructions):
        reason = isa.problem(instructions, index)
        if reason is not None:
            raise VerificationError(index, reason)
        starts.add(index)
        index += 2 if instructions[index].opcode == isa.LDDW else 1
    return starts
