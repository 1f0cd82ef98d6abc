"""Expressions of a plan, applied to batches by Arrow's functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from csd_spec.table_plans import Call, Column, Expression, Value
from potash_firmware.tables.errors import Refused, no_column, sentence
from potash_firmware.tables.files import Batch, Counters, Path, plain
from potash_firmware.tables.literals import literal

_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
_MIXED = _COMPARISONS | {
    *("add_checked", "subtract_checked", "multiply_checked", "divide_checked", "power_checked"),
    *("atan2", "coalesce", "if_else", "min_element_wise", "max_element_wise"),
}
"""Functions whose arguments become of one type."""

MOST_DIGITS = 400
"""Digits to which numbers are rounded."""

_match = pc.MatchSubstringOptions
_OPTIONS: Mapping[str, Callable[..., Any]] = {
    "round": lambda digits=0: _rounding(digits),
    **dict.fromkeys(("starts_with", "ends_with", "match_substring", "match_like"), _match),
    **dict.fromkeys(("match_substring_regex", "find_substring", "count_substring"), _match),
    **dict.fromkeys(("utf8_trim", "utf8_ltrim", "utf8_rtrim"), pc.TrimOptions),
    "utf8_slice_codeunits": lambda start, stop=None: pc.SliceOptions(start, stop),
    "replace_substring": lambda old, new: pc.ReplaceSubstringOptions(old, new),
    "strftime": pc.StrftimeOptions,
}
"""Functions whose constants are options of Arrow's."""


def _rounding(digits: int) -> Any:
    if abs(digits) > MOST_DIGITS:  # Arrow would multiply so often
        raise ValueError(f"it has at most {MOST_DIGITS} digits")
    return pc.RoundOptions(digits)


def path_of(column: Column) -> Path:
    return column.name if isinstance(column.name, tuple) else (column.name,)


class Evaluator:
    """Expressions' values in batches. Calls raise Refused."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def array(self, expression: Expression, batch: Batch) -> Any:
        """An array of an expression's values, one for each row."""
        found = self._value(expression, batch)
        return pa.repeat(found, batch.rows) if isinstance(found, pa.Scalar) else found

    def matching(self, where: Expression, batch: Batch, names: set[str]) -> Batch:
        """The rows where `where` is true, with the columns of these names if there are any."""
        mask = self.array(where, batch)
        if pa.types.is_null(mask.type):
            mask = mask.cast(pa.bool_())
        if not pa.types.is_boolean(mask.type):
            raise Refused(f"the condition has values of {mask.type}, not truth values")
        rows = mask.true_count
        if not rows:
            return Batch(0, {})
        columns = {name: each for name, each in batch.columns.items() if name in names}
        columns |= batch.rest()
        if rows < batch.rows:
            columns = {name: each.filter(mask) for name, each in columns.items()}
        return Batch(rows, columns)

    def _value(self, expression: Expression, batch: Batch) -> Any:
        match expression:
            case Column():
                return self._column(expression, batch)
            case Value():
                return literal(expression, None)
            case Call(function, of):
                return self._call(function, of, batch)
        raise Refused("an aggregate stands where a row's value is needed")

    def _column(self, column: Column, batch: Batch) -> Any:
        first, *rest = path_of(column)
        if first not in batch.columns:
            raise no_column(first, batch.columns)
        found = batch.columns[first]
        for name in rest:
            if not pa.types.is_struct(found.type):
                raise Refused(f"{first!r} has no member {name!r}: it is no structure")
            names = [field.name for field in found.type]
            if name not in names:
                raise no_column(name, names, f"the structure {first!r}")
            found, first = plain(pc.struct_field(found, [name])), name
        return found

    def _call(self, function: str, of: Sequence[Expression], batch: Batch) -> Any:
        options = None
        if function == "cast":
            kind = _type_named(of[1])
            # The floating-point number that is nearest to an integer will do.
            options = pc.CastOptions(kind, allow_float_truncate=pa.types.is_floating(kind))
            of = of[:1]
        elif function == "is_in":
            found = self._value(of[0], batch)
            values = [literal(each, found.type) for each in of[1:] if isinstance(each, Value)]
            options = pc.SetLookupOptions(_value_set(values, found.type))
            of = of[:1]
        elif function in _OPTIONS and (len(of) > 1 or function == "round"):
            constants = [each.value for each in of[1:] if isinstance(each, Value)]
            try:
                options = _OPTIONS[function](*constants)
            except (TypeError, ValueError, OverflowError) as error:
                given = ", ".join(map(repr, constants))
                raise Refused(f"{function} does not take {given}: {sentence(error)}") from None
            of = of[:1]
        elif function in ("utf8_trim", "utf8_ltrim", "utf8_rtrim"):
            function += "_whitespace"
        arguments = self._arguments(function, of, batch)
        self._counters.compared += batch.rows * sum(
            not isinstance(argument, pa.Scalar) for argument in arguments
        )
        return call(function, arguments, options)

    def _arguments(self, function: str, of: Sequence[Expression], batch: Batch) -> list[Any]:
        found = [None if isinstance(each, Value) else self._value(each, batch) for each in of]
        kind = next((each.type for each in found if each is not None), None)
        if function == "if_else":
            kind = next((each.type for each in found[1:] if each is not None), None)
        compared = function in _COMPARISONS
        return unified(
            function,
            [
                literal(term, kind, compared) if isinstance(term, Value) else each
                for term, each in zip(of, found, strict=True)
            ],
        )


