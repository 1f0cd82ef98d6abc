"""Random tables and conditions on them in Polars's, pyarrow's and SQL's words, and drives in memory."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from csd_spec.table_plans import Output, Plan, Request
from potash.columns.answer import Answer
from potash.dataframes.table import Table
from potash_firmware.tables import begin
from support.tables import HEADER, Memory, arrow, arrow_stream, parquet

DAY, SECOND = datetime.date(2026, 1, 1), datetime.timedelta(seconds=1)
NUMBERS = (-(2**31), -129, -128, -1, 0, 1, 2, 3, 127, 128, 255, 256, 2**31, 2**53 + 1, 2**63 - 1)
FLOATS = (-0.0, 0.0, 0.1, 1.0, 1.5, -2.5, 16777217.0, math.inf, -math.inf, math.nan, 1e300)
TEXTS = ("", "a", "b", "ab", "aß", "ba", "Ä", "%", "a.b", "😀", "a\n", "z" * 20)
MOMENTS = [datetime.datetime(2026, 1, 1) + number * SECOND / 4 for number in range(-3, 4)]
VALUES: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "i8": (pa.int8(), (-128, -1, 0, 1, 2, 127)),
    "u8": (pa.uint8(), (0, 1, 2, 128, 255)),
    "i32": (pa.int32(), (-(2**31), -1, 0, 1, 2, 2**31 - 1)),
    "j32": (pa.int32(), (-1, 0, 1, 2)),
    "i64": (pa.int64(), (-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1)),
    "u64": (pa.uint64(), (0, 1, 2**63, 2**64 - 1)),
    "f32": (pa.float32(), (*FLOATS[:9], math.nan)),
    "f64": (pa.float64(), FLOATS),
    "g64": (pa.float64(), FLOATS),
    "s": (pa.string(), TEXTS),
    "t": (pa.large_string(), TEXTS),
    "b": (pa.bool_(), (True, False)),
    "c": (pa.bool_(), (True, False)),
    "day": (pa.date32(), tuple(DAY + datetime.timedelta(number) for number in range(-3, 3))),
    "ms": (pa.timestamp("ms"), tuple(MOMENTS)),
    "us": (pa.timestamp("us"), tuple(MOMENTS)),
    "ns": (pa.timestamp("ns"), tuple(MOMENTS)),
    "utc": (
        pa.timestamp("us", "UTC"),
        tuple(moment.astimezone(datetime.UTC) for moment in MOMENTS),
    ),
    "paris": (pa.timestamp("ms", "Europe/Paris"), tuple(MOMENTS)),
    "time": (pa.time64("us"), tuple(moment.time() for moment in MOMENTS)),
    "span": (pa.duration("us"), tuple(number * SECOND / 8 for number in range(-2, 3))),
    "dec": (pa.decimal128(10, 2), tuple(map(Decimal, ("-1.50", "0.00", "1.00", "1.25", "9.99")))),
    "bin": (pa.binary(), (b"", b"a", b"\0", b"ab")),
}
"""The types of columns, and values that are in them."""


class Drive:
    """A file in memory as `Stored`, and the firmware's program that queries it as an engine."""

    def __init__(self, data: bytes, room: int) -> None:
        self._source, self._room = Memory(data), room
        self.size, self.ranges, self.moved = len(data), (), 0
        self._buffer = bytearray()
        self._execution: Any = None

    def attach(self, stored: Any) -> None:
        self._execution = None

    def ask(self, request: bytes) -> int:
        if self._execution is None:
            self._execution = begin(request, self._source)
        self._buffer = bytearray(HEADER + self._room)
        offset = Request.decode_head(request).offset
        return int(self._execution.piece(offset, memoryview(self._buffer)))

    def read(self, start: int, length: int) -> bytes:
        self.moved += length
        return bytes(self._buffer[start : start + length])

    def confirm(self) -> None: ...
    def close(self) -> None: ...


