"""Queries of tables: from text to plans, and from the drive's pieces to results."""

from __future__ import annotations

import datetime
import decimal
import random
import warnings
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_spec import table_plans
from csd_spec.table_plans import Output, Plan, decode
from potash.columns import InvalidQuery, Request, explained, run
from potash.fleet.combining import Table
from potash.sdk.errors import DeviceMisbehaved
from support.columns import ask

DAYS = [datetime.date(2026, 1, 1), datetime.date(2026, 3, 5), datetime.date(2025, 2, 2), None]
TABLE = pa.table(
    {
        "region": ["EU", "US", None, "EU"],
        "price": [1.5, 2.0, None, 4.0],
        "q": [1, 2, 3, 4],
        "day": DAYS,
        "name": ["Anna", "Bert", " cARL ", "Dora"],
        "place": [{"city": "Bonn", "year": 3}, {"city": "Ulm", "year": 4}, None, None],
        "unit price": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal(3), None]),
        "open": [True, False, None, True],
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("price > 1.5", [2, 4]),
        ("(price > 1.5) & (region == 'EU')", [4]),
        ("1 < q <= 3", [2, 3]),
        ("price > 1.5 and not q == 2 or q == 1", [1, 4]),
        ("open", [1, 4]),
        ("open == False", [2]),
        ("~open", [2]),
        ("price is None", [3]),
        ("region is not None", [1, 2, 4]),
        ("region in ['EU', 'AP']", [1, 4]),
        # Null is neither in a list nor not in it.
        ("region not in ['EU']", [2]),
        ("~((region in ['EU']) | (q == 9))", [2]),
        ("~(region not in ['EU'])", [1, 4]),
        ("day >= '2026-01-01'", [1, 2]),
        ("day == date('2026-01-01')", [1]),
        ("day.year == 2026 and day.month > 2", [2]),
        ("name.startswith('A')", [1]),
        ("name.lower().strip() == 'carl'", [3]),
        ("'er' in name", [2]),
        ("name.endswith(' ') or name.replace('a', 'b').count('b') == 2", [3]),
        ("like(name, 'D%')", [4]),
        ("matches(name, '^[AB]')", [1, 2]),
        ("name.match_like('%t')", [2]),
        ("name[:2] + name[-1] == 'Doa'", [4]),
        ("name[1:3] == 'nn'", [1]),
        ("len(name) == 6", [3]),
        ("lower(name) == 'anna'", [1]),
        ("coalesce(region, '?') == '?'", [3]),
        ("(q if open else -q) < 0", [2]),
        ("q + 1 == 3 ** 1", [2]),
        ("q / 2 == 1.5", [3]),
        ("q // 2 == 1", [2, 3]),
        ("abs(-q) * 2 - 1 > 5", [4]),
        ("round(price / 3, 1) == 0.7", [2]),
        ("min(q, 2) == q", [1, 2]),
        ("cast(q, 'string') == '3'", [3]),
        ("place.city == 'Ulm'", [2]),
        ("place['year'] == 3", [1]),
        ("col('place', 'year') == 4", [2]),
        ("col('unit price') > 1.25", [3]),
        ("col('unit price') == decimal('1.25')", [1]),
        ("strftime(day, '%m') == '02'", [3]),
        (" | ".join(f"(q == {value})" for value in range(2, 150)), [2, 3, 4]),
        (f"q in {[*range(3, 400)]}", [3, 4]),
        ("q == +1", [1]),
    ],
)
def test_a_filter_selects_rows(text: str, rows: list[int]) -> None:
    assert ask(TABLE, text, select=("q",)).to_pydict() == {"q": rows}


NUMBERS = ["a", "b", "f", "3", "-2", "0.5", "len(s)", "abs(a)", "-b", "min(a, b)", "max(f, 1)"]
STRINGS = [
    "s",
    "t",
    "'a'",
    "'Ab'",
    "s.lower()",
    "t.upper()",
    "s[:2]",
    "t[1:]",
    "s[-1]",
    "s.strip()",
]
STRINGS += [
    "t.replace('a', 'xy')",
    "(s + '' + t)",
    "('b' + s[1:3])",
    "s.lstrip('a')",
    "t.capitalize()",
]


