"""Queries of tables by the firmware's engine: plans, pieces, refusals."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from csd_spec.table_plans import Order, Output, Piece, PieceFlag, Plan
from potash_firmware.tables import Refused, begin
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
    pieces,
    request,
    rows,
)

TABLE = pa.table(
    {
        "x": [1, 2, 3, None, 5],
        "s": ["a", "b", "a", None, "b"],
        "f": [1.5, 2.5, None, 4.0, 5.0],
    }
)
FILES = {"parquet": parquet(TABLE), "arrow": arrow(TABLE, 2), "stream": arrow_stream(TABLE, 2)}


@pytest.fixture(params=FILES)
def data(request: pytest.FixtureRequest) -> bytes:
    return FILES[request.param]


def test_rows_and_computed_columns(data: bytes) -> None:
    plan = Plan(
        where=call("greater", column("x"), 1),
        select=fields("s", y=call("add_checked", column("x"), 1)),
    )
    assert rows(data, plan) == [{"s": "b", "y": 3}, {"s": "a", "y": 4}, {"s": "b", "y": 6}]


def test_groups_in_the_order_of_their_first_rows(data: bytes) -> None:
    plan = Plan(
        by=fields("s"),
        select=fields("s", n=aggregate("count_all"), total=aggregate("sum", column("x"))),
    )
    assert rows(data, plan) == [
        {"s": "a", "n": 2, "total": 4},
        {"s": "b", "n": 2, "total": 7},
        {"s": None, "n": 1, "total": None},
    ]


def test_aggregates_of_no_rows(data: bytes) -> None:
    plan = Plan(
        where=call("greater", column("x"), 100),
        select=fields(
            n=aggregate("count_all"),
            total=aggregate("sum", column("x")),
            different=aggregate("count_distinct", column("s")),
            spread=aggregate("stddev", column("f")),
        ),
    )
    assert rows(data, plan) == [{"n": 0, "total": None, "different": 0, "spread": None}]


def test_order_and_limit(data: bytes) -> None:
    plan = Plan(select=fields("x"), order=(Order("x", descending=True),), limit=4)
    assert [row["x"] for row in rows(data, plan)] == [5, 3, 2, 1]
    assert [row["x"] for row in rows(data, Plan(select=fields("x"), limit=3))] == [1, 2, 3]


def test_shown_rows_come_before_the_output(data: bytes) -> None:
    answer = ask(data, Plan(show=2, select=fields("x", "f"), limit=3))
    assert [json.loads(line) for line in answer.shown.splitlines()] == [
        [["x", "int64"], ["f", "double"]],
        [1, 1.5],
        [2, 2.5],
    ]
    assert [json.loads(line) for line in answer.output.splitlines()] == [
        {"x": 1, "f": 1.5},
        {"x": 2, "f": 2.5},
        {"x": 3, "f": None},
    ]
    assert answer.counters.rows == 3


@pytest.mark.parametrize("output", Output)
def test_pieces_of_any_size_are_the_same_bytes(data: bytes, output: Output) -> None:
    plan = Plan(show=3, output=output)
    whole = ask(data, plan)
    for room in (1, 7, 100):
        assert ask(data, plan, room)[:2] == whole[:2]


def test_another_offset_begins_anew(data: bytes) -> None:
    execution = begin(request(Plan(), len(data)), Memory(data))
    whole = pieces(execution).output
    execution.resume(Memory(data))
    assert pieces(execution).output == whole
    into = bytearray(200)
    assert execution.piece(20, memoryview(into)) == 200
    assert into[96:] == whole[20:124]
    with pytest.raises(Refused, match="the output ends before this offset"):
        execution.piece(len(whole) + 1, memoryview(into))


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (
            Plan(select=fields(y=column("z"))),
            "the file has no column 'z'",
        ),
        (
            Plan(select=fields(y=call("starts_with", column("x"), "a"))),
            "starts_with does not take int64",
        ),
        (
            Plan(where=column("x")),
            "the condition has values of int64, not truth values",
        ),
        (
            Plan(select=fields(n=aggregate("sum", column("s")))),
            "sum does not take string",
        ),
        (
            Plan(select=fields(y=call("divide_checked", column("x"), 0))),
            "divide_checked: divide by zero",
        ),
        (
            Plan(select=fields("x"), order=(Order("f"),)),
            "the result has no column 'f'",
        ),
        (
            Plan(by=fields("s"), select=fields("x")),
            "'x' is neither a key of the groups nor aggregated",
        ),
    ],
)
def test_refusals(data: bytes, plan: Any, reason: str) -> None:
    with pytest.raises(Refused, match=f"^{reason}$"):
        ask(data, plan)


@pytest.mark.parametrize("form", Output)
@pytest.mark.parametrize(
    "plan",
    [
        Plan(show=3),
        Plan(where=call("greater", column("x"), 1), limit=300),
        Plan(order=(Order("f", descending=True),), limit=50, show=2),
        Plan(by=fields("s"), select=fields("s", total=aggregate("sum", column("x")))),
        Plan(select=fields(n=aggregate("count", column("f")))),
    ],
)
def test_a_long_query_gives_pieces_without_output(form: Output, plan: Plan) -> None:
    data = parquet(pa.concat_tables([TABLE] * 100), row_group_size=10)
    plan = plan._replace(output=form)
    whole = ask(data, plan)
    into = memoryview(bytearray(1 << 16))
    query, output, decoded = begin(request(plan, len(data)), Memory(data)), b"", [-1]
    more = True
    while more:
        length = query.piece(len(output), into, 1)
        output += into[Piece.RECORD.size : length]
        piece = Piece.decode_head(into)
        decoded.append(piece.decoded)
        more = bool(piece.flags & PieceFlag.MORE)
        assert length > Piece.RECORD.size or decoded[-1] > decoded[-2] or not more
    assert output == whole.shown + whole.output
    assert len(decoded) > 20


@pytest.mark.parametrize(
    ("given", "size", "reason"),
    [
        (b"", 0, "the file has 1.* bytes; 0 can be read"),
        (request(Plan(), 9)[:40], 9, r"the plan has \d+ bytes, which the request has not"),
        (request(Plan(), 9).replace(b"json", b"text"), 9, "output 'text' is none of .*"),
    ],
)
def test_requests_that_are_refused(given: bytes, size: int, reason: str) -> None:
    with pytest.raises(Refused, match=f"^{reason}$"):
        begin(given or request(Plan(), 100), Memory(bytes(size)))
