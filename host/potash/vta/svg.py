"""Pictures as SVG, from the standard library alone."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as xml

NAMESPACE = "http://www.w3.org/2000/svg"
FONT = "font: 12px sans-serif"


class Picture:
    """A white sheet of `width` by `height` pixels to draw on."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._root = xml.Element(
            "svg",
            xmlns=NAMESPACE,
            width=str(width),
            height=str(height),
            viewBox=f"0 0 {width} {height}",
            style=FONT,
        )
        xml.SubElement(self._root, "title").text = title
        self.add("rect", width=width, height=height, fill="white")

    def add(self, shape: str, *, hint: str | None = None, **attributes: str | float) -> None:
        """An element; `_` in an attribute's name stands for `-`. `hint` is shown under the
        mouse."""
        element = self._add(shape, attributes)
        if hint is not None:
            xml.SubElement(element, "title").text = hint

    def text(self, x: float, y: float, words: str, **attributes: str | float) -> None:
        """Words that begin at a point, if `text_anchor` does not say otherwise."""
        self._add("text", {"x": x, "y": y, **attributes}).text = words

    def line(
        self, start: tuple[float, float], end: tuple[float, float], **style: str | float
    ) -> None:
        ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
        self._add("line", {**ends, **style})

    def __bytes__(self) -> bytes:
        xml.indent(self._root)
        whole: bytes = xml.tostring(self._root, encoding="utf-8", xml_declaration=True)
        return whole + b"\n"

    def _add(self, shape: str, attributes: Mapping[str, str | float]) -> xml.Element:
        named = {name.replace("_", "-"): _short(value) for name, value in attributes.items()}
        return xml.SubElement(self._root, shape, named)


class Powers(NamedTuple):
    """A logarithmic scale from one power of two to another, with a mark at each."""

    low: float
    high: float

    def part(self, value: float) -> float:
        return math.log2(value / self.low) / math.log2(self.high / self.low)

    def marks(self) -> list[float]:
        return [self.low * 2.0**n for n in range(round(math.log2(self.high / self.low)) + 1)]


class Decades(NamedTuple):
    """A logarithmic scale with marks at 1, 2 and 5 times each power of ten."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> "Decades":
        """An axis from the last mark not above the positive values to the first not below them."""
        least, most = min(values), max(values)
        low = max(mark for mark in _decimal(least, most) if mark <= least)
        return cls(low, min(mark for mark in _decimal(least, most) if mark >= most and mark > low))

    def part(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)

    def marks(self) -> list[float]:
        return [mark for mark in _decimal(self.low, self.high) if self.low <= mark <= self.high]


def _decimal(low: float, high: float) -> Iterator[float]:
    """1, 2 and 5 times each power of ten, from below `low` to above `high`."""
    for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2):
        yield from (float(f"{digit}e{power}") for digit in (1, 2, 5))


class Linear(NamedTuple):
    """A linear scale from 0, with a mark at each multiple of `step`."""

    high: float
    step: float

    @property
    def low(self) -> float:
        return 0.0

    @classmethod
    def around(cls, high: float) -> "Linear":
        """An axis with five to ten steps, to the first that is not below `high`."""
        unit = 10.0 ** math.floor(math.log10(high))
        step = next(unit * part for part in (0.1, 0.2, 0.5, 1) if high <= 10 * unit * part)
        return cls(step * math.ceil(high / step), step)

    def part(self, value: float) -> float:
        return value / self.high

    def marks(self) -> list[float]:
        return [self.step * n for n in range(round(self.high / self.step) + 1)]


class Axes(NamedTuple):
    """Two axes in a frame of pixels."""

    left: float
    top: float
    right: float
    bottom: float
    across: Powers | Decades | Linear
    up: Powers | Decades | Linear

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Coordinates of a point in the picture."""
        return (
            self.left + (self.right - self.left) * self.across.part(x),
            self.bottom - (self.bottom - self.top) * self.up.part(y),
        )

    def draw(
        self,
        picture: Picture,
        labels: tuple[str, str],
        across: Callable[[float], str] = "{:g}".format,
        up: Callable[[float], str] = "{:g}".format,
    ) -> None:
        """Lines at the marks, their values as `across` and `up` say them, and labels."""
        for value in self.across.marks():
            x, _ = self.at(value, self.up.low)
            picture.line((x, self.top), (x, self.bottom), stroke="#dddddd")
            picture.text(x, self.bottom + 18, across(value), text_anchor="middle")
        for value in self.up.marks():
            _, y = self.at(self.across.low, value)
            picture.line((self.left, y), (self.right, y), stroke="#dddddd")
            picture.text(self.left - 8, y + 4, up(value), text_anchor="end")
        middle, half = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        picture.text(middle, self.bottom + 42, labels[0], text_anchor="middle")
        turned = f"rotate(-90 20 {half:g})"
        picture.text(20, half, labels[1], text_anchor="middle", transform=turned)


def _short(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
