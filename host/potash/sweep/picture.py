"""Points of a sweep as a picture: what a core costs against how long a network takes on it."""

import itertools
import math
from collections.abc import Sequence

from potash.sweep.points import COSTS, Point
from potash.units import human
from potash.vta.svg import Axes, Decades, Picture, Powers

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
    feasible = [point for point in points if point.feasible]
    picture = Picture(WIDTH, HEIGHT, "Configurations of the tensor accelerator")
    if not feasible:
        picture.text(WIDTH / 2, HEIGHT / 2, "no configuration is feasible", text_anchor="middle")
        return bytes(picture)

    def cost(point: Point) -> float:
        return COSTS[across](point.core.config, point.core.parameters)

    def place(point: Point) -> tuple[float, float]:
        return axes.at(cost(point), point.latency)

    costs, times = list(map(cost, feasible)), [point.latency for point in feasible]
    # Powers of two around all costs, which are not the same.
    low = 2.0 ** math.floor(math.log2(min(costs)) - 0.1)
    span = Powers(low, max(2.0 ** math.ceil(math.log2(max(costs)) + 0.1), 2 * low))
    axes = Axes(LEFT, TOP, RIGHT, BOTTOM, span, Decades.around(times))
    say = (lambda value: human(int(value))) if across == "sram" else "{:g}".format
    axes.draw(picture, (LABELS[across], "latency in ms"), say, lambda value: f"{value * 1e3:.3g}")
    names = list(dict.fromkeys(point.network for point in points))
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        mine = [point for point in feasible if point.network == name]
        front = sorted((point for point in mine if point.front), key=place)
        if len(against) == 1:
            for one, next_ in itertools.pairwise(front):
                start, end = place(one), place(next_)
                # Until the next core can be paid, it is this one's latency.
                picture.line(start, (end[0], start[1]), stroke=colour, stroke_width=1.5)
                picture.line((end[0], start[1]), end, stroke=colour, stroke_width=1.5)
        for point in sorted(mine, key=lambda one: one.front):
            x, y = place(point)
            fill = {"fill": colour} if point.front else {"fill": "white", "stroke": colour}
            picture.add("circle", cx=x, cy=y, r=4, hint=_hint(point), **fill)
        picture.add("rect", x=LEFT + 150 * number, y=18, width=12, height=12, fill=colour)
        picture.text(LEFT + 150 * number + 18, 28, name)
    return bytes(picture)


def _hint(point: Point) -> str:
    varied = ", ".join(f"{name} {value:g}" for name, value in point.varied.items())
    return (
        f"{point.network}: {varied or 'as it is'}\n{point.latency * 1e3:.3g} ms, "
        f"{point.gops or 0:.3g} GOP/s{', on the front' if point.front else ''}"
    )
