"""Random plans as pyarrow's own functions compute them, for which it is a second oracle."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from csd_spec.table_plans import Aggregate, Call, Column, Expression, Plan, Value

_OF_OPERANDS = (
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    "divide_checked",
)
_OF_DOUBLES = ("mean", "stddev", "variance")
_DECIMAL = pa.decimal256(24, 2)
"""Decimals that all integers of 64 bits are."""
_MOMENTS = {"date": pa.date32(), "time": pa.time64("us"), "timestamp": pa.timestamp("us")}


def answer(data: bytes, plan: Plan) -> list[tuple[Any, ...]]:
    """The rows that a plan of `tables_random` gives for a file."""
    table = _read(data)
    if plan.where is not None:
        table = table.filter(_values(plan.where, table))
    names: dict[Expression, str] = {}
    if plan.aggregates:
        names, table = _grouped(table, plan)
    columns = {field.name: _values(field.expression, table, names) for field in plan.select}
    # Rows that are equal in the plan's order stay in the order of the file.
    rows = _table({**columns, "row": pa.array(range(len(table)), pa.int64())})
    order = [(name, "descending" if down else "ascending") for name, down in plan.order]
    rows = rows.sort_by([*order, ("row", "ascending")]).drop_columns("row")
    return [tuple(row.values()) for row in rows.slice(0, plan.limit).to_pylist()]


def _read(data: bytes) -> pa.Table:
    if data.startswith(b"PAR1"):
        table = pq.read_table(pa.BufferReader(data))
    elif data.startswith(b"ARROW1"):
        table = pa.ipc.open_file(data).read_all()
    else:
        table = pa.ipc.open_stream(data).read_all()
    return pa.table({name: _plain(table[name]) for name in table.column_names})


def _plain(values: Any) -> Any:
    """Values in a type that all functions have, and in which products of decimals fit."""
    if pa.types.is_dictionary(values.type) or pa.types.is_string_view(values.type):
        return values.cast(pa.string())
    return values.cast(pa.decimal256(12, 2)) if pa.types.is_decimal(values.type) else values


def _table(columns: Mapping[str, Any]) -> pa.Table:
    """A table of arrays and, for columns that are alike in all rows, scalars."""
    rows = max(len(each) for each in columns.values() if not isinstance(each, pa.Scalar))
    return pa.table(
        {
            name: pa.repeat(values, rows) if isinstance(values, pa.Scalar) else values
            for name, values in columns.items()
        }
    )


def _grouped(table: pa.Table, plan: Plan) -> tuple[dict[Expression, str], pa.Table]:
    """Groups in the order of their first rows, and the columns that keys and aggregates have."""
    keys = {field.expression: field.name for field in plan.by}
    columns = {"row": table["row"]} | {keys[key]: _values(key, table) for key in keys}
    names: dict[Expression, str] = {**keys}
    asked: list[tuple[Any, str]] = [("row", "min")]
    for aggregate in {
        each: None for field in plan.select for each in _aggregates(field.expression)
    }:
        function, of = aggregate
        if of is None:
            asked.append(([], function))
            names[aggregate] = function
            continue
        values, name = _values(of, table), f"a{len(asked)}"
        columns[name] = values.cast(pa.float64()) if function in _OF_DOUBLES else values
        asked.append((name, function))
        names[aggregate] = f"{name}_{function}"
    groups = pa.TableGroupBy(_table(columns), list(keys.values()), use_threads=False)
    return names, groups.aggregate(asked).sort_by("row_min")


def _aggregates(expression: Expression) -> Iterator[Aggregate]:
    if isinstance(expression, Aggregate):
        yield expression
    elif isinstance(expression, Call):
        for each in expression.of:
            yield from _aggregates(each)


def _values(
    expression: Expression, table: pa.Table, names: Mapping[Expression, str] | None = None
) -> Any:
    """An array, or a scalar for a constant; expressions with names are columns of the table."""
    if names and expression in names:
        return table[names[expression]]
    match expression:
        case Column(str(name)):
            return table[name]
        case Value(value, None):
            return pa.scalar(value)
        case Value(value, kind):
            return _moment(value, _MOMENTS[str(kind)])
        case Call(function, of):
            return _called(function, [_values(each, table, names) for each in of])
    raise AssertionError(expression)


def _called(function: str, of: Sequence[Any]) -> Any:
    if function in _OF_OPERANDS:
        return pc.call_function(function, _alike(*of))
    first, *others = (each.as_py() if isinstance(each, pa.Scalar) else each for each in of)
    if function == "is_in":
        return pc.is_in(first, value_set=pa.array(others, first.type))
    if function == "utf8_trim":
        return pc.utf8_trim_whitespace(first)
    return getattr(pc, function)(first, *others)


def _alike(*operands: Any) -> list[Any]:
    """Two operands in a type that has the values of both."""
    types = [each.type for each in operands]
    constant = any(isinstance(each, pa.Scalar) for each in operands)
    for kind in filter(pa.types.is_temporal, types):
        to = pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
        return [_moment(each, to) for each in operands]
    floats, decimals = (
        any(map(test, types)) for test in (pa.types.is_floating, pa.types.is_decimal)
    )
    if floats and not (decimals and constant):
        return [pc.cast(each, pa.float64(), safe=False) for each in operands]
    if decimals or all(map(pa.types.is_integer, types)):
        return list(map(_decimal, operands))
    return list(operands)


def _moment(values: Any, to: pa.DataType) -> Any:
    """Dates and times of texts, or in another unit."""
    text = values.as_py() if isinstance(values, pa.Scalar) else values
    if not isinstance(text, str):
        return values.cast(to)
    if pa.types.is_time(to):  # for which there is no cast
        return pa.scalar(datetime.time.fromisoformat(text), to)
    return pa.scalar(text).cast(to)


def _decimal(values: Any) -> Any:
    """Decimals; constants with a fraction are what their digits say."""
    if isinstance(values, pa.Scalar):
        return pa.scalar(Decimal(str(values.as_py())), _DECIMAL)
    return values.cast(_DECIMAL)
