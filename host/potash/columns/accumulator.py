"""Code that adds the current row to the state of its group, in the program of a query.

The group's state is at R4; `plan` says what its words are.
"""

from __future__ import annotations

from potash.columns.assembly import R0, R1, R2, R3, R4, R5, R10, Code, Label, Register
from potash.columns.plan import LIMB_BITS, MANTISSA, WORD, ColumnState, Field
from potash.columns.row import Row, jump_operator
from potash.columns.types import TypeId

_GROUP = -24
"""The offset on the stack at which R4 is saved."""


class Accumulator:
    """Counts values, adds them up, and keeps the least and the greatest."""

    def __init__(self, code: Code, row: Row) -> None:
        self._code = code
        self._row = row

    def count(self, state: ColumnState, done: Label) -> None:
        """Count the row's value, and go on or to `done`."""
        code, column = self._code, state.column
        increment(code, state.at + Field.COUNT)
        if not (state.sums or state.extremes):
            return
        self._row.value(column)
        if column.stored.id == TypeId.FLOAT:
            if state.sums:
                self._add_float(state)
                self._row.value(column)
            self._row.key(column, R1, done)
        elif state.sums:
            self._add_integer(state)
        if state.extremes:
            self._extremes(state)

    def _extremes(self, state: ColumnState) -> None:
        """The least and the greatest key, of which the first one is both."""
        code, signed = self._code, state.column.stored.signed
        increment(code, state.at + Field.SEEN)
        for word, beaten in ((Field.LEAST, ">="), (Field.GREATEST, "<=")):
            place, better, kept = WORD * (state.at + word), Label(), Label()
            code.load(R2, R4, WORD * (state.at + Field.SEEN), WORD)
            code.jump_if(R2, "==", 1, better)
            code.load(R2, R4, place, WORD)
            code.jump_if(R1, jump_operator(beaten, signed), R2, kept)
            code.place(better)
            code.store(R4, place, R1, WORD)
            code.place(kept)

    def _add_integer(self, state: ColumnState) -> None:
        """Add the halves of R1, which stays; no sum of 2^31 halves overflows."""
        code = self._code
        code.alu("=", R2, R1)
        _low_half(code, R2)
        _add(code, R4, WORD * (state.at + Field.LOW), R2)
        code.alu("=", R2, R1)
        code.alu("s>>" if state.column.stored.signed else ">>", R2, 32)
        _add(code, R4, WORD * (state.at + Field.HIGH), R2)

    def _add_float(self, state: ColumnState) -> None:
        """Add the float whose bits are in R1, which it uses, to three words of the sum.

        Its mantissa is shifted to its place: by 0 to 31 bits within a word, and by whole words.
        """
        code, bits = self._code, state.column.stored.bits
        mantissa = MANTISSA[bits]
        largest = (1 << (bits - 1 - mantissa)) - 1
        special, placed, done = Label(), Label(), Label()
        code.alu("=", R3, R1)
        code.alu(">>", R3, mantissa)
        code.alu("&", R3, largest)  # the exponent
        code.alu("=", R2, R1)
        code.set(R5, (1 << mantissa) - 1)
        code.alu("&", R2, R5)
        code.jump_if(R3, "==", largest, special)
        code.jump_if(R3, "==", 0, placed)  # a subnormal number
        code.set(R5, 1 << mantissa)
        code.alu("|", R2, R5)
        code.alu("-", R3, 1)
        code.place(placed)
        code.store(R10, _GROUP, R4, WORD)
        code.alu("=", R5, R3)
        code.alu(">>", R5, 5)
        code.alu("<<", R5, 3)
        code.alu("+", R5, R4)  # the first word
        code.alu("&", R3, LIMB_BITS - 1)  # the shift within it
        code.alu("s>>", R1, 63)  # -1 for a negative number
        code.alu("=", R0, R2)
        _low_half(code, R0)
        code.alu("<<", R0, R3)
        code.alu(">>", R2, 32)
        code.alu("<<", R2, R3)
        # Their bits 0 to 31, 32 to 63 (of which R2 has the lower ones), and those above.
        code.alu("=", R3, R0)
        code.alu(">>", R3, 32)
        code.alu("=", R4, R2)
        _low_half(code, R4)
        code.alu("+", R3, R4)
        _low_half(code, R0)
        code.alu(">>", R2, 32)
        for part, register in enumerate((R0, R3, R2)):
            code.alu("^", register, R1)
            code.alu("-", register, R1)
            place = WORD * (state.at + Field.LIMBS + part)
            code.load(R4, R5, place, WORD)
            code.alu("+", R4, register)
            code.store(R5, place, R4, WORD)
        code.load(R4, R10, _GROUP, WORD)
        code.jump(done)
        code.place(special)
        self._count_special(state, done)
        code.place(done)

    def _count_special(self, state: ColumnState, done: Label) -> None:
        """Count NaN or an infinity: its bits are in R1, its mantissa in R2."""
        code, infinite, positive = self._code, Label(), Label()
        code.jump_if(R2, "==", 0, infinite)
        increment(code, state.at + Field.NAN)
        code.jump(done)
        code.place(infinite)
        code.jump_if(R1, "s>=", 0, positive)
        increment(code, state.at + Field.MINUS_INFINITY)
        code.jump(done)
        code.place(positive)
        increment(code, state.at + Field.INFINITY)


def _low_half(code: Code, register: Register) -> None:
    code.alu("<<", register, 32)
    code.alu(">>", register, 32)


def increment(code: Code, word: int) -> None:
    """Add 1 to a word of the group; it is in R2 then."""
    code.load(R2, R4, WORD * word, WORD)
    code.alu("+", R2, 1)
    code.store(R4, WORD * word, R2, WORD)


def _add(code: Code, base: Register, offset: int, value: Register) -> None:
    """Add a register, which it uses, to a word."""
    code.load(R5, base, offset, WORD)
    code.alu("+", R5, value)
    code.store(base, offset, R5, WORD)
