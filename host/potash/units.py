"""Sizes as people write them, and other parameters of commands that are parsed from text."""

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

T = TypeVar("T")

LARGEST = (1 << 63) - 1
"""Bytes of a file at most, which is what the system counts its offsets in."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Parsed(click.ParamType[T]):
    """A parameter that `parse` makes of its text; the text of its ValueError is shown."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            converted: T = value
            return converted
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Real(click.FloatRange):
    """A range of numbers, in which NaN is not."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


def completing(
    names: Callable[[], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]:
    """Completion of a parameter in a shell: these names, or else a file (`shell_complete`)."""

    def complete(
        _ctx: click.Context, _param: click.Parameter, typed: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name) for name in names() if name.startswith(typed)]
        return found or [CompletionItem(typed, type="file")]

    return complete


def quadword(text: str) -> int:
    """A number of 64 bits. Raises ValueError."""
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{text!r} is not a number of 64 bits; write 4096 or 0x1000")
    return value


class Size(Parsed[int]):
    """Bytes, or a number with K, M, G or T behind it, each 1024 of the one before."""

    def __init__(self, minimum: int = 1) -> None:
        super().__init__("SIZE", self._size)
        self._minimum = minimum

    def _size(self, text: str) -> int:
        size = parse_size(text)
        if not self._minimum <= size <= LARGEST:
            low = size < self._minimum
            bound = f"small; the least is {short(self._minimum)}" if low else "large"
            raise ValueError(f"{text!r} is too {bound}")
        return size


def parse_size(text: str) -> int:
    """Bytes of a size as people write it. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,20})([KMGT]?)(iB|B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write 512M or 1G")
    return int(match[1]) * _UNITS[match[2].upper()]


_DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "y": 31_557_600}
"""Seconds of units; a year has 365.25 days."""
LONGEST = 100
"""Years."""


def parse_duration(text: str) -> int:
    """Seconds of a text like 90d or 1.5y, up to a century. Raises ValueError."""
    try:
        seconds = float(text[:-1]) * _DURATIONS[text[-1:]]
    except (ValueError, KeyError):
        raise ValueError(f"{text!r:.40} is not a time like 12h, 90d or 1y") from None
    if not 0 <= seconds <= LONGEST * _DURATIONS["y"]:
        raise ValueError(f"{text!r:.40} is not between 0 and {LONGEST} years")
    return int(seconds)


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape such as 1x224x224x3. Raises ValueError."""
    extents = text.split("x")
    if not all(one.isascii() and one.isdigit() and 0 < int(one) < 1 << 31 for one in extents):
        raise ValueError(f"{text!r} is not a shape; write one as 1x224x224x3")
    return tuple(map(int, extents))


def short(size: int) -> str:
    """A size as `parse_size` reads it, in the largest unit that divides it."""
    unit = next((unit for unit in "TGMK" if size and size % _UNITS[unit] == 0), "")
    return f"{size // _UNITS[unit]}{unit}"


def human(size: int) -> str:
    """A size in the largest unit that divides it."""
    for unit in "TGMK":
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]} {unit}iB"
    return f"{size} bytes"
