"""Columns of values as an Arrow IPC file, which pyarrow and a further query can read.

Texts are written as dictionaries. Apache Arrow, `format/Message.fbs`, `format/Schema.fbs`,
`format/File.fbs`; "Columnar Format", section "IPC File Format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from potash.columns.results import ResultColumn
from potash.columns.types import TEXTS, DataType, TypeId, Value

_MAGIC = b"ARROW1"
_VERSION = 4
"""MetadataVersion.V5."""
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_INDEX = DataType(TypeId.INT, 32)


class _Object(bytes):
    """Something in a FlatBuffer, with all that it refers to, behind four bytes that are free.

    It begins there, and is a multiple of eight bytes, so that all in it is aligned anywhere.
    """


def _whole(data: bytes) -> _Object:
    return _Object(data + bytes(-len(data) % 8))


def _table(*fields: bytes | None) -> _Object:
    """A table by its fields, in the order of their numbers: a scalar's bytes, or an object."""
    data, places = bytearray(8), []
    for field in fields:
        size = 0 if field is None else 4 if isinstance(field, _Object) else len(field)
        data += bytes(-len(data) % size if size else 0)
        places.append(len(data) if size else 4)
        data += bytes(size) if field is None or isinstance(field, _Object) else field
    data += bytes(len(data) % 2)
    struct.pack_into("<i", data, 4, 4 - len(data))
    sizes = 4 + 2 * len(places), len(data) - 4
    data += struct.pack(f"<HH{len(places)}H", *sizes, *(place - 4 for place in places))
    objects = [
        (at, one) for at, one in zip(places, fields, strict=True) if isinstance(one, _Object)
    ]
    return _refer(data, objects)


def _tables(tables: Sequence[_Object]) -> _Object:
    """A vector of tables."""
    data = bytearray(4) + struct.pack("<I", len(tables)) + bytes(4 * len(tables))
    return _refer(data, [(8 + 4 * number, one) for number, one in enumerate(tables)])


def _refer(data: bytearray, objects: Iterable[tuple[int, _Object]]) -> _Object:
    """Put objects behind data that refer to them at these places."""
    for place, one in objects:
        data += bytes(-len(data) % 8)
        struct.pack_into("<I", data, place, len(data) + 4 - place)
        data += one
    return _whole(bytes(data))


def _structs(form: str, values: Sequence[tuple[int, ...]]) -> _Object:
    """A vector of structures, each packed."""
    packed = b"".join(struct.pack(f"<{form}", *one) for one in values)
    return _whole(bytes(4) + struct.pack("<I", len(values)) + packed)


def _string(text: str) -> _Object:
    data = text.encode()
    return _whole(bytes(4) + struct.pack("<I", len(data)) + data + b"\0")


def _int16(value: int) -> bytes:
    return struct.pack("<h", value)


def _int64(value: int) -> bytes:
    return struct.pack("<q", value)


def _buffer(table: _Object) -> bytes:
    """A FlatBuffer, which begins with the distance to its table."""
    return struct.pack("<I", 4) + table[4:]


class _Stored(NamedTuple):
    """A field of a batch: its rows and nulls, and its buffers."""

    rows: int
    nulls: int
    buffers: Sequence[bytes]


def arrow_file(columns: Sequence[ResultColumn], batch_rows: int = 1 << 16) -> bytes:
    """An Arrow IPC file of columns of the same length, in batches of at most `batch_rows`."""
    texts = {column.name: _distinct(column.values) for column in columns if _is_text(column)}
    schema = _schema(columns)
    data = bytearray(_MAGIC + bytes(2))
    _append(data, _SCHEMA, schema, b"")
    dictionaries, batches = [], []
    for number, values in enumerate(texts.values()):
        batch, body = _batch([_strings(list(values))])
        header = _table(_int64(number), batch)
        dictionaries.append(_append(data, _DICTIONARY, header, body))
    rows = len(columns[0].values) if columns else 0
    for start in range(0, max(rows, 1), batch_rows):
        stored = [
            _stored(column, column.values[start : start + batch_rows], texts.get(column.name))
            for column in columns
        ]
        batch, body = _batch(stored)
        batches.append(_append(data, _BATCH, batch, body))
    data += b"\xff\xff\xff\xff" + bytes(4)
    places = [_structs("qi4xq", one) for one in (dictionaries, batches)]
    footer = _buffer(_table(_int16(_VERSION), schema, *places))
    return bytes(data + footer + struct.pack("<i", len(footer)) + _MAGIC)


