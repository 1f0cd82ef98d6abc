"""An Arrow IPC file: where its record batches and dictionaries are.

Only metadata and dictionaries are read, through a `Store`; the columns stay where they are. The
file may be a stranger's: each offset and length is checked before it is used. Apache Arrow,
"Columnar Format", section "IPC File Format", and `format/File.fbs`, `format/Message.fbs`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple, Protocol

from potash.columns.errors import InvalidFile
from potash.columns.flatbuffers import Table, root
from potash.columns.schema import Column, Place, Schema, read_schema
from potash.columns.types import TEXTS, DataType, TypeId, Value
from potash_wire.records import I32, I64, At, Record

MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_TAIL_SIZE = 4 + len(MAGIC)

MAX_METADATA = 16 << 20
MAX_BATCHES = 1 << 16
MAX_DICTIONARY = 1 << 16
"""Values of a dictionary that is used."""
MAX_DICTIONARY_SIZE = 64 << 20
MAX_READ = 256 << 20
"""Bytes of metadata and dictionaries."""
MAX_ROWS = 1 << 47
"""Rows of a batch, so that those of all batches are a number of 64 bits."""
MAX_NODES = 4_000_000
"""Columns of all batches."""

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
"""Members of the union MessageHeader."""

_OTHERS = {
    b"PAR1": "it is a Parquet file; convert it with pyarrow: pyarrow.feather.write_feather("
    'pyarrow.parquet.read_table("FILE.parquet"), "FILE.arrow", compression="uncompressed")',
    b"FEA1": "it is a Feather file of version 1; write it with version 2 of the format",
    _CONTINUATION: "it is an Arrow stream; write it as an Arrow file, with pyarrow.ipc.new_file",
}


class Store(Protocol):
    """Storage of a file."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of it. Raises PotashError or OSError."""


class Span(NamedTuple):
    """Bytes of the file."""

    offset: int
    length: int


class Block(NamedTuple):
    """A message, as the footer describes it."""

    offset: I64
    metadata: I32
    body: Annotated[I64, At(16)]


_BLOCKS = Record(Block)
_PAIRS = Record(tuple[I64, I64])
_COUNTS = Record(tuple[I64])
_VIEWS = Record(tuple[I32, Annotated[I32, At(8)], I32])


class Part(NamedTuple):
    """One column of a batch: its values and, if there are nulls, its validity bitmap."""

    data: Span
    validity: Span | None


class Batch(NamedTuple):
    """A record batch: its rows, and those of its columns that are wanted, by name."""

    rows: int
    parts: dict[str, Part]


class _Body(NamedTuple):
    """All fields of a batch, and its buffers by their offsets in the file."""

    rows: int
    nodes: Sequence[tuple[int, int]]
    buffers: Sequence[Span]
    first_buffers: Sequence[int]
    """The first buffer of each field."""

    def part(self, column: Column) -> Part:
        """A column of fixed width. Raises InvalidFile where the buffers are too short."""
        rows, nulls = self.nodes[column.place]
        if rows != self.rows or not 0 <= nulls <= rows:
            raise InvalidFile(f"a batch of {self.rows} rows has {rows} of column {column.name!r}")
        first = self.first_buffers[column.place]
        validity, data = self.buffers[first], self.buffers[first + 1]
        if data.length < _bytes(rows * column.stored.bits):
            raise InvalidFile(f"column {column.name!r} has too few bytes for {rows} rows")
        if nulls and validity.length < _bytes(rows):
            raise InvalidFile(f"column {column.name!r} does not say which of its rows are null")
        return Part(data, validity if nulls else None)


