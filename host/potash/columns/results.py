"""What comes back from a query: from the words of jobs to columns of values.

Partial results of several jobs, and of several drives, add up before they become values. They are
those of Arrow's own compute, with two differences: the sum and the mean of floats are the exact
ones, rounded once, and so is the mean of integers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

from potash.columns.conditions import Dictionary
from potash.columns.errors import InvalidFile
from potash.columns.expressions import Aggregate
from potash.columns.plan import (
    COUNT,
    GREATEST,
    HIGH,
    INFINITY,
    LEAST,
    LIMB_BITS,
    LIMBS,
    LOW,
    MANTISSA,
    MINUS_INFINITY,
    NAN,
    ROWS,
    SEEN,
    WORD,
    Aggregated,
    Selected,
    State,
    limbs,
)
from potash.columns.schema import Column
from potash.columns.types import (
    FLOAT64,
    INT64,
    UINT64,
    UTF8,
    DataType,
    TypeId,
    Value,
    float_of_key,
)


class ResultColumn(NamedTuple):
    """A column of a result; None is null."""

    name: str
    type: DataType
    values: Sequence[Value | None]


@dataclass
class Sum:
    """The partial aggregates of one column in one group."""

    count: int = 0
    seen: int = 0
    least: int = 0
    greatest: int = 0
    whole: int = 0
    """The exact sum: of floats in units of the smallest one."""
    nan: int = 0
    infinities: tuple[int, int] = (0, 0)
    """Positive and negative ones."""

    def add(self, other: Sum) -> None:
        if other.seen:
            self.least = min(self.least, other.least) if self.seen else other.least
            self.greatest = max(self.greatest, other.greatest) if self.seen else other.greatest
        self.count += other.count
        self.seen += other.seen
        self.whole += other.whole
        self.nan += other.nan
        ours, theirs = self.infinities, other.infinities
        self.infinities = (ours[0] + theirs[0], ours[1] + theirs[1])


@dataclass
class Group:
    rows: int
    sums: dict[str, Sum]

    def add(self, other: Group) -> None:
        self.rows += other.rows
        for name, one in other.sums.items():
            self.sums[name].add(one)


Key = Value | None


@dataclass
class Groups:
    """The partial result of aggregates, by the value of the column that they are grouped by."""

    by: ResultColumn | None
    """Its name and type."""
    aggregates: tuple[Aggregate, ...]
    types: dict[str, DataType]
    """Of each column that is aggregated."""
    found: dict[Key, Group] = field(default_factory=dict)

    def empty(self) -> Groups:
        """The same without values."""
        return replace(self, found={})

    def add(self, other: Groups) -> None:
        """Add what another job or another drive has found."""
        for key, group in other.found.items():
            self.count(key, group)

    def count(self, key: Key, group: Group) -> None:
        """Add what was found of one value."""
        if isinstance(key, float) and math.isnan(key):
            key = math.nan  # this one, as no NaN equals another
        if key not in self.found:
            self.found[key] = Group(0, {name: Sum() for name in group.sums})
        self.found[key].add(group)

    def columns(self) -> list[ResultColumn]:
        """The result: a row for each group, or one row."""
        keys: list[Key] = sorted(self.found, key=_order)
        columns = []
        if self.by is not None:
            columns.append(self.by._replace(values=keys))
        for one in self.aggregates:
            kind = self.types[one.column] if one.column else INT64
            values = [_value(one, self.found[key], kind) for key in keys]
            columns.append(ResultColumn(str(one), _type(one.function, kind), values))
        return columns


def groups_of(result: Aggregated, output: bytes, values: Sequence[Value | None] = ()) -> Groups:
    """What one job found; `values` are those of the dictionary of `by`."""
    by = None if result.by is None else ResultColumn(result.by.name, _key_type(result.by), ())
    types = {state.column.name: state.column.type for state in result.states}
    found = Groups(by, result.aggregates, types)
    stride = result.stride * WORD
    for number in range(result.groups):
        words = struct.unpack_from(f"<{result.stride}Q", output, number * stride)
        if by is not None and not words[ROWS]:
            continue
        sums = {state.column.name: _sum(state, words) for state in result.states}
        key = values[number] if number < len(values) else None
        found.count(key, Group(words[ROWS], sums))
    return found


def _sum(state: State, words: Sequence[int]) -> Sum:
    at, kind = state.at, state.column.stored
    number = _signed if kind.signed else int
    found = Sum(words[at + COUNT])
    if state.extremes:
        found.seen = words[at + SEEN]
        found.least, found.greatest = number(words[at + LEAST]), number(words[at + GREATEST])
    if not state.sums:
        return found
    if kind.id == TypeId.FLOAT:
        found.nan = words[at + NAN]
        found.infinities = words[at + INFINITY], words[at + MINUS_INFINITY]
        for number_of, word in enumerate(words[at + LIMBS : at + LIMBS + limbs(kind.bits)]):
            found.whole += _signed(word) << (LIMB_BITS * number_of)
    else:
        found.whole = (_signed(words[at + HIGH]) << 32) + words[at + LOW]
    return found


def _value(aggregate: Aggregate, group: Group, kind: DataType) -> Value | None:
    if aggregate.column is None:
        return group.rows
    one = group.sums[aggregate.column]
    if aggregate.function == "count":
        return one.count
    if not one.count:
        return None
    if aggregate.function in ("min", "max"):
        key = one.least if aggregate.function == "min" else one.greatest
        if kind.id == TypeId.FLOAT:
            return float_of_key(key, kind.bits) if one.seen else math.nan
        return bool(key) if kind.id == TypeId.BOOL else key
    if aggregate.function == "sum" and kind.id != TypeId.FLOAT:
        wrapped = one.whole & ((1 << 64) - 1)
        return _signed(wrapped) if kind.signed and kind.id != TypeId.BOOL else wrapped
    divisor = one.count if aggregate.function == "mean" else 1
    if kind.id != TypeId.FLOAT:
        return one.whole / divisor
    positive, negative = one.infinities
    if one.nan or (positive and negative):
        return math.nan
    if positive or negative:
        return math.inf if positive else -math.inf
    return _rounded(Fraction(one.whole, divisor * smallest(kind.bits)))


def smallest(bits: int) -> int:
    """How many of the smallest floats of a width make 1."""
    mantissa = MANTISSA[bits]
    return 1 << ((1 << (bits - mantissa - 2)) - 2 + mantissa)


def _rounded(value: Fraction) -> float:
    """The nearest double."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _type(function: str, kind: DataType) -> DataType:
    if function == "count":
        return INT64
    if function == "mean" or (function == "sum" and kind.id == TypeId.FLOAT):
        return FLOAT64
    if function == "sum":
        return INT64 if kind.signed and kind.id != TypeId.BOOL else UINT64
    return kind


