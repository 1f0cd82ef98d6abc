"""A reader of untrusted FlatBuffers: tables, vectors and strings, each access within its bounds.

FlatBuffers, "Internals": a table begins with the distance to its vtable, which has for each field
the distance from the table's beginning, 0 for a field that is not there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from potash.columns.errors import InvalidFile

_INT16, _UINT16 = struct.Struct("<h"), struct.Struct("<H")
_INT32, _UINT32, _INT64 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<q")
_UINT8 = struct.Struct("<B")


class Table(NamedTuple):
    """One table of a buffer. Every method raises InvalidFile for what is out of bounds."""

    data: bytes
    at: int

    def uint8(self, field: int, default: int = 0) -> int:
        return self._scalar(field, _UINT8, default)

    def int16(self, field: int, default: int = 0) -> int:
        return self._scalar(field, _INT16, default)

    def int32(self, field: int, default: int = 0) -> int:
        return self._scalar(field, _INT32, default)

    def int64(self, field: int, default: int = 0) -> int:
        return self._scalar(field, _INT64, default)

    def table(self, field: int) -> Table | None:
        """The table that a field refers to; None where the field is not there."""
        at = self._reference(field)
        return None if at is None else Table(self.data, at)

    def tables(self, field: int) -> Iterator[Table]:
        """The tables of a vector, one by one, as they may be many; none where it is not there."""
        start, count = self._vector(field, _UINT32.size)
        for at in range(start, start + count * _UINT32.size, _UINT32.size):
            yield Table(self.data, at + _read(self.data, at, _UINT32))

    def structs(self, field: int, form: struct.Struct) -> list[tuple[int, ...]]:
        """The structures, or numbers, of a vector."""
        start, count = self._vector(field, form.size)
        return list(form.iter_unpack(self.data[start : start + count * form.size]))

    def text(self, field: int) -> str:
        """A string; empty where the field is not there. Invalid UTF-8 becomes U+FFFD."""
        start, count = self._vector(field, 1)
        return self.data[start : start + count].decode(errors="replace")

    def _scalar(self, field: int, form: struct.Struct, default: int) -> int:
        at = self._place(field)
        return default if at is None else _read(self.data, at, form)

    def _place(self, field: int) -> int | None:
        """Where a field is, or None."""
        vtable = self.at - _read(self.data, self.at, _INT32)
        size = _read(self.data, vtable, _UINT16)
        entry = 4 + 2 * field
        if entry + 2 > size:
            return None
        distance = _read(self.data, vtable + entry, _UINT16)
        return self.at + distance if distance else None

    def _reference(self, field: int) -> int | None:
        at = self._place(field)
        return None if at is None else at + _read(self.data, at, _UINT32)

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        at = self._reference(field)
        if at is None:
            return 0, 0
        count = _read(self.data, at, _UINT32)
        if at + _UINT32.size + count * size > len(self.data):
            raise InvalidFile("a list in its metadata reaches past the end of it")
        return at + _UINT32.size, count


def root(data: bytes) -> Table:
    """The table that a buffer begins with."""
    return Table(data, _read(data, 0, _UINT32))


def _read(data: bytes, at: int, form: struct.Struct) -> int:
    if at < 0 or at + form.size > len(data):
        raise InvalidFile("its metadata refers to something past the end of it")
    value: int = form.unpack_from(data, at)[0]
    return value
