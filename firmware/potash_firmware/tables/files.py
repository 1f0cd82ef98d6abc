"""Files of tables: Parquet files, Arrow files and Arrow streams, read at random.

Apache Parquet format, and "Columnar Format: Serialization and Interprocess Communication" of the
Apache Arrow specification.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from potash_device.cores import CODECS
from potash_firmware.tables.errors import Refused, sentence

BATCH_ROWS = 1 << 16
BATCH_BYTES = 32 << 20
"""Rows and, roughly, bytes that are decoded at a time."""
MOST_ROWS = (1 << 31) - 1
"""Rows of a row group or of a record batch."""
READ_BYTES = 1 << 20
"""Bytes of a column that are read from a Parquet file at a time."""
METADATA_BYTES = 64 << 20
"""Bytes of a text, and members of a list, in the metadata of a Parquet file."""
CONTINUATION = b"\xff" * 4
"""The beginning of a message of Arrow."""
RECORD_BATCH = 3
"""The type of a message's header."""

Path = tuple[str, ...]
"""A column, and the names of members of structures in it."""


class ByteSource(Protocol):
    """The bytes of a file, at random."""

    size: int

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` with the bytes from `offset` on, all of which the file has."""


@dataclass(slots=True)
class Counters:
    """Counters of a query so far; other names than `codecs` are those of
    `csd_spec.table_plans.Piece`."""

    rows: int = 0
    file_rows: int = 0
    read: int = 0
    groups: int = 0
    excluded: int = 0
    decoded: int = 0
    compared: int = 0
    hashed: int = 0
    aggregated: int = 0
    codecs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CODECS, 0))
    """The part of `decoded` that was compressed, by codec."""


class Batch(NamedTuple):
    """Some rows of a table; there may be rows although no column is needed."""

    rows: int
    columns: dict[str, Any]
    rest: Callable[[], dict[str, Any]] = dict
    """Reads columns that are needed only if one of the rows counts."""


class TableFile(NamedTuple):
    """A file: the types of its columns, and what reads them."""

    schema: pa.Schema
    batches: Callable[[list[Path], list[Path], Exclude], Iterator[Batch]]
    """Batches with columns, and a rest of columns, without row groups that can be excluded."""

    def empty(self) -> Batch:
        """No rows: a plan is tried on these before anything is read."""
        columns = {field.name: plain(pa.nulls(0, field.type)) for field in self.schema}
        return Batch(0, columns)


Exclude = Callable[[Any, Mapping[str, int]], bool]
"""True if no row of a Parquet row group can count, by its metadata; the mapping has the indices of
columns that it has statistics of."""


class SourceFile:
    """A source as a file of Python, which Arrow reads."""

    closed = False

    def __init__(self, source: ByteSource, size: int, counters: Counters) -> None:
        self.source, self.size, self._counters = source, size, counters
        self._at = 0
        self.error: BaseException | None = None
        """The error that the source raised."""
        self.observe: Callable[[bytearray], object] = len
        """Called with all that is read."""

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self.size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int = -1) -> bytearray:
        left = max(0, self.size - self._at)
        data = bytearray(left if count < 0 else min(count, left))
        if data:
            try:
                self.source.read(self._at, memoryview(data))
            except BaseException as error:
                self.error = error
                raise
        self._at += len(data)
        self._counters.read += len(data)
        self.observe(data)
        return data

    def close(self) -> None:
        """A source stays open."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Refuses the file where Arrow finds it damaged; raises what the source has raised."""
        try:
            yield
        except (Refused, MemoryError):
            raise
        except (pa.ArrowException, ValueError, OSError, TypeError, RecursionError) as error:
            if self.error is not None:
                raise self.error from None
            raise Refused(f"the file cannot be read: {sentence(error)}") from None


def open_table(file: SourceFile, counters: Counters) -> TableFile:
    """The table in a file. Raises Refused."""
    magic = bytes(file.read(8))
    file.seek(0)
    if magic[:4] == b"FEA1":
        raise Refused("the file has the first version of Feather; write it as the second")
    if magic[:4] == b"PARE":
        raise Refused("the file is an encrypted Parquet file")
    readers: dict[bytes, Callable[[SourceFile, Counters], TableFile]] = {
        b"PAR1": _parquet,
        b"ARRO": partial(_arrow, pa.ipc.open_file),
        CONTINUATION: partial(_arrow, pa.ipc.open_stream),
    }
    if magic[:4] not in readers:
        raise Refused("the file is neither a Parquet file nor an Arrow file")
    with file.reading():
        table = readers[magic[:4]](file, counters)
        table.empty()
        return table


def plain(column: Any) -> Any:
    """An array of a type for which Arrow has functions: of a dictionary's values, of strings rather
    than views."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(column.storage)
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary).take(column.indices)
    if pa.types.is_run_end_encoded(kind):
        runs = pa.RunEndEncodedArray.from_arrays(column.run_ends, plain(column.values))
        return pc.run_end_decode(runs).slice(column.offset, len(column))
    whole = _plain_type(kind)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.array(column.to_pylist(), whole)  # Arrow's cast makes offsets too few
    return column if whole == kind else column.cast(whole)


def _plain_type(kind: Any) -> Any:
    types = pa.types

    def of_values(kind: Any) -> Any:
        return kind.value_field.with_type(_plain_type(kind.value_type))

    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(of_values(kind), kind.list_size)
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(of_values(kind))
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(of_values(kind))
    if types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    return _PLAIN.get(kind, kind)


_PLAIN = {
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.float16(): pa.float32(),
}


def _batch(found: pa.RecordBatch, counters: Counters, codecs: Mapping[str, str]) -> Batch:
    """A batch that has been read, once it is known to be sound, with codecs of its columns."""
    found.validate(full=True)
    columns = {name: plain(found.column(name)) for name in found.schema.names}
    for name, column in columns.items():
        counters.decoded += column.nbytes
        if (codec := codecs.get(name)) in counters.codecs:
            counters.codecs[codec] += column.nbytes
    return Batch(found.num_rows, columns)


def _slices(batch: Batch) -> Iterator[Batch]:
    for first in range(0, batch.rows, BATCH_ROWS):
        columns = {name: each.slice(first, BATCH_ROWS) for name, each in batch.columns.items()}
        yield Batch(min(BATCH_ROWS, batch.rows - first), columns)


def _require_rows(rows: int) -> None:
    if not 0 <= rows <= MOST_ROWS:
        raise Refused(f"the file has {rows} rows in a group; there can be {MOST_ROWS}")


def _parquet(file: SourceFile, counters: Counters) -> TableFile:
    opened = pa.parquet.ParquetFile(
        pa.PythonFile(file, "r"),
        buffer_size=READ_BYTES,
        pre_buffer=False,
        thrift_string_size_limit=METADATA_BYTES,
        thrift_container_size_limit=METADATA_BYTES,
    )
    metadata = opened.metadata
    counters.file_rows = max(0, metadata.num_rows)
    found = [metadata.schema.column(at) for at in range(metadata.num_columns)]
    leaves = {leaf.name: at for at, leaf in enumerate(found) if leaf.name == leaf.path}
    ordered = sorted((f"{leaf.path}.", at) for at, leaf in enumerate(found))

    def codecs(group: Any, paths: list[Path]) -> dict[str, str]:
        """The codecs of columns: each that of one of its chunks that are read."""
        columns: dict[str, str] = {}
        for path in paths:
            prefix = ".".join((*path, ""))
            place = bisect_left(ordered, (prefix, 0))
            for name, at in ordered[place : place + 1]:
                if name.startswith(prefix) and at < group.num_columns:
                    columns[path[0]] = group.column(at).compression.lower()
        return columns

    def read(paths: list[Path], index: int, size: int) -> Iterator[Any]:
        columns = [".".join(path) for path in paths]
        yield from opened.iter_batches(size, [index], columns, use_threads=False)

    def batches(first: list[Path], rest: list[Path], excluded: Exclude) -> Iterator[Batch]:
        if not first:
            first, rest = rest, []
        for index in range(metadata.num_row_groups):
            with file.reading():
                group = metadata.row_group(index)
                counters.groups += 1
                _require_rows(group.num_rows)
                if excluded(group, leaves):
                    counters.excluded += 1
                    continue
                ready, ready_later = (
                    partial(_batch, counters=counters, codecs=codecs(group, paths))
                    for paths in (first, rest)
                )
            if not first:
                for start in range(0, group.num_rows, BATCH_ROWS):
                    yield Batch(min(BATCH_ROWS, group.num_rows - start), {})
                continue
            size = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            size = min(BATCH_ROWS, max(1, size))
            found = _reading(file, map(ready, read(first, index, size)), lambda each: [each])
            later = _Later(file, read(rest, index, size), ready_later)
            for number, batch in enumerate(found):
                more = partial(later.columns, number, batch.rows)
                yield batch._replace(rest=more) if rest else batch

    return TableFile(opened.schema_arrow, batches)


class _Later:
    """Columns of a row group, none of which is read before one of its rows counts."""

    def __init__(
        self, file: SourceFile, found: Iterator[Any], ready: Callable[[Any], Batch]
    ) -> None:
        self._file, self._ready = file, ready
        self._found = enumerate(found)

    def columns(self, number: int, rows: int) -> dict[str, Any]:
        """The columns of a batch of so many rows, by its number; later ones have larger numbers."""
        with self._file.reading():
            found = next((each for at, each in self._found if at == number), None)
            if found is None or found.num_rows != rows:
                raise Refused("the file has columns of different lengths in a row group")
            return self._ready(found).columns


def _reading(
    file: SourceFile, found: Iterator[Any], each: Callable[[Any], Iterable[Batch]]
) -> Iterator[Batch]:
    """Batches of what `found` gives; errors of a user of these batches are left alone."""
    while True:
        with file.reading():
            part = next(found, None)
            if part is None:
                return
            ready = list(each(part))
        yield from ready


def _fields(schema: pa.Schema, paths: list[Path]) -> list[int]:
    """The columns that are read: one at least, as it says how many rows there are."""
    found = sorted({schema.get_field_index(path[0]) for path in paths})
    return found or sorted(range(len(schema)), key=lambda at: _width(schema.field(at).type))[:1]


def _width(kind: Any) -> int:
    try:
        return int(kind.bit_width)
    except ValueError:  # values have different lengths
        return 1 << 30


def _arrow(open_reader: Callable[..., Any], file: SourceFile, counters: Counters) -> TableFile:
    def opened(fields: list[int]) -> Any:
        file.seek(0)
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        return open_reader(pa.PythonFile(file, "r"), options=options)

    schema = opened([]).schema
    messages = _Messages()
    file.observe = messages.observe

    def read(paths: list[Path]) -> Iterator[Any]:
        reader = opened(_fields(schema, paths))
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            return map(reader.get_batch, range(reader.num_record_batches))
        return iter(reader)

    def sliced(found: Any) -> Iterator[Batch]:
        counters.groups += 1
        _require_rows(found.num_rows)
        counters.file_rows += found.num_rows
        return _slices(_batch(found, counters, dict.fromkeys(schema.names, messages.codec)))

    def batches(first: list[Path], rest: list[Path], excluded: Exclude) -> Iterator[Batch]:
        with file.reading():
            found = read(first + rest)
        yield from _reading(file, found, sliced)

    return TableFile(schema, batches)


class _Messages:
    """The codec of the last record batch that Arrow has read, which Arrow does not tell.

    Numbers of fields and values are those of Message.fbs of the Arrow format.
    """

    def __init__(self) -> None:
        self.codec = ""
        """Its name; empty for a record batch that is not compressed."""
        self._prefix = b""

    def observe(self, data: bytearray) -> None:
        """Take what Arrow has read: 8 bytes and metadata, in parts from a stream, or other data."""
        prefix = self._prefix
        self._prefix = (prefix + data)[-8:] if len(data) == 4 else b""
        metadata = memoryview(data)
        if data[:4] == CONTINUATION:
            prefix, metadata = bytes(data[:8]), metadata[8:]
        if prefix[:4] != CONTINUATION or _number(prefix, 4) != len(metadata):
            return
        message = _number(metadata, 0)
        if _number(metadata, _field(metadata, message, 1), 1) != RECORD_BATCH:
            return
        compression = _field(metadata, _table(metadata, _field(metadata, message, 2)), 3)
        codec = _field(metadata, _table(metadata, compression), 0)
        zstd = codec and _number(metadata, codec, 1)
        self.codec = "" if not compression else "zstd" if zstd else "lz4"


def _field(data: memoryview, table: int, number: int) -> int:
    """The place of a field of a FlatBuffers table; 0 if the table lacks it."""
    fields, at = table - _number(data, table, signed=True), 4 + 2 * number
    offset = _number(data, fields + at, 2) if at < _number(data, fields, 2) else 0
    return table + offset if offset else 0


def _table(data: memoryview, at: int) -> int:
    """The place of the table to which a field refers."""
    return at + _number(data, at)


def _number(data: bytes | memoryview, at: int, size: int = 4, *, signed: bool = False) -> int:
    """A number; places beyond the data have 0, as nobody has checked these messages."""
    return int.from_bytes(data[at : at + size], "little", signed=signed)
