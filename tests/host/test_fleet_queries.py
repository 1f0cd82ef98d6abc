"""Queries over several drives: the parts of a table combine to what the whole table gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from csd_spec.table_plans import Output, Plan
from potash.columns import InvalidQuery, Request, explained, run
from potash.columns.query import ALL
from potash.fleet import Dataset
from potash.fleet.combining import Combined, OnHost, Part, Table, split
from potash.fleet.directory import File
from support.columns import ask, written

ROWS = 900
SOURCE = np.random.default_rng(6)


def column(values: Any, nulls: float = 0.1) -> pa.Array:
    return pa.array(values, mask=SOURCE.random(ROWS) < nulls)


TABLE = pa.table(
    {
        "key": column(SOURCE.choice(["a", "b", "c", "dd"], ROWS)),
        "n": column(SOURCE.integers(-9, 9, ROWS)),
        "small": column(SOURCE.integers(0, 3, ROWS).astype(np.int8)),
        "x": column(SOURCE.integers(-99, 99, ROWS) / 4),
        "empty": pa.nulls(ROWS, pa.float64()),
        "day": column(SOURCE.integers(0, 900, ROWS).astype("datetime64[D]")),
        "open": column(SOURCE.random(ROWS) < 0.5),
        "price": column(SOURCE.integers(0, 9999, ROWS)).cast(pa.decimal128(21, 2)),
    }
)
"""Floats are quarters, so that sums of them are exact in any order."""


def combined(parts: list[pa.Table], expression: str, **more: Any) -> dict[str, list[Any]]:
    plan, host = split(Request(expression, **more).plan(Output.NONE, ALL))
    answers = [run(plan, Table(written(part)), OnHost()) for part in parts]
    with Combined(host, [Part.of(answer) for answer in answers]) as answer:
        answer.read()
        result = answer.result()
    assert result.rows == sum(part.num_rows for part in parts)
    assert result.jobs == len(parts)
    return result.to_pydict()


PARTS = {
    "several": [TABLE.slice(0, 300), TABLE.slice(300, 1), TABLE.slice(301)],
    "one": [TABLE],
    "some empty": [TABLE.slice(0, 0), TABLE.slice(0, 450), TABLE.slice(0, 0), TABLE.slice(450)],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize(
    ("expression", "more"),
    [
        ("count(), count(n), sum(n), min(n), max(x), mean(n), mean(x)", {}),
        ("sum(x * n), mean(small), any(open), all(open), first(key), last(key)", {}),
        ("count(), sum(n), mean(x), max(day)", {"by": "key"}),
        ("sum(price), min(price), max(price), mean(price)", {"by": "small"}),
        ("mean(empty), sum(empty), count(empty), min(empty)", {"by": "small"}),
        ("mean(empty), sum(empty), count(empty), min(empty)", {}),
        ("total=sum(n) / count(), half=mean(n) / 2, day.year + 1", {"by": "day.year, open"}),
        ("count_distinct(key), count_distinct(n), sum(n), mean(x)", {}),
        ("count_distinct(n + small), count()", {"by": "key, open"}),
        ("count()", {"where": "n > 100"}),
        ("count(), count(n), count_distinct(n)", {"where": "n > 100"}),
        ("count()", {"where": "n > 100", "by": "key"}),
        ("sum(n)", {"where": "open", "by": "key, day.year", "order": "-3, 1, 2", "limit": 4}),
        ("key", {"by": "key"}),
        ("n > 4", {}),
        ("n > 4", {"order": "-x, n, day, key, price", "limit": 7, "select": ("x", "n", "day")}),
        ("n > 4", {"limit": 7}),
        ("x, twice=n * 2", {"where": "open", "order": "twice, -x"}),
        ("n > 100", {}),
    ],
)
def test_parts_combine_to_the_whole(
    parts: list[pa.Table], expression: str, more: dict[str, Any]
) -> None:
    if "order" in more and "select" in more:
        more = {**more, "order": "-x, n, day"}
    assert combined(parts, expression, **more) == ask(TABLE, expression, **more).to_pydict()


def test_dictionaries_of_parts_may_differ() -> None:
    parts = [
        part.set_column(0, "key", part["key"].dictionary_encode()) for part in PARTS["several"]
    ]
    whole = ask(TABLE, "n > 3", select=("key",), limit=400).to_pydict()
    assert combined(parts, "n > 3", select=("key",), limit=400) == whole
    assert combined(parts, "sum(n)", by="key") == ask(TABLE, "sum(n)", by="key").to_pydict()


def test_sums_of_floats_differ_in_last_bits_only() -> None:
    table = pa.table({"x": SOURCE.normal(size=10_000)})
    parts = [table.slice(0, 3333), table.slice(3333)]
    for name in ("sum(x)", "mean(x)"):
        (found,), (whole,) = combined(parts, name)[name], ask(table, name).to_pydict()[name]
        assert math.isclose(found, whole, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("stddev(n)", "a fleet does not combine stddev; count"),
        ("1 + variance(n)", "a fleet does not combine variance"),
        ("count_distinct(n), first(x)", "no count_distinct together with first or last"),
    ],
)
def test_what_cannot_be_combined_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(InvalidQuery, match=reason):
        split(Request(expression).plan())


def test_parts_of_different_types_are_refused() -> None:
    parts = [TABLE, TABLE.set_column(1, "n", TABLE["n"].cast(pa.string()))]
    with pytest.raises(InvalidQuery, match="the files have different types for a column"):
        combined(parts, "n is not None")


class Memory:
    """What `potash.dask` needs of a fleet, with parts of TABLE in memory; `plans` are its jobs'."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def complete(self, found: Dataset) -> Dataset:
        return found

    def run_shards(self, found: Dataset, plan: Plan) -> list[Part]:
        self.plans += [plan] * found.files
        tables = [Table(written(PARTS["several"][file.shard])) for _, file in found.shards]
        return [Part.of(run(plan, table, OnHost())) for table in tables]


