"""Code that reads the values of the current row, in the program of a query."""

from __future__ import annotations

from potash.columns.assembly import R1, R2, R5, R6, R7, R8, R9, Code, Label, Register
from potash.columns.plan import WORD, Plan
from potash.columns.schema import Column
from potash.columns.types import TypeId, float_bits

INPUT, OUTPUT, BATCH, ROW = R6, R7, R8, R9
"""Registers with a fixed purpose: the input, the output, the batch's entry in the table, and the
number of the row."""


class Row:
    """Reads columns of the row; uses R1, R2 and R5, if nothing else is said."""

    def __init__(self, code: Code, plan: Plan) -> None:
        self._code = code
        self._nullable = plan.nullable
        self._data: dict[str, int] = {}
        self._validity: dict[str, int] = {}
        at = WORD
        for column in plan.columns:
            self._data[column.name] = at
            at += WORD
            if column.name in plan.nullable:
                self._validity[column.name] = at
                at += WORD

    def valid(self, column: Column, null: Label) -> None:
        """Jump to `null` where the column is null."""
        if column.name not in self._nullable:
            return
        code, valid = self._code, Label()
        code.load(R1, BATCH, self._validity[column.name], WORD)
        code.jump_if(R1, "==", -1, valid)
        self.bit(R1)
        code.jump_if(R1, "==", 0, null)
        code.place(valid)

    def bit(self, at: Register) -> None:
        """The row's bit of the bitmap at a place in the input; uses R2."""
        code = self._code
        code.alu("+", at, INPUT)
        code.alu("=", R2, ROW)
        code.alu(">>", R2, 3)
        code.alu("+", at, R2)
        code.load(at, at, 0, 1)
        code.alu("=", R2, ROW)
        code.alu("&", R2, 7)
        code.alu(">>", at, R2)
        code.alu("&", at, 1)

    def value(self, column: Column, to: Register = R1) -> None:
        """The column's value in 64 bits: an integer, the bits of a float, 0 or 1. Uses R2."""
        code, kind = self._code, column.stored
        code.load(to, BATCH, self._data[column.name], WORD)
        if kind.id == TypeId.BOOL:
            self.bit(to)
            return
        size = kind.bits // 8
        code.alu("=", R2, ROW)
        code.alu("<<", R2, size.bit_length() - 1)
        code.alu("+", to, INPUT)
        code.alu("+", to, R2)
        code.load(to, to, 0, size, signed=kind.signed)

    def key(self, column: Column, value: Register, nan: Label) -> None:
        """Make the key of a float of its bits (sign-extended); jump where it is NaN. Uses R2."""
        code, bits = self._code, column.stored.bits
        positive = Label()
        code.alu("=", R2, value)
        code.set(R5, (1 << (bits - 1)) - 1)
        code.alu("&", R2, R5)
        code.jump_if(R2, ">", float_bits(float("inf"), bits), nan)
        code.jump_if(value, "s>=", 0, positive)
        code.alu("=", value, R2)
        code.alu("-x", value, 0)
        code.place(positive)


def jump_operator(operator: str, signed: bool) -> str:
    """A comparison as a jump makes it of numbers with a sign, or without one."""
    return f"s{operator}" if signed and operator not in ("==", "!=") else operator
