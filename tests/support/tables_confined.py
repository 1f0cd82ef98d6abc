"""Queries in a confined process, as a worker has them. Each function is for a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from csd_spec.table_plans import Order, Plan
from potash_firmware.confinement import Bounds, confine, libraries
from potash_firmware.tables import Refused
from support.tables import aggregate, ask, call, column, fields, parquet, rows
from support.tables_fuzz import FILES


def _confine(room: int = 256 << 20) -> None:
    """So many bytes beside those that this process has already."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    confine(Bounds(used + room, seconds=60, readable=libraries()))


def answers() -> None:
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
    _confine()
    for data in FILES.values():
        assert rows(data, plan) == [{"k": "a", "hours": 50, "different": 1, "spread": 0.0}]
    with pytest.raises(OSError, match="Permission denied"):
        Path("/etc/passwd").read_bytes()


def too_large() -> None:
    """Equal values take few bytes in Parquet, and many once they are decoded."""
    data = parquet(pa.table({"s": ["a" * 200] * 16_000}))
    assert len(data) < 20_000
    longer = call("replace_substring", column("s"), "a" * 200, "b" * 25_000)
    text = call("binary_join_element_wise", longer, longer, ", ")
    _confine()
    assert rows(data, Plan(select=fields("s"), limit=1)) == [{"s": "a" * 200}]
    with pytest.raises((MemoryError, Refused)):
        ask(data, Plan(select=fields(y=text), order=(Order("y"),)))
