"""Layers under the roofs of a core: what its multipliers and what its memory allow.

As figure 15 of "VTA: An Open Hardware-Software Stack for Deep Learning": operations for each byte
against operations a second, and for each layer the points without and with latency hiding, joined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from potash.vta.layers import THREADS, Timed
from potash.vta.svg import Picture
from potash_device.vta import figures
from potash_device.vta.config import Config
from potash_device.vta.timing.parameters import Parameters

GIGA = 1e9
WIDTH, HEIGHT = 760, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 730, 50, 420
COLOURS = {1: "#c0392b", 2: "#1f6fb2"}
LABELS = {1: "one virtual thread", 2: "two virtual threads"}


def draw(points: Sequence[Timed], config: Config, parameters: Parameters) -> bytes:
    """The picture as SVG."""
    peak = figures.peak_throughput(config, parameters.clock) / GIGA
    channel = parameters.bus_bytes * parameters.clock / GIGA
    axes = _Axes(points, peak, channel)
    picture = Picture(WIDTH, HEIGHT, "Roofline of the tensor accelerator")
    picture.text(
        (LEFT + RIGHT) / 2,
        26,
        f"ResNet-18: {peak:.1f} GOP/s at {parameters.clock / 1e6:g} MHz, "
        f"{channel:.1f} GB/s a memory channel",
        text_anchor="middle",
        font_size=14,
    )
    axes.draw(picture)
    ridge = peak / channel
    roof: dict[str, str | float] = {"stroke": "#333333", "stroke_width": 2}
    picture.line(axes.at(axes.low, axes.low * channel), axes.at(ridge, peak), **roof)
    picture.line(axes.at(ridge, peak), axes.at(axes.high, peak), **roof)
    for name, of_layer in _by_layer(points).items():
        places = [axes.at(one.timing.intensity, one.throughput / GIGA) for one in of_layer]
        for start, end in itertools.pairwise(places):
            picture.line(start, end, stroke="#888888", stroke_width=1.5)
        for (x, y), one in zip(places, of_layer, strict=True):
            hint = (
                f"{name}, {LABELS[one.threads]}: {one.throughput / GIGA:.1f} GOP/s, "
                f"{one.timing.intensity:.0f} operations a byte, "
                f"{one.timing.utilisation:.0%} of the cycles"
            )
            picture.add("circle", cx=x, cy=y, r=4, fill=COLOURS[one.threads], hint=hint)
        x, y = places[-1]
        picture.text(x + 7, y - 5, name)
    for number, threads in enumerate(THREADS):
        y = BOTTOM - 34 + 18 * number
        picture.add("circle", cx=RIGHT - 150, cy=y - 4, r=4, fill=COLOURS[threads])
        picture.text(RIGHT - 140, y, LABELS[threads])
    return bytes(picture)


class _Axes:
    """Both axes are logarithmic, and as long as the points need."""

    def __init__(self, points: Sequence[Timed], peak: float, channel: float) -> None:
        across = [one.timing.intensity for one in points] + [peak / channel]
        up = [one.throughput / GIGA for one in points] + [peak]
        self.low = 2.0 ** math.floor(math.log2(min(across)) - 0.5)
        self.high = 2.0 ** math.ceil(math.log2(max(across)) + 0.5)
        self.floor = 2.0 ** math.floor(math.log2(min(*up, self.low * channel)))
        self.ceiling = 2.0 ** math.ceil(math.log2(max(up)) + 0.2)

    def at(self, intensity: float, throughput: float) -> tuple[float, float]:
        """Where a point lies in the picture."""
        right = math.log2(intensity / self.low) / math.log2(self.high / self.low)
        up = math.log2(throughput / self.floor) / math.log2(self.ceiling / self.floor)
        return LEFT + right * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)

    def draw(self, picture: Picture) -> None:
        """Lines at the powers of two, and what they mean."""
        grid: dict[str, str | float] = {"stroke": "#dddddd"}
        value = self.low
        while value <= self.high:
            x, _ = self.at(value, self.floor)
            picture.line((x, TOP), (x, BOTTOM), **grid)
            picture.text(x, BOTTOM + 18, f"{value:g}", text_anchor="middle")
            value *= 2
        value = self.floor
        while value <= self.ceiling:
            _, y = self.at(self.low, value)
            picture.line((LEFT, y), (RIGHT, y), **grid)
            picture.text(LEFT - 8, y + 4, f"{value:g}", text_anchor="end")
            value *= 2
        picture.text(
            (LEFT + RIGHT) / 2,
            BOTTOM + 42,
            "operations for each byte on the busier memory channel",
            text_anchor="middle",
        )
        middle = (TOP + BOTTOM) / 2
        picture.text(
            20, middle, "GOP/s", text_anchor="middle", transform=f"rotate(-90 20 {middle:g})"
        )


def _by_layer(points: Sequence[Timed]) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = {}
    for one in points:
        found.setdefault(one.name, []).append(one)
    return found
