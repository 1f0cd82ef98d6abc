"""Tables, and requests of queries of them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from csd_spec.table_plans import Piece, PieceFlag, Plan, Request

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
