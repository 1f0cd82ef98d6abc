"""The form of a saved state: a header, and named sections of bytes; one of them is JSON.

    header      magic "PTSHMIGR", version, CRC-32 and length of all that follows
    section     length of its name, length of its bytes; the name; the bytes
    contents    address and length of a piece, and its bytes; what is in no piece is zero

Little endian. Whoever sends a state may send anything: what has another form is a ValueError.
"""

import base64
import dataclasses
import json
import os
import struct
import types
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from potash_device.media.store import Media
from pyvfio_user.protocol import Buffer

VERSION = 1
"""Of the form and of what the sections mean; a state of another version is not taken."""

_MAGIC = b"PTSHMIGR"
_HEADER = struct.Struct("<8sIIQ")
_SECTION = struct.Struct("<HQ")
_PIECE = struct.Struct("<QQ")
_LONGEST_PIECE = 1 << 20

T = TypeVar("T")


def join(sections: Mapping[str, Sequence[Buffer]]) -> bytes:
    """A state of these sections, each in parts: what is large is copied once."""
    parts: list[Buffer] = []
    for name, content in sections.items():
        encoded = name.encode()
        parts += [_SECTION.pack(len(encoded), sum(map(len, content))), encoded, *content]
    checksum = reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)
    header = _HEADER.pack(_MAGIC, VERSION, checksum, sum(map(len, parts)))
    return b"".join((header, *parts))


def split(state: Buffer) -> dict[str, memoryview]:
    """The sections of a state, as views of it. Raises ValueError."""
    if len(state) < _HEADER.size:
        raise ValueError("the state has no header")
    magic, version, checksum, length = _HEADER.unpack_from(state)
    if magic != _MAGIC:
        raise ValueError("this is no state of a drive")
    if version != VERSION:
        raise ValueError(f"the state has version {version}, and {VERSION} is what is understood")
    body = memoryview(state)[_HEADER.size :]
    if len(body) != length:
        raise ValueError(f"the state has {len(body)} bytes of {length}")
    if zlib.crc32(body) != checksum:
        raise ValueError("the state is damaged")
    sections: dict[str, memoryview] = {}
    while body:
        named, size = _unpack(_SECTION, body)
        at = _SECTION.size + named
        if at + size > len(body):
            raise ValueError("a section leaves the state")
        sections[str(body[_SECTION.size : at], "utf-8")] = body[at : at + size]
        body = body[at + size :]
    return sections


def contents(media: Media) -> list[bytes]:
    """The bytes of memory that are not zero, as far as whole pages go, in parts."""
    parts: list[bytes] = []
    for start, length in media.data_ranges(0, media.size):
        for at in range(start, start + length, _LONGEST_PIECE):
            piece = os.pread(media.fd, min(_LONGEST_PIECE, start + length - at), at)
            if any(piece):
                parts += [_PIECE.pack(at, len(piece)), piece]
    return parts


def check_contents(packed: memoryview, size: int) -> None:
    """Raise ValueError for what are no contents of `size` bytes of memory."""
    if any(at + len(piece) > size for at, piece in _pieces(packed)):
        raise ValueError(f"a piece is not in the {size} bytes of its memory")


def fill(media: Media, packed: memoryview) -> None:
    """Have memory hold contents that were checked, and zeroes elsewhere. Raises MediaError."""
    media.punch(0, media.size)
    for at, piece in _pieces(packed):
        media.write_from([piece], at)


def _pieces(rest: memoryview) -> Iterator[tuple[int, memoryview]]:
    while rest:
        at, length = _unpack(_PIECE, rest)
        if length > len(rest) - _PIECE.size:
            raise ValueError("a piece leaves its section")
        yield at, rest[_PIECE.size : _PIECE.size + length]
        rest = rest[_PIECE.size + length :]


def _unpack(form: struct.Struct, data: memoryview) -> tuple[int, ...]:
    if len(data) < form.size:
        raise ValueError("a section is cut short")
    return form.unpack_from(data)


# Records: dataclasses and named tuples of numbers, texts, bytes and tuples, as JSON.


def encode(record: Any) -> bytes:
    """A record as JSON: its fields in their order."""
    return json.dumps(_plain(record), separators=(",", ":")).encode()


def decode(kind: type[T], data: Buffer) -> T:
    """A record of that kind, in which every value has its type. Raises ValueError."""
    try:
        return _typed(kind, json.loads(bytes(data)))  # type: ignore[no-any-return]  # checked at run time
    except RecursionError:
        raise ValueError("the record is nested too deeply") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, one.name)) for one in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _typed(kind: Any, value: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        inner = next(one for one in get_args(kind) if one is not type(None))
        return None if value is None else _typed(inner, value)
    if kind is bytes and isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if kind is int and type(value) is int and 0 <= value < 1 << 64:
        return value
    if kind in (bool, str) and type(value) is kind:
        return value
    if isinstance(value, list) and kind not in (bytes, int, bool, str):
        of = get_args(kind)
        if of[1:] == (...,):
            return tuple(_typed(of[0], one) for one in value)
        of = of or _fields(kind)
        if len(of) == len(value):
            made = tuple(_typed(one, item) for one, item in zip(of, value, strict=True))
            return made if get_origin(kind) is tuple else kind(*made)
    raise ValueError(f"{str(value)[:40]!r} is no {getattr(kind, '__name__', kind)}")


@cache
def _fields(kind: type) -> tuple[Any, ...]:
    return tuple(get_type_hints(kind).values())