class ArrowFile:
    """The metadata of a file: its schema, and its record batches.

    Raises InvalidFile for what is not such a file, or for one that is compressed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.metadata = 0
        """Bytes that were read."""
        footer = self._footer()
        described = footer.table(1)
        if described is None:
            raise InvalidFile("its footer has no schema")
        self.schema: Schema = read_schema(described)
        self._dictionaries = self._blocks(footer, 2)
        self._batches = self._blocks(footer, 3)

    @property
    def size(self) -> int:
        return self._store.size

    def batches(self, columns: Sequence[Column]) -> Iterator[Batch]:
        """The record batches, in their order, with these columns. Raises InvalidFile."""
        if len(self._batches) * len(self.schema.places) > MAX_NODES:
            raise InvalidFile("it has too many batches of too many columns; write larger batches")
        for block in self._batches:
            body = _body(self._message(block, _BATCH), self.schema.places, block)
            yield Batch(body.rows, {column.name: body.part(column) for column in columns})

    def dictionary(self, column: Column) -> list[Value | None]:
        """The values of a column's dictionary, deltas included. Raises InvalidFile."""
        found: list[Value | None] | None = None
        for block in self._dictionaries:
            message = self._message(block, _DICTIONARY)
            if message.int64(0) != column.dictionary:
                continue
            if found is not None and not message.uint8(2):
                raise InvalidFile(f"the dictionary of column {column.name!r} is replaced")
            values = self._dictionary_values(message, column, block)
            found = (found or []) + values
            if len(found) > MAX_DICTIONARY:
                raise _too_large(column)
        if found is None and self._batches:
            raise InvalidFile(f"the dictionary of column {column.name!r} is missing")
        return found or []

    def _dictionary_values(
        self, message: Table, column: Column, block: Block
    ) -> list[Value | None]:
        described = message.table(1)
        if described is None:
            raise InvalidFile(f"the dictionary of column {column.name!r} has no values")
        if block.body > MAX_DICTIONARY_SIZE:
            raise _too_large(column)
        is_text = column.type.id in TEXTS
        if not is_text and not column.type.is_computable:
            raise InvalidFile(f"a dictionary of {column.type} cannot be used; use strings")
        is_view = column.type.id == TypeId.UTF8_VIEW
        batch = _body(described, [Place(3 if is_text and not is_view else 2, is_view)], block)
        if batch.rows > MAX_DICTIONARY:
            raise _too_large(column)
        validity, *buffers = [self._read(*span) for span in batch.buffers]
        nulls = batch.nodes[0][1]
        values: list[Value | None]
        if is_view:
            values = _viewed(batch.rows, *buffers)
        elif is_text:
            values = _texts(batch.rows, *buffers, wide=column.type.id == TypeId.LARGE_UTF8)
        else:
            values = unpack(column.type, buffers[0], batch.rows)
        if not nulls:
            return values
        if len(validity) < _bytes(batch.rows):
            raise InvalidFile("a dictionary does not say which of its values are null")
        return [
            value if validity[i >> 3] >> (i & 7) & 1 else None for i, value in enumerate(values)
        ]

    def _footer(self) -> Table:
        smallest = len(MAGIC) + 2 + _TAIL_SIZE
        head = self._read(0, min(self.size, len(MAGIC)))
        if not head.startswith(MAGIC) or self.size < smallest:
            for magic, reason in _OTHERS.items():
                if head.startswith(magic):
                    raise InvalidFile(reason)
            raise InvalidFile("it is not an Arrow file")
        tail = self._read(self.size - _TAIL_SIZE, _TAIL_SIZE)
        length = int.from_bytes(tail[:4], "little", signed=True)
        if tail[4:] != MAGIC:
            raise InvalidFile("it is cut off, or was not closed by its writer")
        if not 0 < length <= min(MAX_METADATA, self.size - smallest):
            raise InvalidFile(f"its footer cannot have {length} bytes")
        return root(self._read(self.size - _TAIL_SIZE - length, length))

    def _blocks(self, footer: Table, field: int) -> list[Block]:
        found = footer.structs(field, _BLOCKS)
        if len(found) > MAX_BATCHES:
            raise InvalidFile(f"it has {len(found)} batches; write it with at most {MAX_BATCHES}")
        for block in found:
            if min(block) < 0 or sum(block) > self.size or block.metadata > MAX_METADATA:
                raise InvalidFile("its footer refers to a batch that is not in it")
        return found

    def _message(self, block: Block, kind: int) -> Table:
        """The header of a message."""
        data = self._read(block.offset, block.metadata)
        start = 8 if data.startswith(_CONTINUATION) else 4
        length = int.from_bytes(data[start - 4 : start], "little")
        if start + length > len(data):
            raise InvalidFile("a batch's metadata is longer than its footer says")
        message = root(data[start : start + length])
        header = message.table(2)
        if message.uint8(1) != kind or header is None:
            raise InvalidFile("its footer refers to something else than a batch")
        return header

    def _read(self, offset: int, length: int) -> bytes:
        self.metadata += length
        if self.metadata > MAX_READ:
            raise InvalidFile(f"its metadata and dictionaries have more than {MAX_READ} bytes")
        data = self._store.read(offset, length)
        if len(data) != length:
            raise InvalidFile("it has become shorter")
        return data


