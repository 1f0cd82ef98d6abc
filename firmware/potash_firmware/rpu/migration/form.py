"""The form of a saved state: a header, and named sections of bytes; one of them is JSON.

    header      magic "PTSHMIGR", version, CRC-32 and length of all that follows
    section     length of its name, length of its bytes; the name; the bytes
    contents    address and length of a piece, and its bytes; what is in no piece is zero

Little endian. Whoever sends a state may send anything: what has another form is a ValueError.
"""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Annotated

from potash_device.media.store import Media
from potash_wire.records import U16, U32, U64, Record, Stored
from pyvfio_user.protocol import Buffer

VERSION = 1
"""Version of the format and of the sections' meaning; a state of another version is refused."""

_MAGIC = b"PTSHMIGR"
_HEADER = Record(tuple[Annotated[bytes, Stored("8s")], U32, U32, U64])
_SECTION = Record(tuple[U16, U64])
_PIECE = Record(tuple[U64, U64])
_LONGEST_PIECE = 1 << 20


def join(sections: Mapping[str, Sequence[Buffer]]) -> bytes:
    """A state of these sections, each in parts: what is large is copied once."""
    parts: list[Buffer] = []
    for name, content in sections.items():
        encoded = name.encode()
        parts += [_SECTION.encode((len(encoded), sum(map(len, content)))), encoded, *content]
    checksum = reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)
    header = _HEADER.encode((_MAGIC, VERSION, checksum, sum(map(len, parts))))
    return b"".join((header, *parts))


def split(state: Buffer) -> dict[str, memoryview]:
    """The sections of a state, as views of it. Raises ValueError."""
    magic, version, checksum, length = _HEADER.decode_from(state)
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
        named, size = _SECTION.decode_from(body)
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
                parts += [_PIECE.encode((at, len(piece))), piece]
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
        at, length = _PIECE.decode_from(rest)
        if length > len(rest) - _PIECE.size:
            raise ValueError("a piece leaves its section")
        yield at, rest[_PIECE.size : _PIECE.size + length]
        rest = rest[_PIECE.size + length :]
