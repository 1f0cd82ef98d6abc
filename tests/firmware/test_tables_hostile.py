"""Damaged files of tables and wild plans: an answer or one sentence, in a confined process too."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from csd_spec.table_plans import Order, Output, Plan
from potash_firmware.confinement import Bounds, confine, libraries
from potash_firmware.tables import Refused
from support.tables import aggregate, arrow, ask, call, column, fields, parquet, rows
from support.tables_fuzz import FILES, attempt, damaged_file, wild_plan


@pytest.mark.parametrize("case", [damaged_file, wild_plan])
def test_hostile_cases(case: Any) -> None:
    found = attempt(case, 0, 400)
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


def in_child(run: Callable[[], None], room: int = 256 << 20) -> str:
    """The traceback of a function in a confined process; nothing if it ended well.

    It has `room` bytes beside those of this process.
    """
    used = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            # A process of tests may have many files open, and an allocator that maps much.
            pa.set_memory_pool(pa.system_memory_pool())
            bounds = Bounds(used + room, seconds=60, open_files=4096, readable=libraries())
            confine(bounds)
            run()
        except BaseException:  # noqa: BLE001
            os.write(writing, traceback.format_exc().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as report:
        text = report.read()
    _, status = os.waitpid(child, 0)
    return text or ("" if status == 0 else f"status {status}")


def test_confined_queries() -> None:
    """Groups, text, time zones, order: without files but those of libraries."""
    plan = Plan(
        where=call("match_substring_regex", column("s"), "^[a-z]+$"),
        by=fields("k"),
        select=fields(
            "k",
            hours=aggregate("sum", call("hour", column("t"))),
            different=aggregate("count_distinct", column("x")),
            spread=aggregate("stddev", column("f")),
        ),
        order=(Order("k"),),
    )

    def run() -> None:
        for data in FILES.values():
            assert rows(data, plan) == [
                {"k": "a", "hours": 50, "different": 1, "spread": 0.0},
            ]
        with pytest.raises(OSError, match="Permission denied"):
            Path("/etc/passwd").read_bytes()

    # Not a test of memory: a process in which much was tested maps more than a new one.
    assert in_child(run, 16 << 30) == ""


def test_a_file_that_needs_more_memory_than_there_is() -> None:
    """Equal values take few bytes in Parquet, and many once they are decoded."""
    data = parquet(pa.table({"s": ["a" * 200] * 16_000}))
    assert len(data) < 20_000

    def run() -> None:
        assert rows(data, Plan(select=fields("s"), limit=1)) == [{"s": "a" * 200}]
        longer = call("replace_substring", column("s"), "a" * 200, "b" * 25_000)
        text = call("binary_join_element_wise", longer, longer, ", ")
        with pytest.raises((MemoryError, Refused)):
            ask(data, Plan(select=fields(y=text), order=(Order("y"),)))

    assert in_child(run) == ""


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
