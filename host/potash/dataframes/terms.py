"""The parts of conditions that a drive applies exactly as the library that asks would.

The readers of Polars's and of Arrow's expressions make conditions of these functions, which refuse
what the drive's engine, Arrow, would decide differently, or could not decide.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from csd_spec.table_plans import Call, Column, Expression, Value, ValueType

FLIPPED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
"""Comparisons, and what they are when their sides are exchanged."""


class Unpushable(Exception):
    """A condition that the drive does not apply; the text says why."""


class Term(NamedTuple):
    """An expression of a row's values, and its type."""

    expression: Expression
    type: pa.DataType


def column(schema: pa.Schema, *names: str) -> Term:
    """A column, or a field of one that has structures."""
    field: pa.DataType = pa.struct(schema)
    for name in names:
        index = field.get_field_index(name) if pa.types.is_struct(field) else -1
        if index < 0:
            raise Unpushable(f"there is no single column {'.'.join(names)}")
        field = field.field(index).type
    return Term(Column(names[0] if len(names) == 1 else names), field)


def call(function: str, *arguments: Expression) -> Call:
    return Call(function, arguments)


def conjunction(parts: Iterable[Expression]) -> Expression | None:
    """A condition that is true where all parts are; None if there are none."""
    whole: Expression | None = None
    for part in parts:
        whole = part if whole is None else call("and_kleene", whole, part)
    return whole


def compare(function: str, left: Term, right: Term | pa.Scalar, *, nan_largest: bool) -> Expression:
    """A comparison of two values of one type, or of a value with one that is the same in all rows.

    With `nan_largest`, NaN is equal to itself and larger than other numbers, as in Polars and in
    SQL; otherwise no comparison with it but `not_equal` is true.
    """
    total_order = nan_largest and pa.types.is_floating(left.type)
    if isinstance(right, pa.Scalar):
        compared = call(function, left.expression, value(right, left.type))
        if total_order and function in ("greater", "greater_equal"):
            return call("or_kleene", compared, call("is_nan", left.expression))
        return compared
    if left.type != right.type:
        raise Unpushable(f"{left.type} and {right.type} are compared")
    _require_comparable(left.type)
    if total_order and function in ("less", "less_equal"):
        return compare(FLIPPED[function], right, left, nan_largest=True)
    compared = call(function, left.expression, right.expression)
    if not total_order:
        return compared
    left_nan, right_nan = call("is_nan", left.expression), call("is_nan", right.expression)
    if function == "not_equal":
        return call("and_kleene", compared, call("invert", call("and_kleene", left_nan, right_nan)))
    if function == "equal":
        other = right_nan
    elif function == "greater":
        other = call("invert", right_nan)
    else:
        other = call("is_valid", right.expression)
    return call("or_kleene", compared, call("and_kleene", left_nan, other))


def is_in(term: Term, values: pa.Array, *, null_is_null: bool) -> Expression:
    """True for values that are among these, of which none is null; a null is nowhere, or gives
    null."""
    if pa.types.is_floating(term.type) and any(scalar.as_py() == 0 for scalar in values):
        raise Unpushable("0.0 and -0.0 are equal in a list")
    among = Call("is_in", (term.expression, *(value(scalar, term.type) for scalar in values)))
    if null_is_null:
        return call("if_else", call("is_valid", term.expression), among, Value(None))
    return among


def value(scalar: pa.Scalar, of: pa.DataType) -> Value:
    """A value that is compared with values of a type. Raises Unpushable where one of them would
    have to be rounded or converted."""
    _require_comparable(of)
    if not scalar.is_valid:
        raise Unpushable("a value is null")
    if pa.types.is_dictionary(scalar.type):
        scalar = scalar.value
    try:
        found = _value(scalar, of)
    except (pa.ArrowException, ValueError, OverflowError):
        found = None
    if found is None:
        raise Unpushable(f"{_shown(scalar)} is compared with {of}")
    return found


def _value(scalar: pa.Scalar, of: pa.DataType) -> Value | None:
    """The value, or None for one of another type. Raises what Arrow does for one out of range."""
    types, kind = pa.types, scalar.type
    if (types.is_boolean(of) and types.is_boolean(kind)) or (_is_string(of) and _is_string(kind)):
        return Value(scalar.as_py())
    if types.is_integer(of) and types.is_integer(kind):
        return Value(scalar.cast(of).as_py())
    if types.is_floating(of) and (types.is_floating(kind) or types.is_integer(kind)):
        return _number(scalar.as_py(), of)
    if types.is_date32(of) and types.is_date32(kind):
        return Value(scalar.as_py().isoformat(), ValueType.DATE)
    if types.is_timestamp(of) and types.is_timestamp(kind):
        return _timestamp(scalar, of)
    if types.is_time(of) and types.is_time(kind):
        return Value(str(scalar.cast(of).cast(pa.string())), ValueType.TIME)
    if types.is_duration(of) and types.is_duration(kind):
        return Value(scalar.cast(of).cast(pa.duration("ns")).value, ValueType.DURATION)
    if types.is_decimal(of) and types.is_decimal(kind):
        # Not by a cast, which wants room for more digits than there can be.
        return Value(format(pa.scalar(scalar.as_py(), of).as_py(), "f"), ValueType.DECIMAL)
    if types.is_decimal(of) and types.is_integer(kind):
        exact = scalar.cast(pa.decimal128(38, 0)).cast(of)
        return Value(format(exact.as_py(), "f"), ValueType.DECIMAL)
    if _is_binary(of) and _is_binary(kind):
        return Value(scalar.as_py().hex(), ValueType.BINARY)
    return None


def _shown(scalar: pa.Scalar) -> str:
    try:
        return str(scalar)[:80]
    except (ValueError, OverflowError):  # Python has no such date
        return f"a {scalar.type}"


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _require_comparable(kind: pa.DataType) -> None:
    types = pa.types
    tests = (
        *(types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_date32),
        *(types.is_timestamp, types.is_time, types.is_duration, types.is_decimal128),
        *(_is_string, _is_binary),
    )
    if not any(test(kind) for test in tests):
        raise Unpushable(f"values of type {kind} are compared")


def _number(number: float, of: pa.DataType) -> Value | None:
    exact = struct.unpack("<f", struct.pack("<f", number))[0] if of.bit_width == 32 else number
    finite = math.isfinite(number) and exact == number == float(number)
    return Value(float(number)) if finite else None


def _timestamp(scalar: pa.Scalar, of: pa.DataType) -> Value | None:
    """The text of an instant, in UTC if the type has a time zone."""
    naive = str(pa.scalar(scalar.cast(of).value, pa.timestamp(of.unit)).cast(pa.string()))
    if (scalar.type.tz is None) != (of.tz is None) or not naive[:5].endswith("-"):
        return None  # also for a year that has not four digits
    return Value(naive.replace(" ", "T") + ("" if of.tz is None else "Z"), ValueType.TIMESTAMP)
