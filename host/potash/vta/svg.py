"""Pictures as SVG, from the standard library alone."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        """From one point to another."""
        ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
        self._add("line", {**ends, **style})

    def __bytes__(self) -> bytes:
        xml.indent(self._root)
        whole: bytes = xml.tostring(self._root, encoding="utf-8", xml_declaration=True)
        return whole + b"\n"

    def _add(self, shape: str, attributes: Mapping[str, str | float]) -> xml.Element:
        named = {name.replace("_", "-"): _short(value) for name, value in attributes.items()}
        return xml.SubElement(self._root, shape, named)


@dataclass(frozen=True)
class LogAxes:
    """Two logarithmic axes, from powers of two to powers of two, in a frame of pixels."""

    left: float
    top: float
    right: float
    bottom: float
    across: tuple[float, float]
    up: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies in the picture."""
        return (
            self.left + (self.right - self.left) * _part(x, *self.across),
            self.bottom - (self.bottom - self.top) * _part(y, *self.up),
        )

    def draw(
        self,
        picture: Picture,
        labels: tuple[str, str],
        across: Callable[[float], str] = "{:g}".format,
        up: Callable[[float], str] = "{:g}".format,
    ) -> None:
        """Lines at the powers of two, their values as `across` and `up` say them, and labels."""
        for value in _powers(*self.across):
            x, _ = self.at(value, self.up[0])
            picture.line((x, self.top), (x, self.bottom), stroke="#dddddd")
            picture.text(x, self.bottom + 18, across(value), text_anchor="middle")
        for value in _powers(*self.up):
            _, y = self.at(self.across[0], value)
            picture.line((self.left, y), (self.right, y), stroke="#dddddd")
            picture.text(self.left - 8, y + 4, up(value), text_anchor="end")
        middle, half = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        picture.text(middle, self.bottom + 42, labels[0], text_anchor="middle")
        turned = f"rotate(-90 20 {half:g})"
        picture.text(20, half, labels[1], text_anchor="middle", transform=turned)


def _part(value: float, low: float, high: float) -> float:
    return math.log2(value / low) / math.log2(high / low)


def _powers(low: float, high: float) -> list[float]:
    return [low * 2.0**power for power in range(round(math.log2(high / low)) + 1)]


def _short(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
