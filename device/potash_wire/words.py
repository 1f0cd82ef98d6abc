"""How a register, a feature's dword or a command is declared: an integer whose bits have names.

class Example(Word):
    WIDTH = 4
    en = field(0)
    mps = field(7, 10)

Example(0x80).update(en=1).mps == 1

`CommandDwords` is the same for command dwords 10 to 15."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, cast, dataclass_transform, overload

from potash_wire.structures import LayoutError


class WordField:
    """Bits `high`:`low` of a word."""

    name = "?"

    def __init__(self, low: int, high: int) -> None:
        if not 0 <= low <= high:
            raise LayoutError(f"a field cannot have bits {high}:{low}")
        self.low = low
        self.high = high
        self.limit = 1 << (high - low + 1)
        self.mask = (self.limit - 1) << low

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> WordField: ...
    @overload
    def __get__(self, instance: Word, owner: type) -> int: ...
    def __get__(self, instance: Word | None, owner: type) -> WordField | int:
        if instance is None:
            return self
        return (instance.encode() & self.mask) >> self.low

    def insert(self, word: int, value: int) -> int:
        """`word` with this field set to `value`; ValueError when it does not fit."""
        if not 0 <= value < self.limit:
            raise ValueError(f"{self.name}: {value:#x} does not fit in bits {self.high}:{self.low}")
        return word & ~self.mask | value << self.low


class Word:
    """An unsigned integer of `WIDTH` bytes with named bits.

    `W()` is zero, `W(value)` decodes (ValueError for what does not fit), `W(en=1)` sets fields by
    name, `encode()` gives the integer.
    """

    WIDTH: ClassVar[int] = 4
    FIELDS: ClassVar[dict[str, WordField]] = {}

    def __init_subclass__(cls) -> None:
        own = {name: item for name, item in vars(cls).items() if isinstance(item, WordField)}
        cls.FIELDS = {**cls.FIELDS, **own}
        taken = 0
        for name, item in cls.FIELDS.items():
            if item.high >= 8 * cls.WIDTH:
                raise LayoutError(f"{cls.__name__}.{name} is not in {cls.WIDTH} bytes")
            if taken & item.mask:
                raise LayoutError(f"{cls.__name__}.{name} overlaps another field")
            taken |= item.mask

    def __init__(self, value: int = 0, /, **fields: int) -> None:
        if not 0 <= value < 1 << 8 * self.WIDTH:
            raise ValueError(f"{value:#x} does not fit in {self.WIDTH} bytes")
        for name, item in fields.items():
            if name not in self.FIELDS:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            value = self.FIELDS[name].insert(value, item)
        self._value = value

    @classmethod
    def decode(cls, value: int) -> Self:
        return cls(value)

    def encode(self) -> int:
        return self._value

    def update(self, **fields: int) -> Self:
        """A word that differs in the named fields."""
        return type(self)(self._value, **fields)

    def __int__(self) -> int:
        return self._value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Word) or type(other) is not type(self):
            return NotImplemented
        return self._value == other._value

    def __hash__(self) -> int:
        return hash((type(self), self._value))

    def __repr__(self) -> str:
        named = (
            (name, (self._value & item.mask) >> item.low) for name, item in self.FIELDS.items()
        )
        shown = ", ".join(f"{name}={value:#x}" for name, value in named if value)
        return f"{type(self).__name__}({shown})"


def field(low: int, high: int | None = None) -> WordField:
    """Bits `high`:`low` of a word, or the one bit `low`."""
    return WordField(low, low if high is None else high)


def put(value: int, low: int, width: int) -> int:
    """`value` in a field of `width` bits from bit `low`. Raises ValueError when it does not fit."""
    if not 0 <= value < 1 << width:
        raise ValueError(f"{value:#x} does not fit in bits {low + width - 1}:{low}")
    return int(value) << low


Cdws = tuple[int, int, int, int, int, int]
"""Command dwords 10 to 15."""

_CDWS = struct.Struct("<6I")


_REQUIRED = object()


class _Bits(NamedTuple):
    start: int
    width: int
    default: Any


def bits(dword: int, low: int, high: int | None = None, *, default: Any = _REQUIRED) -> Any:
    """A field: bits `high`:`low` of command dword `dword` (and, beyond bit 31, of those behind it),
    or the one bit `low`. One whose default is a bool is a bool."""
    return _Bits(32 * (dword - 10) + low, (high or low) - low + 1, default)


@dataclass_transform(frozen_default=True, field_specifiers=(bits,))
class CommandDwords:
    """The fields of one command, which a subclass declares; immutable.

    As a frozen dataclass, but classes of those take so long to make that every program of the SDK
    would wait for them.
    """

    _layout: ClassVar[dict[str, _Bits]]

    def __init_subclass__(cls) -> None:
        cls._layout = {name: one for name, one in vars(cls).items() if isinstance(one, _Bits)}

    def __init__(self, *values: Any, **named: Any) -> None:
        layout = self._layout
        found = {name: one.default for name, one in layout.items()}
        found |= zip(layout, values, strict=False)
        found |= named
        if len(values) > len(layout) or len(found) > len(layout) or _REQUIRED in found.values():
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(layout)}")
        self.__dict__.update(found)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} of a command cannot be changed")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

    def encode(self) -> Cdws:
        """The six dwords. Raises ValueError for what does not fit."""
        dwords = 0
        for name, (start, width, _) in self._layout.items():
            value = int(getattr(self, name))
            if not 0 <= value < 1 << width:
                raise ValueError(f"{name}: {value} does not fit in {width} bits")
            dwords |= value << start
        return cast(Cdws, _CDWS.unpack(dwords.to_bytes(_CDWS.size, "little")))

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Self:
        """The fields of six dwords; reserved bits are ignored."""
        dwords = int.from_bytes(_CDWS.pack(*cdws), "little")
        made = cls.__new__(cls)
        for name, (start, width, default) in cls._layout.items():
            value = dwords >> start & (1 << width) - 1
            made.__dict__[name] = bool(value) if isinstance(default, bool) else value
        return made
