"""The forms of a result: JSON lines, CSV, Arrow's stream and file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.csv

from csd_spec.table_plans import Output


def written(output: Output, schema: pa.Schema, batches: Iterator[Any]) -> Iterator[bytes]:
    """A result in a form, piece by piece."""
    match output:
        case Output.NONE:
            for _ in batches:  # they are counted
                yield b""
        case Output.JSON:
            names = (f"{_quoted(name)}:".replace("%", "%%") + "%s" for name in schema.names)
            line = "{" + ",".join(names) + "}\n"
            for batch in batches:
                yield _lines(line, batch)
        case Output.CSV:
            text = pa.schema([(field.name, _in_csv(field.type)) for field in schema])
            yield from _by_writer(
                lambda sink: pa.csv.CSVWriter(sink, text),
                (_as_text(each, text) for each in batches),
            )
        case Output.ARROW:
            yield from _by_writer(lambda sink: pa.ipc.new_stream(sink, schema), batches)
        case Output.FILE:
            yield from _by_writer(lambda sink: pa.ipc.new_file(sink, schema), batches)


def shown(schema: pa.Schema, batches: list[Any]) -> bytes:
    """The names and types of columns and the rows, as lines of JSON."""
    header = _dumped([[field.name, str(field.type)] for field in schema]) + "\n"
    line = "[" + ",".join(["%s"] * len(schema)) + "]\n"
    return header.encode() + b"".join(_lines(line, batch) for batch in batches)


_quoted = json.encoder.encode_basestring
_dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _lines(line: str, batch: Any) -> bytes:
    """The rows of a batch by a format of their values."""
    columns = [_texts(column) for column in batch.columns]
    return "".join(map(line.__mod__, zip(*columns, strict=True))).encode()


def _texts(array: Any) -> list[str]:
    """The values of an array as JSON's text. This is most of the time of long results, so that
    numbers are encoded together."""
    values = values_of(array)
    if pa.types.is_nested(array.type) or pa.types.is_interval(array.type):
        return list(map(_dumped, values))
    if any(isinstance(value, str) for value in values):
        return ["null" if value is None else _quoted(value) for value in values]
    return _dumped(values)[1:-1].split(",") if values else []


def values_of(array: Any) -> list[Any]:
    """The values of an array as JSON has them: decimals, dates and times as text (UTC where there
    is a time zone), durations as numbers of their unit, binary in hexadecimal, a map as an array of
    pairs."""
    kind = array.type
    types = pa.types
    if types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if isinstance(kind, pa.BaseExtensionType):
        return values_of(array.storage)
    if types.is_struct(kind):
        members = [values_of(array.field(index)) for index in range(kind.num_fields)]
        names = [field.name for field in kind]
        rows = zip(*members, strict=True) if members else [()] * len(array)
        return _where_valid(array, [dict(zip(names, row, strict=True)) for row in rows])
    if types.is_nested(kind) and not types.is_union(kind):
        return _lists(array)
    if types.is_temporal(kind) and not types.is_interval(kind):
        if types.is_duration(kind):
            return array.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
        zone = ""
        if types.is_timestamp(kind) and kind.tz is not None:  # no data of time zones is needed
            array, zone = array.cast(pa.int64()).cast(pa.timestamp(kind.unit)), "Z"
        texts = array.cast(pa.string()).to_pylist()
        return [value and value.replace(" ", "T") + zone for value in texts]
    if types.is_decimal(kind):
        array = array.cast(pa.string())
    values = array.to_pylist()
    if any(isinstance(value, bytes) for value in values):
        return [None if value is None else value.hex() for value in values]
    return values  # type: ignore[no-any-return]


def _where_valid(array: Any, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    valid = array.is_valid().to_pylist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _lists(array: Any) -> list[Any]:
    """The lists of an array, of whose values it may have a part."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        offsets = [size * (array.offset + index) for index in range(len(array) + 1)]
    else:
        offsets = array.offsets.to_pylist() or [0]
    first, count = offsets[0], offsets[-1] - offsets[0]
    if pa.types.is_map(array.type):
        members = (values_of(part.slice(first, count)) for part in (array.keys, array.items))
        values: list[Any] = list(map(list, zip(*members, strict=True)))
    else:
        values = values_of(array.values.slice(first, count))
    lists = [values[start - first : end - first] for start, end in pairwise(offsets)]
    return _where_valid(array, lists)


class _Sink:
    """A file that gives what was written to it since it was asked last."""

    closed = False

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None:
        """All is written."""

    def close(self) -> None:
        """The bytes that were written stay."""

    def taken(self) -> bytes:
        data, self._data = bytes(self._data), bytearray()
        return data


def _by_writer(make: Any, batches: Iterator[Any]) -> Iterator[bytes]:
    sink = _Sink()
    with make(pa.PythonFile(sink, "w")) as writer:
        yield sink.taken()
        for batch in batches:
            if batch.num_rows:
                writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


def _in_csv(kind: Any) -> Any:
    """The type that a column has in CSV: text where Arrow writes none."""
    types = pa.types
    written = (types.is_nested, types.is_binary, types.is_duration, types.is_interval)
    zoned = types.is_timestamp(kind) and kind.tz is not None
    return pa.string() if zoned or any(is_type(kind) for is_type in written) else kind


def _as_text(batch: Any, schema: pa.Schema) -> Any:
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        if column.type != field.type:
            values = values_of(column)
            texts = [
                value if value is None or isinstance(value, str) else json.dumps(value)
                for value in values
            ]
            column = pa.array(texts, pa.string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
