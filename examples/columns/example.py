"""A table of sales, a question about it, and what plain Python answers.

    python examples/columns/example.py

writes `sales.parquet` and `expected.jsonl` beside this file. It needs pyarrow.
"""

import datetime
import io
import json
import random
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from potash.columns import Request

ROWS = 60_000
PRODUCTS = ("anvil", "bellows", "hammer", "rasp", "tongs")
REGIONS = ("AP", "EU", "US")
FIRST_DAY = datetime.date(2026, 1, 1)
REQUEST = Request(
    "count(), sum(price * quantity), max(price)",
    where='(price > 10000) & (region == "EU") & (day >= "2026-03-01")',
    by="product",
)
"""The question. Prices are in cents."""
CHEAPEST, REGION, SINCE = 10_000, "EU", datetime.date(2026, 3, 1)
"""The same for plain Python."""
USED = ("product", "region", "day", "price", "quantity")


class Sale(NamedTuple):
    """A row. The price is None where it is not known."""

    product: str
    region: str
    day: datetime.date
    price: int | None
    quantity: int
    weight: float


def sales() -> list[Sale]:
    """The rows, the same each time, in the order of their days."""
    source = random.Random(1742)
    return [
        Sale(
            source.choice(PRODUCTS),
            source.choice(REGIONS),
            FIRST_DAY + datetime.timedelta(days=number * 120 // ROWS),
            None if source.random() < 0.02 else source.randrange(500, 20_000),
            source.randrange(1, 50),
            source.lognormvariate(0, 1),
        )
        for number in range(ROWS)
    ]


def input_data() -> bytes:
    """The table as a Parquet file."""
    columns = zip(*sales(), strict=True)
    table = pa.table(dict(zip(Sale._fields, map(pa.array, columns), strict=True)))
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=10_000)
    return stream.getvalue()


def expected(data: bytes) -> bytes:
    """The lines of JSON that the drive makes, computed from the rows."""
    rows = sales()
    lines = []
    for product in PRODUCTS:
        found = [
            (row.price, row.quantity)
            for row in rows
            if row.product == product
            and row.price is not None
            and row.price > CHEAPEST
            and row.region == REGION
            and row.day >= SINCE
        ]
        total = sum(price * quantity for price, quantity in found)
        greatest = max(price for price, _ in found)
        values = (product, len(found), total, greatest)
        names = ("product", "count()", "sum(price * quantity)", "max(price)")
        row = dict(zip(names, values, strict=True))
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    return "".join(lines).encode()


def needed(data: bytes) -> int:
    """Bytes that a host without the device reads: the columns of the question."""
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
    return sum(each.total_compressed_size for each in chunks if each.path_in_schema in USED)


def describe(data: bytes, output: bytes) -> list[str]:
    """What to show of it."""
    rows = [json.loads(line) for line in output.splitlines()]
    lines = [f"{REQUEST.expression} where {REQUEST.where}:"]
    for row in rows:
        lines.append("  ".join(f"{name}: {value}" for name, value in row.items()))
    return lines


if __name__ == "__main__":
    made = input_data()
    files = {"sales.parquet": made, "expected.jsonl": expected(made)}
    for name, content in files.items():
        (Path(__file__).parent / name).write_bytes(content)
