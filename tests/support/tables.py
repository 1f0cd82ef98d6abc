"""Tables in files in memory, and the firmware's engine on them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from csd_spec.table_plans import (
    Aggregate,
    Call,
    Column,
    Expression,
    Field,
    Output,
    Piece,
    PieceFlag,
    Plan,
    Request,
    Value,
)
from potash_firmware.tables import Execution, begin

HEADER = Piece.RECORD.size


def parquet(table: pa.Table, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


def arrow(table: pa.Table, rows: int | None = None, **options: Any) -> bytes:
    """An Arrow file with record batches of so many rows."""
    return _written(pa.ipc.new_file, table, rows, options)


def arrow_stream(table: pa.Table, rows: int | None = None, **options: Any) -> bytes:
    return _written(pa.ipc.new_stream, table, rows, options)


def _written(create: Any, table: pa.Table, rows: int | None, options: dict[str, Any]) -> bytes:
    if options.get("compression") == "none":
        options["compression"] = None
    stream = io.BytesIO()
    with create(stream, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return stream.getvalue()


class Memory:
    """A source in memory, and which of its bytes were read."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size = len(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, into: memoryview) -> None:
        self.reads.append((offset, len(into)))
        into[:] = self._data[offset : offset + len(into)]


class Answer(NamedTuple):
    """The shown rows and the output of a query, the counters of its last piece, and
    decoded bytes by codec."""

    shown: bytes
    output: bytes
    counters: Piece
    codecs: dict[str, int]

    @property
    def table(self) -> pa.Table:
        return pa.ipc.open_stream(self.output).read_all()


def request(plan: Plan, size: int) -> bytes:
    data = plan.encode()
    return Request(plan_size=len(data), file_size=size).encode() + data + bytes(8)


def pieces(execution: Execution, room: int = 1 << 20) -> Answer:
    """All of a query's output, in pieces of at most so many bytes."""
    into = bytearray(HEADER + room)
    shown, output, more = b"", b"", True
    while more:
        length = execution.piece(len(shown) + len(output), memoryview(into))
        head = Piece.decode_head(into[:HEADER])
        assert length == HEADER + head.shown + head.length
        shown += into[HEADER : HEADER + head.shown]
        output += into[HEADER + head.shown : length]
        more = bool(head.flags & PieceFlag.MORE)
    return Answer(shown, output, head, execution.codecs)


def ask(data: bytes | Memory, plan: Plan, room: int = 1 << 20) -> Answer:
    """The answer to a query of a file."""
    source = data if isinstance(data, Memory) else Memory(data)
    return pieces(begin(request(plan, source.size), source), room)


def rows(data: bytes | Memory, plan: Plan) -> list[dict[str, Any]]:
    """The rows of the answer to a query of a file."""
    answer = ask(data, plan._replace(output=Output.ARROW))
    return answer.table.to_pylist()  # type: ignore[no-any-return]


def column(name: str, *members: str) -> Column:
    return Column((name, *members) if members else name)


def call(function: str, *of: Any) -> Call:
    return Call(function, tuple(map(expression, of)))


def aggregate(function: str, of: Any = None) -> Aggregate:
    return Aggregate(function, None if of is None else expression(of))


def expression(value: Any) -> Expression:
    """An expression; what is none is a value."""
    if isinstance(value, Column | Value | Call | Aggregate):
        return value
    return Value(value)


def fields(*columns: str | Field, **others: Any) -> tuple[Field, ...]:
    """Columns of a result: names of the file's columns, and named expressions."""
    plain = [Field(each, Column(each)) if isinstance(each, str) else each for each in columns]
    return (*plain, *(Field(name, expression(each)) for name, each in others.items()))


def names(found: Sequence[Field]) -> list[str]:
    return [field.name for field in found]


def lineitem(count: int) -> pa.Table:
    """Columns of TPC-H's LINEITEM that queries 1 and 6 read, by the distributions of the
    specification (revision 3.0.1, clause 4.2.3), in the order of the ship dates."""
    source = np.random.default_rng(7)

    def decimals(hundredths: Any) -> pa.Array:
        return pa.array([Decimal(int(each)) / 100 for each in hundredths], pa.decimal128(15, 2))

    first, last, today = (
        int(np.datetime64(day).astype(int)) for day in ("1992-01-01", "1998-12-31", "1995-06-17")
    )
    quantity = source.integers(1, 51, count)
    part = source.integers(1, 200_001, count)
    ordered = source.integers(first, last - 151 + 1, count)
    shipped = np.sort(ordered + source.integers(1, 122, count))
    received = shipped + source.integers(1, 31, count)
    price = 90_000 + (part // 10) % 20_001 + 100 * (part % 1000)
    returned = np.where(received <= today, source.choice(["R", "A"], count), "N")
    return pa.table(
        {
            "l_quantity": decimals(quantity * 100),
            "l_extendedprice": decimals(quantity * price),
            "l_discount": decimals(source.integers(0, 11, count)),
            "l_tax": decimals(source.integers(0, 9, count)),
            "l_returnflag": pa.array(returned.tolist()),
            "l_linestatus": pa.array(np.where(shipped > today, "O", "F").tolist()),
            "l_shipdate": pa.array(shipped.astype("datetime64[D]")),
        }
    )