@st.composite
def numbers(draw: st.DrawFn, depth: int = 2) -> str:
    if not depth or draw(st.booleans()):
        return draw(st.sampled_from(NUMBERS))
    if draw(st.integers(0, 4)) == 0:
        inner = draw(conditions(depth - 1))
        return f"({draw(numbers(depth - 1))} if {inner} else {draw(numbers(depth - 1))})"
    operator = draw(st.sampled_from("+-*"))
    return f"({draw(numbers(depth - 1))} {operator} {draw(numbers(depth - 1))})"


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> str:
    parts = [draw(conditions(depth - 1)) for _ in range(2)] if depth else []
    match draw(st.integers(0 if depth else 3, 9)):
        case 0 | 1:
            return f" {draw(st.sampled_from(['and', 'or']))} ".join(parts)
        case 2:
            return f"(not ({parts[0]})) {draw(st.sampled_from('&|^'))} ({parts[1]})"
        case 3:
            return f"{draw(st.sampled_from(STRINGS))}.{draw(st.sampled_from(['starts', 'ends']))}with('a')"
        case 4:
            return f"'a' {draw(st.sampled_from(['in', 'not in']))} {draw(st.sampled_from(STRINGS))}"
        case 5:
            word = draw(st.sampled_from(["in", "not in"]))
            return f"a {word} {draw(st.lists(st.integers(-9, 9), min_size=1, max_size=4))}"
        case 6:
            left, right = (draw(st.sampled_from(STRINGS)) for _ in range(2))
            return f"{left} {draw(st.sampled_from(['<', '==', '!=', '>=']))} {right}"
    several = [draw(numbers(depth)) for _ in range(draw(st.integers(2, 3)))]
    return f" {draw(st.sampled_from(['<', '<=', '==', '!=', '>', '>=']))} ".join(several)


