"""How a drive reaches its steady state, as a picture: latencies above write amplification."""

from collections.abc import Iterable, Sequence

from potash.timing.steady import Window
from potash.vta.svg import Axes, Decades, Linear, Picture

WIDTH, HEIGHT = 760, 640
LEFT, RIGHT = 80, 730
LATENCIES, AMPLIFICATION = (60, 380), (440, 580)
"""Tops and bottoms of the two diagrams."""
COLOURS = {"p50": "#1f6fb2", "p99": "#e08a1e", "p99.9": "#c0392b"}


def draw(windows: Sequence[Window], title: str) -> bytes:
    """The picture as SVG. Reads are dashed."""
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