def _append(data: bytearray, kind: int, header: _Object, body: bytes) -> tuple[int, int, int]:
    """Add a message; where it is, and the length of its metadata and of its body."""
    metadata = _buffer(_table(_int16(_VERSION), bytes([kind]), header, _int64(len(body))))
    at = len(data)
    data += b"\xff\xff\xff\xff" + struct.pack("<i", len(metadata)) + metadata + body
    return at, 8 + len(metadata), len(body)


def _schema(columns: Iterable[ResultColumn]) -> _Object:
    fields: list[_Object] = []
    dictionaries = 0
    for column in columns:
        encoding = None
        if _is_text(column):
            encoding = _table(_int64(dictionaries), _type(_INDEX))
            dictionaries += 1
        name, kind = _string(column.name), bytes([column.type.id])
        fields.append(_table(name, b"\1", kind, _type(column.type), encoding, _tables([])))
    return _table(_int16(0), _tables(fields))


def _type(kind: DataType) -> _Object:
    match kind.id:
        case TypeId.INT:
            return _table(struct.pack("<i", kind.bits), bytes([kind.signed]))
        case TypeId.FLOAT:
            return _table(_int16({16: 0, 32: 1, 64: 2}[kind.bits]))
        case TypeId.DATE:
            return _table(_int16(0 if kind.unit < 0 else 1))
        case TypeId.TIME:
            return _table(_int16(kind.unit), struct.pack("<i", kind.bits))
        case TypeId.TIMESTAMP:
            return _table(_int16(kind.unit), _string(kind.timezone) if kind.timezone else None)
        case TypeId.DURATION:
            return _table(_int16(kind.unit))
    return _table()


def _batch(stored: Sequence[_Stored]) -> tuple[_Object, bytes]:
    body, places = bytearray(), []
    for one in stored:
        for buffer in one.buffers:
            places.append((len(body), len(buffer)))
            body += buffer + bytes(-len(buffer) % 64)
    nodes = _structs("qq", [(one.rows, one.nulls) for one in stored])
    rows = stored[0].rows if stored else 0
    return _table(_int64(rows), nodes, _structs("qq", places)), bytes(body)


def _is_text(column: ResultColumn) -> bool:
    return column.type.id in TEXTS


def _distinct(values: Iterable[Value | None]) -> dict[Value, int]:
    """The different values, numbered in the order in which they occur."""
    found: dict[Value, int] = {}
    for value in values:
        if value is not None:
            found.setdefault(value, len(found))
    return found


def _strings(values: Sequence[Value]) -> _Stored:
    encoded = [str(one).encode() for one in values]
    offsets = [0]
    for one in encoded:
        offsets.append(offsets[-1] + len(one))
    buffers = [b"", struct.pack(f"<{len(offsets)}i", *offsets), b"".join(encoded)]
    return _Stored(len(values), 0, buffers)


def _stored(
    column: ResultColumn, values: Sequence[Value | None], texts: dict[Value, int] | None
) -> _Stored:
    valid = [one is not None for one in values]
    nulls = valid.count(False)
    validity = _bitmap(valid) if nulls else b""
    if column.type.id == TypeId.BOOL:
        data = _bitmap([bool(one) for one in values])
    elif texts is not None:
        numbers = [0 if one is None else texts[one] for one in values]
        data = struct.pack(f"<{len(values)}i", *numbers)
    else:
        present = [0 if one is None else one for one in values]
        data = struct.pack(f"<{len(values)}{column.type.code}", *present)
    return _Stored(len(values), nulls, [validity, data])


def _bitmap(bits: Sequence[bool]) -> bytes:
    found = bytearray((len(bits) + 7) // 8)
    for number, bit in enumerate(bits):
        found[number >> 3] |= bit << (number & 7)
    return bytes(found)
