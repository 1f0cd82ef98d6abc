"""Values that are saved and loaded: how they are declared, and how they are checked.

A type declares what a saved value is, and its check follows from that. Bytes are base 64 in JSON.

    int                       from 0 to 2^64 - 1
    Annotated[X, Range(...)]  an integer in that range, or as many items, characters or bytes
    tuple, named tuple,       a list in which every item fits, or for a named tuple an object;
      dataclass               those that have a default may lack
    list, dict, TypedDict     a list or an object; items that do not fit are left out, of a
                              TypedDict only those that are not required

Whoever wrote a file or sent a state may have written anything: what does not fit is a ValueError.
"""

import base64
import dataclasses
import json
import re
import reprlib
import types
from collections.abc import Iterable
from functools import cache
from typing import (
    Annotated,
    Any,
    Generic,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from potash_wire.records import Range
from potash_wire.structures import Buffer, Field

T = TypeVar("T")

DEEPEST = 16
"""Arrays and objects that may be in each other."""
MOST_VALUES = 1 << 18
"""Values in one text: each takes up to a hundred bytes and a microsecond when it is read."""

LARGEST_NUMBER = (1 << 63) - 1
"""Maximum of a 64-bit number that goes on counting after it is loaded."""


def fits(field: Field[int], unit: int = 1) -> Range:
    """The range of what is stored in a field of a structure, in as many times its unit."""
    return Range(0, unit * (1 << field.occupied().bit_count()) - 1)


def counts(field: Field[int], unit: int = 1) -> Range:
    """The values that fit into a field whose number goes on counting after it is loaded."""
    return Range(0, min(fits(field, unit).most, LARGEST_NUMBER))


def limited(field: Field[int], value: int) -> int:
    """A value as a field stores it, which has its largest where that is too small."""
    return min(value, fits(field).most)


Number = Annotated[int, Range(0, LARGEST_NUMBER)]
"""The number of a record, each of which has a greater one than the record before."""


class Section(str, Generic[T]):
    """The name of a saved value, and what it is: a `T`, as `kind` says."""

    kind: Any

    def __new__(cls, name: str, kind: Any) -> "Section[T]":
        made = super().__new__(cls, name)
        made.kind = kind
        SECTIONS[name] = made
        return made


SECTIONS: dict[str, Section[Any]] = {}
"""All that there are."""


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""Possessive, and also without its end: the search takes time in proportion to any text."""
_PARENTHESES = bytes.maketrans(b"[]{}", b"()()")
_NO_BRACKETS = bytes(set(range(256)) - {*b"[]{}"})


def read_json(data: Buffer, most: int) -> Any:
    """Decode JSON of at most `most` bytes, in memory in proportion. Raises ValueError."""
    text = bytes(data)
    if len(text) > most:
        raise ValueError(f"{len(text)} bytes of JSON are more than {most}")
    if sum(map(text.count, b'[{,"')) > MOST_VALUES:
        raise ValueError(f"there are more than {MOST_VALUES} values")
    brackets = _STRING.sub(b"", text).translate(_PARENTHESES, _NO_BRACKETS)
    for _ in range(DEEPEST):
        brackets = brackets.replace(b"()", b"")
    if brackets:
        raise ValueError("the values are nested too deeply")
    return json.loads(text.decode())


def encode(value: Any) -> bytes:
    """A value as JSON: records as lists of their fields."""
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def decode(kind: type[T], data: Buffer, most: int) -> T:
    """A value of that kind from at most `most` bytes of JSON. Raises ValueError."""
    return typed(kind, read_json(data, most))  # type: ignore[no-any-return]  # checked at run time


def exactly(kind: Any, value: Any) -> Any:
    """Check a value as `typed` does, but refuse what that leaves out. Raises ValueError."""
    found = typed(kind, value)
    if found != value:
        raise ValueError(
            f"{_name(kind)} has values that are out of range, or that it does not know"
        )
    return found


def typed(kind: Any, value: Any) -> Any:
    """A value as that kind has it. Raises ValueError."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        found = typed(parts[0], value)
        size = found if isinstance(found, int) else len(found)
        for limits in parts[1:]:
            if isinstance(limits, Range) and not limits.least <= size <= limits.most:
                raise ValueError(f"{size} is not from {limits.least} to {limits.most}")
        return found
    if origin in (Union, types.UnionType):
        inner = next(one for one in parts if one is not type(None))
        return None if value is None else typed(inner, value)
    if kind is int and type(value) is int and 0 <= value < 1 << 64:
        return value
    if kind in (bool, str) and type(value) is kind:
        return value
    if kind is bytes and type(value) is str:
        return base64.b64decode(value, validate=True)
    if isinstance(value, dict):
        if origin is dict and all(isinstance(key, str) for key in value):
            return dict(_fitting((name, parts[1], item) for name, item in value.items()))
        if is_typeddict(kind):
            return _record(kind, value)
        if hasattr(kind, "_fields"):
            return _named(kind, value)
    elif isinstance(value, list | tuple) and kind not in (bytes, int, bool, str):
        if origin is list:
            return [item for _, item in _fitting((None, parts[0], item) for item in value)]
        return _list(kind, parts, value)
    raise ValueError(f"{reprlib.repr(value)} is no {_name(kind)}")


def _list(kind: Any, parts: tuple[Any, ...], value: list[Any] | tuple[Any, ...]) -> Any:
    if parts[1:] == (...,):
        return tuple(typed(parts[0], item) for item in value)
    kinds, least = (parts, len(parts)) if parts else _fields(kind)
    if not least <= len(value) <= len(kinds):
        raise ValueError(f"{len(value)} values are no {_name(kind)}")
    made = tuple(typed(*pair) for pair in zip(kinds, value, strict=False))
    return made if parts else kind(*made)


def _named(kind: Any, value: dict[str, Any]) -> Any:
    hints = _hints(kind)
    required = hints.keys() - kind._field_defaults.keys()
    for name in (value.keys() - hints.keys()) | (required - value.keys()):
        raise ValueError(f"{_name(kind)} does not know {name}, or needs it")
    return kind(**{name: typed(hints[name], item) for name, item in value.items()})


def _record(kind: Any, value: dict[str, Any]) -> dict[str, Any]:
    hints = _hints(kind)
    found = dict(_fitting((name, hints[name], value[name]) for name in hints if name in value))
    for name in kind.__required_keys__ - found.keys():
        raise ValueError(f"{name} is missing, or makes no sense")
    return found


def _fitting(items: Iterable[tuple[Any, Any, Any]]) -> Iterable[tuple[Any, Any]]:
    """Names and values that fit, from triples of name, type and value."""
    for name, kind, value in items:
        try:
            yield name, typed(kind, value)
        except ValueError:
            continue


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _fields(kind: type) -> tuple[tuple[Any, ...], int]:
    """The kinds of a record's fields, and how many of them have no default."""
    kinds = tuple(_hints(kind).values())
    return kinds, len(kinds) - len(getattr(kind, "_field_defaults", ()))


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, one.name)) for one in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
