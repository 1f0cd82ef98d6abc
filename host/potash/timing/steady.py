"""The change of a drive from empty to its steady state, while a host writes random pages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from csd_spec.reporting import Amount, Count
from potash.sdk.progress import Progress, silent
from potash.vta.svg import Axes, Decades, Linear, Picture
from potash_device.flash.profile import PAGE
from potash_firmware.ftl.interface import Ftl
from potash_firmware.ftl.requests import FAILED, REQUEST, WORN, Op

_AT_ONCE = 1 << 18
"""Requests, of 48 bytes each."""
PERCENTAGES = (50.0, 99.0, 99.9)
GIB = 1 << 30
WIDTH, HEIGHT = 760, 640
LEFT, RIGHT = 80, 730
LATENCIES, AMPLIFICATION = (60, 380), (440, 580)
"""Tops and bottoms of the two diagrams in the picture."""
COLOURS = {"p50": "#1f6fb2", "p99": "#e08a1e", "p99.9": "#c0392b"}
COMPARED = (*COLOURS.values(), "#2e8b57", "#7d3c98", "#17a2b8", "#8d6e3f", "#555555")
"""Colours of drives that are compared."""
DIAGRAM, BELOW = 220, 60
"""Heights of a diagram of these, and of what is written below it."""


class Percentiles(NamedTuple):
    """Latencies in microseconds."""

    p50_us: Annotated[Amount, "The median."]
    p99_us: Annotated[Amount, "The 99th percentile."]
    p999_us: Annotated[Amount, "The 99.9th percentile."]


class Window(NamedTuple):
    """A part of the requests, one after the other."""

    seconds: Annotated[
        Amount, "Modelled time from the first request to the end of the window, in seconds."
    ]
    written: Annotated[Count, "Bytes that the host had written by the end of the window."]
    requests: Annotated[Count, "Number of requests of the window that were served."]
    write_amplification: Annotated[
        Amount, "Pages programmed per page that the host wrote; 0 if it wrote none."
    ]
    writes: Annotated[Percentiles | None, "Latencies of writes; null if there were none."]
    reads: Annotated[Percentiles | None, "Latencies of reads; null if there were none."]


def steady(
    drive: Ftl,
    writes: float = 3.0,
    reads: float = 0.0,
    depth: int = 32,
    windows: int = 100,
    seed: int = 0,
    progress: Progress = silent,
    skew: tuple[int, int] | None = None,
) -> Sequence[Window]:
    """Write random pages, `writes` times as many as the drive has, with `depth` requests in flight.

    `reads` is the share of reads among the requests, below 1. `skew` is a percentage of the
    requests, and that of the pages to which they go. Raises what `Drive.run` does.
    """
    random, pages = np.random.default_rng(seed), drive.profile.logical_pages
    flying = np.full(depth, drive.now)
    each, start, found = int(pages * writes / (1 - reads)) / windows, drive.now, list[Window]()
    for number in range(windows):
        progress("simulating", number / windows)
        none, before = np.empty(0, np.int64), drive.counters
        latencies, ops = [none], [none]
        left = int(each * (number + 1)) - int(each * number)
        while left > 0:
            requests = np.zeros(min(left, _AT_ONCE), REQUEST)
            left -= len(requests)
            requests["op"] = np.where(random.random(len(requests)) < reads, Op.READ, Op.WRITE)
            requests["first"] = random_pages(random, pages, len(requests), skew)
            requests["count"] = 1
            completions = drive.closed_loop(requests, flying)
            served = (completions != WORN) & (completions != FAILED)
            latencies.append((completions - requests["time"])[served])
            ops.append(requests["op"][served])
        took = drive.counters.since(before)
        times, kinds = map(np.concatenate, (latencies, ops))
        writing, reading = times[kinds == Op.WRITE], times[kinds == Op.READ]
        found.append(
            Window(
                seconds=(drive.now - start) / 1e9,
                written=(found[-1].written if found else 0) + took.host * PAGE,
                requests=len(times),
                write_amplification=took.write_amplification,
                writes=percentiles(writing) if len(writing) else None,
                reads=percentiles(reading) if len(reading) else None,
            )
        )
    return found


def random_pages(
    random: np.random.Generator, pages: int, count: int, skew: tuple[int, int] | None
) -> NDArray[np.int64]:
    """Numbers of random pages. `skew` is as for `steady`; the pages used more are the first."""
    if skew is None:
        return random.integers(0, pages, count)
    used = max(1, pages * skew[1] // 100)
    first = random.random(count) < skew[0] / 100
    return random.integers(np.where(first, 0, used), np.where(first, used, pages))


def percentiles(latencies: NDArray[np.int64]) -> Percentiles:
    """The percentiles of latencies in nanoseconds, of which there is at least one."""
    found = np.percentile(latencies, PERCENTAGES, method="higher") / 1000
    return Percentiles(*map(float, found))


def draw(windows: Sequence[Window], title: str) -> bytes:
    """A picture of the windows as SVG: latencies above write amplification. Reads are dashed."""
    picture = Picture(WIDTH, HEIGHT, title)
    picture.text((LEFT + RIGHT) / 2, 26, title, text_anchor="middle", font_size=14)
    across = Linear.around(max((one.seconds for one in windows), default=0.0) or 1.0)
    every = [one for window in windows for one in (window.writes, window.reads) if one]
    times = [time for one in every for time in one if time > 0]
    up = Decades.around(times or [1.0])
    _latencies(picture, Axes(LEFT, LATENCIES[0], RIGHT, LATENCIES[1], across, up), windows)
    highest = max((one.write_amplification for one in windows), default=1.0)
    up_to = Linear.around(max(1.0, highest))
    axes = Axes(LEFT, AMPLIFICATION[0], RIGHT, AMPLIFICATION[1], across, up_to)
    axes.draw(picture, ("modelled time in s", "write amplification"))
    points = [(one.seconds, one.write_amplification) for one in windows if one.writes]
    _curve(picture, axes, points, COLOURS["p50"])
    return bytes(picture)


def draw_compared(drives: Mapping[str, Sequence[Window]], title: str) -> bytes:
    """A picture of drives by their names as SVG, a colour for each: latencies of writes, those of
    reads if there are any, and write amplification, over the amount written."""
    every = [window for windows in drives.values() for window in windows]
    kinds = [kind for kind in ("writes", "reads") if any(getattr(window, kind) for window in every)]
    top = 70 + 18 * len(drives)
    picture = Picture(WIDTH, top + (len(kinds) + 1) * (DIAGRAM + BELOW), title)
    picture.text((LEFT + RIGHT) / 2, 26, title, text_anchor="middle", font_size=14)
    named = list(zip(drives.items(), COMPARED, strict=False))
    for number, ((name, _), colour) in enumerate(named):
        picture.add("rect", x=LEFT, y=40 + 18 * number, width=12, height=12, fill=colour)
        picture.text(LEFT + 18, 50 + 18 * number, name)
    picture.text(LEFT, top - 10, "solid: p50, dashed: p99")
    across = Linear.around(max((window.written for window in every), default=0) / GIB or 1.0)
    for kind in kinds:
        times = [time for window in every for time in (getattr(window, kind) or ())[:2] if time > 0]
        up = Decades.around(times or [1.0])
        axes = Axes(LEFT, top, RIGHT, top + DIAGRAM, across, up)
        axes.draw(picture, ("", f"latency of {kind} in µs"))
        for (_, windows), colour in named:
            for number, dashes in enumerate(("none", "4 3")):
                pairs = ((window.written / GIB, getattr(window, kind)) for window in windows)
                points = [(x, max(up.low, some[number])) for x, some in pairs if some]
                _curve(picture, axes, points, colour, dashes)
        top += DIAGRAM + BELOW
    highest = Linear.around(max([1.0, *(window.write_amplification for window in every)]))
    axes = Axes(LEFT, top, RIGHT, top + DIAGRAM, across, highest)
    axes.draw(picture, ("GiB written", "write amplification"))
    for (_, windows), colour in named:
        points = [
            (window.written / GIB, window.write_amplification)
            for window in windows
            if window.writes
        ]
        _curve(picture, axes, points, colour)
    return bytes(picture)


def _latencies(picture: Picture, axes: Axes, windows: Sequence[Window]) -> None:
    axes.draw(picture, ("", "latency in µs"))
    for number, (name, colour) in enumerate(COLOURS.items()):
        for kind, dashes in (("writes", "none"), ("reads", "4 3")):
            pairs = ((one.seconds, getattr(one, kind)) for one in windows)
            points = [(seconds, max(axes.up.low, some[number])) for seconds, some in pairs if some]
            _curve(picture, axes, points, colour, dashes)
        x = LEFT + 90 * number
        picture.add("rect", x=x, y=40, width=12, height=12, fill=colour)
        picture.text(x + 18, 50, name)
    if any(one.reads for one in windows):
        picture.text(LEFT + 90 * len(COLOURS), 50, "solid: writes, dashed: reads")


def _curve(
    picture: Picture,
    axes: Axes,
    points: Iterable[tuple[float, float]],
    colour: str,
    dashes: str = "none",
) -> None:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in (axes.at(*one) for one in points))
    style = {"fill": "none", "stroke": colour, "stroke_dasharray": dashes}
    picture.add("polyline", points=places, stroke_width=1.5, **style)