SOURCE = random.Random(3)
PYTHON = pa.table(
    {
        "row": range(300),
        "a": [SOURCE.randrange(-9, 10) for _ in range(300)],
        "b": [SOURCE.randrange(-9, 10) for _ in range(300)],
        "f": [SOURCE.randrange(-20, 20) / 4 for _ in range(300)],
        "s": ["".join(SOURCE.choices("aAbB ", k=SOURCE.randrange(1, 5))) for _ in range(300)],
        "t": ["".join(SOURCE.choices("abc", k=SOURCE.randrange(1, 4))) for _ in range(300)],
    }
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(conditions())
def test_without_nulls_a_condition_is_that_of_python(text: str) -> None:
    text = f"({text}) and row >= 0"  # a condition without a column is refused
    code = compile(text, "condition", "eval")
    expected = [row["row"] for row in PYTHON.to_pylist() if eval(code, {}, row)]
    assert ask(PYTHON, text, select=("row",)).to_pydict()["row"] == expected, text


def test_escape_sequences_of_regular_expressions_stay_as_they_are() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(TABLE, r"matches(name, '^\w{4}$') & (q < 3)", select=("q",)).result_rows == 2


def test_a_list_is_computed_and_has_names() -> None:
    found = ask(TABLE, "q, twice=q * 2, name.upper()", where="q < 3", limit=1).to_pydict()
    assert found == {"q": [1], "twice": [2], "name.upper()": ["ANNA"]}
    assert ask(TABLE, "q,", order="-q").to_pydict() == {"q": [4, 3, 2, 1]}
    assert ask(TABLE, "open=region", limit=1).to_pydict() == {"open": ["EU"]}


def test_aggregates_are_of_expressions_and_have_arithmetic() -> None:
    found = ask(TABLE, "count(), sum(price*q), sum(q) / count(price), share=mean(q) - 1")
    assert found.to_pydict() == {
        "count()": [4], "sum(price * q)": [21.5], "sum(q) / count(price)": [10 / 3], "share": [1.5],
    }  # fmt: skip
    assert [column.type for column in found.columns] == ["int64", "double", "double", "double"]
    assert found.columns[0].texts == ["4"]


def test_quotients_are_floating_point_numbers() -> None:
    large = (1 << 53) + 1
    table = pa.table({"n": [large], "price": [decimal.Decimal("2.50")]})
    found = ask(table, "n / 2, price / 2, n // 2").to_pydict()
    assert found == {"n / 2": [large / 2], "price / 2": [1.25], "n // 2": [large // 2]}
    assert ask(table, "sum(n) / count()").to_pydict() == {"sum(n) / count()": [float(large)]}


def test_keys_come_first_and_order_the_groups() -> None:
    assert ask(TABLE, "count()", by="region").to_pydict() == {
        "region": ["EU", "US", None], "count()": [2, 1, 1]
    }  # fmt: skip
    found = ask(TABLE, "day.year, total=sum(q), region", by="region, day.year", order="-total")
    assert found.to_pydict() == {
        "day.year": [None, 2025, 2026, 2026], "total": [4, 3, 2, 1],
        "region": ["EU", None, "US", "EU"],
    }  # fmt: skip
    found = ask(TABLE, "year, year + 1, count(q)", by="year=day.year", order="2, -1", limit=2)
    assert found.to_pydict() == {
        "year": [2025, 2026], "year + 1": [2026, 2027], "count(q)": [1, 2]
    }  # fmt: skip
    assert ask(TABLE, "region", by="region").to_pydict() == {"region": ["EU", "US", None]}


def test_results_have_the_values_of_json() -> None:
    found = ask(TABLE, "q <= 2")
    assert found.to_pydict()["day"] == ["2026-01-01", "2026-03-05"]
    assert found.to_pydict()["unit price"] == ["1.25", None]
    types = {column.name: column.type for column in found.columns}
    assert types["day"] == "date32[day]" and types["region"] == "string"
    assert (found.result_rows, found.rows, found.jobs, found.excluded) == (2, 4, 1, 0)
    empty = ask(TABLE, "q > 9", select=("q", "region"))
    assert empty.to_pydict() == {"q": [], "region": []} and empty.result_rows == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not an expression"),
        ("q >", "is not an expression"),
        ("q > 1 & price > 2", "put each one in parentheses"),
        ("q > (", "is not an expression"),
        ("__import__('os').system('id')", "the drive has no function system"),
        ("q.__class__", "has no member '__class__'"),
        ("(lambda: 1)() > q", "is no function of the drive"),
        ("q > [1]", "neither a column nor a value"),
        ("q > 1, count()", "q is neither in an aggregate nor a key; name it in --by"),
        ("sum()", "sum takes one column or expression, not 'sum()'"),
        ("sum(sum(q))", "an aggregate stands where a row's value is needed"),
        ("medn(q)", "the drive has no function medn; did you mean mean?"),
        ("name.startwith('A')", "did you mean startswith?"),
        ("name.startswith(name)", "starts_with takes columns or calls first, then values only"),
        ("name.startswith()", "starts_with does not take 1 arguments"),
        ("name.startswith(prefix='A')", "take no arguments by name"),
        ("nam == 'A'", "the file has no column 'nam'; did you mean 'name'?"),
        ("q > 'a'", "greater does not take int64 and string"),
        ("q % 2 == 1", "has an operator that the drive does not have"),
        ("q = 3", "in which there is no column; == compares"),
        ("price > 1, q.x = 3", "'q.x' is no name for a column"),
        ("1 < 2", "there is no column"),
        ("q is q", "compares with None only"),
        ("price is None & q == 2", "put each comparison in parentheses"),
        ("q == None", "only `is` compares with None"),
        ("q in []", "is not a list of values"),
        ("q in [region]", "is not a list of values"),
        ("-'a' == q", "'a' is not a number"),
        ("name[::2] == 'a'", "is no slice of numbers"),
        ("col(q)", "is no column"),
        ("(q + 1).x", "x is neither a part of a date nor a field of a column"),
        ("q, q", "two columns of select have the same name"),
        ("cast(q, 'int9')", "there is no type 'int9'"),
        ("q // 0 == 1", "divide by zero"),
        ("q * 9223372036854775807 > 1", "overflow"),
        # What nests too deeply, Python's parser refuses or not, by its version.
        ("~" * 4000 + "q", "nested too deeply|is not an expression|more than 512 names"),
        ("(" * 1500 + "q" + ")" * 1500, "nested too deeply|is not an expression"),
        ("q" + ".lower()" * 70, "64 in one another"),
        ("q > 1" + " or q > 1" * 400, "more than 512 names and values"),
        ("q > " + "9" * 5000, "more than 4096 characters"),
        (f"count(0x{'f' * 4000})", "."),
    ],
)
def test_an_expression_that_cannot_be_answered_says_why(text: str, reason: str) -> None:
    with pytest.raises(InvalidQuery, match=reason.replace("()", "[(][)]")):
        ask(TABLE, text)


def test_damaged_expressions_are_refused() -> None:
    source = random.Random(9)
    wholes = [
        "a, total=sum(b[1:-2] * c.year) / count(), 'x' in d",
        "~(a in [1, None]) | (b is None)",
    ]
    refused = 0
    for _ in range(3000):
        text = source.choice(wholes)
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(len(text) + 1)
            added = source.choice(["", *"()[]{},.:'\"=<~*# \n\t\x00é;", source.choice(wholes)[at:]])
            text = text[:at] + added + text[at + source.randrange(3) :]
        try:
            Request(text, by=source.choice([None, text]), order=source.choice([None, text]))
        except InvalidQuery:
            refused += 1
    assert 1000 < refused < 3000


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("q > 1", {"by": "q"}, "rows are not grouped"),
        ("count()", {"select": ("q",)}, "columns are chosen for rows"),
        ("count()", {"where": "q + 1"}, "is not a condition"),
        ("count()", {"where": "count() > 1"}, "an aggregate stands where"),
        ("count()", {"where": "q = 1"}, "is not an expression"),
        ("count()", {"by": "sum(q)"}, "an aggregate stands where"),
        ("count()", {"by": "region", "order": "2, regoin"}, "did you mean 'region'?"),
        ("count()", {"order": "2"}, "the result has 1 columns, and no column 2"),
        ("q > 1", {"order": "1"}, "order by a name"),
        ("q > 1", {"order": "nme"}, "the result has no column 'nme'; did you mean 'name'?"),
        ("q > 1", {"limit": -1}, "limit is no number of rows"),
    ],
)
def test_options_that_do_not_go_together_say_why(
    text: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidQuery, match=reason.replace("?", "[?]")):
        ask(TABLE, text, **options)