def _key_type(column: Column) -> DataType:
    return UTF8 if column.type.id == TypeId.LARGE_UTF8 else column.type


def _order(key: Key) -> tuple[bool, bool, Value]:
    """NaN comes last but for null."""
    if key is None or (isinstance(key, float) and math.isnan(key)):
        return key is None, True, 0
    return False, False, key


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@dataclass
class Rows:
    """Selected rows."""

    found: list[ResultColumn]

    def empty(self) -> Rows:
        """The same columns without values."""
        return Rows([column._replace(values=[]) for column in self.found])

    def add(self, other: Rows) -> None:
        """Add the rows of another job, or of another drive."""
        more = zip(self.found, other.found, strict=True)
        self.found = [mine._replace(values=[*mine.values, *its.values]) for mine, its in more]

    def columns(self) -> list[ResultColumn]:
        """The result."""
        return self.found


def rows_of(
    result: Selected, nullable: frozenset[str], output: bytes, dictionary: Dictionary
) -> Rows:
    """What one job selected, from records to columns."""
    fields = iter(zip(*result.record(nullable).iter_unpack(output), strict=True))
    columns = []
    for column in result.columns:
        flags = next(fields, ()) if column.name in nullable else None
        values: list[Value | None] = list(next(fields, ()))
        if flags is not None:
            values = [value if valid else None for value, valid in zip(values, flags, strict=True)]
        if column.dictionary is not None:
            names = dictionary(column)
            values = [None if one is None else _named(column, names, one) for one in values]
        columns.append(ResultColumn(column.name, _key_type(column), values))
    return Rows(columns)


def _named(column: Column, names: list[Value | None], index: Value) -> Value | None:
    if not isinstance(index, int) or not 0 <= index < len(names):
        raise InvalidFile(f"column {column.name!r} has a value that is not in its dictionary")
    return names[index]
