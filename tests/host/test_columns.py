"""Queries of Arrow files: the same answers as Arrow's own compute gives, for any table."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csd_spec import table_plans
from potash.columns import InvalidFile, InvalidQuery, Request, merged, query, run
from potash.columns.engines import Output
from potash.columns.expressions import parse_query
from potash.columns.layout import Limits
from potash.columns.writer import arrow_file
from potash.sdk.errors import DeviceMisbehaved
from potash.sdk.targets import Range
from support.columns import InMemory, InProcess, ask, raw, same, selected, written

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
            pa.uint64()]  # fmt: skip
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
TIMES = [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns"), pa.time32("ms")]
OPERATORS = ["<", "<=", ">", ">=", "==", "!="]
WORDS = ["", "EU", "US", "ÄÖ", "a long one"]


def limits_of(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        low, high = limits_of(kind)
        return st.integers(low, high) | st.sampled_from([low, high, 0, 1])
    if kind in FLOATS:
        return st.floats(width=kind.bit_width) | st.sampled_from([0.0, -0.0, math.inf, math.nan])
    if kind == pa.bool_():
        return st.booleans()
    return st.sampled_from(WORDS)


def array(kind: pa.DataType, found: list[Any]) -> pa.Array:
    if kind == pa.float16():
        found = [None if one is None else np.float16(one) for one in found]
    if pa.types.is_dictionary(kind):
        return pa.array(found, pa.string()).dictionary_encode().cast(kind)
    return pa.array(found, kind)


KINDS = [*INTEGERS, *FLOATS, pa.bool_(), pa.dictionary(pa.int8(), pa.string()),
         pa.dictionary(pa.int32(), pa.string())]  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Three columns of any kinds, `k` to group by and `o` of truth values."""
    rows = draw(st.integers(0, 40))
    kinds = [draw(st.sampled_from(KINDS)) for _ in range(2)]
    named = dict(zip("ab", kinds, strict=True))
    named |= {"k": draw(st.sampled_from(KINDS[-2:])), "o": pa.bool_()}
    columns = {}
    for name, kind in named.items():
        nulls = st.none() | values(kind) if draw(st.booleans()) else values(kind)
        columns[name] = array(kind, draw(st.lists(nulls, min_size=rows, max_size=rows)))
    return pa.table(columns)


@st.composite
def literals(draw: st.DrawFn, table: pa.Table, name: str) -> str:
    """A value to compare a column with: one of its own, one near by, or any."""
    kind = table[name].type
    if pa.types.is_dictionary(kind):
        return repr(draw(st.sampled_from([*WORDS, "M"])))
    present = [one for one in table[name].to_pylist() if one is not None]
    present = [float(one) if kind in FLOATS else one for one in present]
    present = [one for one in present if math.isfinite(one)]
    wanted: Any = st.integers(-(1 << 65), 1 << 65) | st.integers(-3, 3)
    if kind in FLOATS:
        wanted = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)
    if present:
        wanted = st.sampled_from(present) | wanted
    return repr(draw(wanted))


@st.composite
def filters(draw: st.DrawFn, table: pa.Table, depth: int = 2) -> str:
    if depth and draw(st.booleans()):
        first, second = draw(filters(table, depth - 1)), draw(filters(table, depth - 1))
        return f"({first}) {draw(st.sampled_from('&|'))} ({second})"
    if draw(st.integers(0, 4)) == 0:
        return f"~({draw(filters(table, depth))})"
    name = draw(st.sampled_from("abk"))
    if table[name].type == pa.bool_() or draw(st.integers(0, 9)) == 0:
        return "o" if table[name].type != pa.bool_() else name
    if draw(st.integers(0, 9)) == 0:
        return f"{name} is None"
    both = [pa.types.is_integer(table[one].type) for one in "ab"]
    if all(both) and draw(st.integers(0, 3)) == 0:
        return f"a {draw(st.sampled_from(OPERATORS))} b"
    if draw(st.integers(0, 9)) == 0 and pa.types.is_floating(table[name].type):
        return f"{name} {draw(st.sampled_from(OPERATORS))} {name}"
    return f"{name} {draw(st.sampled_from(OPERATORS))} {draw(literals(table, name))}"


SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@SETTINGS
@given(st.data())
def test_a_filter_selects_the_rows_that_arrow_selects(data: st.DataObject) -> None:
    table = data.draw(tables())
    text = data.draw(filters(table))
    batch = data.draw(st.sampled_from([None, 7, 16]))
    found = ask(table, text, batch=batch).to_pydict()
    expected = selected(table, text)
    for name in table.column_names:
        rows = zip(found[name], raw(expected[name]), strict=True)
        assert all(same(*pair) for pair in rows), (text, name, found[name], expected[name])


@SETTINGS
@given(st.data())
def test_aggregates_are_those_of_arrow(data: st.DataObject) -> None:
    table = data.draw(tables())
    text = data.draw(filters(table, 0))
    by = data.draw(st.sampled_from([None, "k", "o"]))
    wanted = ["count()"]
    for name in "ab":
        numeric = not pa.types.is_dictionary(table[name].type)
        functions = ["count", "min", "max", "sum", "mean"] if numeric else ["count"]
        wanted += [f"{one}({name})" for one in functions]
    found = ask(table, ", ".join(wanted), where=text, by=by, batch=7).to_pydict()
    kept = selected(table, text)
    if by is None:
        groups: dict[Any, pa.Table] = {None: kept}
    else:
        keys = raw(kept[by])
        groups = {key: kept.filter([one == key for one in keys]) for key in dict.fromkeys(keys)}
        assert sorted(map(str, found[by])) == sorted(map(str, groups))
    for row in range(len(found["count()"])):
        rows = groups[found[by][row] if by else None]
        assert found["count()"][row] == rows.num_rows
        for one in wanted[1:]:
            function, name = one[:-1].split("(")
            _check(function, rows[name], found[one][row])


def _check(function: str, column: Any, value: Any) -> None:
    """A value beside that of Arrow's kernel; sums of floats beside the exact sum, too."""
    present = [one for one in raw(column) if one is not None]
    if function == "count":
        assert value == pc.count(column).as_py()
        return
    if column.type == pa.float16():
        column = column.cast(pa.float32())  # Arrow has no aggregates of it; every value fits
    expected = getattr(pc, {"min": "min", "max": "max"}.get(function, function))(column).as_py()
    if function in ("min", "max") or not present:
        assert same(value, expected), (function, column, value)
        return
    if function == "sum" and not pa.types.is_floating(column.type):
        assert value == expected  # which wraps as Arrow's does
        return
    divisor = len(present) if function == "mean" else 1
    if not all(map(math.isfinite, present)):
        assert same(value, expected), (function, column, value)
        return
    if not pa.types.is_floating(column.type):
        assert value == sum(present) / divisor  # of integers, which Python divides exactly
        return
    try:
        exact = math.fsum(present)
    except OverflowError:
        return  # of intermediate sums; Potash's are exact
    if function == "sum":
        assert value == exact
    else:
        assert value == pytest.approx(exact / divisor, rel=1e-15, abs=5e-324)


def test_a_sum_of_floats_is_exact_whatever_the_order_and_the_batches() -> None:
    numbers = [1e308, 1e308, -1e308, 5e-324, -1e308, 1.0, 1e-300, -1.0]
    expected = math.fsum([5e-324, 1e-300])
    for order in (numbers, numbers[::-1], sorted(numbers)):
        for batch in (None, 1, 3):
            found = ask(pa.table({"x": order}), "sum(x), mean(x)", batch=batch).to_pydict()
            assert found == {"sum(x)": [expected], "mean(x)": [expected / 8]}


