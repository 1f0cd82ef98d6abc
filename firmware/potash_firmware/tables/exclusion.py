"""Row groups of a Parquet file that its statistics exclude.

A row group has the least and the greatest value of each column and how many values are null, or
lacks some of these. It is excluded only where no row can make the condition true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from csd_spec.table_plans import Call, Column, Expression, Value
from potash_firmware.tables.errors import Refused
from potash_firmware.tables.expressions import call, path_of, unified
from potash_firmware.tables.literals import literal


class Statistics(NamedTuple):
    """Statistics of a column in a row group; None where the file has none."""

    least: Any = None
    greatest: Any = None
    nulls: int | None = None
    values: int = 0


_MIRRORED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
    "equal": "equal",
}


def excluded(
    where: Expression | None, types: Mapping[str, Any], group: Any, places: Mapping[str, int]
) -> bool:
    """True if `where` is true of no row of a row group; `places` are the indices of columns."""

    def statistics(column: Column) -> Statistics:
        path = path_of(column)
        if len(path) > 1 or path[0] not in places or path[0] not in types:
            return Statistics()
        return _statistics(group.column(places[path[0]]), types[path[0]])

    return where is not None and not _possible(where, statistics)


def _statistics(chunk: Any, kind: Any) -> Statistics:
    found = chunk.statistics if chunk.is_stats_set else None
    if found is None:
        return Statistics()
    nulls = found.null_count if found.has_null_count else None
    try:
        bounds = (found.min, found.max) if found.has_min_max else (None, None)
        least, greatest = (None if each is None else pa.scalar(each, kind) for each in bounds)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        least = greatest = None
    return Statistics(least, greatest, nulls, chunk.num_values)


def _possible(where: Expression, statistics: Callable[[Column], Statistics]) -> bool:
    """False if `where` is true of no row."""
    match where:
        case Value(value):
            return value is not None and value is not False
        case Call("and_kleene", of):
            return all(_possible(each, statistics) for each in of)
        case Call("or_kleene", of):
            return any(_possible(each, statistics) for each in of)
        case Call("is_null", (Column() as column,)):
            return statistics(column).nulls != 0
        case Call("is_valid", (Column() as column,)):
            found = statistics(column)
            return found.nulls is None or found.nulls < found.values
        case Call("is_in", (Column() as column, *values)):
            found = statistics(column)
            return any(
                not isinstance(each, Value) or each.value is None or _matches("equal", found, each)
                for each in values
            )
        case Call("starts_with", (Column() as column, Value(str() as prefix))):
            return _begins(statistics(column), prefix)
        case Call(function, (Column() as column, Value() as value)) if function in _MIRRORED:
            return _matches(function, statistics(column), value)
        case Call(function, (Value() as value, Column() as column)) if function in _MIRRORED:
            return _matches(_MIRRORED[function], statistics(column), value)
    return True


def _matches(function: str, found: Statistics, value: Value) -> bool:
    """False if a comparison with a value is true of no row."""
    if value.value is None or (found.nulls == found.values and found.values):
        return False
    if found.least is None or found.greatest is None:
        return True
    try:
        operand = literal(value, found.least.type, compared=True)
        if any(each.as_py() != each.as_py() for each in (found.least, found.greatest, operand)):
            return True  # some writers put NaN there
        match function:
            case "less" | "less_equal":
                return _holds(function, found.least, operand)
            case "greater" | "greater_equal":
                return _holds(function, found.greatest, operand)
        return _holds("less_equal", found.least, operand) and _holds(
            "greater_equal", found.greatest, operand
        )
    except (Refused, ValueError):
        return True


def _holds(function: str, bound: Any, operand: Any) -> bool:
    return call(function, unified(function, [bound, operand])).as_py() is not False


def _begins(found: Statistics, prefix: str) -> bool:
    least, greatest = (
        each.as_py() if each is not None else None for each in (found.least, found.greatest)
    )
    if not isinstance(least, str) or not isinstance(greatest, str):
        return True
    return least[: len(prefix)] <= prefix <= greatest[: len(prefix)]
