"""Results of a query: from the words of jobs to columns of values.

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
from typing import Annotated, NamedTuple

from csd_spec import reporting
from potash.columns.conditions import Dictionary
from potash.columns.errors import InvalidFile
from potash.columns.expressions import Aggregate
from potash.columns.plan import (
    LIMB_BITS,
    MANTISSA,
    ROWS,
    WORD,
    Aggregated,
    ColumnState,
    Field,
    Selected,
    words,
)
from potash.columns.schema import Column
from potash.columns.types import (
    FLOAT64,
    INT64,
    TEXTS,
    UINT64,
    UTF8,
    DataType,
    TypeId,
    Value,
    float_of,
)


class ResultColumn(NamedTuple):
    """A column of a query's result."""

    name: Annotated[str, "The column's name, or the aggregate."]
    type: DataType
    values: Sequence[Value | None]
    """The values; None is null."""

    @property
    def type_name(self) -> Annotated[str, reporting.Key("type")]:
        """Type of the column's values, such as int64, float64, utf8 or timestamp[us]."""
        return str(self.type)

    @property
    def texts(self) -> Annotated[Sequence[str | None], reporting.Key("values")]:
        """The column's values as text, one per row; null for null."""
        return [None if one is None else self.type.text(one) for one in self.values]


@dataclass
class Group:
    """Number of rows of a group, and the words of the state of each aggregated column."""

    rows: int
    states: dict[str, list[int]]

    def add(self, other: Group) -> None:
        self.rows += other.rows
        for name, more in other.states.items():
            mine = self.states[name]
            extremes = [one[Field.EXTREMES] for one in (mine, more) if one[Field.SEEN]]
            self.states[name] = [one + another for one, another in zip(mine, more, strict=True)]
            if extremes:
                least, greatest = zip(*extremes, strict=True)
                self.states[name][Field.EXTREMES] = min(least), max(greatest)


Key = Value | None


@dataclass
class Groups:
    """The partial result of aggregates, by the value of the column that they are grouped by."""

    by: ResultColumn | None
    """The column's name and type; None for aggregates of all rows."""
    aggregates: tuple[Aggregate, ...]
    types: dict[str, DataType]
    """Types of the aggregated columns, by name."""
    found: dict[Key, Group] = field(default_factory=dict)

    def empty(self) -> Groups:
        """The column without values."""
        return replace(self, found={})

    def add(self, other: Groups) -> None:
        """Add the partial result of another job or another drive."""
        for key, group in other.found.items():
            self.count(key, group)

    def count(self, key: Key, group: Group) -> None:
        """Add the partial result for one value."""
        if isinstance(key, float) and math.isnan(key):
            key = math.nan  # this one, as no NaN equals another
        if key not in self.found:
            self.found[key] = Group(0, {name: [0] * len(one) for name, one in group.states.items()})
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
    """The partial result of a job; `values` are those of the dictionary of `by`."""
    by = None if result.by is None else ResultColumn(result.by.name, _key_type(result.by), ())
    types = {state.column.name: state.column.type for state in result.states}
    found = Groups(by, result.aggregates, types)
    stride = result.stride * WORD
    for number in range(result.groups):
        group = struct.unpack_from(f"<{result.stride}Q", output, number * stride)
        if by is not None and not group[ROWS]:
            continue
        states = {state.column.name: _words(state, group) for state in result.states}
        key = values[number] if number < len(values) else None
        found.count(key, Group(group[ROWS], states))
    return found


def _words(state: ColumnState, group: Sequence[int]) -> list[int]:
    """The words of a column as numbers: only least and greatest of unsigned ones have no sign."""
    kind = state.column.stored
    own = group[state.at : state.at + words(kind, state.sums)]
    found = [_signed(word) for word in own]
    if not kind.signed:
        found[Field.EXTREMES] = own[Field.EXTREMES]
    return found


def _value(aggregate: Aggregate, group: Group, kind: DataType) -> Value | None:
    if aggregate.column is None:
        return group.rows
    state = group.states[aggregate.column]
    function, count = aggregate.function, state[Field.COUNT]
    if function == "count":
        return count
    if not count:
        return None
    if function in ("min", "max"):
        key = state[Field.LEAST if function == "min" else Field.GREATEST]
        if kind.id == TypeId.FLOAT:
            size = float_of(abs(key), kind.bits)
            return math.copysign(size, key) if state[Field.SEEN] else math.nan
        return bool(key) if kind.id == TypeId.BOOL else key
    if kind.id != TypeId.FLOAT:
        whole = (state[Field.HIGH] << 32) + state[Field.LOW]
        if function == "mean":
            return whole / count
        wrapped = whole & ((1 << 64) - 1)
        return _signed(wrapped) if kind.signed and kind.id != TypeId.BOOL else wrapped
    if state[Field.NAN] or (state[Field.INFINITY] and state[Field.MINUS_INFINITY]):
        return math.nan
    if state[Field.INFINITY] or state[Field.MINUS_INFINITY]:
        return math.inf if state[Field.INFINITY] else -math.inf
    whole = sum(word << LIMB_BITS * number for number, word in enumerate(state[Field.LIMBS :]))
    divisor = count if function == "mean" else 1
    return _rounded(Fraction(whole, divisor * smallest(kind.bits)))


def smallest(bits: int) -> int:
    """The number of the smallest floats of a width whose sum is 1."""
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
    return UTF8 if column.type.id in TEXTS else column.type


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
        """The columns without values."""
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
    """The rows that a job has selected, from records to columns."""
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
