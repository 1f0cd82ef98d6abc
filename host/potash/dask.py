"""Tables of a fleet as Dask's data frames, of which the drives filter rows and select columns.

    import potash.dask
    from potash.fleet import Fleet, read_fleet

    with Fleet(read_fleet(Path("fleet.toml")).drives) as fleet:
        sales = potash.dask.read(fleet, "sales", where="price > 100")
        print(sales.groupby("region").price.mean().compute())

Dask selects the columns that a computation needs; `where` is a filter in the words of `potash
query`. `Fleet.query` has the drives compute aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import dask.dataframe
import pandas as pd
import pyarrow as pa

from csd_spec.table_plans import Column, Field, Output, Plan
from potash.columns.expressions import parse_filter
from potash.fleet import Dataset, Fleet

__all__ = ["read"]


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
    none = _table(fleet, found._replace(shards=found.shards[:1]), plan._replace(limit=0))
    reader = _Reader(fleet, found, plan, none.column_names)
    return dask.dataframe.from_map(reader, range(len(found.shards)), meta=_frame(none))


class _Reader:
    """The shards of a data set as pandas's data frames."""

    def __init__(self, fleet: Fleet, found: Dataset, plan: Plan, names: list[str]) -> None:
        self._fleet = fleet
        self._found = found
        self._plan = plan
        self._names = names

    def __call__(self, shard: int, columns: Sequence[str] | None = None) -> pd.DataFrame:
        columns = self._names if columns is None else list(columns)
        # A plan without columns would give all, and Dask counts rows without any.
        select = tuple(Field(name, Column(name)) for name in columns or self._names[:1])
        found = self._found._replace(shards=[self._found.shards[shard]])
        return _frame(_table(self._fleet, found, self._plan._replace(select=select)))[columns]

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, id(self._fleet), self._found, self._plan

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "tables of a fleet are read by threads of its own process: compute(scheduler='threads')"
        )


def _table(fleet: Fleet, found: Dataset, plan: Plan) -> pa.Table:
    (part,) = fleet.run_shards(found, plan)
    return pa.ipc.open_stream(part.data).read_all()


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)
