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


def draw(plot: Plot, rows: Sequence[dict[str, Any]]) -> bytes:
    """The picture as SVG. Values of the function `published` are rings, in the colour of the line
    with the same other columns. Raises PotashError for columns that are not numbers."""
    check(plot, list(rows[0]))
    lines: dict[tuple[Any, ...], dict[float, list[float]]] = {}
    for row in rows:
        x, y = row[plot.x], row[plot.y]
        if y is None and row.get("method") == PUBLISHED:
            continue
        for name, value in ((plot.x, x), (plot.y, y)):
            if not isinstance(value, int | float):
                raise PotashError(f"--plot: {name} has {value!r}, which is no number")
        line = lines.setdefault(tuple(row[name] for name in plot.by), defaultdict(list))
        line[x].append(y)
    points = {
        key: [(x, *_spread(values)) for x, values in sorted(line.items())]
        for key, line in lines.items()
    }
    every = [one for line in points.values() for one in line]
    ends = [y + sign * error for _, y, error in every for sign in (-1, 1)]
    across, up = _scale([x for x, _, _ in every]), _scale(ends)
    axes = Axes(LEFT, TOP, RIGHT, BOTTOM, across, up)
    picture = Picture(WIDTH, HEIGHT, f"{plot.y} by {plot.x}")
    axes.draw(picture, (plot.x, plot.y))
    methods = [row.get("method") for row in rows if row.get("method") != PUBLISHED]
    colours: dict[tuple[Any, ...], str] = {}
    for key, spread in points.items():
        of_program = tuple(methods[0] if value == PUBLISHED else value for value in key)
        colour = colours.setdefault(of_program, COLOURS[len(colours) % len(COLOURS)])
        if PUBLISHED in key:
            for x, up_to, _ in spread:
                _ring(picture, axes.at(x, up_to), colour, f"{x:g}: {up_to:g}")
        else:
            _line(picture, axes, colour, spread)
    published = any(PUBLISHED in key for key in points)
    for number, (key, colour) in enumerate(colours.items()):
        y = TOP + 20 * number
        picture.add("rect", x=RIGHT + 20, y=y, width=12, height=12, fill=colour)
        named = ", ".join(
            str(value) if isinstance(value, str) else f"{name} {value}"
            for name, value in zip(plot.by, key, strict=True)
            if not (published and name == "method")
        )
        picture.text(RIGHT + 38, y + 10, named)
    if published:
        y = TOP + 20 * len(colours)
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
