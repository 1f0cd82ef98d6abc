"""Types of columns: what a value is, how many bits it has, and how people write it.

Apache Arrow, `format/Schema.fbs`.
"""

from __future__ import annotations

import datetime
import math
import struct
from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

Value = int | float | str | bool
"""A value as Python has it: of a date or a time, the number that the file has."""


class TypeId(IntEnum):
    """Members of the union Type."""

    NULL = 1
    INT = 2
    FLOAT = 3
    BINARY = 4
    UTF8 = 5
    BOOL = 6
    DECIMAL = 7
    DATE = 8
    TIME = 9
    TIMESTAMP = 10
    INTERVAL = 11
    LIST = 12
    STRUCT = 13
    UNION = 14
    FIXED_SIZE_BINARY = 15
    FIXED_SIZE_LIST = 16
    MAP = 17
    DURATION = 18
    LARGE_BINARY = 19
    LARGE_UTF8 = 20
    LARGE_LIST = 21
    RUN_END_ENCODED = 22
    BINARY_VIEW = 23
    UTF8_VIEW = 24
    LIST_VIEW = 25
    LARGE_LIST_VIEW = 26


_WHOLE_NUMBERS = {TypeId.INT, TypeId.DATE, TypeId.TIME, TypeId.TIMESTAMP, TypeId.DURATION}
_MOMENTS = {TypeId.DATE, TypeId.TIME, TypeId.TIMESTAMP}
TEXTS = {TypeId.UTF8, TypeId.LARGE_UTF8, TypeId.UTF8_VIEW}
_FLOAT_LETTER = {16: "e", 32: "f", 64: "d"}
_UNITS = ("s", "ms", "us", "ns")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class DataType(NamedTuple):
    """A type. `unit` is 0 to 3 for seconds to nanoseconds; of a date in days, it is -1."""

    id: TypeId
    bits: int = 0
    """Width of a value in the file; 0 if values have no fixed width."""
    signed: bool = True
    unit: int = 0
    timezone: str = ""

    @property
    def is_integer(self) -> bool:
        """True if values are integers in the file, as dates and times are, too."""
        return self.id in _WHOLE_NUMBERS

    @property
    def is_number(self) -> bool:
        return self.id in (TypeId.INT, TypeId.FLOAT)

    @property
    def is_computable(self) -> bool:
        """True if programs can use the type."""
        return self.is_integer or self.id in (TypeId.FLOAT, TypeId.BOOL)

    @property
    def keys(self) -> tuple[int, int]:
        """The least and the greatest key of its values (`conditions`)."""
        if self.id == TypeId.FLOAT:
            infinity = float_key(math.inf, self.bits)
            return -infinity, infinity
        if self.id == TypeId.BOOL or not self.signed:
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    @property
    def code(self) -> str:
        """A value's letter of the module `struct`."""
        if self.id == TypeId.FLOAT:
            return _FLOAT_LETTER[self.bits]
        if self.id == TypeId.BOOL:
            return "?"
        letter = {8: "b", 16: "h", 32: "i", 64: "q"}[self.bits]
        return letter if self.signed else letter.upper()

    def __str__(self) -> str:
        match self.id:
            case TypeId.INT:
                return f"{'' if self.signed else 'u'}int{self.bits}"
            case TypeId.FLOAT:
                return f"float{self.bits}"
            case TypeId.DATE | TypeId.TIME:
                return f"{self.id.name.lower()}{self.bits}"
            case TypeId.TIMESTAMP | TypeId.DURATION:
                return f"{self.id.name.lower()}[{_UNITS[self.unit]}]"
        return self.id.name.lower()

    def parse(self, text: str) -> Fraction:
        """The number that a date or a time is in a file. Raises ValueError."""
        if self.id == TypeId.TIME:
            time = datetime.time.fromisoformat(text)
            if time.tzinfo is not None:
                raise ValueError("a time of day has no offset")
            seconds = Fraction(time.hour * 3600 + time.minute * 60 + time.second)
            return (seconds + Fraction(time.microsecond, 10**6)) * _per_second(self.unit)
        if self.id not in _MOMENTS:
            raise ValueError(f"{self} is not a date")
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        since = moment - _EPOCH
        seconds = Fraction(since // datetime.timedelta(microseconds=1), 10**6)
        return seconds / 86400 if self.unit < 0 else seconds * _per_second(self.unit)

    def text(self, value: Value) -> str:
        """A value of this type for people; a date that Python does not have as its number."""
        if self.id not in _MOMENTS or not isinstance(value, int):
            return str(value)
        if self.unit < 0:
            seconds, rest = value * 86400, 0
        else:
            seconds, rest = divmod(value, _per_second(self.unit))
        try:
            moment = _EPOCH + datetime.timedelta(seconds=seconds)
        except OverflowError:
            return str(value)
        fraction = f".{rest:0{3 * self.unit}}" if rest else ""
        if self.id == TypeId.TIME:
            return f"{moment:%H:%M:%S}{fraction}"
        if self.id == TypeId.DATE and not (seconds % 86400 or rest):
            return f"{moment.date()}"
        return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}{'Z' if self.timezone else ''}"


INT64 = DataType(TypeId.INT, 64)
UINT64 = DataType(TypeId.INT, 64, signed=False)
FLOAT64 = DataType(TypeId.FLOAT, 64)
BOOL = DataType(TypeId.BOOL, 1)
UTF8 = DataType(TypeId.UTF8)


def _per_second(unit: int) -> int:
    return (1, 10**3, 10**6, 10**9)[unit]


def float_bits(value: float, bits: int) -> int:
    """The bit pattern of a float, without a sign. Raises OverflowError."""
    return int.from_bytes(struct.pack(f"<{_FLOAT_LETTER[bits]}", value), "little")


def float_of(pattern: int, bits: int) -> float:
    """The float with a bit pattern."""
    value: float = struct.unpack(f"<{_FLOAT_LETTER[bits]}", pattern.to_bytes(bits // 8, "little"))[
        0
    ]
    return value


def float_key(value: float, bits: int) -> int:
    """An integer with the order of the floats, which is the same for 0.0 and -0.0; not for NaN."""
    pattern = float_bits(value, bits)
    magnitude = pattern & ((1 << (bits - 1)) - 1)
    return -magnitude if pattern >> (bits - 1) else magnitude
