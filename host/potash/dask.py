"""Tables of a fleet as Dask's data frames, of which the drives filter rows and select columns.

    import potash.dask
    from potash.fleet import Fleet, read_fleet

    with Fleet(read_fleet(Path("fleet.toml")).drives) as fleet:
        sales = potash.dask.read(fleet, "sales", where="price > 100")
        print(sales.groupby("region").price.mean().compute())
        means = potash.dask.aggregate(fleet, "sales", "mean(price)", by="region")
        print(means.compute())

Dask selects the columns that a computation needs; `where` is a filter in the words of `potash
query`. Each drive computes the aggregates of its shards for `aggregate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import dask
import dask.dataframe
import pandas as pd
import pyarrow as pa

from csd_spec.table_plans import Column, Field, Output, Plan
from potash.columns import InvalidQuery, Request
from potash.columns.expressions import parse_filter
from potash.fleet import Dataset, Fleet
from potash.fleet.combining import Combined, Part, require_engine, split

__all__ = ["aggregate", "read"]


def read(fleet: Fleet, dataset: str | Dataset, *, where: str | None = None) -> Any:
    """A data set of tables as a `dask.dataframe.DataFrame`, with a partition for each shard.

    Its columns have pandas's Arrow types, so that integers with nulls stay integers. It is computed
    by the threads of this process (Dask's default), while the fleet is open: rows are read in the
    fleet's workers, and what Dask does with them is done here.

    Args:
        fleet: an open fleet.
        dataset: the data set, or its name.
        where: only rows for which it is true, as in `price > 100`; the drives apply it.

    Raises PotashError where shards are missing or are no tables, and InvalidQuery for a filter that
    is none. Partitions raise PotashError where a shard cannot be read.
    """
    found = fleet.complete(dataset)
    plan = Plan(where=None if where is None else parse_filter(where), output=Output.ARROW)
    none = _table(_Shards(fleet, found, plan).part(0, limit=0).data)
    reader = _Reader(fleet, found, plan, none.column_names)
    return dask.dataframe.from_map(reader, range(len(found.shards)), meta=_frame(none))


def aggregate(
    fleet: Fleet,
    dataset: str | Dataset,
    expression: str,
    *,
    where: str | None = None,
    by: str | None = None,
) -> Any:
    """Aggregates of a data set as a `dask.dataframe.DataFrame` of one partition.

    It has the rows that `Fleet.query` gives, in columns of pandas's Arrow types. A task for each
    shard has its drive aggregate that shard, and the last task combines the partial results. They
    are threads of this process, as for `read`, and run when the data frame is computed.

    Args:
        fleet: an open fleet.
        dataset: the data set, or its name.
        expression: aggregates in the words of `potash query`, as in `count(), sum(price)`.
        where: a filter of the rows that count.
        by: keys, for a row for each group.

    Raises PotashError where shards are missing or are no tables, and InvalidQuery for expressions
    that are none, do not fit the columns, have no aggregates, or cannot be combined. The tasks
    raise PotashError where a shard cannot be read.
    """
    require_engine()
    found = fleet.complete(dataset)
    plan = Request(expression, where, by).plan(Output.ARROW)
    if not plan.aggregates:
        raise InvalidQuery("the expression has no aggregates; potash.dask.read gives rows")
    drives, whole = split(plan)
    # The result has the types that the first shard's columns give without any rows.
    none = _Shards(fleet, found, Plan(output=Output.ARROW)).part(0, limit=0)
    meta = _combined(whole, [Part.of(Combined(drives, [none]))])[:0]
    part = dask.delayed(_Shards(fleet, found, drives).part)
    parts = [part(shard) for shard in range(len(found.shards))]
    result = dask.delayed(partial(_combined, whole))(parts)
    return dask.dataframe.from_delayed([result], meta=meta)


class _Shards:
    """A plan's results for the shards of a data set."""

    def __init__(self, fleet: Fleet, found: Dataset, plan: Plan) -> None:
        self._fleet = fleet
        self._found = found
        self._plan = plan

    def part(self, shard: int, **changes: Any) -> Part:
        """The result for a shard, perhaps with other fields of the plan."""
        found = self._found._replace(shards=[self._found.shards[shard]])
        (part,) = self._fleet.run_shards(found, self._plan._replace(**changes))
        return part

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, id(self._fleet), self._found, self._plan

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "tables of a fleet are read by threads of its own process: compute(scheduler='threads')"
        )


class _Reader(_Shards):
    """The shards of a data set as pandas's data frames."""

    def __init__(self, fleet: Fleet, found: Dataset, plan: Plan, names: list[str]) -> None:
        super().__init__(fleet, found, plan)
        self._names = names

    def __call__(self, shard: int, columns: Sequence[str] | None = None) -> pd.DataFrame:
        columns = self._names if columns is None else list(columns)
        # A plan without columns would give all, and Dask counts rows without any.
        select = tuple(Field(name, Column(name)) for name in columns or self._names[:1])
        return _frame(_table(self.part(shard, select=select).data))[columns]


def _combined(plan: Plan, parts: Sequence[Part]) -> pd.DataFrame:
    return _frame(_table(Combined(plan, parts).read()))


def _table(stream: bytes) -> pa.Table:
    return pa.ipc.open_stream(stream).read_all()


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)
