"""Tables on drives as pyarrow's datasets, which DuckDB reads, too.

    import duckdb
    import potash

    sales = potash.dataset("/mnt/sales.parquet")
    duckdb.sql("select region, sum(price) from sales where quantity > 100 group by all")

A scan's filter and columns are pushed down. The drive applies the conditions of the filter that are
in a plan's words; pyarrow applies the others to the rows that the drive gives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from potash.dataframes import arrow_conditions
from potash.dataframes.table import Pushed, Scan, Table, pushed
from potash.dataframes.terms import Unpushable
from potash.sdk import Device

Columns = Sequence[str] | Mapping[str, pc.Expression] | None


def dataset(source: str | os.PathLike[str], device: str | Device | None = None) -> TableDataset:
    """A table on a drive.

    Args:
        source: a Parquet or Arrow file in a file system of the drive, or lba:BLOCK:SIZE.
        device: the drive, open or as `potash.sdk.open` takes it; without one, that of the path.

    Raises PotashError where the drive cannot be opened, or the file cannot be read.
    """
    table = Table(source, device)
    return TableDataset(table, table.schema)


class TableDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A dataset of one table on a drive, with the methods of pyarrow's that read rows.

    Its methods take the arguments of pyarrow's.
    """

    def __init__(
        self, table: Table, schema: pa.Schema, condition: pc.Expression | None = None
    ) -> None:
        self._table = table
        self._schema = schema
        self._condition = condition

    def __reduce__(self) -> Any:
        return TableDataset, (self._table, self._schema, self._condition)

    @property
    def schema(self) -> pa.Schema:
        """The types of its columns."""
        return self._schema

    def scanner(
        self, columns: Columns = None, filter: pc.Expression | None = None, **options: Any
    ) -> pyarrow.dataset.Scanner:
        """One reading of the table, which begins when rows are asked for.

        Args:
            columns: names of columns, or expressions by name, which pyarrow computes.
            filter: only rows for which it is true.
            options: other options of pyarrow's `Dataset.scanner`, for the batches that are read.
        """
        scan, rest = self._scan(columns, filter)
        return _scanner(scan, columns, rest, options)

    def head(
        self,
        num_rows: int,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> pa.Table:
        """The first rows, which the drive counts if it applies the whole filter."""
        scan, rest = self._scan(columns, filter, num_rows)
        if rest is not None:
            return self.scanner(columns, filter, **options).head(num_rows)
        return _scanner(scan, columns, rest, options).to_table()

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """The number of rows, which the drive counts if it applies the whole filter."""
        scan, rest = self._scan([], filter)
        return scan.count() if rest is None else self.scanner([], filter, **options).count_rows()

    def filter(self, expression: pc.Expression) -> TableDataset:
        """The same table with only the rows for which an expression is true."""
        return TableDataset(self._table, self._schema, self._with(expression))

    def explain(self, columns: Columns = None, filter: pc.Expression | None = None) -> str:
        """A description of a scan that is not run: the part of the drive and that of pyarrow."""
        return "\n".join(self._scan(columns, filter)[0].lines("pyarrow"))

    def _with(self, expression: pc.Expression | None) -> pc.Expression | None:
        if expression is None or self._condition is None:
            return self._condition if expression is None else expression
        return self._condition & expression

    def _scan(
        self, columns: Columns, filter: pc.Expression | None, limit: int | None = None
    ) -> tuple[Scan, pc.Expression | None]:
        """A scan, and the condition that is left to pyarrow."""
        whole = self._with(filter)
        split = Pushed()
        if whole is not None:
            split = pushed(
                arrow_conditions.conditions(whole),
                lambda part: arrow_conditions.condition(part, self.schema),
            )
        rest = whole if split.kept else None
        try:
            names = _names(columns, rest)
        except Unpushable:
            names = None
        return Scan(self._table, names, split, limit), rest

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            "a table on a drive has no such method; use to_table() and that of the table"
        )

    get_fragments = _get_fragments = join = join_asof = replace_schema = sort_by = _refuse
    _scan_options = _scanner_options = _refuse
    partition_expression = property(_refuse)


def _scanner(
    scan: Scan, columns: Columns, rest: pc.Expression | None, options: dict[str, Any]
) -> pyarrow.dataset.Scanner:
    return pyarrow.dataset.Scanner.from_batches(
        scan.batches(),
        schema=scan.schema,
        columns=columns,
        filter=rest,
        **options,
    )


def _names(columns: Columns, rest: pc.Expression | None) -> list[str] | None:
    """Columns that pyarrow needs; None for all. Raises Unpushable if that cannot be read."""
    if columns is None:
        return None
    expressions = list(columns.values()) if isinstance(columns, Mapping) else []
    names = [] if isinstance(columns, Mapping) else list(columns)
    for expression in [*expressions, *([] if rest is None else [rest])]:
        names += arrow_conditions.read(expression).fields()
    return names
