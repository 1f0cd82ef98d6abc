"""A reader of untrusted FlatBuffers: tables, vectors and strings, each access within its bounds.

FlatBuffers, "Internals": a table begins with the distance to its vtable, which has for each field
the distance from the table's beginning, 0 for a field that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from potash.columns.errors import InvalidFile
from potash_wire.records import Record

T = TypeVar("T")


class Table(NamedTuple):
    """One table of a buffer. Every method raises InvalidFile for what is out of bounds."""

    data: bytes
    at: int

    def uint8(self, field: int, default: int = 0) -> int:
        return self._scalar(field, 1, default, signed=False)

    def int16(self, field: int, default: int = 0) -> int:
        return self._scalar(field, 2, default)

    def int32(self, field: int, default: int = 0) -> int:
        return self._scalar(field, 4, default)

    def int64(self, field: int, default: int = 0) -> int:
        return self._scalar(field, 8, default)

    def table(self, field: int) -> Table | None:
        """The table that a field refers to; None where the field is not there."""
        at = self._reference(field)
        return None if at is None else Table(self.data, at)

    def tables(self, field: int) -> Iterator[Table]:
        """The tables of a vector, one by one, as they may be many; none where it is not there."""
        start, count = self._vector(field, 4)
        for at in range(start, start + 4 * count, 4):
            yield Table(self.data, at + _read(self.data, at, 4))

    def structs(self, field: int, record: Record[T]) -> list[T]:
        """The structures of a vector."""
        start, count = self._vector(field, record.size)
        return list(record.decode_all(self.data[start : start + count * record.size]))

    def text(self, field: int) -> str:
        """A string; empty where the field is not there. Invalid UTF-8 becomes U+FFFD."""
        start, count = self._vector(field, 1)
        return self.data[start : start + count].decode(errors="replace")

    def _scalar(self, field: int, size: int, default: int, *, signed: bool = True) -> int:
        at = self._place(field)
        return default if at is None else _read(self.data, at, size, signed=signed)

    def _place(self, field: int) -> int | None:
        """Offset of a field; None if there is no such field."""
        vtable = self.at - _read(self.data, self.at, 4, signed=True)
        size = _read(self.data, vtable, 2)
        entry = 4 + 2 * field
        if entry + 2 > size:
            return None
        distance = _read(self.data, vtable + entry, 2)
        return self.at + distance if distance else None

    def _reference(self, field: int) -> int | None:
        at = self._place(field)
        return None if at is None else at + _read(self.data, at, 4)

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Offset of the first element of a vector, and the number of elements."""
        at = self._reference(field)
        if at is None:
            return 0, 0
        count = _read(self.data, at, 4)
        if at + 4 + count * size > len(self.data):
            raise InvalidFile("a list in its metadata reaches past the end of it")
        return at + 4, count


def root(data: bytes) -> Table:
    """The table that a buffer begins with."""
    return Table(data, _read(data, 0, 4))


def _read(data: bytes, at: int, size: int, *, signed: bool = False) -> int:
    if at < 0 or at + size > len(data):
        raise InvalidFile("its metadata refers to something past the end of it")
    return int.from_bytes(data[at : at + size], "little", signed=signed)
