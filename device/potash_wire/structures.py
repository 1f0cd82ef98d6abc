"""Mutable structures and immutable words: fields with an offset and a width over bytes.

Everything is little endian (NVM Express Base Specification 2.0, section 1.4.2). Bytes and bits that
no field names are kept, so what a decode does not understand an encode does not lose.

    class Example(Structure):
        SIZE = 8
        cid = u16(0)
        count_z = bits(2, 2, 0, 11)

    class Example(Word):  # an integer: a register, a feature's dword
        WIDTH = 4
        en = field(0)
        mps = field(7, 10)

    Example(0x80).update(en=1).mps == 1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

T = TypeVar("T")
S = TypeVar("S", bound="Structure")
FieldT = TypeVar("FieldT", bound="Field[Any]")
Buffer = bytes | bytearray | memoryview


class LayoutError(TypeError):
    """A structure's declaration contradicts itself."""


class Field(Generic[T]):
    """One field: `size` bytes at `offset`, which a subclass converts by `read` and `write`."""

    name = "?"
    pad = b"\0"

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
    def __get__(self, instance: Declared, owner: type) -> T: ...
    def __get__(self, instance: Declared | None, owner: type) -> Field[T] | T:
        if instance is None:
            return self
        return self.load(instance._data)

    def __set__(self, instance: Structure, value: T) -> None:
        self.store(instance._data, value)

    def occupied(self) -> int:
        """The bits that this field owns, as a mask over the whole structure."""
        return ((1 << 8 * self.size) - 1) << 8 * self.offset

    def load(self, data: Any) -> T:
        return self.read(data[self.offset : self.offset + self.size])

    def store(self, data: bytearray, value: T) -> None:
        try:
            raw = self.write(value)
            if len(raw) > self.size:
                raise ValueError(f"{len(raw)} bytes do not fit in {self.size}")
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        data[self.offset : self.offset + self.size] = raw.ljust(self.size, self.pad)

    def read(self, data: bytearray) -> T:
        raise NotImplementedError

    def write(self, value: T) -> bytes:
        """Its bytes, or the first of them. Raises ValueError for a value that does not fit."""
        raise NotImplementedError


class UInt(Field[int]):
    """An unsigned little-endian integer."""

    def load(self, data: bytearray) -> int:  # not by `read`, which takes longer
        return int.from_bytes(data[self.offset : self.offset + self.size], "little")

    def write(self, value: int) -> bytes:
        if not 0 <= value < 1 << 8 * self.size:
            raise ValueError(f"{value:#x} does not fit in {self.size} bytes")
        return value.to_bytes(self.size, "little")


