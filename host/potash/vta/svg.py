"""Pictures as SVG, from the standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
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
        """An element; `_` in an attribute's name stands for `-`. `hint` is shown under the mouse."""
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


def _short(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