@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_dates_and_times_compare_with_text(kind: pa.DataType) -> None:
    if pa.types.is_time(kind):
        column = pa.array([0, 43_200_000, 43_200_001, None], pa.int32()).cast(kind)
        found = ask(pa.table({"t": column}), 't > "12:00:00"').to_pydict()
        assert found == {"t": [43_200_001]}
        return
    days = pa.array(["1969-12-31", "1970-01-01", "2026-02-28", "2026-03-01", None])
    column = days.cast(pa.date32()).cast(pa.timestamp("s")).cast(kind)
    table = pa.table({"t": column})
    for operator in OPERATORS:
        text = f't {operator} "2026-02-28"'
        assert ask(table, text).to_pydict()["t"] == raw(selected(table, text)["t"])
    half = 't > "2026-02-28T12:00:00"'
    assert ask(table, half).to_pydict()["t"] == raw(table["t"])[3:4]
    (least,) = ask(table, "min(t)").columns
    assert least.type.text(least.values[0] or 0).startswith("1969-12-31")


class Scripted:
    """An engine whose buffer has room for `room` bytes of an output that is known."""

    def __init__(self, shown: bytes, output: bytes, room: int) -> None:
        self.shown, self.whole, self.room = len(shown), shown + output, room
        self.buffer, self.moved, self.open = b"", 0, False

    def attach(self, stored: Any) -> None:
        self.open = True

    def ask(self, request: bytes) -> int:
        header = table_plans.Request.decode_head(request)
        table_plans.decode(request[24:])
        part = self.whole[header.offset : header.offset + self.room]
        shown = max(0, min(len(part), self.shown - header.offset))
        more = header.offset + len(part) < len(self.whole)
        piece = table_plans.Piece(flags=int(more), shown=shown, length=len(part) - shown)
        self.buffer = piece.encode() + part
        return len(self.buffer)

    def read(self, start: int, length: int) -> bytes:
        assert not start % 4
        self.moved += length
        return self.buffer[start : start + length]

    def close(self) -> None:
        self.open = False


