"""The words that compiled code and its caller share, beside the program's memory."""

from enum import IntEnum


class Word(IntEnum):
    """Indices into the context: 64 bits each."""

    FUEL = 0  # instructions that may still be executed; negative once it was too many
    LEAVE = 1  # why compiled code has given up, a `Leave`
    PC = 2  # and at which instruction
    READABLE = 3  # bytes of the arena
    WRITABLE = 4  # and of its part in front of the constants
    BOTTOM = 5  # frame pointer of the last frame from which a function may be called
    FUNCTIONS = 6  # address of a table: where each instruction's function is compiled, or 0
    CALL_HELPER = 7  # address of a C function: number, r1 to r5; gives r0
    COMPILE = 8  # address of a C function: index; gives the address of the function there, or 0
    COUNT = 9  # instructions of the program
    REGISTERS = 10  # r0 to r10 at PC, of which only what is used further on is meaningful


SIZE = Word.REGISTERS + 11


class Leave(IntEnum):
    """Why compiled code returned before the program's end."""

    NOT = 0
    REPLAY = 1  # the interpreter shall go on from PC: it will meet a fault there or soon behind
    LIMIT = 2  # too many instructions
    RAISED = 3  # a helper has raised an exception
