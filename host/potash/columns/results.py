"""What comes back from a query: from the words of jobs to columns of values.

Partial results of several jobs, and of several drives, add up before they become values. They are
those of Arrow's own compute, with two differences: the sum and the mean of floats are the exact
ones, rounded once, and so is the mean of integers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from potash.columns.arrow import unpack
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
    size_of,
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

    def add(self, other: Groups) -> None:
        """Add what another job or another drive has found."""
        for key, group in other.found.items():
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
        one = Group(words[ROWS], sums)
        if key in found.found:
            found.found[key].add(one)
        else:
            found.found[key] = one
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


def _order(key: Key) -> tuple[bool, Value]:
    """Nulls come last."""
    return key is None, key if key is not None else 0


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


class Rows(NamedTuple):
    """Selected rows of one job: the bytes of each column, and of its validity."""

    length: int
    data: dict[str, bytes]
    valid: dict[str, bytes]


def rows_of(result: Selected, nullable: frozenset[str], output: bytes) -> Rows:
    """What one job selected, from records to columns."""
    record = result.record(nullable)
    count = len(output) // record
    data, valid = {}, {}
    for column, at, flag in result.offsets(nullable):
        size = size_of(column.stored)
        packed = bytearray(count * size)
        for byte in range(size):
            packed[byte::size] = output[at + byte :: record]
        data[column.name] = bytes(packed)
        if flag is not None:
            valid[column.name] = output[flag::record]
    return Rows(count, data, valid)


def columns_of(
    result: Selected, parts: Iterable[Rows], dictionaries: dict[str, list[Value | None]]
) -> list[ResultColumn]:
    """The selected rows of all jobs, in their order."""
    found = list(parts)
    columns = []
    for column in result.columns:
        values: list[Value | None] = []
        for rows in found:
            here = _values(column, rows.data[column.name], rows.length)
            flags = rows.valid.get(column.name)
            if flags is not None:
                here = [value if valid else None for value, valid in zip(here, flags, strict=True)]
            values += here
        if column.dictionary is not None:
            names = dictionaries[column.name]
            values = [None if one is None else _named(column, names, one) for one in values]
        columns.append(ResultColumn(column.name, _key_type(column), values))
    return columns


def _values(column: Column, data: bytes, count: int) -> list[Value | None]:
    if column.stored.id == TypeId.BOOL:
        return [bool(one) for one in data]
    return unpack(column.stored, data, count)


def _named(column: Column, names: list[Value | None], index: Value) -> Value | None:
    if not isinstance(index, int) or not 0 <= index < len(names):
        raise InvalidFile(f"column {column.name!r} has a value that is not in its dictionary")
    return names[index]
