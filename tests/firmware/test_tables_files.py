"""Files of tables of each writer, codec and version, and how much of them is read."""

from __future__ import annotations

import datetime
import io
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from csd_spec.table_plans import Call, Order, Output, Plan
from potash_firmware.tables import Refused, files
from potash_firmware.tables.files import MOST_ROWS
from support.tables import (
    Memory,
    aggregate,
    arrow,
    arrow_stream,
    ask,
    call,
    column,
    fields,
    parquet,
    rows,
)
from support.tables_random import CODECS

DAY = datetime.date(2026, 5, 1)
TABLE = pa.table(
    {
        "x": pa.array([1, 2, None, 4] * 50, pa.int32()),
        "s": ["one", None, "three", "four"] * 50,
        "k": pa.array(["a", "b", "a", None] * 50).dictionary_encode(),
        "d": pa.array([DAY, None, DAY, DAY] * 50),
        "f": [0.5, 1.5, float("nan"), None] * 50,
        "nested": [{"a": 1, "b": ["x", "y"]}, None, {"a": None, "b": []}, {"a": 3, "b": None}] * 50,
    }
)
PLAN = Plan(
    where=call("greater_equal", column("x"), 2),
    by=fields("k"),
    select=fields("k", n=aggregate("count_all"), total=aggregate("sum", column("x"))),
)
EXPECTED = [{"k": "b", "n": 50, "total": 100}, {"k": None, "n": 50, "total": 200}]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("page", ["1.0", "2.0"])
@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_parquet_of_each_codec(codec: str, page: str, version: str) -> None:
    options: dict[str, Any] = {"compression": codec, "data_page_version": page, "version": version}
    assert rows(parquet(TABLE, row_group_size=30, **options), PLAN) == EXPECTED
    assert rows(parquet(TABLE, use_dictionary=False, **options), PLAN) == EXPECTED


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_arrow_of_each_codec(codec: str | None) -> None:
    assert rows(arrow(TABLE, 30, compression=codec), PLAN) == EXPECTED


def test_lists_of_views_are_filtered() -> None:
    values = [["a", "b"], None, [], ["c"]]
    lists, views = (pa.array(values, of(pa.string_view())) for of in (pa.list_, pa.list_view))
    within = pa.StructArray.from_arrays([lists], ["of"])
    table = pa.table({"l": lists, "w": within, "v": views})
    found = rows(arrow(table), Plan(where=call("is_valid", column("l")), limit=1))
    assert found == [{"l": ["a", "b"], "w": {"of": ["a", "b"]}, "v": ["a", "b"]}]


