"""The plan of a query's program: a condition for rows, and the use of those that it selects.

The state of aggregates is defined here, for the program that counts and for the host that reads it:
words of 64 bits for each group and each column, which add up over jobs. Sums are exact. Those of
integers are the sums of their low and high halves. A float is an integer of 53 bits at one of 2 098
places; it is added to three of the words that each stand for 32 of these places, and the host puts
the words together and rounds once. So no sum depends on the order or the number of jobs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potash.columns.conditions import Condition, Dictionary, null
from potash.columns.expressions import Aggregate
from potash.columns.schema import Column
from potash.columns.types import DataType, TypeId

WORD = 8
ROWS = 0
"""The word of a group that counts its rows."""
GROUP_HEADER = 1
LIMB_BITS = 32

MANTISSA = {16: 10, 32: 23, 64: 52}
"""Bits of a float's mantissa in memory."""


class Field:
    """Words of a column's state: values, values that are not NaN, the least and greatest key, and
    the sum, of integers or of floats."""

    COUNT, SEEN, LEAST, GREATEST, SUMS = range(5)
    EXTREMES = slice(LEAST, GREATEST + 1)
    LOW, HIGH = SUMS, SUMS + 1
    NAN, INFINITY, MINUS_INFINITY, LIMBS = range(SUMS, SUMS + 4)


class ColumnState(NamedTuple):
    """The words of one column, from `at` on in its group."""

    column: Column
    present: Condition
    """The condition for a row in which the column has a value."""
    at: int
    sums: bool
    """The state has a sum."""
    extremes: bool
    """The state has the least and the greatest value."""


@dataclass(frozen=True)
class Selected:
    """The selected rows themselves: of each, these columns."""

    columns: tuple[Column, ...]

    def reads(self) -> list[Column]:
        """The columns that it reads."""
        return list(self.columns)

    def record(self, nullable: frozenset[str]) -> struct.Struct:
        """A row in the output: of each column, whether it is valid, if that is a question, and its
        value."""
        return struct.Struct(
            "<"
            + "".join(
                f"{'?' if column.name in nullable else ''}{column.stored.code}"
                for column in self.columns
            )
        )


@dataclass(frozen=True)
class Aggregated:
    """Aggregates of the selected rows, for each value of a column or for all of them."""

    aggregates: tuple[Aggregate, ...]
    states: tuple[ColumnState, ...]
    by: Column | None = None
    values: int = 0
    """Number of different values that `by` can have; null is one more group."""

    def reads(self) -> list[Column]:
        """The columns that it reads."""
        read = [state.column for state in self.states]
        return read if self.by is None else [*read, self.by]

    @property
    def groups(self) -> int:
        return 1 if self.by is None else self.values + 1

    @property
    def stride(self) -> int:
        """Words of a group."""
        if not self.states:
            return GROUP_HEADER
        last = self.states[-1]
        return last.at + words(last.column.stored, last.sums)

    @property
    def size(self) -> int:
        """Bytes of the output."""
        return self.groups * self.stride * WORD


@dataclass(frozen=True)
class Plan:
    """A query on one file."""

    condition: Condition | None
    result: Selected | Aggregated
    columns: tuple[Column, ...]
    """All columns that the program reads."""
    nullable: frozenset[str]
    """Names of the columns that have nulls."""


def states_of(
    aggregates: Sequence[Aggregate], columns: dict[str, Column], dictionary: Dictionary
) -> tuple[ColumnState, ...]:
    """A state for each column that aggregates name."""
    found, at = [], GROUP_HEADER
    for column in columns.values():
        functions = {one.function for one in aggregates if one.column == column.name}
        sums, extremes = bool(functions & {"sum", "mean"}), bool(functions & {"min", "max"})
        present = null(column, dictionary, False)
        found.append(ColumnState(column, present, at, sums, extremes))
        at += words(column.stored, sums)
    return tuple(found)


def words(kind: DataType, sums: bool) -> int:
    """Words of a column's state."""
    if not sums:
        return Field.SUMS
    return Field.LIMBS + limbs(kind.bits) if kind.id == TypeId.FLOAT else Field.HIGH + 1


def limbs(bits: int) -> int:
    """Words for the sum of floats of a width: one for each 32 places, and two that carry over."""
    places = (1 << (bits - MANTISSA[bits] - 1)) + MANTISSA[bits]
    return places // LIMB_BITS + 2
