"""How a structure of the standard is declared: fields with an offset and a width over bytes.

Everything is little endian (NVM Express Base Specification 2.0, section 1.4.2). Bytes that no field
names are kept, so what a decode does not understand an encode does not lose.

    class Example(Structure):
        SIZE = 8
        cid = u16(0)
        count_z = bits(2, 2, 0, 11)"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast, overload

T = TypeVar("T")
S = TypeVar("S", bound="Structure")
FieldT = TypeVar("FieldT", bound="Field[Any]")
Buffer = bytes | bytearray | memoryview


class LayoutError(TypeError):
    """A structure's declaration contradicts itself."""


class Field(Generic[T]):
    """One field: `size` bytes at `offset`; what the bytes mean is the subclass's `load`/`store`."""

    name = "?"

    def __init__(self, offset: int, size: int) -> None:
        if offset < 0 or size <= 0:
            raise LayoutError(f"a field cannot have offset {offset} and size {size}")
        self.offset = offset
        self.size = size

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self: FieldT, instance: None, owner: type) -> FieldT: ...
    @overload
    def __get__(self, instance: Structure, owner: type) -> T: ...
    def __get__(self, instance: Structure | None, owner: type) -> Field[T] | T:
        if instance is None:
            return self
        return self.load(instance._data)

    def __set__(self, instance: Structure, value: T) -> None:
        self.store(instance._data, value)

    def occupied(self) -> int:
        """The bits that this field owns, as a mask over the whole structure."""
        return ((1 << 8 * self.size) - 1) << 8 * self.offset

    def load(self, data: bytearray) -> T:
        raise NotImplementedError

    def store(self, data: bytearray, value: T) -> None:
        raise NotImplementedError


class UInt(Field[int]):
    """An unsigned little-endian integer."""

    def load(self, data: bytearray) -> int:
        return int.from_bytes(data[self.offset : self.offset + self.size], "little")

    def store(self, data: bytearray, value: int) -> None:
        if not 0 <= value < 1 << 8 * self.size:
            raise ValueError(f"{self.name}: {value:#x} does not fit in {self.size} bytes")
        data[self.offset : self.offset + self.size] = value.to_bytes(self.size, "little")


class Bits(Field[int]):
    """Bits `high`:`low` of an integer of `size` bytes; neighbours in the same bytes are kept."""

    def __init__(self, offset: int, size: int, low: int, high: int) -> None:
        super().__init__(offset, size)
        if not 0 <= low <= high < 8 * size:
            raise LayoutError(f"bits {high}:{low} are not in {size} bytes")
        self.low = low
        self.limit = 1 << (high - low + 1)

    def occupied(self) -> int:
        return (self.limit - 1) << self.low + 8 * self.offset

    def load(self, data: bytearray) -> int:
        word = int.from_bytes(data[self.offset : self.offset + self.size], "little")
        return word >> self.low & self.limit - 1

    def store(self, data: bytearray, value: int) -> None:
        if not 0 <= value < self.limit:
            raise ValueError(f"{self.name}: {value:#x} does not fit in its bits")
        end = self.offset + self.size
        word = int.from_bytes(data[self.offset : end], "little")
        word = word & ~((self.limit - 1) << self.low) | value << self.low
        data[self.offset : end] = word.to_bytes(self.size, "little")


class Text(Field[str]):
    """ASCII, left justified and padded at the end (section 1.4.2): spaces, or NULs for an NQN."""

    def __init__(self, offset: int, size: int, pad: bytes = b" ") -> None:
        super().__init__(offset, size)
        self.pad = pad

    def load(self, data: bytearray) -> str:
        raw = bytes(data[self.offset : self.offset + self.size])
        return raw.rstrip(b"\0 ").decode("ascii", "replace")

    def store(self, data: bytearray, value: str) -> None:
        try:
            raw = value.encode("ascii")
        except UnicodeEncodeError:
            raise ValueError(f"{self.name}: {value!r} is not ASCII") from None
        if len(raw) > self.size:
            raise ValueError(f"{self.name}: {value!r} is longer than {self.size} characters")
        data[self.offset : self.offset + self.size] = raw.ljust(self.size, self.pad)


class Raw(Field[bytes]):
    """Bytes as they are; a shorter value is padded with zeroes."""

    def load(self, data: bytearray) -> bytes:
        return bytes(data[self.offset : self.offset + self.size])

    def store(self, data: bytearray, value: bytes) -> None:
        if len(value) > self.size:
            raise ValueError(f"{self.name}: {len(value)} bytes do not fit in {self.size}")
        data[self.offset : self.offset + self.size] = bytes(value).ljust(self.size, b"\0")


