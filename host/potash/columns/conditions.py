"""Filters checked against the columns of a file: comparisons of integers, which programs can do.

Null is Kleene's third truth value, as in Arrow's own compute: a comparison with null is neither
true nor false, and rows are selected whose condition is true. Values are compared exactly, as
numbers and not as the type of one side: `x > 2.5` of integers is `x >= 3`, and a float32 is
compared with a Python float as a double. Floats become integers of the same order
(`types.float_key`). NaN equals nothing and is not less or greater than anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from potash.columns import expressions
from potash.columns.errors import InvalidQuery
from potash.columns.expressions import Expression, Literal, Name
from potash.columns.schema import Column, Schema
from potash.columns.types import (
    TEXTS,
    DataType,
    TypeId,
    Value,
    float_bits,
    float_key,
    float_of,
)

MAX_RANGES = 1024
"""Ranges of a dictionary's indices that one condition names."""

Dictionary = Callable[[Column], list[Value | None]]


class Constant(NamedTuple):
    """`truth` where the column is not null; of floats, also where it is NaN."""

    column: Column
    truth: bool


class Bit(NamedTuple):
    """A column of truth values."""

    column: Column


class Null(NamedTuple):
    column: Column


class Integers(NamedTuple):
    """A column's integers compared with a number that has as many bits as a register."""

    column: Column
    operator: str
    value: int


class Floats(NamedTuple):
    """A column's floats compared with one of them, by their keys."""

    column: Column
    operator: str
    key: int


class Two(NamedTuple):
    """Two columns compared, both of integers or both of floats of one width."""

    left: Column
    operator: str
    right: Column


class Member(NamedTuple):
    """A column whose index is in one of these ranges (`true`), or certainly in none (`false`)."""

    column: Column
    true: tuple[tuple[int, int], ...]
    false: tuple[tuple[int, int], ...]


class Not(NamedTuple):
    of: Condition


class All(NamedTuple):
    of: tuple[Condition, ...]


class Any(NamedTuple):
    of: tuple[Condition, ...]


