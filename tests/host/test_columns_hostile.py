"""Files that are no Arrow files, or damaged ones: one sentence each, and never anything else."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest

from potash.columns import InvalidFile, Request
from potash.columns.arrow import MAGIC, ArrowFile
from potash.columns.flatbuffers import Table
from potash.columns.query import Prepared
from potash.sdk.errors import PotashError
from support.columns import InMemory, ask, written

TABLE = pa.table(
    {
        "x": pa.array([1, None, 3, 4] * 5, pa.int16()),
        "f": [1.0, 2.0, None, 4.0] * 5,
        "k": pa.array(["a", "b", None, "c"] * 5).dictionary_encode(),
        "o": [True, False, None, True] * 5,
    }
)
GOOD = written(TABLE, 7)
QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("count(), sum(f), min(x)", {"by": "k", "where": 'o | (k != "a")'}),
    ("(f > 1) & (x is not None)", {}),
)


def footer_of(data: bytes) -> tuple[int, int]:
    length = struct.unpack_from("<i", data, len(data) - 10)[0]
    return len(data) - 10 - length, length


def with_footer(change: bytes) -> bytes:
    start, _ = footer_of(GOOD)
    return GOOD[:start] + change + struct.pack("<i", len(change)) + MAGIC


def compressed() -> bytes:
    stream = io.BytesIO()
    pyarrow.feather.write_feather(TABLE, stream, compression="lz4")
    return stream.getvalue()


def as_stream() -> bytes:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is not an Arrow file"),
        (b"a,b\n1,2\n", "it is not an Arrow file"),
        (MAGIC, "it is not an Arrow file"),
        (b"PAR1" + bytes(100) + b"PAR1", "it is a Parquet file; convert it with pyarrow: .*"),
        (as_stream(), "it is an Arrow stream; write it as an Arrow file, .*"),
        (compressed(), "its batches are compressed; write it without compression, .*"),
        (GOOD[:-1], "it is cut off, or was not closed by its writer"),
        (GOOD[:-10] + struct.pack("<i", -1) + MAGIC, "its footer cannot have -1 bytes"),
        (GOOD[:-10] + struct.pack("<i", 1 << 30) + MAGIC, r"its footer cannot have \d+ bytes"),
        (with_footer(b"\xff" * 64), "its metadata refers to something past the end of it"),
        (with_footer(bytes(64)), "its footer has no schema"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidFile, match=f"^the file cannot be queried: {reason}$"):
        ask(data, "x > 1")


def test_a_name_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    with pytest.raises(InvalidFile, match="two columns with the name 'x'"):
        ask(table, "x > 1")


def test_a_row_outside_of_its_dictionary_is_an_error() -> None:
    indices = pa.array([0, 1, 2], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    table = pa.table({"k": column})
    assert ask(table, 'k == "b"').rows == 3
    with pytest.raises(PotashError, match="a value that is not in its column's dictionary"):
        ask(table, "count()", by="k")
    with pytest.raises(PotashError, match="'k' has a value that is not in its dictionary"):
        ask(table, "k is not None")


def test_a_damaged_file_gives_an_answer_or_one_sentence() -> None:
    source = random.Random(25)
    ended = {"answer": 0, "sentence": 0}
    start, length = footer_of(GOOD)
    for number in range(500):
        data = bytearray(GOOD)
        for _ in range(source.choice((1, 1, 2, 8))):
            # Mostly in the footer and in the messages' metadata, which the reader goes through.
            at = source.randrange(start, start + length) if number % 2 else source.randrange(start)
            size = source.choice((1, 2, 4, 8))
            value = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.getrandbits(64)))
            data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        expression, more = QUESTIONS[number % 4 // 2]
        try:
            ask(bytes(data), expression, **more)
            ended["answer"] += 1
        except PotashError as error:
            assert "\n" not in str(error)
            ended["sentence"] += 1
    assert min(ended.values()) > 30, ended


def test_a_file_that_is_cut_off_anywhere_is_refused() -> None:
    for length in range(0, len(GOOD), 13):
        with pytest.raises(InvalidFile):
            ask(GOOD[:length], "x > 1")


def test_more_rows_than_a_number_has_are_refused() -> None:
    """Columns of nulls take no bytes."""
    data = written(pa.table({"nothing": pa.nulls(2 * 54_321)}), 54_321)
    assert ask(data, "count()").to_pydict() == {"count()": [2 * 54_321]}
    many = data.replace(struct.pack("<q", 54_321), struct.pack("<q", 1 << 62))
    with pytest.raises(InvalidFile, match="a batch does not have the columns of the schema"):
        ask(many, "count()")


def test_a_long_list_is_read_one_by_one() -> None:
    """A vtable with one field; the table of it; a vector, each of whose tables is its entry."""
    count = 1 << 20
    data = struct.pack("<HHH2xiII", 6, 8, 4, 8, 4, count) + bytes(4 * count)
    tracemalloc.start()
    assert next(iter(Table(data, 8).tables(0))).at == 20
    assert tracemalloc.get_traced_memory()[1] < count
    tracemalloc.stop()


def test_columns_that_are_not_asked_for_are_not_kept() -> None:
    """Each of 40 000 would take some hundred bytes."""
    columns = {f"c{at}": range(200) for at in range(200)}
    data = InMemory(written(pa.table(columns), 1))
    tracemalloc.start()
    prepared = Prepared(Request("count()", where="c7 > 1"), ArrowFile(data))
    assert len(prepared.batches) == 200
    assert tracemalloc.get_traced_memory()[1] < 3e6
    tracemalloc.stop()
