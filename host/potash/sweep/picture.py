"""Points of a sweep as a picture: what a core costs against how long a network takes on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from potash.sweep.points import COSTS, Point
from potash.units import human
from potash.vta.svg import Picture

WIDTH, HEIGHT = 760, 480
LEFT, RIGHT, TOP, BOTTOM = 80, 730, 50, 420
COLOURS = ("#1f6fb2", "#c0392b", "#2a9d8f", "#e08a1e", "#9467bd", "#8c6d31", "#6a9a3b", "#444444")
LABELS = {
    "sram": "bytes of buffers on the chip",
    "multipliers": "multipliers",
    "bandwidth": "bytes of a memory channel in a cycle",
}


def draw(points: Sequence[Point], against: Sequence[str]) -> bytes:
    """The picture as SVG; the first of `against` is what lies across. A front's points are filled
    and joined, and each says under the mouse what it is."""
    across = against[0]
    feasible = [point for point in points if point.cycles is not None]
    picture = Picture(WIDTH, HEIGHT, "Configurations of the tensor accelerator")
    if not feasible:
        picture.text(WIDTH / 2, HEIGHT / 2, "no configuration is feasible", text_anchor="middle")
        return bytes(picture)
    axes = _Axes(feasible, across)
    axes.draw(picture)
    names = list(dict.fromkeys(point.network.name for point in points))
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        mine = [point for point in feasible if point.network.name == name]
        front = sorted((point for point in mine if point.front), key=axes.at)
        if len(against) == 1:
            for one, next_ in itertools.pairwise(front):
                start, end = axes.at(one), axes.at(next_)
                # Until the next core can be paid, it is this one's latency.
                picture.line(start, (end[0], start[1]), stroke=colour, stroke_width=1.5)
                picture.line((end[0], start[1]), end, stroke=colour, stroke_width=1.5)
        for point in sorted(mine, key=lambda one: one.front):
            x, y = axes.at(point)
            fill = {"fill": colour} if point.front else {"fill": "white", "stroke": colour}
            picture.add("circle", cx=x, cy=y, r=4, hint=_hint(point), **fill)
        picture.add("rect", x=LEFT + 150 * number, y=18, width=12, height=12, fill=colour)
        picture.text(LEFT + 150 * number + 18, 28, name)
    return bytes(picture)


def _hint(point: Point) -> str:
    varied = ", ".join(f"{name} {value:g}" for name, value in point.core.varied)
    return (
        f"{point.network.name}: {varied or 'as it is'}\n{point.latency * 1e3:.3g} ms, "
        f"{point.gops:.3g} GOP/s{', on the front' if point.front else ''}"
    )


class _Axes:
    """Both logarithmic, in powers of two across and of two upwards, as long as the points need."""

    def __init__(self, points: Sequence[Point], across: str) -> None:
        self._across = across
        costs = [self._cost(point) for point in points]
        times = [point.latency for point in points]
        self.low, self.high = _span(costs)
        self.floor, self.ceiling = _span(times)

    def at(self, point: Point) -> tuple[float, float]:
        """Where a point lies in the picture."""
        return self._x(self._cost(point)), self._y(point.latency)

    def draw(self, picture: Picture) -> None:
        """Lines at the powers of two, and what they mean."""
        for value in _powers(self.low, self.high):
            x = self._x(value)
            picture.line((x, TOP), (x, BOTTOM), stroke="#dddddd")
            said = human(int(value)) if self._across == "sram" else f"{value:g}"
            picture.text(x, BOTTOM + 18, said, text_anchor="middle")
        for value in _powers(self.floor, self.ceiling):
            y = self._y(value)
            picture.line((LEFT, y), (RIGHT, y), stroke="#dddddd")
            picture.text(LEFT - 8, y + 4, f"{value * 1e3:.3g}", text_anchor="end")
        middle = (TOP + BOTTOM) / 2
        picture.text((LEFT + RIGHT) / 2, BOTTOM + 42, LABELS[self._across], text_anchor="middle")
        picture.text(
            20,
            middle,
            "latency in ms",
            text_anchor="middle",
            transform=f"rotate(-90 20 {middle:g})",
        )

    def _cost(self, point: Point) -> float:
        return COSTS[self._across](point.core.config, point.core.parameters)

    def _x(self, cost: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(cost / self.low) / math.log(self.high / self.low)

    def _y(self, seconds: float) -> float:
        share = math.log(seconds / self.floor) / math.log(self.ceiling / self.floor)
        return BOTTOM - (BOTTOM - TOP) * share


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The powers of two around all values, which are not the same."""
    low = 2.0 ** math.floor(math.log2(min(values)) - 0.1)
    return low, max(2.0 ** math.ceil(math.log2(max(values)) + 0.1), 2 * low)


def _powers(low: float, high: float) -> list[float]:
    count = round(math.log2(high / low))
    return [low * 2.0**power for power in range(count + 1)]
