"""Records: named tuples, dataclasses, plain tuples and numbers, stored as annotations say.

Everything is little endian. Fields follow each other without padding, unless `At` says otherwise;
bytes that no field names are zero, and are ignored when a record is decoded.

    class Extent(Packed):
        nsid: U32
        first: Annotated[U64, At(8)]
        length: Annotated[U64, Range(1, 1 << 40)]

    Extent.decode(Extent(1, 0, 512).encode())

`Record` does the same for a type that is not derived from `Packed`. A method `validate` of a type
checks what ranges cannot say; it raises ValueError.
"""

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Generic, TypeVar

from potash_wire.fields import *  # the same names
from potash_wire.fields import Number, WireError
from potash_wire.layouts import Layout
from potash_wire.structures import Buffer

T = TypeVar("T")

_MOST_COMPILED = 16
"""Items that follow up to which their number has functions of its own, which are quicker."""


class Record(Generic[T]):
    """How records of a type are stored, in at least `size` bytes, which begin with `first`.

    `total` is where the bytes of a whole record are stated, which further bytes may follow. What
    does not fit raises `error`. Annotations are evaluated when the record is first used.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        first: int | bytes = b"",
        size: int = 0,
        total: Number | None = None,
        error: type[Exception] = WireError,
    ) -> None:
        self.least_size = size
        first = bytes([first]) if isinstance(first, int) else first
        self._declared = (kind, first, size, total)
        self._error = error
        self._total = total
        self._by_size: dict[int, Layout] = {}
        self._by_number: dict[int, Layout] = {}

    @cached_property
    def size(self) -> int:
        """Bytes of a record, without those that follow it."""
        return self._layout.size

    @property
    def is_fixed(self) -> bool:
        """Nothing follows."""
        return self._layout.is_fixed

    @property
    def largest(self) -> int:
        """Bytes of the largest record."""
        return self.size + self._layout.following

    def encode(self, record: T) -> bytes:
        """The bytes of a record. Raises WireError."""
        layout = self._layout
        try:
            if layout.number:
                number = layout.number(record)
                layout = self._by_number.get(number) or self._with(number)
            data: bytes = layout.pack(record)
        except (struct.error, ValueError) as error:
            raise self._error(f"{record} does not fit, out of its range: {error}") from None
        return data

    def decode(self, data: Buffer) -> T:
        """The record in exactly these bytes. Raises WireError."""
        layout = self._by_size.get(len(data))
        try:
            if layout is None:
                return self._decode_other(data)
            made: T = layout.make(*layout.unpack(data))
        except (struct.error, ValueError) as error:
            raise self._error(f"{len(data)} bytes are no {self._layout.name}: {error}") from None
        return made

    def decode_from(self, data: Buffer, offset: int = 0) -> T:
        """The record at `offset`; what is behind it is ignored. Raises WireError."""
        try:
            return self.take(data, offset)[0]
        except (struct.error, ValueError) as error:
            raise self._error(f"{len(data)} bytes are no {self._layout.name}: {error}") from None

    def decode_all(self, data: Buffer) -> Iterator[T]:
        """Records that follow each other. Raises struct.error, as WireError is, perhaps after some
        of them."""
        layout = self._layout
        if layout.plain:
            return map(layout.plain, layout.form.iter_unpack(data))
        return self._each(data)

    def _each(self, data: Buffer) -> Iterator[T]:
        layout, at = self._layout, 0
        try:
            if layout.is_fixed:
                for values in layout.form.iter_unpack(data):
                    yield layout.make(*values)
            while at < len(data) and not layout.is_fixed:
                made, at = self.take(data, at)
                yield made
        except (struct.error, ValueError) as error:
            raise self._error(f"{len(data)} bytes are not all {layout.name}: {error}") from None

    def take(self, data: Buffer, at: int) -> tuple[T, int]:
        """The record at `at`, and the offset behind it. Raises ValueError, struct.error."""
        layout = self._layout
        values = layout.form.unpack_from(data, at)
        if layout.is_fixed:
            return layout.make(*values), at + layout.size
        end = len(data)
        if self._total:
            code, offset = self._total
            length = struct.unpack_from(f"<{code}", data, at + (offset or 0))[0]
            if not layout.size <= length <= end - at:
                raise ValueError(
                    f"a length of {length} bytes is stated, which is not between {layout.size} and"
                    f" {end - at}"
                )
            end = at + length
        tail = layout.tail(data, at + layout.size, end)
        made: T = layout.make(tail, *values)
        if self._total and tail.at != end:
            raise ValueError(f"{end - tail.at} bytes are left")
        return made, tail.at

    def _with(self, number: int) -> Layout:
        """The layout of records that so many items follow."""
        layout = self._layout
        if not layout.limits.least <= number <= min(layout.limits.most, _MOST_COMPILED):
            return layout
        compiled = self._compile(layout, number)
        if not self._total:
            self._by_size[compiled.size] = compiled
        self._by_number[number] = compiled
        return compiled

    def _decode_other(self, data: Buffer) -> T:
        """As `decode`, for bytes whose number has no layout yet."""
        layout, size = self._layout, len(data)
        if layout.is_fixed:
            self._by_size[layout.size] = layout
            return layout.make(*layout.unpack(data))  # type: ignore[no-any-return]
        if layout.unit and not self._total:
            number, rest = divmod(size - layout.size, layout.unit)
            if number >= 0 and not rest and (found := self._with(number)) is not layout:
                return found.make(*found.unpack(data))  # type: ignore[no-any-return]
        made, end = self.take(data, 0)
        if end != size and not self._total:
            raise ValueError(f"{size - end} bytes are left")
        return made

    @cached_property
    def _layout(self) -> Layout:
        return self._compile()

    def _compile(self, *items: Any) -> Layout:
        return Layout(*self._declared, _record_of, *items)


def _record_of(kind: Any) -> Record[Any]:
    return getattr(kind, "RECORD", None) or Record(kind)