@pytest.mark.parametrize("room", [7, 16, 50, 1000])
def test_an_answer_is_read_in_pieces(room: int) -> None:
    shown, output = b'[["a","int64"]]\n[1]\n[2]\n', bytes(range(200))
    engine = Scripted(shown, output, room)
    answer = run(table_plans.Plan(show=2), InMemory(b"12345"), engine)
    assert (answer.columns, answer.rows, answer.held) == ([("a", "int64")], [[1], [2]], 5)
    assert engine.open and answer.jobs == -(-len(shown) // room)
    assert answer.read() == output and not engine.open
    assert answer.jobs == -(-len(engine.whole) // room)
    assert len(engine.whole) <= answer.moved - 96 * answer.jobs < len(engine.whole) * 1.5
    with run(table_plans.Plan(show=2), InMemory(b""), engine) as answer:
        assert engine.open
    assert not engine.open and list(answer) == []


@pytest.mark.parametrize("shown", [b"", b"1\n", b'[["a"]]\n', b"[[]]\n[1\n"])
def test_shown_rows_that_are_none_are_refused(shown: bytes) -> None:
    engine = Scripted(shown, b"", 100)
    with pytest.raises(DeviceMisbehaved):
        run(table_plans.Plan(show=2), InMemory(b""), engine)
    assert not engine.open


def test_a_table_larger_than_a_buffer_takes_several_jobs() -> None:
    source = np.random.default_rng(3)
    table = pa.table(
        {
            "x": pa.array(source.integers(-9, 9, 3000), mask=source.random(3000) < 0.1),
            "skipped": np.zeros(3000),
            "y": source.random(3000) < 0.5,
        }
    )
    small = Limits(64, 1 << 16, lambda read, made: read <= 16384 and made <= 9000)
    for batch in (None, 100):
        found = ask(table, "(x > 3) & y", select=("x", "y"), batch=batch, limits=small)
        assert found.to_pydict()["x"] == raw(selected(table, "(x > 3) & y")["x"])
        assert found.jobs > 2
        counted = ask(table, "count(), sum(x)", where="y", batch=batch, limits=small)
        assert counted.to_pydict()["sum(x)"] == [pc.sum(table.filter(table["y"])["x"]).as_py()]
    whole = ask(table, "count()", where="y")
    assert whole.jobs == 1 and whole.read <= 8192  # of one column's bitmap
    everything = ask(table, "count()", limits=small)
    assert (everything.to_pydict(), everything.jobs) == ({"count()": [3000]}, 0)


def test_a_file_in_many_pieces_takes_jobs_of_few_pieces() -> None:
    """Every page of the file is elsewhere; a job has at most 6 runs of pages."""
    source = np.random.default_rng(4)
    table = pa.table({name: source.integers(0, 99, 3000) for name in "abc"})
    data = written(table, 1000)
    pages = -(-len(data) // 4096)
    place = [(7 * page) % (2 * pages) for page in range(pages)]

    class Scattered(InMemory):
        def locate(self, pages: Range) -> list[Range]:
            return [Range(place[page], 1) for page in range(pages.page, pages.page + pages.pages)]

    assert len(set(place)) == pages
    scattered = bytearray(2 * pages * 4096)
    for page in range(pages):
        scattered[place[page] * 4096 : (place[page] + 1) * 4096] = data[page * 4096 :][:4096].ljust(
            4096, b"\0"
        )
    few = InProcess(bytes(scattered), Limits(6, 1 << 16, lambda read, made: True))
    found = query(Request("a > c", select=("b",)), Scattered(data), few)
    assert found.to_pydict()["b"] == raw(selected(table, "a > c")["b"])
    assert found.jobs == len(few.programs) > 3


def test_a_result_is_an_arrow_table() -> None:
    table = pa.table(
        {
            "a": pa.array([1, None, 3], pa.int16()),
            "k": pa.array(["x", None, "ÿz"]).dictionary_encode(),
            "o": [True, False, None],
            "f": pa.array([1.5, math.inf, None], pa.float32()),
            "t": pa.array([1, None, -3], pa.timestamp("us", "UTC")),
            "d": pa.array([1, None, 3], pa.date32()),
        }
    )
    again = pa.ipc.open_file(arrow_file(ask(table, "(a > 0) | (a is None)").columns, 2)).read_all()
    again.validate(full=True)
    assert again.cast(table.schema).equals(table)
    assert ask(written(again), "count()").to_pydict() == {"count()": [3]}


LONG = "a text of more than twelve bytes"


def test_a_dictionary_of_views_as_polars_writes_it() -> None:
    """Texts of up to twelve bytes are in the views themselves, longer ones in further buffers."""
    values = pa.array(["EU", None, LONG, "", "of 12 bytes.", LONG[:13]], pa.string_view())
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 2, 3, 4, 5, 1, 2, 0], pa.uint32()), values)
    table = pa.table({"k": keys, "x": range(8)})
    found = ask(table, "sum(x)", by="k").to_pydict()
    assert dict(zip(found["k"], found["sum(x)"], strict=True)) == {
        "EU": 7, LONG: 7, "": 2, "of 12 bytes.": 3, LONG[:13]: 4, None: 5,
    }  # fmt: skip
    rows = ask(table, f'(k == "{LONG}") | (k == "EU")')
    assert rows.to_pydict() == {"k": ["EU", LONG, LONG, "EU"], "x": [0, 1, 6, 7]}
    again = pa.ipc.open_file(arrow_file(rows.columns, 2)).read_all()
    assert again["k"].to_pylist() == ["EU", LONG, LONG, "EU"]


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (99, 0, 0), (13, 1, 0), (13, -1, 0), (13, 0, -1)])
def test_views_outside_of_a_dictionary_are_refused(wrong: tuple[int, int, int]) -> None:
    length, number, begin = wrong
    values = pa.array([LONG], pa.string_view())
    keys = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), values)
    data = bytearray(written(pa.table({"k": keys})))
    at = data.rindex(struct.pack("<i4sii", len(LONG), LONG[:4].encode(), 0, 0))
    struct.pack_into("<i4sii", data, at, length, b"", number, begin)
    with pytest.raises(InvalidFile, match="a value outside of its bytes"):
        ask(bytes(data), 'k == "a"')