def test_a_plan_is_explained() -> None:
    request = Request(
        "count(), total=sum(price * 2)", where="q in [1, 2]", by="day.year", order="-total", limit=3
    )
    select = "day.year = year(day), count() = count_all(), total = sum(multiply_checked(price, 2))"
    assert list(explained(request.plan())) == [
        "reads       day, price, q",
        "filters     is_in(q, 1, 2)",
        "groups by   day.year = year(day)",
        f"aggregates  {select}",
        "sorts by    total descending",
        "limits to   3 rows",
    ]
    assert list(explained(Request("q > 1").plan())) == [
        "reads       all columns", "filters     greater(q, 1)"
    ]  # fmt: skip


class Scripted:
    """An engine whose buffer has room for `room` bytes of an output that is known."""

    def __init__(self, shown: bytes, output: bytes, room: int) -> None:
        self.shown, self.whole, self.room = len(shown), shown + output, room
        self.buffer, self.moved, self.open = b"", 0, False

    def attach(self, stored: Any) -> None:
        self.open = True

    def ask(self, request: bytes) -> int:
        header = table_plans.Request.decode_head(request)
        decode(request[table_plans.Request.RECORD.size :])
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
    answer = run(Plan(show=2), Table(b"12345"), engine)
    assert (answer.columns, answer.rows, answer.held) == ([("a", "int64")], [[1], [2]], 5)
    assert engine.open and answer.jobs == -(-len(shown) // room)
    assert answer.read() == output and not engine.open
    assert answer.jobs == -(-len(engine.whole) // room)
    assert len(engine.whole) <= answer.moved - 96 * answer.jobs < len(engine.whole) * 1.5
    with run(Plan(show=2), Table(b"1"), engine) as answer:
        assert engine.open
    assert not engine.open and list(answer) == []


class Slow(Scripted):
    """One that gives pieces without output first, in which it has decoded so much."""

    def __init__(self, *decoded: int) -> None:
        super().__init__(b"", b"output", 100)
        self.decoded, self.work = [*decoded], list[int]()

    def ask(self, request: bytes) -> int:
        self.work.append(table_plans.Request.decode_head(request).work)
        if not self.decoded:
            return super().ask(request)
        self.buffer = table_plans.Piece(flags=1, decoded=self.decoded.pop(0)).encode()
        return len(self.buffer)


def test_a_long_query_says_how_far_it_is_and_begins_anew_once() -> None:
    engine, said = Slow(10, 20), list[str]()
    answer = run(Plan(), Table(b"1"), engine, progress=lambda text, share: said.append(text))
    assert answer.read() == b"output" and len(said) == answer.jobs == 3
    assert said[-1] == "querying: 0 MiB of the file are read" and all(engine.work)
    engine = Slow(10, 20, 15)
    assert run(Plan(), Table(b"1"), engine).read() == b"output"
    assert [bool(work) for work in engine.work] == [True] * 3 + [False]
    with pytest.raises(DeviceMisbehaved, match="96 bytes for a piece with 0"):
        run(Plan(), Table(b"1"), Slow(10, 10, 10)).read()


@pytest.mark.parametrize(
    "shown", [b"", b"1\n", b'[["a"]]\n', b"[[]]\n[1\n", b'[["a","b"]]\n1\n', b"[" * 99_999]
)
def test_shown_rows_that_are_none_are_refused(shown: bytes) -> None:
    engine = Scripted(shown, b"", 100_000)
    with pytest.raises(DeviceMisbehaved):
        run(Plan(show=2), Table(b"1"), engine).result()
    assert not engine.open


def test_a_result_larger_than_a_buffer_takes_several_jobs() -> None:
    table = pa.table({"x": range(3000)})
    found = ask(table, "x >= 1000", buffer=4000)
    assert found.to_pydict() == {"x": [*range(1000, 3000)]} and found.jobs > 2
    assert found.result_rows == 2000 and found.rows == 3000


def test_only_shown_rows_are_read_of_a_result_without_output() -> None:
    plan = Request("q > 1").plan(Output.NONE, 1)
    assert decode(plan.encode()) == plan and plan.output is Output.NONE
