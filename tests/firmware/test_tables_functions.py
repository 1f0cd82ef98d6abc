"""Values of plans' functions: what they are compared with, nulls, overflow, forms of output."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from csd_spec.table_plans import FUNCTIONS, Call, Output, Plan, Value, ValueType
from potash_device.cores import CODECS
from potash_firmware.tables import Refused, files, groups
from support.tables import (
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

UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 5, 1, 12, 30, 0, 250_000)
BIG = (1 << 53) + 1
TABLE = pa.table(
    {
        "i": pa.array([1, -2, None], pa.int8()),
        "n": pa.array([BIG, -1, None], pa.int64()),
        "u": pa.array([(1 << 64) - 1, 1, None], pa.uint64()),
        "f": pa.array([0.5, float("nan"), None]),
        "r": pa.array([0.1, 1.5, None], pa.float32()),
        "m": pa.array([Decimal("0.07"), Decimal("-1.50"), None], pa.decimal128(15, 2)),
        "w": pa.array([Decimal("1.5"), Decimal(2), None], pa.decimal128(38, 10)),
        "s": ["Äb  ", "x_y", None],
        "b": pa.array([b"\x00\xff", b"x", None], pa.binary()),
        "o": [True, False, None],
        "d": [datetime.date(2026, 5, 1), datetime.date(1969, 12, 31), None],
        "t": pa.array([MOMENT, datetime.datetime(1969, 12, 31), None], pa.timestamp("ms")),
        "z": pa.array([MOMENT, datetime.datetime(1970, 1, 1), None], pa.timestamp("us", "Asia/Tokyo")),
        "h": pa.array([datetime.time(12, 30), datetime.time(0), None], pa.time32("s")),
        "e": pa.array([1500, -1, None], pa.duration("ms")),
        "l": [[1, None], [], None],
        "k": pa.array([{"a": [Decimal("1.5")], "b": b"\x01"}, {"a": None, "b": None}, None]),
    }
)  # fmt: skip
FILES = [arrow(TABLE), parquet(TABLE)]


def values(expression: Any) -> list[Any]:
    """An expression's values in the rows of the table, which are the same in both files."""
    plan = Plan(select=fields(y=expression))
    first, second = ([row["y"] for row in rows(data, plan)] for data in FILES)
    assert str(first) == str(second)
    return first


