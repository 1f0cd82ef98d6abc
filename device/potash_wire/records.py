"""Records: named tuples, dataclasses, plain tuples and numbers, stored as annotations say.

A record has a fixed part, and may end in a *tail*: a sequence of items or bytes whose length
follows from the length of the data, or is stated in the fixed part (`Number`). Everything is little
endian. Fields come one after another without padding, unless `At` says otherwise; bytes that no
field names are zero, and are ignored when a record is decoded.

    class Extent(Packed):
        nsid: U32
        first: Annotated[U64, At(8)]
        length: Annotated[U64, Range(1, 1 << 40)]

    Extent(1, 0, 512).encode()  # 24 bytes: nsid, four zeroes, first, length
    Extent.decode(data)         # Extent(nsid=1, first=0, length=512)

`Record` does the same for a type that is not derived from `Packed`. A method `validate` of a type
checks what ranges cannot say; it raises ValueError.
"""

import struct
from collections.abc import Iterator
from functools import cached_property
from itertools import starmap
from typing import Any, Generic, TypeVar

from potash_wire.fields import *  # the same names
from potash_wire.fields import Number, WireError
from potash_wire.layouts import Layout, Tail
from potash_wire.structures import Buffer

T = TypeVar("T")

_MISFITS = (struct.error, ValueError)
_MOST_COMPILED = 16
"""The most items of a tail for whose number functions are compiled, which are quicker."""


class Record(Generic[T]):
    """The encoding of a type's records: at least `least_size` bytes, which begin with `prefix`.

    `total` is the field with the size of the whole record, after which others may follow. A value
    that does not fit raises `error`. Annotations are evaluated when the record is first used.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        prefix: int | bytes = b"",
        least_size: int = 0,
        total: Number | None = None,
        error: type[Exception] = WireError,
    ) -> None:
        self.least_size = least_size
        prefix = bytes([prefix]) if isinstance(prefix, int) else prefix
        self._declared = (kind, prefix, least_size, total, _record_of)
        self._error, self._total = error, total
        self._by_size: dict[int, Layout] = {}

    @cached_property
    def _layout(self) -> Layout:
        return Layout(*self._declared)

    @cached_property
    def size(self) -> int:
        """Bytes of the fixed part."""
        return self._layout.size

    @property
    def is_fixed(self) -> bool:
        """The record has no tail."""
        return self._layout.is_fixed

    @property
    def largest(self) -> int:
        """Bytes of the fixed part and the longest tail."""
        return self.size + self._layout.longest_tail

    def encode(self, record: T) -> bytes:
        """The bytes of a record. Raises WireError."""
        layout = self._layout
        try:
            if layout.size_of:
                size = layout.size_of(record)
                layout = self._by_size.get(size) or self._of_size(size) or layout
            data: bytes = layout.pack(record)
        except _MISFITS as error:
            raise self._error(f"{record} does not fit, out of its range: {error}") from None
        return data

    def decode(self, data: Buffer) -> T:
        """The record in exactly these bytes. Raises WireError.

        With `total`, bytes after the stated length are ignored.
        """
        try:
            if layout := self._by_size.get(len(data)) or self._of_size(len(data)):
                return layout.make(*layout.unpack(data))  # type: ignore[no-any-return]
            made, end = self.take(data, 0)
            if end != len(data) and not self._total:
                raise ValueError(f"{len(data) - end} bytes are left")
            return made
        except _MISFITS as error:
            raise self._error(f"{len(data)} bytes are no {self._layout.name}: {error}") from None

    def decode_from(self, data: Buffer, offset: int = 0) -> T:
        """The record at `offset`; what is after it is ignored. Raises WireError."""
        try:
            return self.take(data, offset)[0]
        except _MISFITS as error:
            raise self._error(f"{len(data)} bytes are no {self._layout.name}: {error}") from None

    def decode_all(self, data: Buffer) -> Iterator[T]:
        """Records one after another. Raises struct.error, as WireError is, perhaps after some of
        them."""
        layout = self._layout
        if layout.plain:
            return map(layout.plain, layout.form.iter_unpack(data))
        return self._each(data)

    def _each(self, data: Buffer) -> Iterator[T]:
        layout, at = self._layout, 0
        try:
            if layout.is_fixed:
                yield from starmap(layout.make, layout.form.iter_unpack(data))
            while not layout.is_fixed and at < len(data):
                made, at = self.take(data, at)
                yield made
        except _MISFITS as error:
            raise self._error(f"{len(data)} bytes are not all {layout.name}: {error}") from None

    def take(self, data: Buffer, at: int) -> tuple[T, int]:
        """The record at `at`, and the offset after it. Raises ValueError, struct.error."""
        layout = self._layout
        values = layout.form.unpack_from(data, at)
        if layout.is_fixed:
            return layout.make(*values), at + layout.size
        end = len(data)
        if self._total:
            code, offset = self._total
            length = struct.unpack_from(f"<{code}", data, at + (offset or 0))[0]
            if not layout.size <= length <= end - at:
                bounds = f"between {layout.size} and {end - at}"
                raise ValueError(f"a length of {length} bytes is stated, which is not {bounds}")
            end = at + length
        tail = Tail(data, at + layout.size, end)
        made: T = layout.make(tail, *values)
        if self._total and tail.at != end:
            raise ValueError(f"{end - tail.at} bytes are left")
        return made, tail.at

    def _of_size(self, size: int) -> Layout | None:
        """The layout of records without a tail, or of those of `size` bytes with a short one."""
        layout = self._layout
        if not layout.is_fixed:
            count, rest = divmod(size - layout.size, layout.unit or 1)
            if not layout.unit or rest:
                return None
            if not layout.limits.least <= count <= min(layout.limits.most, _MOST_COMPILED):
                return None
            layout = Layout(*self._declared, layout, count)
        self._by_size[layout.size] = layout
        return layout


def _record_of(kind: Any) -> Record[Any]:
    return getattr(kind, "RECORD", None) or Record(kind)