def call(function: str, arguments: list[Any], options: Any = None) -> Any:
    """The result of an Arrow function. Raises Refused."""
    try:
        return _call_decimals(function, arguments, options)
    except pa.ArrowNotImplementedError:
        types = " and ".join(str(argument.type) for argument in arguments)
        raise Refused(f"{function} does not take {types}") from None
    except (pa.ArrowInvalid, pa.ArrowException, ValueError, TypeError) as error:
        if isinstance(error, MemoryError):
            raise
        raise Refused(f"{function}: {sentence(error)}") from None


def _call_decimals(function: str, arguments: list[Any], options: Any) -> Any:
    try:
        return pc.call_function(function, arguments, options)
    except pa.ArrowInvalid as error:
        if "Decimal precision out of range" not in str(error):
            raise
    return pc.call_function(function, [_wider(argument) for argument in arguments], options)


def _wider(argument: Any) -> Any:
    kind = argument.type
    if not pa.types.is_decimal(kind):
        return argument
    # Decimals of some libraries have 38 digits whatever they are; a product of two has one more.
    return argument.cast(pa.decimal256(min(kind.precision, 37), kind.scale))


def unified(function: str, arguments: list[Any]) -> list[Any]:
    """Arguments of types that Arrow's own rules would lose values of, or fail for."""
    if function not in _MIXED or len(arguments) < 2:
        return arguments
    kinds = [argument.type for argument in arguments]
    to = None
    if any(map(pa.types.is_floating, kinds)):
        to = pa.float64()
    elif function in _COMPARISONS and pa.uint64() in kinds:
        to = pa.decimal128(20, 0)
    if to is None or not any(map(pa.types.is_integer, kinds)) or len(set(kinds)) == 1:
        return arguments
    return [
        argument.cast(to, safe=False) if pa.types.is_integer(argument.type) else argument
        for argument in arguments
    ]


def _value_set(values: list[Any], kind: Any) -> Any:
    try:
        return pa.array([value.as_py() for value in values], kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise Refused(f"is_in: {sentence(error)}") from None


_DECIMAL = re.compile(r"decimal(?:128|256)?\((\d+), ?(\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns), ?(?:tz=)?([\w/+:-]+)\]")


def _type_named(term: Expression) -> Any:
    """The type of a name such as int64, timestamp[us, UTC] or decimal(12, 2)."""
    name = str(term.value if isinstance(term, Value) else None)
    try:
        if found := _DECIMAL.fullmatch(name):
            precision, scale = map(int, found.groups())
            return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
        if found := _TIMESTAMP.fullmatch(name):
            return pa.timestamp(*found.groups())
        return pa.type_for_alias(name)
    except (ValueError, KeyError):
        raise Refused(f"there is no type {name[:80]!r} to cast to") from None
