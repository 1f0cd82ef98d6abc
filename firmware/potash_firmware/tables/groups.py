"""Groups of rows and their aggregates, in memory for each group rather than for each row.

Each batch is aggregated by itself, and the results of batches are aggregated again: sums as sums of
sums, a mean as a sum and a number of values, a variance by the formula of Chan, Golub and LeVeque
("Algorithms for computing the sample variance", 1983).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from csd_spec.table_plans import Aggregate, Call, Column, Expression, Plan, terms
from potash_firmware.tables.errors import Refused, sentence
from potash_firmware.tables.expressions import Evaluator, path_of
from potash_firmware.tables.files import Batch, Counters

MERGED_ROWS = 1 << 16
"""Groups of batches that wait before they are aggregated again, at least."""
_SAFE_PRECISION = 33
"""Digits of decimals of which a batch's sum has at most 38."""


class Part(NamedTuple):
    """A column that is kept for an aggregate, of which more than one may be kept.

    `function` is that of a batch's values, in the column `values`; `again` is that of the columns
    that batches have given, or None for the moments of a variance.
    """

    name: str
    function: str
    again: str | None
    values: str


def _parts(name: str, function: str) -> list[Part]:
    """The parts of an aggregate, whose values are in the column `name`."""

    def part(function: str, again: str | None) -> Part:
        return Part(f"{name}:{function}", function, again, name)

    match function:
        case "count_all" | "count" | "sum":
            return [part(function, "sum")]
        case "mean":
            return [part("sum", "sum"), part("count", "sum")]
        case "stddev" | "variance":
            return [part("count", "sum"), part("mean", None), part("variance", None)]
        case "count_distinct":
            return []
    return [part(function, function)]


_FIRST = Part("row", "min", "min", "row")
"""The number of a group's first row, which groups are sorted by: Arrow has another order."""


class Groups:
    """The groups of a plan, to which batches are added."""

    def __init__(self, plan: Plan, evaluator: Evaluator, counters: Counters) -> None:
        self._evaluator, self._counters = evaluator, counters
        self._select = plan.select
        self._keys = {f"k{index}": field for index, field in enumerate(plan.by)}
        within = (term for field in plan.select for term in terms(field.expression))
        found = {repr(term): term for term in within if isinstance(term, Aggregate)}
        self._aggregates = {f"a{index}": term for index, term in enumerate(found.values())}
        parts = [
            part for name, term in self._aggregates.items() for part in _parts(name, term.function)
        ]
        self._table = _Merged(list(self._keys), parts)
        self._distinct = {
            name: _Merged([*self._keys, name], [])
            for name, term in self._aggregates.items()
            if term.function == "count_distinct"
        }
        self._names = {repr(field.expression): key for key, field in self._keys.items()}
        self._names |= {repr(term): name for name, term in self._aggregates.items()}
        self._rows = 0
        self._types: dict[str, Any] = {}
        """The types of aggregates' values."""

    def add(self, batch: Batch) -> None:
        """Add the rows of a batch. Raises Refused."""
        keys = {
            key: _equal(self._evaluator.array(field.expression, batch))
            for key, field in self._keys.items()
        }
        values = {
            name: self._evaluator.array(term.of, batch)
            for name, term in self._aggregates.items()
            if term.of is not None
        }
        self._counters.hashed += batch.rows * len(keys)
        self._counters.aggregated += batch.rows * len(values)
        self._types = {name: each.type for name, each in values.items()}
        keys["row"] = pa.array(np.arange(self._rows, self._rows + batch.rows))
        self._rows += batch.rows
        for name, table in self._distinct.items():
            table.add({**keys, name: _equal(values[name])})
        prepared = {
            name: _prepared(each, self._aggregates[name].function)
            for name, each in values.items()
            if name not in self._distinct
        }
        self._table.add({**keys, **prepared})

    def result(self) -> dict[str, Any]:
        """The plan's fields of each group, in the order of the groups' first rows. Raises
        Refused."""
        table = self._table.merged().sort_by("row")
        columns = {key: _whole(table[key]) for key in self._keys}
        for name, term in self._aggregates.items():
            if name in self._distinct:
                parts = [_FIRST, Part(name, "count", None, name)]
                counts = _aggregated(self._distinct[name].merged(), list(self._keys), parts)
                columns[name] = _whole(counts.sort_by("row")[name])
            else:
                columns[name] = _final(term.function, self._types.get(name), name, table)
        batch = Batch(table.num_rows, columns)
        return {
            field.name: self._evaluator.array(self._of_groups(field.expression), batch)
            for field in self._select
        }

    def _of_groups(self, expression: Expression) -> Expression:
        """An expression whose columns are keys and aggregates."""
        if (name := self._names.get(repr(expression))) is not None:
            return Column(name)
        if isinstance(expression, Call):
            return Call(expression.function, tuple(map(self._of_groups, expression.of)))
        if isinstance(expression, Column):
            path = path_of(expression)
            for key, field in self._keys.items():
                if path[0] == field.name:
                    return Column((key, *path[1:]))
            raise Refused(f"{'.'.join(path)!r} is neither a key of the groups nor aggregated")
        return expression


