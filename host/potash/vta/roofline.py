"""Layers under the roofs of a core: what its multipliers and what its memory allow.

As figure 15 of "VTA: An Open Hardware-Software Stack for Deep Learning": operations for each byte
against operations a second, and for each layer the points without and with latency hiding, joined.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from potash.vta.layers import THREADS
from potash.vta.svg import Axes, Picture, Powers
from potash_device.vta import figures
from potash_device.vta.config import Config
from potash_device.vta.timing.parameters import Parameters
from potash_device.vta.timing.result import Activity

GIGA = 1e9
WIDTH, HEIGHT = 760, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 730, 50, 420
COLOURS = {0: "#1f6fb2", 1: "#c0392b", 2: "#1f6fb2"}
LABELS = {1: "one virtual thread", 2: "two virtual threads"}


class Point(NamedTuple):
    """A layer in the diagram."""

    name: str
    operator: str
    """The operator of a model's node."""
    threads: int
    """Virtual threads; 0 for a model's node."""
    time: Activity
    throughput: float
    """GOP/s."""


def draw(title: str, points: Sequence[Point], config: Config, parameters: Parameters) -> bytes:
    peak = figures.peak_throughput(config, parameters.clock) / GIGA
    channel = parameters.bus_bytes * parameters.clock / GIGA
    axes = _axes(points, peak, channel)
    low, high = axes.across
    picture = Picture(WIDTH, HEIGHT, "Roofline of the tensor accelerator")
    picture.text(
        (LEFT + RIGHT) / 2,
        26,
        f"{title}: {peak:.1f} GOP/s at {parameters.clock / 1e6:g} MHz, "
        f"{channel:.1f} GB/s a memory channel",
        text_anchor="middle",
        font_size=14,
    )
    axes.draw(picture, ("operations for each byte on the busier memory channel", "GOP/s"))
    ridge = peak / channel
    roof: dict[str, str | float] = {"stroke": "#333333", "stroke_width": 2}
    picture.line(axes.at(low, low * channel), axes.at(ridge, peak), **roof)
    picture.line(axes.at(ridge, peak), axes.at(high, peak), **roof)
    for name in dict.fromkeys(one.name for one in points):
        of_layer = [one for one in points if one.name == name]
        places = [axes.at(one.time.intensity, one.throughput) for one in of_layer]
        for start, end in itertools.pairwise(places):
            picture.line(start, end, stroke="#888888", stroke_width=1.5)
        for (x, y), one in zip(places, of_layer, strict=True):
            about = f", {LABELS[one.threads]}" if one.threads else f" {one.operator}"
            hint = (
                f"{name}{about}: {one.throughput:.1f} GOP/s, "
                f"{one.time.intensity:.0f} operations a byte, "
                f"{one.time.utilisation:.0%} of the cycles"
            )
            picture.add("circle", cx=x, cy=y, r=4, fill=COLOURS[one.threads], hint=hint)
        x, y = places[-1]
        picture.text(x + 7, y - 5, name)
    for number, threads in enumerate(THREADS if points[0].threads else ()):
        y = BOTTOM - 34 + 18 * number
        picture.add("circle", cx=RIGHT - 150, cy=y - 4, r=4, fill=COLOURS[threads])
        picture.text(RIGHT - 140, y, LABELS[threads])
    return bytes(picture)


def _axes(points: Sequence[Point], peak: float, channel: float) -> Axes:
    across = [one.time.intensity for one in points] + [peak / channel]
    up = [one.throughput for one in points] + [peak]
    low = 2.0 ** math.floor(math.log2(min(across)) - 0.5)
    high = 2.0 ** math.ceil(math.log2(max(across)) + 0.5)
    floor = 2.0 ** math.floor(math.log2(min(*up, low * channel)))
    ceiling = 2.0 ** math.ceil(math.log2(max(up)) + 0.2)
    return Axes(LEFT, TOP, RIGHT, BOTTOM, Powers(low, high), Powers(floor, ceiling))
