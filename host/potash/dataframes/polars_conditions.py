"""Conditions of plans from Polars's expressions, which are read as the JSON that Polars writes.

A node is an object with one member, whose name says what it is. What is not listed here is not
read, and stays with the host.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa

from csd_spec.table_plans import Call, Expression, Value
from potash.dataframes import terms
from potash.dataframes.terms import Term, Unpushable, call, column

COMPARISONS = {
    "Eq": "equal",
    "NotEq": "not_equal",
    "Lt": "less",
    "LtEq": "less_equal",
    "Gt": "greater",
    "GtEq": "greater_equal",
}
CONNECTIVES = {"And": "and_kleene", "LogicalAnd": "and_kleene"}
CONNECTIVES |= {"Or": "or_kleene", "LogicalOr": "or_kleene"}
ARITHMETIC = {"Plus": "add_checked", "Minus": "subtract_checked", "Multiply": "multiply_checked"}
"""Functions of doubles; Polars's integers wrap, and those of the drive's functions fail."""
CLOSED = {
    "Both": ("greater_equal", "less_equal"),
    "Left": ("greater_equal", "less"),
    "Right": ("greater", "less_equal"),
    "None": ("greater", "less"),
}
PARTS_OF_DATES = {"Year": "year", "Month": "month", "Day": "day", "OrdinalDay": "day_of_year"}
PARTS_OF_TIMES = {"Hour": "hour", "Minute": "minute", "Second": "second"}
STRING_TESTS = {"StartsWith": "starts_with", "EndsWith": "ends_with"}
SPECIAL = set(r"\.+*?()|[]{}^$#&-~")
"""Characters with a meaning in regular expressions, which Rust and RE2 do not read alike."""


def conditions(predicate: pl.Expr) -> Iterator[Any]:
    """The parts of a predicate, of which all must be true, as JSON. Raises Unpushable for a
    predicate that Polars does not write."""
    try:
        waiting = [json.loads(predicate.meta.serialize(format="json"))]
    except (pl.exceptions.PolarsError, ValueError, RecursionError) as error:
        raise Unpushable(f"Polars does not write it as JSON: {error}") from None
    while waiting:
        match waiting.pop():
            case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
                waiting += [right, left]
            case part:
                yield part


def condition(node: Any, schema: pa.Schema) -> Expression:
    """A condition of a plan. Raises Unpushable."""
    match node:
        case {"Column": str(name)}:
            return _boolean(column(schema, name))
        case {"Literal": _}:
            constant = _literal(node)
            if not pa.types.is_boolean(constant.type):
                raise Unpushable("a literal is no condition")
            return Value(constant.as_py())
        case {"BinaryExpr": {"left": left, "op": op, "right": right}} if op in CONNECTIVES:
            return call(CONNECTIVES[op], condition(left, schema), condition(right, schema))
        case {"BinaryExpr": {"left": left, "op": op, "right": right}} if op in COMPARISONS:
            return _compare(COMPARISONS[op], left, right, schema)
        case {"Ternary": {"predicate": test, "truthy": truthy, "falsy": falsy}}:
            parts = [condition(part, schema) for part in (test, truthy, falsy)]
            # A null test is false to Polars, and null to Arrow.
            return call("if_else", call("coalesce", parts[0], Value(False)), *parts[1:])
        case {"Function": {"input": [*inputs], "function": {"Boolean": function}}}:
            return _test(function, inputs, schema)
        case {"Function": {"input": [left, right], "function": {"StringExpr": function}}}:
            return _string_test(function, left, right, schema)
    raise Unpushable(f"no equivalent of {_named(node)} on the drive")


def _compare(function: str, left: Any, right: Any, schema: pa.Schema) -> Expression:
    if "Literal" in left:
        function, left, right = terms.FLIPPED[function], right, left
    other = _literal(right) if "Literal" in right else _term(right, schema)
    return terms.compare(function, _term(left, schema), other, nan_largest=True)


def _test(function: Any, inputs: list[Any], schema: pa.Schema) -> Expression:
    match function, inputs:
        case ("Not", [part]):
            return call("invert", condition(part, schema))
        case ("IsNull" | "IsNotNull", [part]):
            name = "is_null" if function == "IsNull" else "is_valid"
            return call(name, _term(part, schema).expression)
        case ("IsNan" | "IsNotNan" | "IsFinite" | "IsInfinite", [part]):
            term = _term(part, schema)
            if not pa.types.is_float64(term.type) and not pa.types.is_float32(term.type):
                raise Unpushable(f"no equivalent of {function} of {term.type} on the drive")
            if function == "IsNotNan":
                return call("invert", call("is_nan", term.expression))
            name = {"IsNan": "is_nan", "IsFinite": "is_finite", "IsInfinite": "is_inf"}[function]
            return call(name, term.expression)
        case ({"IsIn": {"nulls_equal": False}}, [part, values]):
            found = _literal(values)
            if not isinstance(found, pa.ListScalar) or found.values.null_count:
                raise Unpushable("a list has null, or is none")
            return terms.is_in(_term(part, schema), found.values, null_is_null=True)
        case ({"IsBetween": {"closed": closed}}, [part, low, high]) if closed in CLOSED:
            below, above = CLOSED[closed]
            return call(
                "and_kleene",
                _compare(below, part, low, schema),
                _compare(above, part, high, schema),
            )
    raise Unpushable(f"no equivalent of {_named(function)} on the drive")


def _string_test(function: Any, left: Any, right: Any, schema: pa.Schema) -> Expression:
    term, pattern = _term(left, schema), _literal(right)
    if not pattern.is_valid or not pa.types.is_large_string(pattern.type):
        raise Unpushable("a pattern is no text")
    match function:
        case "StartsWith" | "EndsWith":
            name = STRING_TESTS[function]
        case {"Contains": {"literal": literal}} if literal or not SPECIAL & set(pattern.as_py()):
            name = "match_substring"
        case _:
            raise Unpushable(f"no equivalent of {_named(function)} on the drive")
    return call(name, term.expression, terms.value(pattern, term.type))


def _term(node: Any, schema: pa.Schema) -> Term:
    match node:
        case {"Column": str(name)}:
            return column(schema, name)
        case {"Function": {"input": [part], "function": {"StructExpr": {"FieldByName": name}}}}:
            return column(schema, *_path(part), name)
        case {"Function": {"input": [part], "function": {"StringExpr": "LenChars" | "LenBytes"}}}:
            term = _term(part, schema)
            large = pa.types.is_large_string(term.type)
            if not large and not pa.types.is_string(term.type):
                raise Unpushable(f"the length of {term.type} is asked for")
            characters = node["Function"]["function"]["StringExpr"] == "LenChars"
            name = "utf8_length" if characters else "binary_length"
            return Term(call(name, term.expression), pa.int64() if large else pa.int32())
        case {"Function": {"input": [part], "function": {"TemporalExpr": str(function)}}}:
            term = _term(part, schema)
            stamp = pa.types.is_timestamp(term.type) and term.type.tz is None
            if function in PARTS_OF_DATES and (stamp or pa.types.is_date32(term.type)):
                return Term(call(PARTS_OF_DATES[function], term.expression), pa.int64())
            if function in PARTS_OF_TIMES and stamp:
                return Term(call(PARTS_OF_TIMES[function], term.expression), pa.int64())
        case {"BinaryExpr": {"left": left, "op": op, "right": right}} if op in ARITHMETIC:
            parts = [_double(part, schema) for part in (left, right)]
            return Term(Call(ARITHMETIC[op], tuple(parts)), pa.float64())
        case {"Cast": {"expr": part, "dtype": {"Literal": "Float64"}, "options": "NonStrict"}}:
            term = _term(part, schema)
            exact = pa.types.is_integer(term.type) and term.type.bit_width <= 32
            if exact or pa.types.is_float32(term.type):
                return Term(call("cast", term.expression, Value("float64")), pa.float64())
    raise Unpushable(f"no equivalent of {_named(node)} on the drive")


def _double(node: Any, schema: pa.Schema) -> Expression:
    if "Literal" in node:
        return terms.value(_literal(node), pa.float64())
    term = _term(node, schema)
    if not pa.types.is_float64(term.type):
        raise Unpushable(f"arithmetic of {term.type} may overflow")
    return term.expression


def _path(node: Any) -> tuple[str, ...]:
    match node:
        case {"Column": str(name)}:
            return (name,)
        case {"Function": {"input": [part], "function": {"StructExpr": {"FieldByName": name}}}}:
            return (*_path(part), name)
    raise Unpushable(f"a field of {_named(node)} is asked for")


def _boolean(term: Term) -> Expression:
    if not pa.types.is_boolean(term.type):
        raise Unpushable(f"a column of {term.type} is no condition")
    return term.expression


def _literal(node: Any) -> pa.Scalar:
    """A literal as Arrow has it; Polars itself reads it."""
    if not isinstance(node, dict) or node.keys() != {"Literal"}:
        raise Unpushable(f"{_named(node)} stands where a value is needed")
    try:
        expression = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
        return pl.select(expression.alias("value"))["value"].to_arrow()[0]
    except pl.exceptions.PolarsError:  # JSON has neither NaN nor infinities
        raise Unpushable("a value is NaN, infinite or of an unusual type") from None


def _named(node: Any) -> str:
    """The name of a node, for an explanation."""
    names = []
    while isinstance(node, dict) and node:
        name, inner = next(iter(node.items()))
        if name != "Function":
            names.append(name)
        if isinstance(inner, dict) and "function" in inner:
            inner = inner["function"]
        elif isinstance(inner, dict) and "op" in inner:
            inner = inner["op"]
        elif name not in ("Function", "Boolean", "StringExpr", "TemporalExpr", "StructExpr"):
            break
        node = inner
    return " ".join([*names, *([node] if isinstance(node, str) else [])]) or "the expression"
