"""Polars, pyarrow and DuckDB on tables on drives: their answers are those to the same local table."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import potash
import potash.polars
import potash.sdk
from potash.dataframes.dataset import TableDataset
from potash.sdk.errors import PotashError
from potash.vm.drive import device_process
from support.dataframes import (
    VALUES,
    in_memory,
    random_arrow,
    random_file,
    random_polars,
    random_sql,
    random_table,
)
from support.docs import blocks, run_python
from support.tables import arrow, lineitem, parquet

FEW, MANY = range(4), pytest.param(range(100, 200), marks=pytest.mark.slow)
"""Seeds of tables, with 30 conditions each."""


def same(found: pa.Table, expected: pa.Table) -> bool:
    """True for equal tables, in which NaN is equal to itself."""
    return bool(pl.DataFrame(found).equals(pl.DataFrame(expected.cast(found.schema))))


@pytest.mark.parametrize("seeds", [FEW, MANY])
def test_polars_answers_as_on_the_same_frame(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = 0
    for seed in seeds:
        source = Random(seed)
        table = random_table(source)
        plans = in_memory(monkeypatch, {"t": random_file(source, table)})
        local, scanned = pl.DataFrame(table), potash.polars.scan("t", "drive")
        assert scanned.collect_schema() == local.schema
        for _ in range(30):
            predicate = random_polars(source)
            columns = source.sample(local.columns, 3)
            plans.clear()
            try:
                expected = local.lazy().filter(predicate).select(columns).collect()
            except pl.exceptions.PolarsError:
                continue
            found = scanned.filter(predicate).select(columns).collect()
            assert found.equals(expected), (seed, str(predicate))
            pushed += any(plan.where is not None for plan in plans)
    assert pushed > 10 * len(seeds)


@pytest.mark.parametrize("seeds", [FEW, MANY])
def test_pyarrow_answers_as_on_the_same_table(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = 0
    for seed in seeds:
        source = Random(seed)
        table = random_table(source)
        plans = in_memory(monkeypatch, {"t": random_file(source, table)})
        local, found = pyarrow.dataset.dataset(table), potash.dataset("t", "drive")
        for _ in range(30):
            condition = random_arrow(source)
            columns = source.sample(table.column_names, 3)
            plans.clear()
            try:
                expected = local.to_table(columns=columns, filter=condition)
            except pa.ArrowException:
                continue
            assert same(found.to_table(columns=columns, filter=condition), expected), (
                seed,
                str(condition),
            )
            assert found.count_rows(filter=condition) == expected.num_rows
            assert found.head(3, columns, condition).num_rows == min(3, expected.num_rows)
            pushed += any(plan.where is not None for plan in plans)
    assert pushed > 10 * len(seeds)


@pytest.mark.parametrize("seeds", [FEW, MANY])
def test_duckdb_answers_as_on_the_same_table(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = 0
    for seed in seeds:
        source = Random(seed)
        table = random_table(source)
        plans = in_memory(monkeypatch, {"t": random_file(source, table)})
        with duckdb.connect() as connection:
            connection.register("local", table)
            connection.register("stored", potash.dataset("t", "drive"))
            for _ in range(30):
                condition = random_sql(source)
                query = f"select {', '.join(source.sample(list(VALUES), 3))} from {{}} where {condition}"
                plans.clear()
                try:
                    expected = connection.sql(query.format("local")).fetchall()
                except duckdb.Error:
                    continue
                found = connection.sql(query.format("stored")).fetchall()
                assert repr(found) == repr(expected), (seed, condition)
                pushed += any(plan.where is not None for plan in plans)
    assert pushed > 10 * len(seeds)


TABLE = pa.table(
    {"a": [1, 2, 3, None], "f": [0.5, float("nan"), 2.5, 3.5], "s": ["x", "y", "z", "ä"]}
)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> TableDataset:
    in_memory(monkeypatch, {"t": parquet(TABLE)})
    return potash.dataset("t", "drive")  # type: ignore[no-any-return]


def test_a_dataset_reads_rows_as_those_of_pyarrow(table: TableDataset) -> None:
    some, local = pc.field("a") > 1, pyarrow.dataset.dataset(TABLE)
    doubled = {"twice": pc.field("a") * 2, "s": pc.field("s")}
    assert table.schema == TABLE.schema
    assert table.to_table(columns=doubled, filter=some) == local.to_table(doubled, filter=some)
    assert table.to_table(columns=[]).num_rows == table.count_rows() == 4
    assert table.take([2, 0]) == TABLE.take([2, 0])
    assert sum(batch.num_rows for batch in table.to_batches(batch_size=1)) == 4
    assert table.scanner(["s"], filter=some).count_rows() == 2
    fewer = pickle.loads(
        pickle.dumps(table.filter(some).filter(pc.utf8_length(pc.field("s")) == 1))
    )
    assert fewer.to_table(columns=["s"]).to_pydict() == {"s": ["y", "z"]}
    assert fewer.head(1, ["a", "s"]).to_pylist() == [{"a": 2, "s": "y"}]
    assert fewer.count_rows(filter=pc.ascii_is_alpha(pc.field("s"))) == 2


def test_no_method_of_pyarrows_datasets_reaches_what_is_not_there(table: TableDataset) -> None:
    """The methods that are inherited would read a C++ object, which a table on a drive has not."""
    names = {name for name in dir(pyarrow.dataset.Dataset) if not name.startswith("__")}
    assert names - set(vars(TableDataset)) == {"take", "to_batches", "to_table"}, "they use scanner"
    for name in ("get_fragments", "sort_by", "partition_expression"):
        with pytest.raises(NotImplementedError, match="use to_table"):
            getattr(table, name)("a")


def test_what_the_drive_does_not_do_is_said(table: TableDataset) -> None:
    condition = (pc.field("a") > 1) & (pc.field("s") == "x") & pc.ascii_is_alpha(pc.field("s"))
    assert table.explain(["f"], condition).splitlines() == [
        "t: 3 of 3 columns",
        "  condition on the drive: greater(a, 1)",
        "  condition on the drive: equal(s, 'x')",
        "  condition applied by pyarrow: no equivalent of ascii_is_alpha on the drive",
    ]
    scanned = potash.polars.scan("t", "drive")
    lines = potash.polars.explain(
        scanned.filter(pl.col("a") > 1, pl.col("a") + 1 > 2, pl.col("f") < 3).select("s")
    ).splitlines()
    assert lines[-5:-1] == [
        "t: 3 of 3 columns",
        "  condition on the drive: greater(a, 1)",
        "  condition on the drive: less(f, 3.0)",
        "  condition applied by Polars: arithmetic of int64 may overflow",
    ]
    assert "bytes between drive and host" in lines[-1]
    lines = potash.polars.explain(scanned.head(2).filter(pl.col("a") > 1)).splitlines()
    assert lines[-3:-1] == [
        "  condition applied by Polars: the limit comes first",
        "  limit on the drive: 2 rows",
    ]


def test_a_condition_that_is_no_plan_is_left_to_the_library(table: TableDataset) -> None:
    many = pc.field("a").isin(list(range(3, 2000)))
    assert "is_in does not take 1998 arguments" in table.explain(filter=many)
    assert table.to_table(filter=many).num_rows == table.count_rows(filter=many) == 1
    deep = pc.field("a") == 1
    for _ in range(100):
        deep = ~deep
    assert "64 in one another" in table.explain(filter=deep)
    assert table.count_rows(filter=deep) == 1
    predicate = pl.col("a").map_batches(lambda values: values == 3, return_dtype=pl.Boolean)
    scanned = potash.polars.scan("t", "drive").filter(predicate, pl.col("s") == "z")
    assert scanned.collect().height == 1


def test_a_moment_that_python_does_not_have_is_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind, late in (
        (pa.timestamp("s"), 2**62),
        (pa.timestamp("us", "UTC"), 2**62),
        (pa.date32(), 2**31 - 1),
    ):
        in_memory(monkeypatch, {"t": arrow(pa.table({"x": pa.array([0, 9], kind)}))})
        stored, earlier = potash.dataset("t", "drive"), pc.field("x") < pa.scalar(late, kind)
        assert "condition applied by pyarrow" in stored.explain(filter=earlier)
        assert stored.count_rows(filter=earlier) == 2


def test_polars_stops_reading_when_it_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"a": range(200_000)})
    in_memory(monkeypatch, {"t": arrow(table, 10_000)})
    scanned = potash.polars.scan("t", "drive")
    assert scanned.head(3).filter(pl.col("a") > 0).collect()["a"].to_list() == [1, 2]
    assert scanned.tail(2).collect()["a"].to_list() == [199_998, 199_999]
    assert scanned.filter(pl.col("a") > 5).head(1).collect(engine="streaming")["a"].to_list() == [6]


LINES = lineitem(20_000)
QUERY_1 = """
    select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
           sum(l_extendedprice * (1 - l_discount)), avg(l_discount), count(*)
    from {} where l_shipdate <= date '1998-12-01' - interval '90' day
    group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus
"""
QUERY_6 = """
    select sum(l_extendedprice * l_discount) from {}
    where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
      and l_discount between 0.05 and 0.07 and l_quantity < 24
"""


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A drive, and the name of the table that is on it twice, at blocks 0 and 2048."""
    socket = tmp_path_factory.mktemp("device") / "s"
    data = parquet(LINES, row_group_size=2000)
    with device_process(socket, "--size", "16M"):
        with potash.sdk.open(f"vfio-user:{socket}") as device:
            for block in (0, 2048):
                device.namespace().write(block, data.ljust(-(-len(data) // 4096) * 4096, b"\0"))
        yield f"vfio-user:{socket}", f"lba:{{}}:{len(data)}"


def test_tpc_h_on_a_drive_in_duckdb(drive: tuple[str, str]) -> None:
    with duckdb.connect() as connection:
        connection.register("lines", LINES)
        stored = potash.dataset(drive[1].format(0), drive[0])
        connection.register("stored", stored)
        for query in (QUERY_1, QUERY_6):
            expected = connection.sql(query.format("lines")).fetchall()
            assert connection.sql(query.format("stored")).fetchall() == expected
        # Two scans of one drive, whose jobs take turns.
        connection.register("other", potash.dataset(drive[1].format(2048), drive[0]))
        both = "select count(*) from {} a join {} b using (l_extendedprice, l_quantity)"
        expected = connection.sql(both.format("lines", "lines")).fetchall()
        assert connection.sql(both.format("stored", "other")).fetchall() == expected
    day = pc.field("l_shipdate") < pa.scalar(8400, pa.date32())
    assert stored.count_rows(filter=day) == LINES.filter(day).num_rows


def test_tpc_h_on_a_drive_in_polars(drive: tuple[str, str]) -> None:
    stored = potash.polars.scan(drive[1].format(0), drive[0])
    other = potash.polars.scan(drive[1].format(2048), drive[0])
    day, discount = pl.col("l_shipdate"), pl.col("l_discount")

    def queries(lines: pl.LazyFrame, again: pl.LazyFrame) -> Iterator[pl.LazyFrame]:
        price = pl.col("l_extendedprice")
        yield (
            lines.filter(day <= pl.date(1998, 9, 2))
            .group_by("l_returnflag", "l_linestatus")
            .agg(price.sum(), (price * (1 - discount)).sum().alias("discounted"), pl.len())
            .sort("l_returnflag", "l_linestatus")
        )
        yield lines.filter(
            day.dt.year() == 1994,
            discount.is_between(
                pl.lit("0.05").cast(pl.Decimal(15, 2)), pl.lit("0.07").cast(pl.Decimal(15, 2))
            ),
            pl.col("l_quantity") < 24,
        ).select((price * discount).sum())
        yield pl.concat([lines, again]).filter(discount == 0).select(pl.len(), price.sum())

    local = pl.DataFrame(LINES).lazy()
    for found, expected in zip(queries(stored, other), queries(local, local), strict=True):
        for engine in ("in-memory", "streaming"):
            assert found.collect(engine=engine).equals(expected.collect())


def test_a_file_that_is_no_table_is_refused(drive: tuple[str, str]) -> None:
    for use in (potash.polars.scan, potash.dataset):
        with pytest.raises(PotashError, match="neither a Parquet file nor an Arrow file"):
            use("lba:1000:4096", drive[0])
        with pytest.raises(PotashError, match="is not lba:BLOCK:SIZE"):
            use("lba:1000", drive[0])
        with pytest.raises(PotashError, match="name the drive by device="):
            use("lba:1000:4096")


def test_the_page_of_dataframes(drive: tuple[str, str], tmp_path: Path) -> None:
    run_python(blocks("columns.md", "python")[0], cwd=tmp_path)
    data = (tmp_path / "sales.parquet").read_bytes()
    with potash.sdk.open(drive[0]) as device:
        device.namespace().write(3000, data.ljust(-(-len(data) // 4096) * 4096, b"\0"))
        # A drive has one client over vfio-user, which may be this process's own.
        table = potash.dataset(f"lba:3000:{len(data)}", device)
        assert table.count_rows(filter=pc.field("region") == "US") == 250_000
        assert device.namespace().read(0, 1)[:4] == b"PAR1"
    place = {'"/mnt/sales.parquet"': f'"lba:3000:{len(data)}", "{drive[0]}"'}
    with_polars, with_duckdb = (
        run_python(code, replace=place) for code in blocks("dataframes.md", "python")[:2]
    )
    _, *conditions, _ = blocks("dataframes.md", "text")[0].splitlines()
    assert with_polars.splitlines()[-3:-1] == conditions
    assert "greater(price, 100.0)" in with_duckdb and "250000" in with_duckdb


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, package in (("polars", "polars"), ("dataset", "pyarrow")):
        with monkeypatch.context() as context:
            for module in ("potash.polars", "potash.dataframes.dataset"):
                context.delitem(sys.modules, module)
            context.delitem(vars(potash), name, raising=False)
            context.setitem(sys.modules, package, None)
            with pytest.raises(ModuleNotFoundError, match=f"needs the package {package}, .* pip"):
                getattr(potash, name)