def test_columns_that_programs_cannot_use_are_passed_over() -> None:
    table = pa.table(
        {
            "text": ["a", "b", None],
            "view": pa.array(["a", None, "a text that is longer than 12"], pa.string_view()),
            "list": [[1], None, [2, 3]],
            "struct": [{"a": 1, "b": "x"}, None, {"a": 2, "b": "y"}],
            "nothing": pa.nulls(3),
            "decimal": pa.array([1, 2, None], pa.decimal128(9, 2)),
            "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int8())),
            "ends": pa.RunEndEncodedArray.from_arrays([1, 3], [5, 6]),
            "union": pa.UnionArray.from_sparse(
                pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
            ),
            "x": [1, 2, 3],
        }
    )
    assert ask(table, "x >= 2", select=("x",)).to_pydict() == {"x": [2, 3]}
    with pytest.raises(InvalidQuery, match=r"text \(utf8\) .* others with --columns, or .* dict"):
        ask(table, "x >= 2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not an expression"),
        ("x >", "is not an expression"),
        ("x > 1 & y > 2", "put each comparison in parentheses"),
        ("__import__('os').system('id')", "is not a condition"),
        ("x.real > 1", "neither a column nor a value"),
        ("(lambda: 1)() > x", "neither a column nor a value"),
        ("x > [1]", "neither a column nor a value"),
        ("x > 1, count()", "is not an aggregate"),
        ("sum(x + 1)", "sum takes the name of a column"),
        ("sum()", "sum takes the name of a column"),
        ("median(x)", "is not a condition"),
        ("y > 1", "has no column 'y'; it has x, s, k, b, t, u, v, w"),
        ("x", "is not a condition; compare it"),
        ("x == 'a'", "it has numbers"),
        ("x == True", "but with numbers"),
        ("k > 3", "but with strings"),
        ("s == 'a'", "write it as a dictionary"),
        ("k == x", "cannot be compared"),
        ("1 < 2", "names no column"),
        ("x is x", "compares with None only"),
        ("x in []", "is not a list of values"),
        ("sum(k)", "can be counted only"),
        # What nests too deeply, Python's parser refuses or not, by its version.
        ("~" * 4000 + "x", "nested too deeply|is not an expression|more than 512 names"),
        ("(" * 1500 + "x" + ")" * 1500, "nested too deeply|is not an expression"),
        ("x > 1" + " or x > 1" * 400, "more than 512 names and values"),
        ("x > " + "9" * 5000, "more than 4096 characters"),
        (f"0x{'f' * 4000} < 2", "names no column"),
        (f"count(0x{'f' * 4000})", "count takes the name of a column"),
        ('b > "a"', "can be compared with True and False"),
        ('t > "12:00:00+02:00"', "cannot be compared with '12:00:00[+]02:00'"),
        ("t == u", "cannot be compared"),
        ("u == v", "cannot be compared"),
        ("w == 'a'", "write a dictionary of strings"),
    ],
)
def test_an_expression_that_cannot_be_answered_says_why(text: str, reason: str) -> None:
    table = pa.table(
        {
            "x": [1],
            "s": ["a"],
            "k": pa.array(["a"]).dictionary_encode(),
            "b": pa.array([True]).dictionary_encode(),
            "t": pa.array([1], pa.time32("s")),
            "u": pa.array([1], pa.timestamp("s")),
            "v": pa.array([1], pa.timestamp("s", "UTC")),
            "w": pa.array([b"a"]).dictionary_encode(),
        }
    )
    with pytest.raises(InvalidQuery, match=reason):
        ask(table, text)


@pytest.mark.parametrize("text", [", ".join(f"sum(c{at})" for at in range(60)), "c0 > 0"])
def test_more_columns_than_a_program_can_have_are_refused(text: str) -> None:
    table = pa.table({f"c{at}": [1.5] for at in range(4200)})
    with pytest.raises(InvalidQuery, match="too many columns for one program"):
        ask(table, text)


