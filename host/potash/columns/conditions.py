"""Filters checked against the columns of a file, as what programs can do: ranges of integers.

A *key* is an integer with the order of a column's values: a number itself, `types.float_key` of a
float, the index of a dictionary's value. A comparison with a value is a list of ranges of keys.
Values are compared exactly, as numbers and not as the type of one side: `x > 2.5` of integers is
`x >= 3`, and a float32 is compared with a Python float as a double. NaN has no key: it equals
nothing and is not less or greater than anything.

Null is Kleene's third truth value, as in Arrow's own compute: a comparison with null is neither
true nor false. A row is selected if the whole is true. So a condition says what makes its part of
the filter certainly true or, below a `not`, certainly false.
"""

from __future__ import annotations

import math
import operator as operators
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

from potash.columns import expressions
from potash.columns.errors import InvalidQuery
from potash.columns.expressions import Expression, Literal, Name
from potash.columns.schema import Column, Schema
from potash.columns.types import TEXTS, DataType, TypeId, Value, float_bits, float_key, float_of

MAX_RANGES = 1024
"""Ranges of a dictionary's indices that one condition names."""

Dictionary = Callable[[Column], list[Value | None]]
Ranges = tuple[tuple[int, int], ...]
"""The first and the last key of each."""


class Null(NamedTuple):
    """A condition: the column is null in the row."""

    column: Column
    truth: bool


class In(NamedTuple):
    """A column that is not null and has its key in one of these ranges, or, with `nan`, is NaN."""

    column: Column
    ranges: Ranges
    nan: bool = False


class Two(NamedTuple):
    """Two columns compared, both of integers or both of floats of one width."""

    left: Column
    operator: str
    right: Column
    nan: bool
    """True if it is enough that one of them is NaN."""


class All(NamedTuple):
    of: tuple[Condition, ...]


class Any(NamedTuple):
    of: tuple[Condition, ...]


Condition = Null | In | Two | All | Any

OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_APPLY: dict[str, Callable[..., bool]] = {
    "<": operators.lt, "<=": operators.le, ">": operators.gt, ">=": operators.ge,
    "==": operators.eq, "!=": operators.ne,
}  # fmt: skip


def bind(
    expression: Expression, schema: Schema, dictionary: Dictionary, truth: bool = True
) -> Condition:
    """The condition for a filter on columns to be certainly `truth`. Raises InvalidQuery."""
    match expression:
        case expressions.And(parts) | expressions.Or(parts):
            bound = tuple(bind(part, schema, dictionary, truth) for part in parts)
            return All(bound) if isinstance(expression, expressions.And) == truth else Any(bound)
        case expressions.Not(part):
            return bind(part, schema, dictionary, not truth)
        case expressions.IsNull(name):
            return null(schema.column(name), dictionary, truth)
        case expressions.Name(name):
            column = schema.column(name)
            if column.stored.id != TypeId.BOOL:
                raise InvalidQuery(f"{column} is not a condition; compare it with a value")
            return In(column, ((truth, truth),))
    return _compare(expression, schema, dictionary, truth)


def null(column: Column, dictionary: Dictionary, truth: bool) -> Condition:
    """The condition for a column to be null, or a null value of its dictionary."""
    values = [] if column.dictionary is None else dictionary(column)
    if None not in values:
        return Null(column, truth)
    named = In(column, _ranges([(value is None) == truth for value in values]))
    return Any((Null(column, truth), named)) if truth else named


def columns_of(condition: Condition) -> Iterator[Column]:
    """The columns that a condition reads, some of them several times."""
    match condition:
        case All(parts) | Any(parts):
            for part in parts:
                yield from columns_of(part)
        case Two(left, _, right, _):
            yield from (left, right)
        case Null() | In():
            yield condition.column


def require_computable(column: Column) -> None:
    """Raises InvalidQuery for a column whose values have no fixed width."""
    if not column.stored.is_computable:
        hint = ""
        if column.type.id in TEXTS:
            hint = "; name others with --columns, or write it as a dictionary (dictionary_encode)"
        raise InvalidQuery(f"{column} has values that programs cannot use{hint}")