Condition = Constant | Bit | Null | Integers | Floats | Two | Member | Not | All | Any

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_APPLY: dict[str, Callable[[Value, Value], bool]] = {
    "<": lambda a, b: a < b,  # type: ignore[operator]  # of one kind, which _literal checks
    "<=": lambda a, b: a <= b,  # type: ignore[operator]
    ">": lambda a, b: a > b,  # type: ignore[operator]
    ">=": lambda a, b: a >= b,  # type: ignore[operator]
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def bind(expression: Expression, schema: Schema, dictionary: Dictionary) -> Condition:
    """A filter on a file's columns. Raises InvalidQuery."""
    match expression:
        case expressions.And(parts):
            return All(tuple(bind(part, schema, dictionary) for part in parts))
        case expressions.Or(parts):
            return Any(tuple(bind(part, schema, dictionary) for part in parts))
        case expressions.Not(part):
            return Not(bind(part, schema, dictionary))
        case expressions.IsNull(name):
            return _null(schema.column(name), dictionary)
        case expressions.Name(name):
            column = schema.column(name)
            if column.stored.id != TypeId.BOOL:
                raise InvalidQuery(f"{column} is no condition; compare it with a value")
            return Bit(column)
    return _compare(expression, schema, dictionary)


def require_computable(column: Column) -> None:
    """Raises InvalidQuery for a column whose values have no fixed width."""
    if not column.stored.is_computable:
        hint = ""
        if column.type.id in TEXTS:
            hint = "; write it as a dictionary (dictionary_encode)"
        raise InvalidQuery(f"{column} has values that programs cannot use{hint}")


def _null(column: Column, dictionary: Dictionary) -> Condition:
    if column.dictionary is not None:
        values = dictionary(column)
        if None in values:
            nulls = _ranges([value is None for value in values])
            valid = _ranges([value is not None for value in values])
            return Any((Null(column), Member(column, nulls, valid)))
    return Null(column)


def _compare(expression: expressions.Compare, schema: Schema, dictionary: Dictionary) -> Condition:
    left, operator, right = expression
    if isinstance(left, Literal):
        if isinstance(right, Literal):
            raise InvalidQuery(f"{left.value!r} {operator} {right.value!r} names no column")
        left, operator, right = right, _MIRRORED[operator], left
    column = schema.column(left.column)
    require_computable(column)
    if isinstance(right, Name):
        other = schema.column(right.column)
        require_computable(other)
        return _columns(column, operator, other)
    if column.dictionary is not None:
        return _member(column, operator, right.value, dictionary(column))
    return _literal(column, operator, right.value)


def _columns(left: Column, operator: str, right: Column) -> Condition:
    kinds = [_comparable(one) for one in (left, right)]
    if kinds[0] is None or kinds[0] != kinds[1]:
        raise InvalidQuery(f"{left} and {right} cannot be compared; columns of one type can")
    return Two(left, operator, right)


def _comparable(column: Column) -> object:
    """What two columns that can be compared have in common; None for none."""
    kind = column.type
    if column.dictionary is not None or kind.id == TypeId.BOOL:
        return None
    if kind.id == TypeId.INT:
        return kind.id
    return kind.id, kind.bits, kind.unit


def _literal(column: Column, operator: str, value: Value) -> Condition:
    kind = column.type
    if kind.id == TypeId.BOOL:
        if not isinstance(value, bool) or operator not in ("==", "!="):
            raise InvalidQuery(f"{column} can be compared with True and False, by == and !=")
        return Bit(column) if value == (operator == "==") else Not(Bit(column))
    number = _number(column, value)
    if isinstance(number, float) and math.isnan(number):
        return Constant(column, operator == "!=")
    if kind.id == TypeId.FLOAT:
        return _float(column, operator, number)
    return _integer(column, operator, number)


def _number(column: Column, value: Value) -> float | Fraction:
    if isinstance(value, str):
        try:
            return column.type.parse(value)
        except ValueError:
            hint = "like 2026-05-31 or 2026-05-31T12:00:00"
            raise InvalidQuery(
                f"{column} cannot be compared with {value!r}: "
                + ("it has numbers" if column.type.is_number else f"write a date or a time {hint}")
            ) from None
    if isinstance(value, bool):
        raise InvalidQuery(f"{column} cannot be compared with {value}, but with numbers")
    return value


def _integer(column: Column, operator: str, value: float | Fraction) -> Condition:
    kind = column.type
    if isinstance(value, float) and math.isinf(value):
        return Constant(column, _APPLY[operator](0, value))
    whole = math.floor(value)
    if whole != value:
        if operator in ("==", "!="):
            return Constant(column, operator == "!=")
        # x < 2.5 and x <= 2.5 are x <= 2, and their opposites are x > 2.
        operator = "<=" if operator in ("<", "<=") else ">"
    low, high = _limits(kind)
    if not low <= whole <= high:
        return Constant(column, _APPLY[operator](0, whole))
    return Integers(column, operator, whole)


def _limits(kind: DataType) -> tuple[int, int]:
    if kind.signed:
        return -(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1
    return 0, (1 << kind.bits) - 1


def _float(column: Column, operator: str, value: float | Fraction) -> Condition:
    bits = column.type.bits
    near = _nearest(value, bits)
    if near == value:
        return Floats(column, operator, float_key(near, bits))
    if operator in ("==", "!="):
        # Equal to no value of this width, but every one is compared, and NaN is not equal, too.
        return Constant(column, operator == "!=")
    below = near < value
    operator = ("<=" if below else "<") if operator in ("<", "<=") else (">" if below else ">=")
    return Floats(column, operator, float_key(near, bits))


def _nearest(value: float | Fraction, bits: int) -> float:
    """The nearest float of a width, or infinity. What is compared with it is exact."""
    try:
        return float_of(float_bits(float(value), bits), bits)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _member(column: Column, operator: str, value: Value, values: list[Value | None]) -> Condition:
    """A condition on the values of a dictionary is one on their indices."""
    if column.type.id in TEXTS:
        if not isinstance(value, str):
            raise InvalidQuery(f"{column} cannot be compared with {value!r}, but with strings")
        against: Value | Fraction = value
    else:
        against = _number(column, value) if column.type.id != TypeId.BOOL else value
    apply = _APPLY[operator]
    truths = [None if one is None else apply(one, against) for one in values]  # type: ignore[arg-type]
    true = _ranges([truth is True for truth in truths])
    false = _ranges([truth is False for truth in truths])
    return Member(column, true, false)


def _ranges(chosen: list[bool]) -> tuple[tuple[int, int], ...]:
    """First and last of each run. Raises InvalidQuery if there are too many."""
    found: list[tuple[int, int]] = []
    for index, one in enumerate(chosen):
        if not one:
            continue
        if found and found[-1][1] == index - 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    if len(found) > MAX_RANGES:
        raise InvalidQuery(
            f"the condition selects more than {MAX_RANGES} ranges of a dictionary's values; sort"
            " the dictionary"
        )
    return tuple(found)
