"""Damaged files of tables and wild plans: an answer or one sentence, in a confined process too."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from csd_spec.table_plans import Order, Output, Plan
from support.new_process import new_process
from support.tables import aggregate, arrow, ask, call, column, fields, parquet
from support.tables_fuzz import attempt, damaged_file, wild_plan


@pytest.mark.parametrize("case", [damaged_file, wild_plan])
def test_hostile_cases(case: Any) -> None:
    found = attempt(case, 0, 150)
    assert found.faults == []
    assert min(found.outcomes[kind] for kind in ("answer", "refused")) > 10, found
    print(found.crashes)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000_000, 1_200_000, 20_000))
@pytest.mark.parametrize("case", [damaged_file, wild_plan])
def test_many_hostile_cases(case: Any, first: int) -> None:
    found = attempt(case, first, 20_000)
    assert found.faults == []
    print(found.crashes)


@pytest.mark.parametrize("function", ["answers", "too_large"])
def test_confined_queries(function: str) -> None:
    done = new_process("support.tables_confined", function)
    assert (done.returncode, done.stderr) == (0, "")


SECRET = b"\xa5SeCrEt\x5a"


def test_nothing_of_before_is_in_the_output() -> None:
    """Arrow's memory is not cleared, and a null's value in an Arrow stream is any bytes."""
    numbers = [None if index % 2 else index % 100 for index in range(2000)]
    texts = [None if number is None else str(number) for number in numbers]
    table = pa.table(
        {
            "i": pa.array(numbers, pa.int64()),
            "f": pa.array(numbers, pa.float64()),
            "m": pa.array(numbers, pa.decimal128(20, 2)),
            "t": pa.array(numbers, pa.timestamp("us")),
            "s": texts,
            "k": pa.array(texts).dictionary_encode(),
        }
    )
    computed = {
        "a": call("add_checked", column("i"), 1),
        "b": call("divide_checked", column("f"), 3),
        "c": call("cast", column("t"), "date32"),
        "d": call("multiply_checked", column("m"), column("m")),
        "e": call("if_else", call("less", column("i"), 9), column("i"), None),
        "g": call("utf8_upper", column("s")),
        "h": call("max_element_wise", column("i"), column("f")),
    }
    grouped = {
        f"{function}_{name}": aggregate(function, column(name))
        for function in ("min", "max", "sum", "mean", "stddev")
        for name in ("i", "f", "m")
    }
    plans = (
        Plan(),
        Plan(where=call("is_valid", column("s"))),
        Plan(order=(Order("i", descending=True),), limit=1500),
        Plan(select=fields(**computed)),
        Plan(by=fields("k"), select=fields("k", **grouped)),
    )
    for data in (parquet(table), parquet(table, use_dictionary=False), arrow(table, 500)):
        for plan in plans:
            left = [pa.array([SECRET] * (size // 8)) for size in (64, 512, 4096, 20_000)] * 20
            del left
            assert SECRET[1:7] not in ask(data, plan._replace(output=Output.ARROW)).output
