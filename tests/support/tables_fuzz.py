"""Damaged files of tables and plans of any functions, tried in a process of their own.

A query must end with an answer or a refusal. Arrow itself may crash on a hostile file: then the
process ends, as a worker would, and another one goes on after that case.
"""

from __future__ import annotations

import datetime
import io
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from csd_spec.table_plans import (
    AGGREGATES,
    FUNCTIONS,
    Aggregate,
    Call,
    Column,
    Expression,
    Field,
    Order,
    Output,
    Plan,
    PlanError,
    Value,
    ValueType,
)
from potash_firmware.tables import Refused
from support.new_process import new_process
from support.tables import aggregate, arrow, arrow_stream, ask, call, column, fields, parquet

SECONDS = 20
"""Time of a case, after which it is one that does not end."""
MEMORY = 2 << 30
"""Bytes of private memory."""
_CRASHES = [-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)]

TABLE = pa.table(
    {
        "x": pa.array([1, None, 3, 4] * 50, pa.int32()),
        "u": pa.array([1, 2, 1 << 63, 4] * 50, pa.uint64()),
        "f": [1.0, 2.0, None, float("nan")] * 50,
        "o": [True, False, None, True] * 50,
        "s": ["one", "", None, "日本"] * 50,
        "k": pa.array(["a", "b", None, "c"] * 50).dictionary_encode(),
        "b": pa.array([b"\0\xff", b"", None, b"a"] * 50, pa.binary()),
        "v": pa.array(["a view that is longer", "b", None, "c"] * 50, pa.string_view()),
        "m": pa.array([Decimal("1.25"), None, Decimal("-7.5"), Decimal(0)] * 50),
        "d": [datetime.date(2026, 5, 1), None, datetime.date(1, 1, 1), datetime.date.max] * 50,
        "t": pa.array([0, None, 1 << 50, -1] * 50, pa.timestamp("us", "Europe/Berlin")),
        "h": pa.array([0, None, 86_399, 1] * 50, pa.time32("s")),
        "e": pa.array([0, None, 1 << 40, -1] * 50, pa.duration("ms")),
        "l": [[1, 2], None, [], [None]] * 50,
        "w": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 4, "b": "y"}] * 50,
        "n": pa.nulls(200),
    }
)
_NAMES = TABLE.schema.names
_IN_PARQUET = TABLE.drop_columns(["v"])
FILES: dict[str, bytes] = {
    "arrow": arrow(TABLE, 60),
    "arrow-lz4": arrow(TABLE, 60, compression="lz4"),
    "stream": arrow_stream(TABLE, 60),
    "parquet": parquet(_IN_PARQUET, row_group_size=60),
    "parquet-plain": parquet(
        _IN_PARQUET, row_group_size=60, compression="none", use_dictionary=False, version="1.0"
    ),
    "parquet-zstd": parquet(
        _IN_PARQUET, row_group_size=60, compression="zstd", data_page_version="2.0"
    ),
}


def _by_polars() -> dict[str, bytes]:
    frame = pl.DataFrame(TABLE.drop_columns(["e", "u"]))
    whole, compressed = io.BytesIO(), io.BytesIO()
    frame.write_parquet(whole, row_group_size=60, statistics="full")
    frame.write_ipc(compressed, compression="zstd")
    return {"polars-parquet": whole.getvalue(), "polars-ipc": compressed.getvalue()}


FILES |= _by_polars()
_QUESTIONS = (
    Plan(),
    Plan(
        where=call("and_kleene", column("o"), call("greater", column("x"), 1)),
        by=fields("k"),
        select=fields("k", a=aggregate("sum", column("f")), b=aggregate("count_distinct", column("s"))),
    ),
    Plan(select=fields(a=aggregate("count_all"), b=aggregate("max", column("m")))),
    Plan(select=fields("l", "w", "t"), order=(Order("t"),), limit=7, output=Output.CSV, show=3),
)  # fmt: skip


def damaged_file(source: random.Random) -> tuple[bytes, Plan]:
    """A file with some bytes that are others, or that lacks some; and a question."""
    data = bytearray(source.choice(list(FILES.values())))
    plan = source.choice(_QUESTIONS)
    if source.random() < 0.05:
        return bytes(data[: source.randrange(len(data))]), plan
    for _ in range(source.choice((1, 1, 1, 2, 8))):
        # Mostly in the footer.
        first = source.choice((0, 0, len(data) // 2, len(data) * 3 // 4, len(data) - 600))
        at = source.randrange(first, len(data))
        size = source.choice((1, 1, 2, 4, 8))
        value = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.getrandbits(64), 1 << 31, 1 << 40))
        data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")[: len(data) - at]
    return bytes(data), plan