DATE, TIME, STAMP = ValueType.DATE, ValueType.TIME, ValueType.TIMESTAMP
COMPARED: list[tuple[Call, list[bool | None]]] = [
    (call("greater", column("i"), 1000), [False, False, None]),
    (call("less", column("i"), 0.5), [False, True, None]),
    # Integers are compared with integers as what they are, of any size and sign.
    (call("equal", column("n"), BIG - 1), [False, False, None]),
    (call("equal", column("u"), (1 << 64) - 1), [True, False, None]),
    (call("greater", column("u"), -1), [True, True, None]),
    (call("greater", column("u"), column("n")), [True, True, None]),
    (call("less", column("u"), 1 << 70), [True, True, None]),
    # With floating-point numbers they are such.
    (call("greater", column("n"), 1.5), [True, False, None]),
    (call("less", column("f"), column("i")), [True, False, None]),
    (call("less", column("r"), column("n")), [True, False, None]),
    (call("equal", column("f"), column("f")), [True, False, None]),
    # Numbers are decimals where they meet decimals.
    (call("equal", column("m"), 0.07), [True, False, None]),
    (call("less_equal", column("m"), "0.07"), [True, True, None]),
    (call("less", column("m"), 1), [True, True, None]),
    (call("less", column("m"), float("inf")), [True, True, None]),
    (call("greater", column("m"), column("i")), [False, True, None]),
    (call("less", column("m"), column("w")), [True, True, None]),
    (call("less", column("w"), column("u")), [True, False, None]),
    (call("equal", column("w"), Value("1.5", ValueType.DECIMAL)), [True, False, None]),
    # Texts are what they are compared with.
    (call("greater_equal", column("d"), "2026-05-01"), [True, False, None]),
    (call("less", column("d"), "2026-05-01T00:00:01"), [True, True, None]),
    (call("equal", column("d"), Value("1969-12-31", DATE)), [False, True, None]),
    (call("greater", "2026-05-01", column("d")), [False, True, None]),
    (call("equal", column("t"), "2026-05-01 12:30:00.25"), [True, False, None]),
    (call("equal", column("t"), "2026-05-01T12:30:00.250000001"), [False, False, None]),
    (call("equal", column("t"), Value("2026-05-01T12:30:00.250", STAMP)), [True, False, None]),
    (call("greater", column("t"), "2026-05-01"), [True, False, None]),
    (call("equal", column("z"), "2026-05-01T12:30:00.25"), [True, False, None]),
    (call("equal", column("z"), "2026-05-01T21:30:00.25+09:00"), [True, False, None]),
    (call("greater", column("z"), Value("2026-05-01T12:30:00Z", STAMP)), [True, False, None]),
    (call("equal", column("h"), "12:30:00"), [True, False, None]),
    (call("greater", column("h"), Value("12:29:59.5", TIME)), [True, False, None]),
    (call("equal", column("e"), Value(1_500_000_000, ValueType.DURATION)), [True, False, None]),
    (call("less", column("e"), Value(1, ValueType.DURATION)), [False, True, None]),
    (call("equal", column("b"), "x"), [False, True, None]),
    (call("equal", column("b"), Value("00ff", ValueType.BINARY)), [True, False, None]),
    (call("is_in", column("d"), "2026-05-01", "2026-05-02"), [True, False, False]),
    (call("is_in", column("i"), 1, None), [True, False, True]),
    # Nulls, as Kleene has them.
    (call("and_kleene", column("o"), None), [None, False, None]),
    (call("or_kleene", column("o"), None), [True, None, None]),
    (call("invert", column("o")), [False, True, None]),
    (call("equal", column("i"), None), [None, None, None]),
    (call("is_nan", column("f")), [False, True, None]),
]


