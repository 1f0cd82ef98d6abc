"""Queries without a drive: the firmware's engine on a file in memory."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from potash.columns import Request, Result, query
from potash.fleet.combining import OnHost, Table


def written(table: pa.Table, batch: int | None = None) -> bytes:
    """An Arrow file as pyarrow writes it."""
    stream = io.BytesIO()
    with pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return stream.getvalue()


def ask(table: pa.Table | bytes, expression: str, *, buffer: int = 1 << 20, **more: Any) -> Result:
    """The result of a query; `buffer` is the room for a piece of it."""
    data = table if isinstance(table, bytes) else written(table)
    return query(Request(expression, **more), Table(data), OnHost(buffer))