def _compare(
    expression: expressions.Compare, schema: Schema, dictionary: Dictionary, truth: bool
) -> Condition:
    left, operator, right = expression
    if isinstance(left, Literal):
        if isinstance(right, Literal):
            raise InvalidQuery(f"a comparison of two values with {operator} names no column")
        left, operator, right = right, _MIRRORED[operator], left
    nan = (operator == "!=") == truth
    wanted = operator if truth else OPPOSITE[operator]
    column = schema.column(left.column)
    require_computable(column)
    if isinstance(right, Name):
        other = schema.column(right.column)
        require_computable(other)
        kind = _comparable(column)
        if kind is None or kind != _comparable(other):
            raise InvalidQuery(f"{column} and {other} cannot be compared; columns of one type can")
        return Two(column, wanted, other, nan)
    value = _value(column, operator, right.value)
    if column.dictionary is None:
        return In(column, _interval(column.type, wanted, value), nan)
    apply = _APPLY[operator]
    truths = [one is not None and apply(one, value) == truth for one in dictionary(column)]
    return In(column, _ranges(truths))


def _comparable(column: Column) -> object:
    """A value that columns have in common if they can be compared; None for no such column."""
    kind = column.type
    if column.dictionary is not None or kind.id == TypeId.BOOL:
        return None
    return (
        kind.id if kind.id == TypeId.INT else (kind.id, kind.bits, kind.unit, bool(kind.timezone))
    )


def _value(column: Column, operator: str, value: Value) -> Value | Fraction:
    """A literal as what the column's values are compared with. Raises InvalidQuery."""
    kind = column.type
    if kind.id == TypeId.BOOL:
        if not isinstance(value, bool) or operator not in ("==", "!="):
            raise InvalidQuery(f"{column} can be compared with True and False, by == and !=")
    elif kind.id in TEXTS:
        if not isinstance(value, str):
            raise InvalidQuery(f"{column} cannot be compared with {value!r}, but with strings")
    elif not kind.is_computable:
        raise InvalidQuery(f"{column} cannot be compared; write a dictionary of strings")
    elif isinstance(value, bool):
        raise InvalidQuery(f"{column} cannot be compared with {value}, but with numbers")
    elif isinstance(value, str):
        try:
            return kind.parse(value)
        except ValueError:
            hint = "write a date or a time like 2026-05-31 or 2026-05-31T12:00:00"
            raise InvalidQuery(
                f"{column} cannot be compared with {value!r}: "
                + ("it has numbers" if kind.is_number else hint)
            ) from None
    return value


def _interval(kind: DataType, operator: str, value: Value | Fraction) -> Ranges:
    """The keys of a type that compare so with a number, or with a truth value."""
    assert not isinstance(value, str)  # as `_value` says
    least, greatest = kind.keys
    if kind.id == TypeId.FLOAT:
        near = _nearest(value, kind.bits)
        key = float_key(near, kind.bits)
        floor, ceiling = key - (near > value), key + (near < value)
    else:
        within = min(max(value, least - 1), greatest + 1)  # which may be infinite
        floor, ceiling = math.floor(within), math.ceil(within)
    below, above = (least, ceiling - 1), (floor + 1, greatest)
    found = {
        "<": [below], "<=": [(least, floor)], ">": [above], ">=": [(ceiling, greatest)],
        "==": [(ceiling, floor)], "!=": [below, above],
    }[operator]  # fmt: skip
    inside = [(max(first, least), min(last, greatest)) for first, last in found]
    return tuple((first, last) for first, last in inside if first <= last)


def _nearest(value: float | Fraction, bits: int) -> float:
    """The nearest float of a width, or infinity. What is compared with it is exact."""
    try:
        return float_of(float_bits(float(value), bits), bits)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _ranges(chosen: list[bool]) -> Ranges:
    """The indices that are chosen. Raises InvalidQuery if they have too many ranges."""
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