def _feather(frame: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    frame.to_feather(stream, **options)
    return stream.getvalue()


def _by_polars(write: Callable[[pl.DataFrame, io.BytesIO], Any]) -> bytes:
    stream = io.BytesIO()
    write(pl.DataFrame(TABLE), stream)
    return stream.getvalue()


def _by_duckdb(folder: Path, options: str, table: pa.Table = TABLE) -> bytes:
    path = folder / "t.parquet"
    with duckdb.connect() as connection:
        connection.register("t", table)
        connection.execute(f"copy t to '{path}' (format parquet{options})")
    return path.read_bytes()


WRITERS: dict[str, Callable[[Path], bytes]] = {
    "pandas-parquet": lambda _: TABLE.to_pandas().to_parquet(),
    "pandas-feather": lambda _: _feather(TABLE.to_pandas()),
    "polars-parquet": lambda _: _by_polars(lambda frame, to: frame.write_parquet(to)),
    "polars-groups": lambda _: _by_polars(
        lambda frame, to: frame.write_parquet(to, row_group_size=30, statistics="full")
    ),
    "polars-ipc": lambda _: _by_polars(lambda frame, to: frame.write_ipc(to)),
    "polars-zstd": lambda _: _by_polars(lambda frame, to: frame.write_ipc(to, compression="zstd")),
    "polars-stream": lambda _: _by_polars(lambda frame, to: frame.write_ipc_stream(to)),
    "duckdb": lambda folder: _by_duckdb(folder, ""),
    "duckdb-zstd": lambda folder: _by_duckdb(folder, ", codec 'zstd', row_group_size 2048"),
    "duckdb-version-2": lambda folder: _by_duckdb(folder, ", parquet_version v2"),
    "arrow-stream": lambda _: arrow_stream(TABLE, 30),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_other_libraries(writer: str, tmp_path: Path) -> None:
    data = WRITERS[writer](tmp_path)
    assert rows(data, PLAN) == EXPECTED
    plan = Plan(where=call("equal", column("s"), "four"), select=fields("d", "s"), limit=1)
    assert rows(data, plan) == [{"d": DAY, "s": "four"}]
    assert len(ask(data, Plan()).output.splitlines()) == 200


def test_members_of_structures() -> None:
    plan = Plan(
        where=call("greater", column("nested", "a"), 1),
        select=fields(
            a=column("nested", "a"), length=call("list_value_length", column("nested", "b"))
        ),
        limit=1,
    )
    for data in (parquet(TABLE), arrow(TABLE)):
        assert rows(data, plan) == [{"a": 3, "length": None}]
        with pytest.raises(Refused, match="^the structure 'nested' has no column 'c'$"):
            rows(data, Plan(select=fields(y=column("nested", "c"))))
        with pytest.raises(Refused, match="^'x' has no member 'c': it is no structure$"):
            rows(data, Plan(select=fields(y=column("x", "c"))))


TEXT = pa.array(["a", "b", None])
NUMBERS = [Decimal("1.5"), None, Decimal(2)]
RARE: dict[str, tuple[Any, Any]] = {
    "list of dictionary": (pa.ListArray.from_arrays([0, 1, 2, 3], TEXT.dictionary_encode()), ["a"]),
    "map": (pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string_view())), [["a", "b"]]),
    "fixed list": (pa.array([["a"], None, ["b"]], pa.list_(pa.string_view(), 1)), ["a"]),
    "runs": (
        pa.RunEndEncodedArray.from_arrays([1, 3], TEXT.slice(0, 2).dictionary_encode()),
        "a",
    ),
    "view": (pa.array([[1], None, [2, 3]], pa.large_list_view(pa.int8())), [1]),
    "interval": (pa.array([(1, 2, 3), None, (0, 0, 1)], pa.month_day_nano_interval()), [1, 2, 3]),
    "half": (pa.array([1.5, None, 2], pa.float16()), 1.5),
    "uuid": (pa.array([b"0" * 16, None, b"1" * 16], pa.uuid()), "30" * 16),
    "decimal32": (pa.array(NUMBERS, pa.decimal32(5, 2)), "1.50"),
    "decimal256": (pa.array(NUMBERS, pa.decimal256(60, 2)), "1.50"),
    "union": (
        pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), TEXT]),
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RARE)
def test_types_that_few_files_have(name: str) -> None:
    values, first = RARE[name]
    data = arrow(pa.table({"x": [1, 2, 3], "y": values}))
    answer = ask(data, Plan(show=1))
    assert [json.loads(answer.shown.splitlines()[1])[1]] == [first]
    assert json.loads(answer.output.splitlines()[0]) == {"x": 1, "y": first}
    where = call("less", column("x"), 2)
    for output in Output:
        assert ask(data, Plan(where=where, output=output)).counters.rows == 1
        assert ask(data, Plan(order=(Order("x"),), limit=2, output=output)).counters.rows == 2


def test_a_name_with_a_full_stop() -> None:
    """The statistics are not those of a structure's member with the same path."""
    table = pa.table({"a.b": [1, 2], "a": [{"b": 100}, {"b": 200}]})
    for data in (parquet(table), arrow(table)):
        plan = Plan(where=call("less", column("a.b"), 2), select=fields("a.b", c=column("a", "b")))
        assert rows(data, plan) == [{"a.b": 1, "c": 100}]


def test_encodings_of_arrow() -> None:
    """Dictionaries, views and run ends behave as the values that they are of."""
    values = ["one", "two", "two", None]
    text = pa.array(values)
    encoded = pa.table(
        {
            "dictionary": text.dictionary_encode(),
            "view": text.cast(pa.string_view()),
            "runs": pa.compute.run_end_encode(text),
            "large": text.cast(pa.large_string()),
            "fixed": pa.array([b"one", b"two", b"two", None], pa.binary(3)),
        }
    )
    for name in encoded.schema.names:
        plan = Plan(where=call("equal", column(name), "two"), select=fields(name))
        found = rows(arrow(encoded.select([name])), plan)
        assert [row[name] for row in found] == [b"two" if name == "fixed" else "two"] * 2


