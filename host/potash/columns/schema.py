"""The schema of an Arrow file: its columns, and where each column's buffers are among a batch's.

Apache Arrow, `format/Schema.fbs`; the order of buffers is that of "Columnar Format", section
"Buffer Listing for Each Layout".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from potash.columns.errors import InvalidFile, InvalidQuery
from potash.columns.flatbuffers import Table
from potash.columns.types import DataType, TypeId

MAX_FIELDS = 10_000
MAX_DEPTH = 64
_NESTED = {
    TypeId.LIST: 2, TypeId.LARGE_LIST: 2, TypeId.MAP: 2, TypeId.LIST_VIEW: 3,
    TypeId.LARGE_LIST_VIEW: 3, TypeId.STRUCT: 1, TypeId.FIXED_SIZE_LIST: 1,
    TypeId.RUN_END_ENCODED: 0,
}  # fmt: skip
_BUFFERS = {TypeId.NULL: 0, **_NESTED, **dict.fromkeys(
    (TypeId.BINARY, TypeId.UTF8, TypeId.LARGE_BINARY, TypeId.LARGE_UTF8), 3
)}  # fmt: skip
"""Number of buffers of a field itself; two if it is not listed."""
_VIEWS = {TypeId.BINARY_VIEW, TypeId.UTF8_VIEW}
_SPARSE = 0


class Place(NamedTuple):
    """One field of the flattened schema: the buffers of its own."""

    buffers: int
    is_view: bool = False


@dataclass(frozen=True)
class Column:
    """A column: its values' type; with a dictionary also that of the indices in its buffers."""

    name: str
    type: DataType
    dictionary: int | None = None
    """The identifier of its dictionary."""
    index_type: DataType | None = None
    place: int = 0
    """The number of its field in the flattened schema, which is that of its node."""

    @property
    def stored(self) -> DataType:
        """Type of the values in the column's buffer."""
        return self.type if self.index_type is None else self.index_type

    def __str__(self) -> str:
        kind = str(self.type) if self.dictionary is None else f"dictionary of {self.type}"
        return f"{self.name} ({kind})"


@dataclass(frozen=True)
class Schema:
    """The columns of a file by name, and all its fields in the order of their buffers."""

    columns: dict[str, Column]
    places: list[Place]

    def column(self, name: str) -> Column:
        """A column. Raises InvalidQuery, with the columns that there are."""
        found = self.columns.get(name)
        if found is None:
            names = ", ".join(list(self.columns)[:20])
            raise InvalidQuery(f"the file has no column {name!r}; it has {names}")
        return found


def read_schema(table: Table) -> Schema:
    """Raises InvalidFile."""
    if table.int16(0):
        raise InvalidFile("it is big-endian; write it on a little-endian machine")
    places: list[Place] = []
    columns: dict[str, Column] = {}
    for field in table.tables(1):
        column = _column(field, len(places))
        if column.name in columns:
            raise InvalidFile(f"it has two columns with the name {column.name!r}; rename one")
        columns[column.name] = column
        _flatten(field, places, 0)
    return Schema(columns, places)


def _column(field: Table, place: int) -> Column:
    encoding = field.table(4)
    name, kind = field.text(0), data_type(field)
    if encoding is None:
        return Column(name, kind, place=place)
    described = encoding.table(1)
    index = DataType(TypeId.INT, 32) if described is None else _integer(described)
    return Column(name, kind, encoding.int64(0), index, place)


def _flatten(field: Table, places: list[Place], depth: int) -> None:
    """Add a field and those below it to the schema's."""
    if depth > MAX_DEPTH or len(places) >= MAX_FIELDS:
        raise InvalidFile(f"it has more than {MAX_FIELDS} fields, or deeper ones than {MAX_DEPTH}")
    if field.table(4) is not None:
        places.append(Place(2))
        return
    kind = _type_id(field)
    buffers = _BUFFERS.get(kind, 2)
    if kind == TypeId.UNION:
        described = field.table(3)
        buffers = 1 if described is None or described.int16(0) == _SPARSE else 2
    places.append(Place(buffers, kind in _VIEWS))
    for child in field.tables(5):
        _flatten(child, places, depth + 1)


def _type_id(field: Table) -> TypeId:
    number = field.uint8(2)
    try:
        return TypeId(number)
    except ValueError:
        raise InvalidFile(
            f"column {field.text(0)!r} has an unknown type, number {number}"
        ) from None


def data_type(field: Table) -> DataType:
    """The type of a field's values."""
    kind, described = _type_id(field), field.table(3)
    if described is None:
        raise InvalidFile(f"column {field.text(0)!r} does not describe its type")
    match kind:
        case TypeId.INT:
            return _integer(described)
        case TypeId.FLOAT:
            precision = described.int16(0)
            if precision not in (0, 1, 2):
                raise InvalidFile(f"column {field.text(0)!r} has floats of no known width")
            return DataType(kind, 16 << precision)
        case TypeId.BOOL:
            return DataType(kind, 1)
        case TypeId.DATE:
            unit = described.int16(0, 1)
            return DataType(kind, 64, unit=1) if unit else DataType(kind, 32, unit=-1)
        case TypeId.TIME:
            unit = _unit(described.int16(0, 1))
            return DataType(kind, 32 if unit < 2 else 64, unit=unit)
        case TypeId.TIMESTAMP:
            return DataType(kind, 64, unit=_unit(described.int16(0)), timezone=described.text(1))
        case TypeId.DURATION:
            return DataType(kind, 64, unit=_unit(described.int16(0, 1)))
    return DataType(kind)


def _integer(described: Table) -> DataType:
    bits = described.int32(0)
    if bits not in (8, 16, 32, 64):
        raise InvalidFile(f"it has integers of {bits} bits")
    return DataType(TypeId.INT, bits, bool(described.uint8(1)))


def _unit(number: int) -> int:
    if not 0 <= number <= 3:
        raise InvalidFile(f"it counts time in unit {number}, which does not exist")
    return number
