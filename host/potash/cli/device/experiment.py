"""`potash experiment`: measure a program in the drive against the host, and draw the figure."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click

from csd_spec.reporting import Count
from potash import timing
from potash.cli.device.parallel import parallel_options, pool
from potash.cli.drive.common import json_option, say
from potash.cli.progress import showing
from potash.experiment import plan, plot
from potash.experiment.results import Results
from potash.experiment.runs import Refused, Run, carry_out
from potash.files import replacing
from potash.sdk.errors import PotashError
from potash.sections import MODELLED
from potash.tables import columns
from potash.units import Parsed

FILE = "experiment.toml"
"""The file of an experiment that is named by its directory."""
SHOWN = 20
"""Rows that are shown; the files, and `--json`, have them all."""
BOOKKEEPING = ("version", "point", "repetition", "seed")
"""Columns that are not shown, nor those with the same value in all rows."""


class Experimented(NamedTuple):
    """The results of an experiment."""

    folder: Annotated[str, "The directory with the files."]
    points: Annotated[Count, "Number of points, repetitions included."]
    resumed: Annotated[Count, "Number of these that were there already."]
    rows: Annotated[
        Sequence[Mapping[str, float | str | bool]],
        "A row for each function at each point: its parameters, what was measured, and the columns "
        "that the function returned.",
    ]
    plot: Annotated[str | None, "The SVG file; null without a plot."]


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the results, results/NAME by default; an experiment that was interrupted "
    "goes on there.",
)
@click.option(
    "--plot",
    "chosen",
    type=Parsed("x=,y=,by=", plot.parse),
    help="Also draw DIR/plot.svg: means and standard deviations of column y over x, a line for "
    "each value of the columns by (joined by +; default: method), in place of the file's plot.",
)
@click.option(
    "--small", is_flag=True, help="Vary the values of the table [small], which takes seconds."
)
@click.option(
    "--extend",
    "extensions",
    multiple=True,
    metavar="FILE",
    help="Python file, or installed extension, that each drive is extended with (--extend of "
    "potash serve); may be repeated.",
)
@parallel_options
@json_option(Experimented)
def experiment(
    file: Path,
    folder: Path | None,
    chosen: plot.Plot | None,
    small: bool,
    extensions: tuple[str, ...],
    jobs: int | None,
    scheduler: str | None,
) -> None:
    """Measure a program in the drive against a baseline on the host.

    FILE is a TOML file that names two functions of a Python file, and parameters to vary
    (docs/experiment.md), or a directory with such a file, experiment.toml. Every combination of
    their values is measured on drives of its own. Results are results.csv, results.arrow and
    completions.csv in DIR.
    """
    work_pool = pool(carry_out, jobs, scheduler)
    name = file.resolve().name if file.is_dir() else file.stem
    file = file / FILE if file.is_dir() else file
    described = replace(plan.read(file), extensions=extensions)
    if small:
        described = described.reduced()
    folder = folder or Path("results", name + "-small" * small)
    drawn = chosen or described.plot
    tasks = described.tasks()
    results = Results(folder, described.settings(tasks))
    runs = [results.load(task) for task in tasks]
    left = [number for number, found in enumerate(runs) if found is None]
    if left:
        with showing(steps=True) as progress, work_pool as work:
            if scheduler is None and any(
                task.drive.get("time", MODELLED) == MODELLED for task in tasks
            ):
                progress("loading the model of the drive", None)
                timing.compile_model()
            label = f"measuring {len(left)} of {len(tasks)} points"
            progress(label, 0.0)
            with closing(work([tasks[number] for number in left])) as outcomes:  # type: ignore[type-var]  # generators, which can be closed
                for done, (at, outcome) in enumerate(outcomes, 1):
                    if isinstance(outcome, Refused):
                        raise PotashError(outcome.reason)
                    results.add(tasks[left[at]], outcome)
                    runs[left[at]] = outcome
                    progress(label, done / len(left))
    rows = results.finish(_every(runs))
    if drawn is not None:
        picture = plot.draw(drawn, rows)
        with replacing(folder / "plot.svg") as opened:
            opened.write(picture)
    path = None if drawn is None else str(folder / "plot.svg")
    listed = [{name: cell for name, cell in row.items() if cell is not None} for row in rows]
    report = Experimented(str(folder), len(tasks), len(tasks) - len(left), listed, path)
    say(report, _described(report, rows, drawn))


def _every(runs: Sequence[list[Run] | None]) -> list[Run]:
    return [run for of_task in runs if of_task is not None for run in of_task]


def _described(
    report: Experimented, rows: Sequence[Mapping[str, Any]], drawn: plot.Plot | None
) -> list[str]:
    if drawn is not None and any(row["method"] == plot.PUBLISHED for row in rows):
        return plot.compared(drawn, rows)
    # Those that say nothing here are in the files.
    names = [
        name
        for name in rows[0]
        if name not in BOOKKEEPING
        and (name in ("method", "elapsed_ns") or len({row[name] for row in rows}) > 1)
    ]
    shown = [
        ["" if row[name] is None else str(row[name]) for name in names] for row in rows[:SHOWN]
    ]
    lines = columns([names, *shown])
    if len(rows) > SHOWN:
        lines.append(f"… and {len(rows) - SHOWN} more in {report.folder}/results.csv")
    lines.append(f"{report.points} points, {report.resumed} of them from before")
    return lines
