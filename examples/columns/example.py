"""A table of sales, a question about it as a program, and what plain Python answers.

    python examples/columns/example.py

writes `sales.arrow`, `program.o` and `expected.bin` beside this file.
"""

import datetime
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from potash.columns.arrow import ArrowFile
from potash.columns.layout import UNLIMITED
from potash.columns.query import Prepared, Request
from potash.columns.results import ResultColumn
from potash.columns.types import FLOAT64, UTF8, DataType, TypeId
from potash.columns.writer import arrow_file

ROWS = 60_000
PRODUCTS = ("anvil", "bellows", "hammer", "rasp", "tongs")
REGIONS = ("AP", "EU", "US")
FIRST_DAY = datetime.date(2026, 1, 1)
REQUEST = Request(
    "count(), sum(quantity), max(price)",
    where='(price > 10000) & (region == "EU") & (day >= "2026-03-01")',
    by="product",
)
"""The question. Prices are in cents."""
CHEAPEST, REGION, SINCE = 10_000, "EU", datetime.date(2026, 3, 1)
"""The same for plain Python."""

DATE = DataType(TypeId.DATE, 32, unit=-1)
INT16, INT32 = (DataType(TypeId.INT, bits) for bits in (16, 32))


class Sale(NamedTuple):
    """A row. The price is None where it is not known."""

    product: str
    region: str
    day: int
    price: int | None
    quantity: int
    weight: float


def sales() -> list[Sale]:
    """The rows, the same each time."""
    source = random.Random(1742)
    first = (FIRST_DAY - datetime.date(1970, 1, 1)).days
    return [
        Sale(
            source.choice(PRODUCTS),
            source.choice(REGIONS),
            first + number * 120 // ROWS,
            None if source.random() < 0.02 else source.randrange(500, 20_000),
            source.randrange(1, 50),
            source.lognormvariate(0, 1),
        )
        for number in range(ROWS)
    ]


class _Bytes:
    """The table in memory, of which only metadata is read here."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


def _prepared(data: bytes) -> Prepared:
    return Prepared(REQUEST, ArrowFile(_Bytes(data)))


def input_data() -> bytes:
    """The table as an Arrow file."""
    types = (UTF8, UTF8, DATE, INT32, INT16, FLOAT64)
    columns = zip(*sales(), strict=True)
    named = zip(Sale._fields, types, columns, strict=True)
    return arrow_file([ResultColumn(*one) for one in named], batch_rows=25_000)


def program(data: bytes) -> bytes:
    """The question as an object file."""
    return _prepared(data).program()


def arguments(data: bytes) -> list[bytes]:
    """What the program is started with: where in the input the columns of each batch are."""
    return [_prepared(data).whole().table]


def expected(data: bytes) -> bytes:
    """The words that the program makes, computed from the rows.

    For each product, in the order of the dictionary, and for null: the rows, then the state of the
    columns `quantity` (of which there is a sum) and `price` (least and greatest).
    """
    rows = sales()
    since = (SINCE - datetime.date(1970, 1, 1)).days
    output = b""
    for product in [*dict.fromkeys(row.product for row in rows), None]:
        found = [
            (row.quantity, row.price)
            for row in rows
            if row.product == product
            and row.price is not None
            and row.price > CHEAPEST
            and row.region == REGION
            and row.day >= since
        ]
        quantities, prices = [one for one, _ in found], [one for _, one in found]
        count, total = len(found), sum(quantities)
        least, greatest = min(prices, default=0), max(prices, default=0)
        output += _words(count, count, 0, 0, 0, total, 0) + _words(count, count, least, greatest)
    return output


def _words(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}Q", *words)


def needed(data: bytes) -> int:
    """Bytes that a host without the device reads: the columns of the question."""
    return sum(job.size for job in _prepared(data).jobs(lambda pages: [pages], UNLIMITED))


def describe(data: bytes, output: bytes) -> list[str]:
    """What to show of it."""
    columns = _prepared(data).found(output).columns()
    rows: list[Sequence[object]] = [[column.name for column in columns]]
    rows += zip(*(column.values for column in columns), strict=True)
    return [f"{REQUEST.expression} where {REQUEST.where}:"] + [
        "  ".join(f"{one!s:>13}" for one in row) for row in rows
    ]


if __name__ == "__main__":
    made = input_data()
    files = {"sales.arrow": made, "program.o": program(made), "expected.bin": expected(made)}
    for name, content in files.items():
        (Path(__file__).parent / name).write_bytes(content)
