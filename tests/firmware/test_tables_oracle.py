"""Answers of the firmware's engine are DuckDB's, on random tables and plans and on TPC-H's; those
to random plans are pyarrow's, too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import pytest

from csd_spec.table_plans import Call, Order, Plan
from support.tables import aggregate, ask, call, column, fields, lineitem, parquet, rows
from support.tables_random import check, same


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.execute("set threads = 1")
        yield opened


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_plans(connection: duckdb.DuckDBPyConnection, first: int) -> None:
    for seed in range(first, first + 10):
        check(seed, connection)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2250, 50))
def test_many_random_plans(connection: duckdb.DuckDBPyConnection, first: int) -> None:
    for seed in range(first, first + 50):
        check(seed, connection)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tpch") / "lineitem.parquet"
    path.write_bytes(parquet(lineitem(20_000), row_group_size=2000))
    return path


def every(*conditions: Call) -> Call:
    return reduce(lambda first, second: call("and_kleene", first, second), conditions)


def agree(found: list[dict[str, Any]], expected: list[tuple[Any, ...]]) -> None:
    assert len(found) == len(expected)
    for row, values in zip(found, expected, strict=True):
        assert all(map(same, row.values(), values)), (row, values)


def test_query_1_of_tpc_h(connection: duckdb.DuckDBPyConnection, lines: Path) -> None:
    price, one_less = column("l_extendedprice"), call("subtract_checked", 1, column("l_discount"))
    discounted = call("multiply_checked", price, one_less)
    charged = call("multiply_checked", discounted, call("add_checked", 1, column("l_tax")))
    plan = Plan(
        where=call("less_equal", column("l_shipdate"), "1998-09-02"),
        by=fields("l_returnflag", "l_linestatus"),
        select=fields(
            "l_returnflag",
            "l_linestatus",
            sum_qty=aggregate("sum", column("l_quantity")),
            sum_base_price=aggregate("sum", price),
            sum_disc_price=aggregate("sum", discounted),
            sum_charge=aggregate("sum", charged),
            avg_qty=aggregate("mean", column("l_quantity")),
            avg_price=aggregate("mean", price),
            avg_disc=aggregate("mean", column("l_discount")),
            count_order=aggregate("count_all"),
        ),
        order=(Order("l_returnflag"), Order("l_linestatus")),
    )
    sql = f"""
        select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
               sum(l_extendedprice * (1 - l_discount)),
               sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),
               avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
        from '{lines}' where l_shipdate <= date '1998-12-01' - interval '90' day
        group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus
    """
    expected = connection.execute(sql).fetchall()
    assert len(expected) == 4
    agree(rows(lines.read_bytes(), plan), expected)


def test_query_6_of_tpc_h(connection: duckdb.DuckDBPyConnection, lines: Path) -> None:
    """Its year is in three of ten row groups of a file in the order of ship dates."""
    day, discount = column("l_shipdate"), column("l_discount")
    plan = Plan(
        where=every(
            call("greater_equal", day, "1994-01-01"),
            call("less", day, "1995-01-01"),
            call("greater_equal", discount, 0.05),
            call("less_equal", discount, 0.07),
            call("less", column("l_quantity"), 24),
        ),
        select=fields(
            revenue=aggregate("sum", call("multiply_checked", column("l_extendedprice"), discount))
        ),
    )
    sql = f"""
        select sum(l_extendedprice * l_discount) from '{lines}'
        where l_shipdate >= date '1994-01-01'
          and l_shipdate < date '1994-01-01' + interval '1' year
          and l_discount between 0.06 - 0.01 and 0.06 + 0.01 and l_quantity < 24
    """
    expected = connection.execute(sql).fetchall()
    assert expected[0][0] > 0
    agree(rows(lines.read_bytes(), plan), expected)
    counters = ask(lines.read_bytes(), plan).counters
    assert (counters.groups, counters.excluded) == (10, 7)
