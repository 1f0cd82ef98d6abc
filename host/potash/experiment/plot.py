"""A picture of an experiment's results: means with their standard deviations."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from potash.sdk.errors import PotashError
from potash.tables import columns
from potash.vta.svg import Axes, Decades, Linear, Picture

WIDTH, HEIGHT = 760, 500
LEFT, RIGHT, TOP, BOTTOM = 90, 530, 30, 440
COLOURS = ("#1f6fb2", "#c0392b", "#2a9d8f", "#e08a1e", "#9467bd", "#8c6d31", "#6a9a3b", "#444444")
PUBLISHED = "published"
"""The name of a function that returns published values, to compare the others with."""
LOGARITHMIC = 20
"""A positive axis whose largest value is so many times its least is logarithmic."""


class Plot(NamedTuple):
    """The columns of a picture: along each axis, and those that make a line."""

    x: str
    y: str
    by: tuple[str, ...] = ("method",)


def parse(text: str) -> Plot:
    """`x=NAME,y=NAME,by=NAME+NAME`. Raises ValueError."""
    values = dict(part.partition("=")[::2] for part in text.split(","))
    if not {"x", "y"} <= set(values) <= {"x", "y", "by"} or not all(values.values()):
        raise ValueError("a plot is x=COLUMN,y=COLUMN,by=COLUMN+COLUMN")
    return Plot(values["x"], values["y"], tuple(values.get("by", "method").split("+")))


def check(plot: Plot, columns: Sequence[str]) -> None:
    """Raise PotashError for a column that there is not."""
    for name in (plot.x, plot.y, *plot.by):
        if name not in columns:
            raise PotashError(f"--plot: there is no column {name}; there are {', '.join(columns)}")


class Line(NamedTuple):
    """A line of a picture, or the published values for it."""

    names: tuple[Any, ...]
    """The values of the plot's columns `by` in rows of the program."""
    colour: str
    published: bool
    points: list[tuple[float, float, float]]
    """x, and the mean and standard deviation of y; in order of x."""


def lines(plot: Plot, rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """The lines of a picture. Raises PotashError for columns that are not numbers."""
    check(plot, list(rows[0]))
    values: dict[tuple[Any, ...], dict[float, list[float]]] = {}
    for row in rows:
        x, y = row[plot.x], row[plot.y]
        if y is None and row.get("method") == PUBLISHED:
            continue
        for name, value in ((plot.x, x), (plot.y, y)):
            if not isinstance(value, int | float):
                raise PotashError(f"--plot: {name} has {value!r}, which is no number")
        values.setdefault(tuple(row[name] for name in plot.by), defaultdict(list))[x].append(y)
    methods = [row.get("method") for row in rows if row.get("method") != PUBLISHED]
    colours: dict[tuple[Any, ...], str] = {}
    made = []
    for key, line in values.items():
        names = tuple(methods[0] if value == PUBLISHED else value for value in key)
        colour = colours.setdefault(names, COLOURS[len(colours) % len(COLOURS)])
        points = [(x, *_spread(repeated)) for x, repeated in sorted(line.items())]
        made.append(Line(names, colour, PUBLISHED in key, points))
    return made


def axes(lines: Sequence[Line], left: float, top: float, right: float, bottom: float) -> Axes:
    """Axes for all lines in a frame of pixels. Raises PotashError for negative values."""
    points = [point for line in lines for point in line.points]
    ends = [y + sign * error for _, y, error in points for sign in (-1, 1)]
    return Axes(left, top, right, bottom, _scale([x for x, _, _ in points]), _scale(ends))


def draw(plot: Plot, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The picture as SVG, in which published values are rings. Raises PotashError for columns that
    are not numbers."""
    drawn = lines(plot, rows)
    frame = axes(drawn, LEFT, TOP, RIGHT, BOTTOM)
    picture = Picture(WIDTH, HEIGHT, f"{plot.y} by {plot.x}")
    frame.draw(picture, (plot.x, plot.y))
    for line in drawn:
        if line.published:
            for x, y, _ in line.points:
                _ring(picture, frame.at(x, y), line.colour, f"{x:g}: {y:g}")
        else:
            _line(picture, frame, line.colour, line.points)
    published = any(line.published for line in drawn)
    legend = {line.names: line.colour for line in drawn}
    for number, (names, colour) in enumerate(legend.items()):
        y = TOP + 20 * number
        picture.add("rect", x=RIGHT + 20, y=y, width=12, height=12, fill=colour)
        named = ", ".join(
            str(value) if isinstance(value, str) else f"{name} {value}"
            for name, value in zip(plot.by, names, strict=True)
            if not (published and name == "method")
        )
        picture.text(RIGHT + 38, y + 10, named)
    if published:
        y = TOP + 20 * len(legend)
        _ring(picture, (RIGHT + 26, y + 6), "#444444")
        picture.text(RIGHT + 38, y + 10, PUBLISHED)
    return bytes(picture)


def compared(plot: Plot, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table: means of column y, with the published values beside them."""
    names = list(dict.fromkeys((*(name for name in plot.by if name != "method"), plot.x)))
    values: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows:
        point = values.setdefault(tuple(row[name] for name in names), defaultdict(list))
        if row[plot.y] is not None:
            point[row["method"]].append(row[plot.y])
    (method,) = {row["method"] for row in rows} - {PUBLISHED}
    table = [[*names, plot.y, PUBLISHED, "deviation"]]
    for key, found in values.items():
        if not found[method]:
            continue
        here = statistics.fmean(found[method])
        cells = [*map(str, key), f"{here:.4g}"]
        if found[PUBLISHED]:
            there = statistics.fmean(found[PUBLISHED])
            cells += [f"{there:.4g}", f"{100 * (here / there - 1):+.1f} %" if there else ""]
        table.append(cells + [""] * (len(names) + 3 - len(cells)))
    return columns(table)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the sample's standard deviation."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _scale(values: Sequence[float]) -> Decades | Linear:
    least, most = min(values), max(values)
    if least > 0 and most >= LOGARITHMIC * least:
        return Decades.around(values)
    if least < 0:
        raise PotashError("--plot: a value, or its error bar, is negative")
    return Linear.around(most or 1.0)


def _ring(picture: Picture, at: tuple[float, float], colour: str, hint: str | None = None) -> None:
    picture.add("circle", cx=at[0], cy=at[1], r=5, fill="none", stroke=colour, hint=hint)


def _line(
    picture: Picture, axes: Axes, colour: str, line: Sequence[tuple[float, float, float]]
) -> None:
    before = None
    for x, y, error in line:
        at = axes.at(x, y)
        if before is not None:
            picture.line(before, at, stroke=colour, stroke_width=1.5)
        before = at
        if error:
            low, high = axes.at(x, y - error), axes.at(x, y + error)
            picture.line(low, high, stroke=colour)
            for end in (low, high):
                picture.line((end[0] - 4, end[1]), (end[0] + 4, end[1]), stroke=colour)
        hint = f"{x:g}: {y:g}" + (f" ± {error:g}" if error else "")
        picture.add("circle", cx=at[0], cy=at[1], r=3, fill=colour, hint=hint)
