"""The words that compiled code shares with its caller and `runtime`, besides the arena."""

from enum import IntEnum

from potash_firmware.bpf.arena import CODE_BASE
from potash_firmware.bpf.tally import Kind


class Word(IntEnum):
    """Indices into the context: 64 bits each."""

    FUEL = 0  # instructions that may still be executed; negative once it was too many
    SIDE_EXIT = 1  # why compiled code returned early, a `SideExit`
    PC = 2  # and at which instruction
    READABLE = 3  # bytes of the arena
    WRITABLE = 4  # and of its part in front of the constants
    BOTTOM = 5  # frame pointer of the last frame from which a function may be called
    FUNCTIONS = 6  # address of a table: where each instruction's function is compiled, or 0
    CALL_HELPER = 7  # address of a C function: number, r1 to r5; gives r0
    RESUME = 8  # address of a C function: interprets from PC to the function's exit; gives r0
    COUNT = 9  # instructions of the program
    FRAME = 10  # bytes of each function's stack frame
    REGISTERS = 11  # r0 to r10 at PC, of which only what is used further on is meaningful
    # What `runtime` alone uses.
    HELPER_CALLBACK = 22  # where a helper's call goes on to
    RESUME_CALLBACK = 23  # and a resumption
    ACTIVE = 24  # whether compiled code runs, and nothing that it has called
    THREAD = 25  # in this thread
    LOW = 26  # first address of the arena's reserved range
    HIGH = 27  # and the one behind it
    JUMP = 28  # address of a jmp_buf: what a fault in that range returns to
    PREVIOUS = 29  # address of a struct sigaction: what a fault outside is left to
    FAULT = 30  # the address that was accessed
    # Of programs whose instructions are counted by kind.
    RESERVE = 31  # instructions that may be executed beyond FUEL, after a pause for progress
    COUNTS = 32  # how many of each `tally.Kind` were executed; that of ALU is not used


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