class UInts(Field[tuple[int, ...]]):
    """An array of `count` unsigned integers of `width` bytes; a shorter value leaves zeroes."""

    def __init__(self, offset: int, width: int, count: int) -> None:
        super().__init__(offset, width * count)
        self.width = width
        self.count = count

    def load(self, data: bytearray) -> tuple[int, ...]:
        starts = range(self.offset, self.offset + self.size, self.width)
        return tuple(int.from_bytes(data[at : at + self.width], "little") for at in starts)

    def store(self, data: bytearray, value: Iterable[int]) -> None:
        items = tuple(value)
        if len(items) > self.count:
            raise ValueError(f"{self.name}: {len(items)} items do not fit in {self.count}")
        if any(not 0 <= item < 1 << 8 * self.width for item in items):
            raise ValueError(f"{self.name}: an item does not fit in {self.width} bytes")
        raw = b"".join(item.to_bytes(self.width, "little") for item in items)
        data[self.offset : self.offset + self.size] = raw.ljust(self.size, b"\0")


class Nested(Field[S]):
    """A structure inside a structure; reading gives a copy, so change it and assign it back."""

    def __init__(self, offset: int, kind: type[S]) -> None:
        super().__init__(offset, kind.SIZE)
        self.kind = kind

    def load(self, data: bytearray) -> S:
        return self.kind(data[self.offset : self.offset + self.size])

    def store(self, data: bytearray, value: S) -> None:
        data[self.offset : self.offset + self.size] = bytes(value)


class Table(Field[tuple[S, ...]]):
    """`count` equal structures in a row; a shorter value leaves zeroes behind it."""

    def __init__(self, offset: int, kind: type[S], count: int) -> None:
        super().__init__(offset, kind.SIZE * count)
        self.kind = kind
        self.count = count

    def load(self, data: bytearray) -> tuple[S, ...]:
        starts = range(self.offset, self.offset + self.size, self.kind.SIZE)
        return tuple(self.kind(data[at : at + self.kind.SIZE]) for at in starts)

    def store(self, data: bytearray, value: Iterable[S]) -> None:
        items = tuple(value)
        if len(items) > self.count:
            raise ValueError(f"{self.name}: {len(items)} items do not fit in {self.count}")
        raw = b"".join(map(bytes, items))
        data[self.offset : self.offset + self.size] = raw.ljust(self.size, b"\0")


class Structure:
    """A typed view over `SIZE` bytes of its own.

    `S()` is all zeroes, `S(buffer)` decodes a copy of exactly `SIZE` bytes (`ValueError`
    otherwise), `S(cid=3)` sets fields by name, `bytes(s)` encodes.
    """

    SIZE: ClassVar[int]
    FIELDS: ClassVar[dict[str, Field[Any]]] = {}
    _data: bytearray

    def __init_subclass__(cls) -> None:
        own = {name: item for name, item in vars(cls).items() if isinstance(item, Field)}
        cls.FIELDS = {**cls.FIELDS, **own}
        taken = 0
        for name, item in cls.FIELDS.items():
            occupied = item.occupied()
            if item.offset + item.size > cls.SIZE:
                raise LayoutError(f"{cls.__name__}.{name} ends after byte {cls.SIZE}")
            if taken & occupied:
                raise LayoutError(f"{cls.__name__}.{name} overlaps another field")
            taken |= occupied

    def __init__(self, buffer: Buffer | None = None, /, **fields: object) -> None:
        if buffer is not None and len(buffer) != self.SIZE:
            name = type(self).__name__
            raise ValueError(f"{name} has {self.SIZE} bytes, but {len(buffer)} were given")
        self._data = bytearray(self.SIZE) if buffer is None else bytearray(buffer)
        for name, value in fields.items():
            if name not in self.FIELDS:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(self, name, value)

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def __len__(self) -> int:
        return self.SIZE

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure) or type(other) is not type(self):
            return NotImplemented
        return self._data == other._data

    __hash__ = None  # type: ignore[assignment]  # mutable, hence not hashable

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Name and value of each field, in the order of declaration."""
        for name in self.FIELDS:
            yield name, cast(object, getattr(self, name))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self if value)
        return f"{type(self).__name__}({shown})"


u8 = partial(UInt, size=1)
u16 = partial(UInt, size=2)
u32 = partial(UInt, size=4)
u64 = partial(UInt, size=8)
u128 = partial(UInt, size=16)
uint = UInt
bits = Bits
text = Text
raw = Raw
uints = UInts
nested = Nested
table = Table