class _Merged:
    """Rows of batches that are aggregated by the same keys."""

    def __init__(self, keys: list[str], parts: list[Part]) -> None:
        self._keys, self._parts = keys, [_FIRST, *parts]
        self._waiting: list[pa.Table] = []
        self._rows, self._limit = 0, MERGED_ROWS

    def add(self, columns: dict[str, Any]) -> None:
        columns = _columns(_aggregated(pa.table(columns), self._keys, self._parts))
        for name, function, _, values in self._parts:
            if function == "variance":  # kept as the sum of squared deviations
                count = columns[f"{values}:count"].cast(pa.float64())
                columns[name] = pc.multiply(columns[name], count)
            elif function == "sum" and not pa.types.is_floating(columns[name].type):
                columns[name] = _exact(columns[name])
        self._waiting.append(pa.table(columns))
        self._rows += len(columns["row"])
        if self._rows > self._limit:
            self._limit = max(MERGED_ROWS, 2 * self.merged().num_rows)

    def merged(self) -> pa.Table:
        """A row for each group so far."""
        if len(self._waiting) > 1:
            table = pa.concat_tables(self._waiting).combine_chunks()
            sums = [
                Part(part.name, part.again, None, part.name)
                for part in self._parts
                if part.again is not None
            ]
            merged = _aggregated(table, self._keys, sums)
            if len(sums) < len(self._parts):
                merged = _with_moments(table, merged, self._keys, self._parts)
            self._waiting, self._rows = [merged], merged.num_rows
        return self._waiting[0]


def _with_moments(
    table: pa.Table, merged: pa.Table, keys: list[str], parts: list[Part]
) -> pa.Table:
    """`merged` with the mean and the sum of squared deviations of all rows of each group."""
    groups = np.zeros(table.num_rows, np.int64)
    if keys:
        rows = table.append_column("at", pa.array(np.arange(table.num_rows)))
        lists = _whole(rows.group_by(keys, use_threads=False).aggregate([("at", "list")])[-1])
        groups[lists.flatten().to_numpy()] = pc.list_parent_indices(lists).to_numpy()

    def total(values: Any) -> Any:
        return np.bincount(groups, values, merged.num_rows)

    columns = _columns(merged)
    for name in [part.values for part in parts if part.function == "variance"]:
        count, mean, square = (
            pc.fill_null(_whole(table[f"{name}:{part}"]), 0).to_numpy(zero_copy_only=False)
            for part in ("count", "mean", "variance")
        )
        with np.errstate(all="ignore"):
            means = total(count * mean) / np.maximum(total(count), 1)
            squares = total(square + count * (mean - means[groups]) ** 2)
        columns |= {f"{name}:mean": pa.array(means), f"{name}:variance": pa.array(squares)}
    return pa.table({name: columns[name] for name in table.schema.names})