ORDERED = pa.table(
    {
        "n": pa.array(range(10_000), pa.int64()),
        "f": np.arange(10_000) / 4,
        "s": [f"name{index:05}" for index in range(10_000)],
        "d": pa.array(range(10_000), pa.date32()),
        "u": pa.array(range(10_000), pa.uint64()),
        "nulls": pa.array([None] * 9000 + [1] * 1000, pa.int8()),
        "wide": [f"{index:0100}" for index in range(10_000)],
    }
)
ROW_GROUPS = parquet(ORDERED, row_group_size=1000, compression="none", use_dictionary=False)


@pytest.mark.parametrize(
    ("where", "read"),
    [
        (call("less", column("n"), 1000), 1),
        (call("less_equal", column("n"), 1000), 2),
        (call("greater", column("n"), 8999), 1),
        (call("greater", 2000, column("n")), 2),
        (call("equal", column("n"), 4500.0), 1),
        (call("equal", column("n"), 4500.5), 1),
        (call("equal", column("n"), -1), 0),
        (call("not_equal", column("n"), -1), 10),
        (call("is_in", column("n"), 5, 9500), 2),
        (call("greater_equal", column("f"), 2250), 1),
        (call("equal", column("s"), "name00123"), 1),
        (call("starts_with", column("s"), "name09"), 1),
        (call("starts_with", column("s"), "n"), 10),
        (call("less", column("d"), "1970-01-02"), 1),
        (call("equal", column("u"), 9999), 1),
        (call("is_valid", column("nulls")), 1),
        (call("is_null", column("nulls")), 9),
        (call("equal", column("nulls"), 1), 1),
        (call("invert", call("less", column("n"), 1000)), 10),
        (call("and_kleene", call("less", column("n"), 9000), call("less", column("u"), 10)), 1),
        (call("or_kleene", call("less", column("n"), 10), call("equal", column("u"), 9500)), 2),
    ],
)
def test_row_groups_that_the_statistics_exclude(where: Call, read: int) -> None:
    """What is read is counted: groups, and the bytes of their columns."""
    source = Memory(ROW_GROUPS)
    answer = ask(source, Plan(where=where, select=fields("wide")))
    assert answer.counters.groups - answer.counters.excluded == read
    assert answer.counters.read == sum(length for _, length in source.reads)
    # A group has 100 KiB of `wide`, beside the columns of the condition and the footer.
    read = read if answer.counters.rows else 0  # `wide` is read where a row counts
    assert read * 100_000 <= answer.counters.read < read * 150_000 + 100_000


def test_columns_of_rows_that_do_not_count_are_not_read() -> None:
    """Statistics exclude none of these row groups; a row of two of them counts."""
    order = np.random.default_rng(5).permutation(10_000)
    table = ORDERED.take(order)
    data = parquet(table, row_group_size=1000, compression="none", use_dictionary=False)
    last = [int(order[999]), int(order[9999])]
    plan = Plan(where=call("is_in", column("n"), *last), select=fields("n", "wide"))
    for size in (1 << 16, 300):
        with patch.object(files, "BATCH_ROWS", size):
            answer = ask(data, plan._replace(output=Output.ARROW))
        assert answer.table["wide"].to_pylist() == [f"{number:0100}" for number in last]
        assert answer.counters.excluded == 0
        assert 200_000 < answer.counters.read < 400_000
        assert answer.counters.read < 0.4 * len(data)


MIDNIGHT = datetime.datetime(2026, 1, 1)
SORTED = pa.table(
    {
        "m": pa.array([Decimal(index) / 100 for index in range(6144)], pa.decimal128(15, 2)),
        "t": [MIDNIGHT + datetime.timedelta(hours=index) for index in range(6144)],
        "z": pa.array(range(6144), pa.timestamp("us", "Europe/Berlin")),
        "h": pa.array(range(6144), pa.time64("us")),
        "r": pa.array(map(float, range(6144)), pa.float32()),
        "b": [b"%05d" % index for index in range(6144)],
        "o": [index >= 4096 for index in range(6144)],
        "k": pa.array([f"c{index // 2048}" for index in range(6144)]).dictionary_encode(),
    }
)


