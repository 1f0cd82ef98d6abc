"""Tables, and requests of queries of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from csd_spec.table_plans import (
    Aggregate,
    Call,
    Column,
    Field,
    Order,
    Piece,
    PieceFlag,
    Plan,
    Request,
    Value,
)

ROWS = 5000


def sales(rows: int = ROWS) -> pa.Table:
    """Regions, prices and quantities."""
    regions = [f"region {row % 7}" for row in range(rows)]
    return pa.table(
        {
            "region": regions,
            "price": [row * 37 % 1000 for row in range(rows)],
            "quantity": pa.array([row % 11 for row in range(rows)], pa.int32()),
        }
    )


def request(plan: Plan, size: int, offset: int = 0) -> bytes:
    """The request of a piece of a query of a file of `size` bytes."""
    data = plan.encode()
    return Request(plan_size=len(data), file_size=size, offset=offset).encode() + data


def whole(plan: Plan, size: int, run: Callable[[bytes], bytes]) -> tuple[bytes, list[Piece]]:
    """The output of a query, of which `run` answers a request with a piece; and their headers."""
    headers: list[Piece] = []
    output, offset = b"", 0
    while not headers or headers[-1].flags & PieceFlag.MORE:
        made = run(request(plan, size, offset))
        header = Piece.decode_head(made)
        length = header.shown + header.length
        output += made[Piece.RECORD.size :][:length]
        headers.append(header)
        offset += length
    return output, headers


CHEAP = Plan(where=Call("less", (Column("price"), Value(500))))
"""Half of the rows, which are several pieces."""
BY_REGION = Plan(
    select=(
        Field("region", Column("region")),
        Field(
            "total",
            Aggregate("sum", Call("multiply_checked", (Column("price"), Column("quantity")))),
        ),
    ),
    by=(Field("region", Column("region")),),
    order=(Order("region"),),
)


def expected_rows() -> list[dict[str, Any]]:
    return [row for row in sales().to_pylist() if row["price"] < 500]


def expected_groups() -> list[dict[str, Any]]:
    totals: dict[str, int] = {}
    for row in sales().to_pylist():
        totals[row["region"]] = totals.get(row["region"], 0) + row["price"] * row["quantity"]
    return [{"region": region, "total": totals[region]} for region in sorted(totals)]


def rows(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]
