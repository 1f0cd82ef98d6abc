"""Draw the picture of the front page, `docs/pictures/papers.svg`: `examples/papers` in small.

    python docs/site/papers_picture.py

The experiments take an hour, so this picture is made when a release is, and not with the others.
Points that `results` has already are not measured again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from potash.experiment import plan, plot
from potash.vta.svg import Picture

DOCS = Path(__file__).parents[1]
PAPERS = DOCS.parent / "examples" / "papers"
NAMES = sorted(file.parent.name for file in PAPERS.glob("*/experiment.toml"))
PICTURE = DOCS / "pictures" / "papers.svg"
COLUMNS, WIDTH, HEIGHT = 4, 215, 170
INK, PALE = "#222222", "#666666"

Rows = Sequence[Mapping[str, Any]]


def measured(name: str, folder: Path, *options: str) -> Rows:
    """The rows of an experiment's results, which a directory has or gets.

    Raises CalledProcessError where the experiment fails.
    """
    words = (Path(sys.executable).with_name("potash"), "experiment", PAPERS / name, *options)
    command = [*map(str, words), "-o", str(folder / name), "--json"]
    report = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    rows = json.loads(report)["rows"]
    columns = dict.fromkeys(column for row in rows for column in row)
    return [dict.fromkeys(columns) | row for row in rows]


def axes_of(name: str) -> plot.Plot:
    """The columns in an experiment's picture. Raises ValueError where it has none."""
    columns = plan.read(PAPERS / name / "experiment.toml").plot
    if columns is None:
        raise ValueError(f"{name} has no plot")
    return columns


def label(columns: plot.Plot) -> str:
    """The text below a panel."""
    return f"{columns.y} by {columns.x}".replace("_", " ")


def picture(results: Mapping[str, Rows]) -> bytes:
    """A panel for each experiment, as SVG, and a last one that says what is drawn."""
    down = -(-(len(results) + 1) // COLUMNS)
    sheet = Picture(COLUMNS * WIDTH, down * HEIGHT, "Published results, and Potash's")
    for number, (name, rows) in enumerate(results.items()):
        _panel(sheet, *_corner(number), name, rows)
    left, top = _corner(len(results))
    sheet.line((left + 30, top + 60), (left + 50, top + 60), stroke=INK, stroke_width=1.5)
    sheet.text(left + 60, top + 64, "Potash", fill=INK)
    sheet.add("circle", cx=left + 40, cy=top + 80, r=3, fill="none", stroke=INK)
    sheet.text(left + 60, top + 84, "published", fill=INK)
    return bytes(sheet)


def _corner(number: int) -> tuple[int, int]:
    return number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT


def _panel(sheet: Picture, left: int, top: int, name: str, rows: Rows) -> None:
    columns = axes_of(name)
    lines = plot.lines(columns, rows)
    frame = plot.axes(lines, left + 40, top + 28, left + WIDTH - 12, top + HEIGHT - 40)
    middle = (frame.left + frame.right) / 2
    sheet.text(middle, top + 20, name, text_anchor="middle", font_weight="bold", fill=INK)
    sheet.text(middle, top + HEIGHT - 10, label(columns), text_anchor="middle", fill=INK)
    sheet.add(
        "rect",
        x=frame.left,
        y=frame.top,
        width=frame.right - frame.left,
        height=frame.bottom - frame.top,
        fill="none",
        stroke="#dddddd",
    )
    across, up = frame.across.marks(), frame.up.marks()
    for x, anchor in ((across[0], "start"), (across[-1], "end")):
        at = frame.at(x, up[0])
        sheet.text(at[0], at[1] + 13, f"{x:g}", text_anchor=anchor, fill=PALE)
    for y, below in ((up[0], 0), (up[-1], 9)):
        at = frame.at(across[0], y)
        sheet.text(at[0] - 4, at[1] + below, f"{y:g}", text_anchor="end", fill=PALE)
    for line in lines:
        points = [frame.at(x, y) for x, y, _ in line.points]
        if line.published:
            for x, y in points:
                sheet.add("circle", cx=x, cy=y, r=3, fill="none", stroke=line.colour)
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            sheet.add("polyline", points=path, fill="none", stroke=line.colour)


def main() -> None:
    """Run what has no results yet, and draw. Raises CalledProcessError where a run fails."""
    PICTURE.write_bytes(picture({name: measured(name, Path("results")) for name in NAMES}))


if __name__ == "__main__":
    main()