def _sorted_by(writer: str, folder: Path) -> bytes:
    stream = io.BytesIO()
    if writer == "polars":
        pl.DataFrame(SORTED).write_parquet(stream, row_group_size=2048)
    if writer == "pyarrow":
        return parquet(SORTED, row_group_size=2048)
    return stream.getvalue() or _by_duckdb(folder, ", row_group_size 2048", SORTED)


@pytest.mark.parametrize("writer", ["pyarrow", "polars", "duckdb"])
def test_statistics_of_each_type_and_writer(writer: str, tmp_path: Path) -> None:
    data = _sorted_by(writer, tmp_path)
    for where, count in (
        (call("less", column("m"), 4.99), 499),
        (call("is_in", column("m"), 3, "3.01"), 2),
        (call("less", column("t"), "2026-01-10"), 216),
        (call("less", column("z"), "1970-01-01T00:00:00.000005"), 5),
        (call("less", column("h"), "00:00:00.0005"), 500),
        (call("less_equal", column("r"), 500.5), 501),
        (call("less", column("b"), "00500"), 500),
        (call("equal", column("o"), True), 2048),
        (call("equal", column("k"), "c1"), 2048),
    ):
        counters = ask(data, Plan(where=where, select=fields("o"))).counters
        assert (counters.rows, counters.excluded, counters.groups) == (count, 2, 3), where


def test_only_the_columns_of_a_plan_are_read() -> None:
    for data in (ROW_GROUPS, arrow(ORDERED, 1000)):
        source = Memory(data)
        assert len(ask(source, Plan(select=fields("n"), limit=500)).output.splitlines()) == 500
        assert sum(length for _, length in source.reads) < 110_000
        source = Memory(data)
        assert rows(source, Plan(select=fields(n=aggregate("count_all")))) == [{"n": 10_000}]
        assert sum(length for _, length in source.reads) < 150_000


def test_statistics_with_not_a_number_exclude_nothing() -> None:
    """Some writers have it as a bound."""
    table = pa.table({"f": [float("nan"), 1.0, 7.0]})
    found = rows(parquet(table), Plan(where=call("equal", column("f"), 7)))
    assert found == [{"f": 7.0}]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is neither a Parquet file nor an Arrow file"),
        (b"a,b\n1,2\n", "the file is neither a Parquet file nor an Arrow file"),
        (
            b"FEA1" + bytes(100) + b"FEA1",
            "the file has the first version of Feather; write it as the second",
        ),
        (b"PARE" + bytes(100) + b"PARE", "the file is an encrypted Parquet file"),
        (parquet(TABLE)[:-1], "the file cannot be read: Parquet magic bytes not found in footer.*"),
        (arrow(TABLE)[:-9], "the file cannot be read: .*"),
        (b"PAR1", "the file cannot be read: .*"),
        (b"ARROW1\0\0", "the file cannot be read: .*"),
    ],
)
def test_files_that_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=f"^{reason}$"):
        ask(data, Plan())


def test_a_name_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["x", "x", "y"])
    for data in (parquet(table), arrow(table)):
        assert rows(data, Plan(select=fields("y"))) == [{"y": 3}]
        with pytest.raises(Refused, match="^the file has two columns 'x'$"):
            ask(data, Plan())


def test_more_rows_than_a_group_can_have_are_refused() -> None:
    """Columns of nulls take no bytes."""
    plan = Plan(select=fields(n=aggregate("count_all")))
    data = arrow(pa.table({"nothing": pa.nulls(54_321)}))
    assert rows(data, plan) == [{"n": 54_321}]
    many = data.replace(struct.pack("<q", 54_321), struct.pack("<q", MOST_ROWS + 1))
    with pytest.raises(Refused, match="^the file has 2147483648 rows in a group; there can be .*"):
        ask(many, plan)


def test_what_a_source_raises_is_raised() -> None:
    class Broken(Memory):
        def read(self, offset: int, into: memoryview) -> None:
            if self.reads:
                raise OSError(5, "the medium is unreadable")
            super().read(offset, into)

    for data in (parquet(TABLE), arrow(TABLE), arrow_stream(TABLE)):
        with pytest.raises(OSError, match="the medium is unreadable"):
            ask(Broken(data), Plan())