def in_memory(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> list[Plan]:
    """Let tables be in files in memory; the plans that are run are added to the result."""
    plans: list[Plan] = []

    def run(table: Table, plan: Plan) -> Answer:
        plans.append(plan)
        drive = Drive(files[table.name], 4 << 10)
        return Answer(plan._replace(output=Output.ARROW), drive, drive)

    monkeypatch.setattr(Table, "run", run)
    return plans


def random_table(source: Random) -> pa.Table:
    rows = source.choice((0, 1, 5, 40))
    columns = {}
    for name, (kind, values) in VALUES.items():
        nulls = source.choice((0, 0.2, 1 if rows < 9 else 0.5))
        drawn = [None if source.random() < nulls else source.choice(values) for _ in range(rows)]
        columns[name] = pa.array(drawn, kind)
    inner = [columns["i32"], columns["s"]]
    validity = pa.array([source.random() < 0.2 for _ in range(rows)], pa.bool_())
    columns["st"] = pa.StructArray.from_arrays(inner, ["n", "s"], mask=validity)
    return pa.table(columns)


def random_file(source: Random, table: pa.Table) -> bytes:
    match source.randrange(3):
        case 0:
            return parquet(table, row_group_size=source.choice((3, 1000)))
        case 1:
            return arrow(table, source.choice((3, 1000)), compression=source.choice((None, "zstd")))
    return arrow_stream(table)


def _literal(source: Random, name: str) -> Any:
    """A value that is compared with a column: sometimes of a kind that it does not have."""
    kind, values = VALUES[name]
    if pa.types.is_integer(kind) and source.random() < 0.3:
        return source.choice((*NUMBERS, 1.5, -0.5, 2.0))
    if pa.types.is_floating(kind) and source.random() < 0.3:
        return source.choice((*NUMBERS[:-2], *FLOATS))
    if pa.types.is_decimal(kind) and source.random() < 0.3:
        return source.choice((1, 2, Decimal("1.250"), Decimal("1.255"), Decimal("1234567.5")))
    return source.choice(values)


COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda left, right: left == right,
    lambda left, right: left != right,
    lambda left, right: left < right,
    lambda left, right: left <= right,
    lambda left, right: left > right,
    lambda left, right: left >= right,
)
LIKE_TYPES = (("i32", "j32"), ("f64", "g64"), ("f32", "f64"), ("s", "s"), ("b", "c"), ("i8", "i64"))


def random_polars(source: Random, depth: int = 0) -> Any:
    """A predicate; some parts are not for the drive."""
    if depth < 3 and source.random() < 0.5:
        left, right = random_polars(source, depth + 1), random_polars(source, depth + 1)
        return source.choice((left & right, left & right, left | right, ~left))
    name = source.choice(list(VALUES))
    column, compare = pl.col(name), source.choice(COMPARISONS)
    text = source.choice(TEXTS)
    match source.randrange(12):
        case 0:
            return column.is_null() if source.random() < 0.5 else column.is_not_null()
        case 1:
            values = {repr(value): value for value in source.choices(VALUES[name][1], k=3)}
            return column.is_in(pl.Series([*values.values()], dtype=DTYPES[name]).implode())
        case 2:
            floats = pl.col(source.choice(("f32", "f64")))
            return source.choice(
                (floats.is_nan(), floats.is_not_nan(), floats.is_finite(), floats.is_infinite())
            )
        case 3:
            string = pl.col(source.choice("st")).str
            return source.choice(
                (
                    string.starts_with(text),
                    string.ends_with(text),
                    string.contains(text, literal=True),
                    string.contains("[ab]"),
                    string.to_uppercase() == "AB",
                    string.len_chars() > 1,
                    string.len_bytes() == 2,
                )
            )
        case 4:
            return compare(*map(pl.col, source.choice(LIKE_TYPES)))
        case 5:
            low, high = (
                pl.lit(value, DTYPES[name]) for value in source.choices(VALUES[name][1], k=2)
            )
            return column.is_between(low, high, source.choice(("both", "left", "right", "none")))
        case 6:
            when = pl.col(source.choice(("day", "us", "ms", "utc"))).dt
            return compare(
                source.choice((when.year(), when.month(), when.day())), source.randrange(3)
            )
        case 7:
            numbers = pl.col("f64") * source.choice(FLOATS[1:6]) - pl.col("g64")
            return compare(numbers, source.choice(FLOATS))
        case 8:
            return pl.col(source.choice("bc"))
        case 9:
            return compare(pl.col("st").struct.field("n"), source.choice(NUMBERS))
        case 10:
            return compare(pl.col("us").dt.second() + pl.col("i32"), 0)
    literal = _literal(source, name)
    dtype = DTYPES[name] if name in ("utc", "paris", "ns", "ms") else None
    typed = pl.lit(literal, dtype)
    return compare(column, typed) if source.random() < 0.8 else compare(typed, column)