def _body(table: Table, places: Sequence[Place], block: Block) -> _Body:
    if table.table(3) is not None:
        raise InvalidFile(
            "its batches are compressed; write it without compression, as with"
            ' pyarrow.feather.write_feather(table, "FILE.arrow", compression="uncompressed")'
        )
    rows, nodes = table.int64(0), table.structs(1, _PAIRS)
    body = block.offset + block.metadata
    buffers = []
    for offset, length in table.structs(2, _PAIRS):
        if min(offset, length) < 0 or offset + length > block.body:
            raise InvalidFile("a batch has bytes outside of it")
        buffers.append(Span(body + offset, length))
    views = iter(table.structs(4, _COUNTS))
    firsts, at = [], 0
    for place in places:
        firsts.append(at)
        at += place.buffers
        if place.is_view:
            (more,) = next(views, (0,))
            at += max(0, more)
    if not 0 <= rows < MAX_ROWS or len(nodes) != len(places) or len(buffers) != at:
        raise InvalidFile("a batch does not have the columns of the schema")
    return _Body(rows, nodes, buffers, firsts)


def _too_large(column: Column) -> InvalidFile:
    return InvalidFile(
        f"the dictionary of column {column.name!r} has more than {MAX_DICTIONARY} values"
    )


def unpack(kind: DataType, data: bytes, count: int) -> list[Value | None]:
    """Values of fixed width. Raises InvalidFile where there are too few bytes."""
    if len(data) < _bytes(count * kind.bits):
        raise InvalidFile(f"{count} values of {kind} do not fit in {len(data)} bytes")
    if kind.id == TypeId.BOOL:
        return [bool(data[i >> 3] >> (i & 7) & 1) for i in range(count)]
    return list(struct.unpack_from(f"<{count}{kind.code}", data))


def _texts(count: int, offsets: bytes, data: bytes, *, wide: bool) -> list[Value | None]:
    if not count:
        return []
    code = "q" if wide else "i"
    if len(offsets) < struct.calcsize(f"<{count + 1}{code}"):
        raise InvalidFile("a dictionary has too few bytes for its values")
    places = struct.unpack_from(f"<{count + 1}{code}", offsets)
    values: list[Value | None] = []
    for begin, end in pairwise(places):
        if not 0 <= begin <= end <= len(data):
            raise InvalidFile("a dictionary has a value outside of its bytes")
        values.append(data[begin:end].decode(errors="replace"))
    return values


_INLINE = 12
"""The longest text that is in its view itself."""


def _viewed(count: int, views: bytes, *data: bytes) -> list[Value | None]:
    """Texts of "Variable-size Binary View Layout": a length, and the text or where it is."""
    if len(views) < count * _VIEWS.size:
        raise InvalidFile("a dictionary has too few bytes for its values")
    values: list[Value | None] = []
    found = _VIEWS.decode_all(views[: count * _VIEWS.size])
    for at, (length, number, begin) in enumerate(found):
        if length <= _INLINE:
            source, begin = views, at * _VIEWS.size + 4
        else:
            source = data[number] if 0 <= number < len(data) else b""
        if not 0 <= begin <= begin + length <= len(source):
            raise InvalidFile("a dictionary has a value outside of its bytes")
        values.append(source[begin : begin + length].decode(errors="replace"))
    return values


def _bytes(bits: int) -> int:
    return (bits + 7) // 8
