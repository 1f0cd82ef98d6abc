"""Queries without a drive, and what Arrow's own compute says of the same table."""

from __future__ import annotations

import ast
import datetime
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from csd_spec.opcodes import PAGE_SIZE
from potash.columns import Request, Result, query
from potash.columns.engines import Output, require_done
from potash.columns.layout import Job, Limits
from potash.programs.execution import execute
from potash.sdk.targets import Range
from potash_firmware.bpf import Engine, load_program


def written(table: pa.Table, batch: int | None = None) -> bytes:
    """An Arrow file as pyarrow writes it."""
    stream = io.BytesIO()
    with pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return stream.getvalue()


class InMemory:
    """A file in the memory of this process, as a `Stored`."""

    moved = 0
    ranges = ()

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def locate(self, pages: Range) -> list[Range]:
        return [pages]

    def confirm(self) -> None: ...
    def close(self) -> None: ...


class InProcess:
    """The firmware's linker, verifier and plain interpreter, on a file in memory."""

    def __init__(self, data: bytes, limits: Limits | None = None) -> None:
        self._data = data
        self.limits = limits or Limits(64, 1 << 16, lambda read, made: True)
        self.programs: list[bytes] = []

    def run(self, program: bytes, job: Job, pages: Sequence[Range], room: int) -> Output:
        self.programs.append(program)
        given = b"".join(
            self._data[one.page * PAGE_SIZE : (one.page + one.pages) * PAGE_SIZE].ljust(
                one.pages * PAGE_SIZE, b"\0"
            )
            for one in pages
        )
        ran = execute(
            load_program(program),
            given,
            arguments=[job.table],
            output_size=max(room, 8),
            engine=Engine.INTERPRETER,
            show=lambda text: None,
        )
        require_done(ran.return_value)
        assert ran.return_value == len(ran.output) <= room
        return Output(ran.output, 0)

    def close(self) -> None: ...


def ask(
    table: pa.Table | bytes,
    expression: str,
    *,
    batch: int | None = None,
    limits: Limits | None = None,
    **more: Any,
) -> Result:
    data = table if isinstance(table, bytes) else written(table, batch)
    return query(Request(expression, **more), InMemory(data), InProcess(data, limits))


# ---- The same by pyarrow ----

_COMPARE = {
    ast.Lt: pc.less, ast.LtE: pc.less_equal, ast.Gt: pc.greater, ast.GtE: pc.greater_equal,
    ast.Eq: pc.equal, ast.NotEq: pc.not_equal,
}  # fmt: skip


def selected(table: pa.Table, text: str) -> pa.Table:
    """The rows that Arrow's kernels select, with Kleene logic."""
    return table.filter(_mask(table, ast.parse(text, mode="eval").body))


def _mask(table: pa.Table, node: ast.expr) -> Any:
    match node:
        case ast.BinOp(left, ast.BitAnd(), right):
            return pc.and_kleene(_mask(table, left), _mask(table, right))
        case ast.BinOp(left, ast.BitOr(), right):
            return pc.or_kleene(_mask(table, left), _mask(table, right))
        case ast.UnaryOp(ast.Invert(), of):
            return pc.invert(_mask(table, of))
        case ast.Name(name):
            return table[name]
        case ast.Compare(ast.Name(name), [ast.Is()], _):
            return pc.is_null(table[name])
        case ast.Compare(left, [ast.In()], [ast.List(elements)]):
            same = [pc.equal(_operand(table, left), _operand(table, one)) for one in elements]
            mask = same[0]
            for one in same[1:]:
                mask = pc.or_kleene(mask, one)
            return mask
        case ast.Compare(left, [operator], [right]):
            sides = [_operand(table, left), _operand(table, right)]
            return _COMPARE[type(operator)](*_same_type(*sides))
    raise AssertionError(ast.dump(node))


def _operand(table: pa.Table, node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        column = table[node.id]
        return (
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        )
    return ast.literal_eval(node)


def _same_type(left: Any, right: Any) -> tuple[Any, Any]:
    """Columns and literals as types in which Arrow compares them exactly."""
    for column, other in ((left, right), (right, left)):
        if isinstance(other, str) and pa.types.is_temporal(column.type):
            moment = datetime.datetime.fromisoformat(other)
            scalar = pa.scalar(moment, pa.timestamp("us")).cast(column.type, safe=False)
            return (column, scalar) if column is left else (scalar, column)
    sides = []
    for side in (left, right):
        if isinstance(side, pa.ChunkedArray) and pa.types.is_integer(side.type):
            side = side.cast(pa.decimal128(38, 0))
        elif isinstance(side, pa.ChunkedArray) and pa.types.is_float16(side.type):
            side = side.cast(pa.float64())
        elif isinstance(side, int) and not isinstance(side, bool):
            other = right if side is left else left
            floating = isinstance(other, pa.ChunkedArray) and pa.types.is_floating(other.type)
            side = float(side) if floating else pa.scalar(side, pa.decimal128(38, 0))
        sides.append(side)
    return sides[0], sides[1]


def same(value: Any, other: Any) -> bool:
    """Whether two values are equal, NaN to NaN; the sign of zero is not compared."""
    if isinstance(value, float) and isinstance(other, float) and math.isnan(value):
        return math.isnan(other)
    return bool(value == other)


def raw(column: Any) -> list[Any]:
    """A column's values as a query gives them: dates and times as integers."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return list(column.cast(kind.value_type).to_pylist())
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return list(column.cast(width).to_pylist())
    return [float(one) if isinstance(one, np.floating) else one for one in column.to_pylist()]
