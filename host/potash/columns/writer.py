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


class _Scalar(NamedTuple):
    code: str
    value: int


class _Structs(NamedTuple):
    """A vector of structures, each packed."""

    form: str
    values: Sequence[tuple[int, ...]]


class _Table(NamedTuple):
    """A table by its fields, in the order of their numbers."""

    fields: Sequence[_Field]


_Field = _Scalar | _Structs | str | list[_Table] | _Table | None


class _Buffer:
    """A FlatBuffer, written forwards: what a table refers to comes behind it."""

    def __init__(self, table: _Table) -> None:
        self.data = bytearray(4)
        self._refer(0, self._table(table))

    def _align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def _refer(self, at: int, target: int) -> None:
        struct.pack_into("<I", self.data, at, target - at)

    def _table(self, table: _Table) -> int:
        body, places = 4, []
        for field in table.fields:
            size = struct.calcsize(f"<{field.code}") if isinstance(field, _Scalar) else 4
            if field is not None:
                body += -body % size
            places.append(0 if field is None else body)
            body += 0 if field is None else size
        self._align(8)
        vtable = len(self.data)
        self.data += struct.pack(f"<HH{len(places)}H", 4 + 2 * len(places), body, *places)
        self._align(8)
        start = len(self.data)
        self.data += bytes(body)
        struct.pack_into("<i", self.data, start, start - vtable)
        for field, place in zip(table.fields, places, strict=True):
            if isinstance(field, _Scalar):
                struct.pack_into(f"<{field.code}", self.data, start + place, field.value)
            elif field is not None:
                self._refer(start + place, self._target(field))
        return start

    def _target(self, field: _Structs | str | list[_Table] | _Table) -> int:
        if isinstance(field, _Table):
            return self._table(field)
        self._align(8)
        if isinstance(field, _Structs):
            self.data += bytes(4)  # so that the structures behind the count are aligned
            at = len(self.data)
            self.data += struct.pack("<I", len(field.values))
            self.data += b"".join(struct.pack(f"<{field.form}", *one) for one in field.values)
            return at
        at = len(self.data)
        if isinstance(field, str):
            text = field.encode()
            self.data += struct.pack("<I", len(text)) + text + b"\0"
            return at
        self.data += struct.pack("<I", len(field)) + bytes(4 * len(field))
        for number, one in enumerate(field):
            self._refer(at + 4 + 4 * number, self._table(one))
        return at


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
        header = _Table([_Scalar("q", number), batch])
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
    places: list[_Field] = [_Structs("qi4xq", one) for one in (dictionaries, batches)]
    footer = _Buffer(_Table([_Scalar("h", _VERSION), schema, *places])).data
    return bytes(data + footer + struct.pack("<i", len(footer)) + _MAGIC)


def _append(data: bytearray, kind: int, header: _Table, body: bytes) -> tuple[int, int, int]:
    """Add a message; where it is, and the length of its metadata and of its body."""
    fields: list[_Field] = [
        _Scalar("h", _VERSION),
        _Scalar("B", kind),
        header,
        _Scalar("q", len(body)),
    ]
    metadata = _Buffer(_Table(fields)).data
    metadata += bytes(-len(metadata) % 8)
    at = len(data)
    data += b"\xff\xff\xff\xff" + struct.pack("<i", len(metadata)) + metadata + body
    return at, 8 + len(metadata), len(body)


def _schema(columns: Iterable[ResultColumn]) -> _Table:
    fields: list[_Table] = []
    dictionaries = 0
    for column in columns:
        encoding = None
        if _is_text(column):
            encoding = _Table([_Scalar("q", dictionaries), _type(_INDEX)])
            dictionaries += 1
        kind = column.type
        described = _type(kind)
        nullable, number = _Scalar("B", 1), _Scalar("B", kind.id)
        fields.append(_Table([column.name, nullable, number, described, encoding, []]))
    return _Table([_Scalar("h", 0), fields])


def _type(kind: DataType) -> _Table:
    match kind.id:
        case TypeId.INT:
            return _Table([_Scalar("i", kind.bits), _Scalar("B", kind.signed)])
        case TypeId.FLOAT:
            return _Table([_Scalar("h", {16: 0, 32: 1, 64: 2}[kind.bits])])
        case TypeId.DATE:
            return _Table([_Scalar("h", 0 if kind.unit < 0 else 1)])
        case TypeId.TIME:
            return _Table([_Scalar("h", kind.unit), _Scalar("i", kind.bits)])
        case TypeId.TIMESTAMP:
            return _Table([_Scalar("h", kind.unit), kind.timezone or None])
        case TypeId.DURATION:
            return _Table([_Scalar("h", kind.unit)])
    return _Table([])


def _batch(stored: Sequence[_Stored]) -> tuple[_Table, bytes]:
    body, places = bytearray(), []
    for one in stored:
        for buffer in one.buffers:
            places.append((len(body), len(buffer)))
            body += buffer + bytes(-len(buffer) % 64)
    nodes = _Structs("qq", [(one.rows, one.nulls) for one in stored])
    rows = stored[0].rows if stored else 0
    return _Table([_Scalar("q", rows), nodes, _Structs("qq", places)]), bytes(body)


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
