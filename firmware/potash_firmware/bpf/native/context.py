"""The words that compiled code shares with its caller and `runtime`, besides the arena."""

from enum import IntEnum

from potash_firmware.bpf.counters import Kind
from potash_firmware.bpf.isa import CODE_BASE


class Word(IntEnum):
    """Indices into the context: 64 bits each."""

    FUEL = 0  # instructions that may still be executed; negative once it was too many
    SIDE_EXIT = 1  # reason for which compiled code returned early, a `SideExit`
    PC = 2  # instruction at which it returned
    READABLE = 3  # bytes of the arena
    WRITABLE = 4  # bytes of the arena in front of the constants
    BOTTOM = 5  # frame pointer of the last frame from which a function may be called
    FUNCTIONS = (
        6  # address of a table: for each instruction the address of its compiled function, or 0
    )
    CALL_HELPER = 7  # address of a C function: number, r1 to r5; gives r0
    RESUME = 8  # address of a C function: interprets from PC to the function's exit; gives r0
    COUNT = 9  # instructions of the program
    FRAME = 10  # bytes of each function's stack frame
    REGISTERS = 11  # r0 to r10 at PC, valid only where they are used later
    # Used by `runtime` only.
    HELPER_CALLBACK = 22  # address of the Python callback that calls a helper
    RESUME_CALLBACK = 23  # address of the Python callback that interprets
    ACTIVE = 24  # 1 while compiled code runs, 0 while anything that it has called does
    THREAD = 25  # the thread that runs it
    LOW = 26  # first address of the arena's reserved range
    HIGH = 27  # the end of that range
    JUMP = 28  # address of a jmp_buf, to which a fault in that range returns
    PREVIOUS = 29  # address of a struct sigaction, which handles other faults
    FAULT = 30  # the address that was accessed
    # Of programs whose instructions are counted by kind.
    RESERVE = 31  # instructions that may be executed beyond FUEL, after a pause for progress
    COUNTS = 32  # instructions executed of each `counters.Kind`; that of ALU is not used


SIZE = Word.COUNTS + len(Kind)


REFUEL = CODE_BASE
"""The number of a helper, which no program can name, that reports progress and moves instructions
from RESERVE to FUEL."""


class SideExit(IntEnum):
    """The reason for which compiled code returned before the end of the program."""

    NOT = 0
    LIMIT = 1  # too many instructions
    RAISED = 2  # a helper, or the interpreter, has raised an exception
    FAULT = 3  # an access that left the arena's memory