class WordField(Field[int]):
    """Bits `high`:`low` of a word."""

    def __init__(self, low: int, high: int) -> None:
        if not 0 <= low <= high:
            raise LayoutError(f"a field cannot have bits {high}:{low}")
        super().__init__(0, high // 8 + 1)
        self.low = low
        self.high = high
        self.limit = 1 << (high - low + 1)
        self.mask = (self.limit - 1) << low

    def occupied(self) -> int:
        return self.mask << 8 * self.offset

    def load(self, data: int) -> int:
        return (data & self.mask) >> self.low

    def insert(self, word: int, value: int) -> int:
        """`word` with this field set to `value`; ValueError when it does not fit."""
        if not 0 <= value < self.limit:
            raise ValueError(f"{self.name}: {value:#x} does not fit in bits {self.high}:{self.low}")
        return word & ~self.mask | value << self.low


class Bits(WordField):
    """Bits `high`:`low` of an integer of `size` bytes; neighbours in the same bytes are kept."""

    def __init__(self, offset: int, size: int, low: int, high: int) -> None:
        super().__init__(low, high)
        if high >= 8 * size:
            raise LayoutError(f"bits {high}:{low} are not in {size} bytes")
        self._word = UInt(offset, size)
        self.offset, self.size = offset, size

    def load(self, data: Any) -> int:
        return super().load(self._word.load(data))

    def store(self, data: bytearray, value: int) -> None:
        self._word.store(data, self.insert(self._word.load(data), value))


class Text(Field[str]):
    """ASCII, left justified and padded at the end (section 1.4.2): spaces, or NULs for an NQN."""

    def __init__(self, offset: int, size: int, pad: bytes = b" ") -> None:
        super().__init__(offset, size)
        self.pad = pad

    def read(self, data: bytearray) -> str:
        return data.rstrip(b"\0 ").decode("ascii", "replace")

    def write(self, value: str) -> bytes:
        if not value.isascii():
            raise ValueError(f"{value!r} is not ASCII")
        if len(value) > self.size:
            raise ValueError(f"{value!r} is longer than {self.size} characters")
        return value.encode()


class Raw(Field[bytes]):
    """Bytes as they are; a shorter value is padded with zeroes."""

    def read(self, data: bytearray) -> bytes:
        return bytes(data)

    def write(self, value: bytes) -> bytes:
        return bytes(value)


class Array(Field[tuple[T, ...]]):
    """`count` items in a row, each stored as `item`; after fewer there are zeroes."""

    def __init__(self, offset: int, item: Field[T], count: int) -> None:
        super().__init__(offset, item.size * count)
        self.item, self.width, self.count = item, item.size, count

    def read(self, data: bytearray) -> tuple[T, ...]:
        width = self.width
        return tuple(self.item.load(data[at : at + width]) for at in range(0, self.size, width))

    def write(self, value: Iterable[T]) -> bytes:
        return b"".join(map(self.item.write, value))


class UInts(Array[int]):
    """Unsigned integers."""

    def __init__(self, offset: int, width: int, count: int) -> None:
        super().__init__(offset, UInt(0, width), count)


class Nested(Field[S]):
    """A structure inside a structure; reading gives a copy, so change it and assign it back."""

    def __init__(self, offset: int, kind: type[S]) -> None:
        super().__init__(offset, kind.SIZE)
        self.read = kind  # type: ignore[method-assign]  # it takes such bytes
        self.write = bytes  # type: ignore[method-assign, assignment]


class Table(Array[S]):
    """Structures."""

    def __init__(self, offset: int, kind: type[S], count: int) -> None:
        super().__init__(offset, Nested(0, kind), count)


class Declared:
    """Base class of types with `FIELDS`, which do not overlap, in `SIZE` bytes."""

    SIZE: ClassVar[int]
    FIELDS: ClassVar[dict[str, Any]] = {}
    _data: Any

    def __init_subclass__(cls) -> None:
        own = {name: item for name, item in vars(cls).items() if isinstance(item, Field)}
        cls.FIELDS = {**cls.FIELDS, **own}
        taken = 0
        for name, item in cls.FIELDS.items():
            occupied = item.occupied()
            if item.offset + item.size > cls.SIZE:
                where = f"is not in {cls.SIZE} bytes, and ends after byte {cls.SIZE}"
                raise LayoutError(f"{cls.__name__}.{name} {where}")
            if taken & occupied:
                raise LayoutError(f"{cls.__name__}.{name} overlaps another field")
            taken |= occupied

    @classmethod
    def _known(cls, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """Names and values. Raises TypeError for one that is no field."""
        for name, value in fields.items():
            if name not in cls.FIELDS:
                raise TypeError(f"{cls.__name__} has no field {name!r}")
            yield name, value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Declared) or type(other) is not type(self):
            return NotImplemented
        return bool(self._data == other._data)

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Name and value of each field, in the order of declaration."""
        for name in self.FIELDS:
            yield name, cast(object, getattr(self, name))

    def _shown(self, form: str) -> str:
        shown = ", ".join(f"{name}={form.format(value)}" for name, value in self if value)
        return f"{type(self).__name__}({shown})"


class Structure(Declared):
    """A typed view over `SIZE` bytes of its own.

    `S()` is all zeroes, `S(buffer)` decodes a copy of exactly `SIZE` bytes (`ValueError`
    otherwise), `S(cid=3)` sets fields by name, `bytes(s)` encodes.
    """

    SIZE = 0
    _data: bytearray

    def __init__(self, buffer: Buffer | None = None, /, **fields: object) -> None:
        if buffer is not None and len(buffer) != self.SIZE:
            name = type(self).__name__
            raise ValueError(f"{name} has {self.SIZE} bytes, but {len(buffer)} were given")
        self._data = bytearray(self.SIZE) if buffer is None else bytearray(buffer)
        for name, value in self._known(fields):
            setattr(self, name, value)

    __hash__ = None  # type: ignore[assignment]  # mutable, hence not hashable

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def __len__(self) -> int:
        return self.SIZE

    def __repr__(self) -> str:
        return self._shown("{!r}")


class Word(Declared):
    """An unsigned integer of `WIDTH` bytes with named bits, which does not change.

    `W()` is zero, `W(value)` decodes (ValueError for what does not fit), `W(en=1)` sets fields by
    name, `encode()` gives the integer.
    """

    WIDTH: ClassVar[int] = 4
    SIZE = 4
    FIELDS: ClassVar[dict[str, WordField]] = {}
    _data: int

    def __init_subclass__(cls) -> None:
        cls.SIZE = cls.WIDTH
        super().__init_subclass__()

    def __init__(self, value: int = 0, /, **fields: int) -> None:
        if not 0 <= value < 1 << 8 * self.WIDTH:
            raise ValueError(f"{value:#x} does not fit in {self.WIDTH} bytes")
        for name, item in self._known(fields):
            value = self.FIELDS[name].insert(value, item)
        self._data = value

    @classmethod
    def decode(cls, value: int) -> Self:
        return cls(value)

    def encode(self) -> int:
        return self._data

    def update(self, **fields: int) -> Self:
        """A word that differs in the named fields."""
        return type(self)(self._data, **fields)

    def __int__(self) -> int:
        return self._data

    def __hash__(self) -> int:
        return hash((type(self), self._data))

    def __repr__(self) -> str:
        return self._shown("{:#x}")


u8 = partial(UInt, size=1)
u16 = partial(UInt, size=2)
u32 = partial(UInt, size=4)
u64 = partial(UInt, size=8)
u128 = partial(UInt, size=16)
uint, uints, bits, text, raw, nested, table = UInt, UInts, Bits, Text, Raw, Nested, Table


def field(low: int, high: int | None = None) -> WordField:
    """Bits `high`:`low` of a word, or the one bit `low`."""
    return WordField(low, low if high is None else high)