SHARDS = Dataset("t", [("drive", File(f"t/{at}", 1, 9, at, 3)) for at in range(3)], ())


def test_aggregates_are_a_data_frame_of_dask() -> None:
    import potash.dask

    fleet: Any = Memory()
    what = "rows=count(), total=sum(n), mean(x), max(day)"
    more: dict[str, Any] = {"where": "n > 2", "by": "key"}
    sums = potash.dask.aggregate(fleet, SHARDS, what, **more)
    assert [plan.limit for plan in fleet.plans] == [0]  # for the types alone
    found = sums.compute(scheduler="threads")
    assert fleet.plans[1:] == [split(Request(what, **more).plan())[0]] * 3
    assert found.dtypes.to_dict() == sums.dtypes.to_dict()
    assert found.astype({"max(day)": str}).to_dict("list") == combined(
        PARTS["several"], what, **more
    )
    table = TABLE.to_pandas(types_mapper=pd.ArrowDtype)
    groups = table[table.n > 2].groupby("key", dropna=False)
    pd.testing.assert_frame_equal(
        found.set_index("key").set_axis(["rows", "total", "mean", "last"], axis=1),
        groups.agg(rows=("n", "size"), total=("n", "sum"), mean=("x", "mean"), last=("day", "max")),
        check_dtype=False,
    )


def test_a_data_frame_of_aggregates_of_no_rows_and_of_what_is_wrong() -> None:
    import potash.dask

    fleet: Any = Memory()
    none = potash.dask.aggregate(fleet, SHARDS, "sum(price), count()", where="n > 100")
    (sums,), (counts,) = none.compute(scheduler="threads").to_numpy().T
    assert pd.isna(sums) and counts == 0
    with pytest.raises(TypeError, match="threads of its own process"):
        none.compute(scheduler="processes")
    for expression, reason in [
        ("n > 1", "the expression has no aggregates; potash.dask.read gives rows"),
        ("sum(y)", "the file has no column 'y'"),
        ("stddev(n)", "a fleet does not combine stddev"),
    ]:
        with pytest.raises(InvalidQuery, match=reason):
            potash.dask.aggregate(fleet, SHARDS, expression)


def test_the_plans_of_drives_and_host_are_explained() -> None:
    drives, host = split(Request("mean(n)", where="n > 1", by="key").plan())
    assert list(explained(drives))[-1] == "aggregates  k0 = key, a0 = sum(n), a1 = count(n)"
    assert "key = k0" in list(explained(host))[-2]