def wild_plan(source: random.Random) -> tuple[bytes, Plan]:
    """A plan of functions that may not go together, and a file."""
    data = source.choice(list(FILES.values()))
    while True:
        select = tuple(
            Field(f"c{index}", _wild(source, 3, 0.3)) for index in range(source.choice((1, 1, 2)))
        )
        plan = Plan(
            select=select if source.random() < 0.9 else (),
            where=_wild(source, 3, 0) if source.random() < 0.5 else None,
            by=tuple(Field(f"k{index}", _wild(source, 1, 0)) for index in range(source.randrange(2))),
            order=(Order("c0", source.random() < 0.5),) if source.random() < 0.3 else (),
            limit=source.choice((None, None, 0, 3)),
            output=source.choice(list(Output)),
            show=source.choice((0, 0, 5)),
        )  # fmt: skip
        try:
            plan.encode()
        except PlanError:
            continue
        return data, plan


def _wild(source: random.Random, depth: int, aggregates: float) -> Expression:
    if source.random() < aggregates:
        function = source.choice(list(AGGREGATES))
        inner = _wild(source, depth - 1, 0) if AGGREGATES[function].most else None
        return Aggregate(function, inner)
    if depth <= 0 or source.random() < 0.3:
        return Column(source.choice(_NAMES)) if source.random() < 0.6 else _value(source)
    function = source.choice(list(FUNCTIONS))
    takes = FUNCTIONS[function]
    count = source.randint(takes.least, min(takes.most, 3))
    constants = min(takes.constants, max(0, count - 1))
    return Call(
        function,
        (
            *(_wild(source, depth - 1, aggregates) for _ in range(count - constants)),
            *(_value(source) for _ in range(constants)),
        ),
    )


def _value(source: random.Random) -> Value:
    kind = source.choice((None, None, None, None, *ValueType))
    if kind is ValueType.DURATION:
        return Value(source.choice((0, 1, 1 << 62)), kind)
    texts = ("", "a", "%", "(", "12.50", "2026-05-01", "2026-05-01T12:00:00.5+02:00", "12:30:00")
    text = source.choice(
        (*texts, "int64", "timestamp[us]", "decimal(5, 2)", "00ff", "9" * 80, "nan")
    )
    if kind is not None:
        return Value(text, kind)
    numbers = (0, 1, -1, 63, 1 << 31, 1 << 63, -(1 << 63), 1 << 70, 1.5, 1e300, float("nan"))
    return Value(source.choice((None, True, False, text, text, *numbers)))


class Found(NamedTuple):
    """How cases ended: `outcomes` counts them, `faults` are those that should not have, `crashes`
    are Arrow's."""

    outcomes: Counter[str]
    faults: list[str]
    crashes: list[str]


def outcome(data: bytes, plan: Plan) -> str:
    """How a query ended. Raises what it should not raise."""
    try:
        ask(data, plan)
    except Refused as refused:
        assert str(refused).isprintable(), refused
        return "refused"
    except MemoryError:
        return "memory"
    return "answer"


def attempt(case: Callable[[random.Random], tuple[bytes, Plan]], first: int, count: int) -> Found:
    """Try the cases of these seeds, each process as many as it survives."""
    found = Found(Counter(), [], [])
    end = first + count
    while first < end:
        child = new_process(__name__, "try_cases", case.__name__, first, end)
        for line in child.stdout.splitlines():
            kind, _, text = line.partition(" ")
            if kind == "fault":
                found.faults.append(text)
            else:
                found.outcomes[kind] += 1
                first += 1
        if child.returncode:
            ended = f"seed {first}: {child.returncode} {child.stderr[-1000:]}"
            (found.crashes if child.returncode in _CRASHES else found.faults).append(ended)
            first += 1
    return found


def try_cases(case: str, first: int, end: int) -> None:
    """In a process of its own: print a line for each case, and one before it for each fault."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in range(first, end):
        signal.alarm(SECONDS)
        try:
            kind = outcome(*globals()[case](random.Random(seed)))
        except BaseException as error:  # noqa: BLE001
            text = f"fault seed {seed}: {type(error).__name__}: {error}".replace("\n", " ")
            print(text[:1000].encode(errors="replace").decode())
            kind = "raised"
        print(kind, flush=True)