def test_null_and_nan_are_values_of_a_dictionary() -> None:
    """Some of them twice."""
    values = pa.array([math.nan, 1.5, None, math.nan, 1.5])
    indices = pa.array([0, 1, 2, 3, 4, None], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, values)
    counted = pa.table({"k": column.cast(pa.float64())}).group_by("k")
    expected = counted.aggregate([([], "count_all"), ("k", "count")]).to_pydict().values()
    table = pa.table({"k": column})
    found = ask(table, "count(), count(k)", by="k").to_pydict().values()
    assert sorted(map(str, zip(*found, strict=True))) == sorted(
        map(str, zip(*expected, strict=True))
    )
    assert ask(table, "count(k)").to_pydict() == {"count(k)": [pc.count(column).as_py()]}
    several = merged([ask(part, "count()", by="k") for part in (table, table.slice(2))])
    assert str(several.to_pydict()) == "{'k': [1.5, nan, None], 'count()': [3, 3, 4]}"


def test_only_a_small_dictionary_groups_rows() -> None:
    table = pa.table({"x": [1], "k": pa.array(["a"]).dictionary_encode()})
    with pytest.raises(InvalidQuery, match="cannot group rows; write it as a dictionary"):
        ask(table, "count()", by="x")
    with pytest.raises(InvalidQuery, match="rows are not grouped"):
        ask(table, "x > 1", by="k")
    large = pa.array([str(one) for one in range(5000)]).dictionary_encode()
    with pytest.raises(InvalidQuery, match="has 5000 values; rows can have 4096 groups"):
        ask(pa.table({"k": large}), "count()", by="k")


def test_results_of_several_files_add_up() -> None:
    """Each file has a dictionary of its own."""
    source = np.random.default_rng(6)
    keys = source.choice(["a", "b", "c", "d"], 300)
    table = pa.table({"k": keys, "x": source.normal(size=300), "i": source.integers(-9, 9, 300)})
    parts = [table.slice(0, 120), table.slice(120, 0), table.slice(120, 1), table.slice(121)]
    encoded = [part.set_column(0, "k", part["k"].dictionary_encode()) for part in parts]
    for text, more in (
        ("count(), sum(x), min(i), max(x), mean(i)", {"by": "k", "where": "i > -5"}),
        ("sum(x), count()", {}),
        ('(i > 2) & (k != "b")', {"select": ("k", "x")}),
    ):
        whole = ask(table.set_column(0, "k", table["k"].dictionary_encode()), text, **more)
        several = [ask(part, text, **more) for part in encoded]
        before = several[0].to_pydict()
        found = merged(several)
        assert found.to_pydict() == whole.to_pydict() and found.rows == 300
        assert found.columns[0].type == whole.columns[0].type
        assert several[0].to_pydict() == before
    other = ask(pa.table({"x": [1]}), "sum(x)")
    with pytest.raises(InvalidQuery, match="write them with one schema"):
        merged([ask(pa.table({"x": [1.0]}), "sum(x)"), other])


def test_names_that_are_no_words_are_columns_too() -> None:
    table = pa.table({"unit price": [1, 5], "class": [2, 1]})
    assert ask(table, 'col("unit price") > col("class")').rows == 2
    found = ask(table, 'sum(col("unit price"))', where='col("class") == 1').to_pydict()
    assert found == {"sum(unit price)": [5]}
    assert parse_query("1 < x <= 3") == parse_query("(1 < x) & (x <= 3)")


@pytest.mark.parametrize("text", ["x > 1", "count(), sum(x)"])
def test_a_drive_that_gives_half_an_output_is_noticed(text: str) -> None:
    class Broken(InProcess):
        def run(self, *given: Any) -> Output:
            output = super().run(*given)
            return output._replace(data=output.data[:-1])

    data = written(pa.table({"x": [1, 2, 3]}))
    with pytest.raises(DeviceMisbehaved, match="for a query with"):
        query(Request(text), InMemory(data), Broken(data))