DTYPES = pl.DataFrame(
    pa.schema([(name, kind) for name, (kind, _) in VALUES.items()]).empty_table()
).schema


def random_arrow(source: Random, depth: int = 0) -> Any:
    """A condition; some parts are not for the drive, and some neither for pyarrow."""
    if depth < 3 and source.random() < 0.5:
        left, right = random_arrow(source, depth + 1), random_arrow(source, depth + 1)
        return source.choice((left & right, left & right, left | right, ~left))
    name = source.choice(list(VALUES))
    field, compare = pc.field(name), source.choice(COMPARISONS)
    kind, values = VALUES[name]
    text = source.choice(TEXTS)
    match source.randrange(10):
        case 0:
            return source.choice(
                (field.is_null(), field.is_valid(), field.is_null(nan_is_null=True))
            )
        case 1:
            drawn = source.choices((*values, None), k=3)
            return field.isin(pa.array(drawn if source.random() < 0.3 else values[:3], kind))
        case 2:
            floats = pc.field(source.choice(("f32", "f64")))
            return source.choice((floats.is_nan(), pc.is_finite(floats), pc.is_inf(floats)))
        case 3:
            string = pc.field(source.choice("st"))
            return source.choice(
                (
                    pc.starts_with(string, text),
                    pc.ends_with(string, text),
                    pc.match_substring(string, text),
                    pc.match_substring(string, text, ignore_case=True),
                    pc.match_like(string, text),
                    pc.match_substring_regex(string, "^a|b$"),
                    pc.utf8_upper(string) == "AB",
                    pc.utf8_length(string) > 1,
                )
            )
        case 4:
            return compare(*map(pc.field, source.choice(LIKE_TYPES)))
        case 5:
            when = pc.field(source.choice(("day", "us", "utc")))
            return compare(source.choice((pc.year(when), pc.month(when))), source.randrange(3))
        case 6:
            return compare(pc.field("f64") * source.choice(FLOATS[1:6]) - pc.field("g64"), 1.5)
        case 7:
            return pc.field(source.choice("bc"))
        case 8:
            return compare(pc.field("st", "n"), source.choice(NUMBERS))
    return compare(field, pa.scalar(source.choice(values), kind))


def random_sql(source: Random, depth: int = 0) -> str:
    if depth < 3 and source.random() < 0.5:
        left, right = random_sql(source, depth + 1), random_sql(source, depth + 1)
        return source.choice((f"({left} and {right})", f"({left} or {right})", f"(not {left})"))
    name = source.choice([each for each in VALUES if each not in ("ns", "span", "bin")])
    values = [_sql(value) for value in VALUES[name][1]]
    one, two = source.choice(values), source.choice(values)
    operator = source.choice(("=", "<>", "<", "<=", ">", ">="))
    return source.choice(
        (
            f"{name} {operator} {one}",
            f"{name} is null",
            f"{name} is not null",
            f"{name} in ({one}, {two})",
            f"{name} between {one} and {two}",
            f"s like '{source.choice(('a%', '%b', '%a%', '_'))}'",
            f"st.n {operator} {source.randrange(3)}",
            f"i32 {operator} j32",
            f"length(s) {operator} 1",
        )
    )


def _sql(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"'{value}'::double"
    if isinstance(value, bool | int | float | Decimal):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
