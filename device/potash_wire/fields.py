"""Annotations of a record's fields, which define how they are stored."""

import struct
from collections.abc import Callable
from enum import Enum, auto
from typing import Annotated, Any, NamedTuple


class WireError(ValueError, struct.error):
    """A value does not fit in its field, or bytes are not what they should be."""


class Range(NamedTuple):
    """Least and greatest integer, or number of items."""

    least: int
    most: int


class Stored(NamedTuple):
    """The format of a field, as a code of `struct`; a tuple has `items` of these."""

    code: str
    items: int = 0


class At(int):
    """The offset of a field."""


class Number(NamedTuple):
    """Format and offset of the number of items of a tuple, or of bytes of a text or of bytes.

    The items follow at the end of the record, in the order of the fields.
    """

    code: str
    offset: int | None = None


class Converted(NamedTuple):
    """A field's value is stored as another one of the type `stored`."""

    stored: Any
    store: Callable[[Any], Any]
    load: Callable[[Any], Any]
    """Raises ValueError for what `store` does not give."""


def pairs_of(read: Callable[[str], Any]) -> Converted:
    """A mapping that is stored as a text `name=value,…`; `read` makes a value of its text."""

    def load(text: str) -> dict[str, Any]:
        pairs = (item.partition("=") for item in filter(None, text.split(",")))
        return {name: read(value) for name, _, value in pairs}

    return Converted(str, lambda pairs: ",".join(f"{k}={v}" for k, v in pairs.items()), load)


class Mark(Enum):
    """The way in which a field is stored, if it is."""

    MAY_FOLLOW = auto()
    """A record, or None: it follows at the end unless it is None."""
    REST = auto()
    """A tuple, text or bytes at the end, whose length is not stored: all that is left."""
    NOT_STORED = auto()
    """A field with a default."""


MAY_FOLLOW, REST, NOT_STORED = Mark

U8 = Annotated[int, Range(0, 0xFF), Stored("B")]
U16 = Annotated[int, Range(0, 0xFFFF), Stored("H")]
U32 = Annotated[int, Range(0, 0xFFFF_FFFF), Stored("I")]
U64 = Annotated[int, Range(0, (1 << 64) - 1), Stored("Q")]
I32 = Annotated[int, Range(-(1 << 31), (1 << 31) - 1), Stored("i")]
I64 = Annotated[int, Range(-(1 << 63), (1 << 63) - 1), Stored("q")]
BOOL = Annotated[bool, Stored("B")]
"""A byte, which is 0 or 1."""