def _aggregated(table: pa.Table, keys: list[str], parts: Sequence[Part]) -> pa.Table:
    """A row for each group of equal keys. Raises Refused."""
    aggregations = [
        ([] if part.function == "count_all" else part.values, part.function) for part in parts
    ]
    try:
        found = table.group_by(keys, use_threads=False).aggregate(aggregations)
    except pa.ArrowNotImplementedError as error:
        if refused := _NO_KERNEL.search(str(error)):
            function, kind = refused.groups()  # two of them have one kernel
            raise Refused(f"{function.replace('_', ' or ')} does not take {kind}") from None
        raise Refused(f"the groups cannot be made: {sentence(error)}") from None
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise Refused(f"the groups cannot be made: {sentence(error)}") from None
    names = [
        part.function if part.function == "count_all" else f"{part.values}_{part.function}"
        for part in parts
    ]
    columns = {key: _whole(found[key]) for key in keys}
    columns |= {part.name: _whole(found[name]) for part, name in zip(parts, names, strict=True)}
    return pa.table(columns)


_NO_KERNEL = re.compile(
    r"Function '(?:hash_)?(\w+)' has no kernel matching input types \((.*?)(?:, uint32)?\)"
)


def _whole(column: Any) -> Any:
    """A column of a table as an array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: _whole(table[name]) for name in table.schema.names}


def _equal(values: Any) -> Any:
    """Values of which equal ones are in one group: Arrow groups zeros by their sign."""
    kind = values.type
    return pc.add(values, pa.scalar(0, kind)) if kind in (pa.float32(), pa.float64()) else values


def _prepared(values: Any, function: str) -> Any:
    """Values whose sum in a batch is exact, and floating-point values for a variance."""
    kind = values.type
    if function in ("stddev", "variance"):
        return _floats(values) if _is_number(kind) else values
    if function not in ("sum", "mean"):
        return values
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint64())
    if pa.types.is_integer(kind) and kind.bit_width == 64:
        bounds = pc.min_max(values).as_py().values()
        if max((abs(bound or 0) for bound in bounds), default=0) * len(values) >= 1 << 63:
            return values.cast(pa.decimal128(20, 0))
    if pa.types.is_decimal(kind) and kind.precision > _SAFE_PRECISION:
        return values.cast(pa.decimal256(76, kind.scale))
    return values


def _is_number(kind: Any) -> bool:
    types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(is_type(kind) for is_type in types)


def _floats(values: Any) -> Any:
    return values.cast(pa.float64(), safe=False)


def _exact(sums: Any) -> Any:
    """Sums of a batch, in a type that has room for those of all batches."""
    kind = sums.type
    if pa.types.is_integer(kind):
        return sums.cast(pa.decimal128(20, 0)).cast(pa.decimal256(76, 0))
    return sums.cast(pa.decimal256(76, kind.scale)) if pa.types.is_decimal(kind) else sums


def _final(function: str, kind: Any, name: str, table: pa.Table) -> Any:
    """An aggregate's values, of its parts; `kind` is the type of the values that it is of."""
    column = {part.function: _whole(table[part.name]) for part in _parts(name, function)}
    match function:
        case "sum":
            return _sum(column["sum"], kind)
        case "mean":
            return pc.divide(_floats(column["sum"]), _floats(column["count"]))
        case "stddev" | "variance":
            variance = pc.divide(column["variance"], _floats(column["count"]))
            variance = pc.if_else(pc.equal(column["count"], 0), None, variance)
            return variance if function == "variance" else pc.sqrt(variance)
    return column[function]


def _sum(sums: Any, kind: Any) -> Any:
    """Sums in the type that Arrow's `sum` has. Raises Refused where they do not fit."""
    to = sums.type
    if pa.types.is_signed_integer(kind):
        to = pa.int64()
    elif pa.types.is_unsigned_integer(kind) or pa.types.is_boolean(kind):
        to = pa.uint64()
    elif pa.types.is_decimal128(kind):
        to = pa.decimal128(38, kind.scale)
    try:
        return sums.cast(to)
    except pa.ArrowInvalid:
        raise Refused(f"a sum is outside of the range of {to}") from None
