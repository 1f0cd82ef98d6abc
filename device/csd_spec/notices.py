"""The log page on notices, an extension: what the drive's flash translation layer wants to say.

Bytes are little endian. Only a drive whose translation layer is an extension's has the page.
"""

from typing import Annotated, Self

from potash_wire.packed import Packed
from potash_wire.records import REST, U8, U16, U64, At, Stored
from potash_wire.structures import Buffer

HEADER_SIZE = 16
MOST_NOTICES = 16
"""Notices of the page: the latest ones."""
MOST_BYTES = 256
"""Bytes of a notice's data."""
NOTICE_SIZE = 24 + MOST_BYTES
PAGE_SIZE = HEADER_SIZE + MOST_NOTICES * NOTICE_SIZE


class NoticeLogError(ValueError):
    """Bytes that are not this log page."""


class Notice(Packed, least_size=NOTICE_SIZE, error=NoticeLogError):
    """A notice; `length` bytes of `data` are its own."""

    number: U64
    """Notices of the drive before it."""
    time: U64
    """Guest time in nanoseconds."""
    kind: U8
    """The kind, which is also the information of its event."""
    length: Annotated[U16, At(18)]
    data: Annotated[bytes, Stored(f"{MOST_BYTES}s"), At(24)]


class NoticeLog(Packed, least_size=HEADER_SIZE, error=NoticeLogError):
    """The latest notices, the oldest first; `count` is that of all."""

    version: U8 = 1
    count: Annotated[U64, At(8)] = 0
    notices: Annotated[tuple[Notice, ...], At(HEADER_SIZE), REST] = ()

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Raises NoticeLogError."""
        if len(data) < HEADER_SIZE or data[0] != 1:
            raise NoticeLogError("this is no log page on notices")
        kept = min(super().decode(data[:HEADER_SIZE]).count, MOST_NOTICES) * NOTICE_SIZE
        return super().decode(data[: HEADER_SIZE + kept])