@pytest.mark.parametrize(("expression", "expected"), COMPARED, ids=lambda each: str(each)[:60])
def test_comparisons(expression: Call, expected: list[bool | None]) -> None:
    assert values(expression) == expected
    where = Plan(where=expression, select=fields("i"))
    for data in FILES:
        assert len(rows(data, where)) == sum(each is True for each in expected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("add_checked", column("i"), 1000), [1001, 998, None]),
        (call("multiply_checked", column("u"), 1), [(1 << 64) - 1, 1, None]),
        (call("subtract_checked", 1, column("m")), [Decimal("0.93"), Decimal("2.50"), None]),
        (call("multiply_checked", column("w"), column("w")), [Decimal("2.25"), Decimal(4), None]),
        (call("add_checked", column("n"), 0.5), [float(BIG - 1), -0.5, None]),
        (call("divide_checked", column("i"), 2), [0, -1, None]),
        (call("round", column("m"), 1), [Decimal("0.1"), Decimal("-1.5"), None]),
        (call("subtract_checked", column("t"), "2026-05-01"), [
            datetime.timedelta(hours=12, minutes=30, milliseconds=250),
            datetime.timedelta(days=-20575), None,
        ]),
        (call("coalesce", column("d"), "2000-01-01"), [
            datetime.date(2026, 5, 1), datetime.date(1969, 12, 31), datetime.date(2000, 1, 1),
        ]),
        (call("if_else", column("o"), column("i"), 7), [1, 7, None]),
        (call("max_element_wise", column("i"), 0), [1, 0, 0]),
        (call("utf8_trim", column("s")), ["Äb", "x_y", None]),
        (call("utf8_trim", column("s"), " xy"), ["Äb", "_", None]),
        (call("utf8_length", column("s")), [4, 3, None]),
        (call("utf8_slice_codeunits", column("s"), -2), ["  ", "_y", None]),
        (call("match_like", column("s"), "x\\_%"), [False, True, None]),
        (call("binary_join_element_wise", column("s"), "z", "-"), ["Äb  -z", "x_y-z", None]),
        (call("list_value_length", column("l")), [2, 0, None]),
        (call("hour", column("z")), [21, 9, None]),
        (call("strftime", column("d"), "%d.%m.%Y"), ["01.05.2026", "31.12.1969", None]),
        (call("cast", column("i"), "string"), ["1", "-2", None]),
        (call("cast", column("i"), "decimal(5, 2)"), [Decimal(1), Decimal(-2), None]),
        (call("cast", column("t"), "timestamp[s, UTC]"), None),
        (call("greater", Value("2026-05-01", DATE), column("t")), [False, True, None]),
    ],
    ids=lambda each: str(each)[:60],
)  # fmt: skip
def test_values(expression: Call, expected: list[Any] | None) -> None:
    if expected is None:
        with pytest.raises(Refused, match=r"^cast: .* would lose data"):
            values(expression)
    else:
        assert values(expression) == expected


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (call("divide_checked", column("i"), 0), "divide_checked: divide by zero"),
        (call("add_checked", column("n"), (1 << 63) - 1), "add_checked: overflow"),
        (call("negate_checked", column("u")), "negate_checked does not take uint64"),
        (call("add_checked", column("s"), 1), "add_checked does not take string and int64"),
        (call("less", column("i"), "a"), "less does not take int8 and string"),
        (call("less", column("d"), "today"), "'today' is no date"),
        (call("less", column("m"), "much"), "'much' is no decimal"),
        (call("less", column("h"), "25:00:00"), "'25:00:00' is no time"),
        (call("less", column("t"), "2026-13-01"), "'2026-13-01' is no timestamp"),
        (call("is_in", column("i"), "a"), "is_in: Could not convert 'a' .*"),
        (call("utf8_upper", column("i")), "utf8_upper does not take int8"),
        (call("match_substring_regex", column("s"), "("), "match_substring_regex: .*"),
        (call("starts_with", column("s"), 1), "starts_with does not take 1: .*"),
        (call("round", column("f"), 1 << 40), "round does not take 1099511627776: .*"),
        (call("cast", column("i"), "integer"), "there is no type 'integer' to cast to"),
        (call("cast", column("s"), "int64"), "cast: .*"),
        (column("price"), "the file has no column 'price'"),
        (aggregate("sum", column("u")), "a sum is outside of the range of uint64"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_refusals(expression: Any, reason: str) -> None:
    plan = Plan(select=fields(y=expression))
    for data in FILES:
        with pytest.raises(Refused, match=f"^{reason}$"):
            rows(data, plan)


def test_moments_far_away_are_compared() -> None:
    """In nanoseconds they would be out of range."""
    last = datetime.datetime(9999, 12, 31)
    data = parquet(pa.table({"t": pa.array([last, MOMENT], pa.timestamp("ms"))}))
    where = call("greater", column("t"), "2026-05-01T12:30:00.250001")
    assert rows(data, Plan(where=where)) == [{"t": last}]


def test_did_you_mean() -> None:
    table = pa.table({"price": [1.5], "quantity": [1]})
    with pytest.raises(Refused, match="^the file has no column 'prcie'; did you mean 'price'.$"):
        rows(parquet(table), Plan(where=call("less", column("prcie"), 1)))


def test_each_function_is_one_of_arrows() -> None:
    for name in FUNCTIONS:
        pa.compute.get_function(name)


def test_sums_are_exact() -> None:
    """Where a partial sum does not fit in 64 bits, too."""
    numbers = [(1 << 63) - 1, 5, -(1 << 63), 1 << 62, -(1 << 62)]
    plan = Plan(
        select=fields(total=aggregate("sum", column("n")), mean=aggregate("mean", column("n")))
    )
    for rows_of_batch in (None, 1):
        found = rows(arrow(pa.table({"n": numbers}), rows_of_batch), plan)
        assert found == [{"total": 4, "mean": 0.8}]


def test_variance_of_numbers_far_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the batches, and however often they are aggregated again."""
    numbers = [1e9 + each for each in (4, 7, 13, 16)]
    plan = Plan(
        by=fields("k"),
        select=fields(v=aggregate("variance", column("n")), s=aggregate("stddev", column("n"))),
    )
    table = pa.table({"n": [*numbers, 1.0, 3.0, *[None] * 4], "k": [1, 1, 1, 1, 2, 2, 3, 3, 3, 3]})
    for rows_of_batch, merged in ((None, 99), (1, 99), (1, 1), (3, 1)):
        monkeypatch.setattr(groups, "MERGED_ROWS", merged)
        assert rows(arrow(table, rows_of_batch), plan) == [
            {"v": 22.5, "s": math.sqrt(22.5)},
            {"v": 1.0, "s": 1.0},
            {"v": None, "s": None},
        ]


def test_floating_point_keys() -> None:
    """Zeros are equal, and so are values that are not a number here."""
    table = pa.table({"f": [0.0, float("nan"), -0.0, float("nan")], "r": [1.5, 0.1, 2.5, 0.1]})
    table = table.set_column(1, "r", table["r"].cast(pa.float32()))
    different = aggregate("count_distinct", column("f"))
    plan = Plan(by=fields("f"), select=fields("f", n=aggregate("count_all"), d=different))
    assert [(row["n"], row["d"]) for row in rows(parquet(table), plan)] == [(2, 1), (2, 1)]
    plan = Plan(by=fields("r"), select=fields("r", n=aggregate("count_all")))
    found = ask(parquet(table), plan._replace(output=Output.ARROW)).table
    assert found["n"].to_pylist() == [1, 2, 1]
    assert found.schema.field("r").type == pa.float32()


def test_keys_and_calls_of_aggregates() -> None:
    year = call("year", column("d"))
    plan = Plan(
        by=fields(year=year),
        select=fields(
            next=call("add_checked", year, 1),
            year=column("year"),
            share=call("divide_checked", call("cast", aggregate("count_all"), "double"), 3),
        ),
    )
    for data in FILES:
        assert rows(data, plan) == [
            {"next": 2027, "year": 2026, "share": 1 / 3},
            {"next": 1970, "year": 1969, "share": 1 / 3},
            {"next": None, "year": None, "share": 1 / 3},
        ]


def test_json() -> None:
    data = FILES[0]
    first, second, third = map(json.loads, ask(data, Plan()).output.splitlines())
    assert first == {
        "i": 1, "n": BIG, "u": (1 << 64) - 1, "f": 0.5, "r": pytest.approx(0.1), "m": "0.07",
        "w": "1.5000000000", "s": "Äb  ", "b": "00ff", "o": True, "d": "2026-05-01",
        "t": "2026-05-01T12:30:00.250", "z": "2026-05-01T12:30:00.250000Z", "h": "12:30:00",
        "e": 1500, "l": [1, None], "k": {"a": ["1.5"], "b": "01"},
    }  # fmt: skip
    assert math.isnan(second["f"])
    assert set(third.values()) == {None}


def test_what_was_done_is_counted() -> None:
    """Values of three rows, of which two count."""
    plan = Plan(
        where=call("and_kleene", call("is_valid", column("i")), call("less", column("i"), 5)),
        by=fields("o", "i"),
        select=fields("o", n=aggregate("count_all"), s=aggregate("sum", column("i"))),
    )
    counters = ask(FILES[1], plan).counters
    assert (counters.rows, counters.file_rows, counters.groups) == (2, 3, 1)
    assert counters.compared == 3 + 3 + 2 * 3
    assert (counters.hashed, counters.aggregated) == (2 * 2, 2)
    # A byte each, a bit each, and two bitmaps of nulls.
    assert counters.decoded == 3 + 1 + 2


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_bytes_of_compressed_columns_are_counted_by_codec(codec: str) -> None:
    names = pa.array(["a", "b", "a"]).dictionary_encode()
    table = pa.table({"i": pa.array([1, 2, 3], pa.int32()), "s": names, "n": [1, 2, 3]})
    made = [parquet(table, compression=codec)]
    if codec in ("none", "lz4", "zstd"):
        made += [make(table, 2, compression=codec) for make in (arrow, arrow_stream)]
    for data in made:
        answer = ask(data, Plan(select=fields("i", "s")))
        decoded = answer.counters.decoded
        assert decoded > 3 * 4
        assert answer.codecs == {each: decoded * (each == codec) for each in CODECS}


def test_columns_of_a_parquet_file_are_counted_by_their_own_codecs() -> None:
    numbers = pa.array([1, 2, 3], pa.int32())
    pairs = pa.StructArray.from_arrays([numbers, numbers], ["a", "b"])
    table = pa.table({"i": numbers, "p": pairs, "x": numbers})
    data = parquet(table, compression={"i": "gzip", "p.a": "zstd", "p.b": "snappy", "x": "none"})
    plan = Plan(where=call("less", column("i"), 3), select=fields("x", y=column("p", "b")))
    answer = ask(data, plan)
    assert answer.counters.decoded == 3 * 13
    assert answer.codecs == {"snappy": 13, "lz4": 0, "zstd": 0, "gzip": 13, "brotli": 0}


def test_batches_of_an_arrow_file_are_counted_by_their_own_codecs() -> None:
    table = pa.table({"i": pa.array(range(8), pa.int32())})
    codecs = ("none", "lz4", "zstd", "lz4")
    streams = [arrow_stream(table, compression=codec) for codec in codecs]
    schema = pa.ipc.read_message(streams[0]).serialize().to_pybytes()
    batches = b"".join(each[len(schema) : -8] for each in streams)
    answer = ask(schema + batches + streams[0][-8:], Plan())
    assert answer.counters.decoded == 4 * 32
    assert answer.codecs == {"snappy": 0, "lz4": 64, "zstd": 32, "gzip": 0, "brotli": 0}


def test_nested_values_of_slices() -> None:
    """Each row is in a slice of a larger batch."""
    lists = pa.array([[1, 2], None, [], [3]], pa.list_(pa.int8()))
    table = pa.table(
        {
            "l": lists,
            "g": lists.cast(pa.large_list(pa.int64())),
            "p": pa.array([[1, 2], None, [3, None], [5, 6]], pa.list_(pa.int8(), 2)),
            "m": pa.array([[("a", 1)], None, [], [("b", 2), ("c", None)]], pa.map_("str", "int8")),
            "n": pa.array([[{"a": [1]}], None, [None], [{"a": None}, {"a": []}]]),
        }
    )
    expected = [
        {name: table[name][row].as_py() for name in ("l", "g", "p", "m", "n")} for row in range(4)
    ]
    for data in (arrow(table), parquet(table)):
        for size in (1, 3, 4):
            with patch.object(files, "BATCH_ROWS", size):
                found = ask(data, Plan()).output
            assert found == b"".join(
                json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in expected
            )


def test_csv() -> None:
    plan = Plan(
        output=Output.CSV, select=fields("s", "b", "d", "t", "z", "m", "e", "l", "k"), limit=1
    )
    assert ask(FILES[0], plan).output.decode() == (
        '"s","b","d","t","z","m","e","l","k"\n'
        '"Äb  ","00ff",2026-05-01,2026-05-01 12:30:00.250,"2026-05-01T12:30:00.250000Z",0.07,"1500","[1, null]",'
        '"{""a"": [""1.5""], ""b"": ""01""}"\n'
    )


@pytest.mark.parametrize("output", [Output.ARROW, Output.FILE])
def test_arrow(output: Output) -> None:
    data = ask(FILES[0], Plan(output=output)).output
    reader = pa.ipc.open_stream if output is Output.ARROW else pa.ipc.open_file
    assert str(reader(data).read_all().to_pylist()) == str(TABLE.to_pylist())
    nothing = Plan(output=output, where=call("less", column("i"), -100))
    assert reader(ask(FILES[0], nothing).output).read_all().schema == TABLE.schema
