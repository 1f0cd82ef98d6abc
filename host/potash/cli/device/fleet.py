"""`potash fleet`: many drives, and programs next to each part of the data."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click

from csd_spec.reporting import INLINE, Amount, Count, Form
from csd_spec.text import plain
from potash.cli.drive import common
from potash.cli.drive.query import (
    QueryAnswered,
    QueryExplained,
    explain,
    question_of,
    question_options,
)
from potash.cli.drive.run import program_argument_option
from potash.cli.progress import showing, ticking
from potash.fleet import Dataset, Fleet, FleetFile, Result, Totals, combining, read_fleet
from potash.fleet.datasets import numbered
from potash.fleet.fleet import PATIENCE
from potash.sdk.accelerator import Argument
from potash.sdk.errors import PotashError, restated
from potash.tables import columns
from potash.units import Parsed

SHOWN = 20
"""Shards that are shown; `--json` has them all."""


def _read(text: str) -> FleetFile:
    with restated(PotashError, to=ValueError):
        return read_fleet(Path(text))


class FleetDrive(NamedTuple):
    """A drive of a fleet."""

    name: Annotated[str, "The drive's name."]
    worker: Annotated[str | None, "Address of the worker that serves it; null if none does."]
    reason: Annotated[str, "The reason if it is not served; otherwise empty."]
    files: Annotated[Count | None, "Number of files on it; null if it is not served."]
    held: Annotated[Count | None, "Size of these files in bytes."]
    room: Annotated[Count | None, "Size of the largest file that it has room for, in bytes."]


class FleetStatus(NamedTuple):
    """The drives and data sets of a fleet."""

    scheduler: Annotated[str | None, "Address of the Dask scheduler; null without one."]
    drives: Annotated[Sequence[FleetDrive], "All drives."]
    datasets: Annotated[
        Sequence[Annotated[Dataset, Form(title="FleetDataset")]], "All data sets, by name."
    ]


class FleetMapped(NamedTuple):
    """The results of a program on a data set."""

    dataset: Annotated[str, "The data set."]
    totals: Annotated[Totals, INLINE]
    moves: Annotated[Count, "Number of times that a drive came back on another worker meanwhile."]
    seconds: Annotated[Amount, "Duration in seconds, without the start of the drives."]
    shards: Annotated[
        Sequence[Annotated[Result, Form(title="FleetShard")]],
        "One for each shard, in the order of shards.",
    ]


class FleetCopied(NamedTuple):
    """Files that were copied to or from the drives of a fleet, or removed from them."""

    dataset: Annotated[str, "The data set."]
    files: Annotated[Count, "Number of files."]
    size: Annotated[Count | None, "Size of the files in bytes; null if they were removed."]


_fleet: common.Decorator = common.together(
    click.argument("fleet", type=Parsed("FLEET", _read)),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Use the Dask cluster of the scheduler at this address (default: that of FLEET; "
        "without one, the drives run on this machine while the command lasts).",
    ),
    click.option(
        "--patience",
        type=common.SECONDS,
        default=PATIENCE,
        help="Seconds in which a drive may come back on another worker.",
    ),
)
_dataset = click.argument("dataset")
_folder = click.Path(exists=True, file_okay=False, writable=True, path_type=Path)


@click.group()
def fleet() -> None:
    """Use many drives as one, on the workers of a Dask cluster.

    FLEET is a TOML file that describes the drives (docs/fleet.md). A data set is a list of files
    that are spread over the drives; each file is a shard.
    """


@contextlib.contextmanager
def _opened(fleet: FleetFile, scheduler: str | None, patience: float) -> Iterator[Fleet]:
    found = Fleet(fleet.drives, scheduler=scheduler or fleet.scheduler, patience=patience)
    with contextlib.ExitStack() as stack:
        with ticking(f"starting {len(fleet.drives)} drives"):
            stack.enter_context(found)
        yield found


@fleet.command()
@_fleet
@common.json_option(FleetStatus)
def status(fleet: FleetFile, scheduler: str | None, patience: float) -> None:
    """Show the drives and the data sets of FLEET."""
    with _opened(fleet, scheduler, patience) as opened:
        report = _status(opened, scheduler or fleet.scheduler)
    common.say(report, _described(report))


@fleet.command()
@_fleet
def serve(fleet: FleetFile, scheduler: str | None, patience: float) -> None:
    """Serve the drives of FLEET on a Dask cluster until interrupted.

    Other commands find them there, and need not start them. A drive whose worker dies comes back on
    another one that reaches its media.
    """
    if not (scheduler or fleet.scheduler):
        raise click.UsageError("serve needs a Dask cluster: --scheduler ADDRESS")
    with _opened(fleet, scheduler, patience) as opened:
        shown: dict[str, str] = {}
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                for place in opened.placement.places.values():
                    line = f"{place.drive.name}: {place.worker or place.reason or 'is being moved'}"
                    if shown.get(place.drive.name) != line:
                        shown[place.drive.name] = line
                        click.echo(plain(line))
                time.sleep(0.5)


@fleet.command()
@_fleet
@_dataset
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=common.FILE,
)
@common.json_option(FleetCopied)
def put(
    fleet: FleetFile, scheduler: str | None, patience: float, dataset: str, files: Sequence[Path]
) -> None:
    """Copy files to the drives, as the shards of DATASET.

    They are distributed in turn. An older data set of this name is replaced.
    """
    with _opened(fleet, scheduler, patience) as opened, showing() as progress:
        made = opened.put(dataset, files, progress=progress)
    report = FleetCopied(dataset, made.files, made.held)
    common.say(report, [f"{made.files} files, {made.held} bytes, are {dataset} now"])


@fleet.command()
@_fleet
@_dataset
@click.argument("folder", type=_folder)
@common.json_option(FleetCopied)
def get(
    fleet: FleetFile, scheduler: str | None, patience: float, dataset: str, folder: Path
) -> None:
    """Copy the files of DATASET from the drives to FOLDER."""
    with _opened(fleet, scheduler, patience) as opened, showing() as progress:
        found = opened.get(dataset, folder, progress=progress)
    report = FleetCopied(dataset, found.files, found.held)
    common.say(report, [f"{found.files} files, {found.held} bytes, are in {folder}"])


@fleet.command()
@_fleet
@_dataset
@common.json_option(FleetCopied)
def remove(fleet: FleetFile, scheduler: str | None, patience: float, dataset: str) -> None:
    """Remove DATASET from the drives."""
    with _opened(fleet, scheduler, patience) as opened:
        count = opened.remove(dataset)
    common.say(FleetCopied(dataset, count, None), [f"{count} files removed"])


@fleet.command("map")
@_fleet
@common.program_file
@_dataset
@program_argument_option("each shard")
@click.option(
    "-o",
    "--output",
    "folder",
    type=_folder,
    help="Write the output of each shard to this directory.",
)
@click.option(
    "--keep", metavar="NAME", help="Leave the outputs on the drives, as the data set NAME."
)
@common.job_timeout_option
@common.json_option(FleetMapped)
def map_(
    fleet: FleetFile,
    scheduler: str | None,
    patience: float,
    program: Path,
    dataset: str,
    arguments: tuple[Argument, ...],
    folder: Path | None,
    keep: str | None,
    timeout: float | None,
) -> None:
    """Run PROGRAM next to each shard of DATASET.

    PROGRAM is an object file, or a program in C, which is built first. Jobs of a worker that dies
    are run again. The exit code is 0 only if every shard has a result.
    """
    if folder is not None and keep is not None:
        raise click.UsageError("--output and --keep exclude each other")
    image = common.program_of(program)
    totals = Totals()
    results: list[Result] = []
    with _opened(fleet, scheduler, patience) as opened, showing() as progress:
        began = time.monotonic()
        found = opened.map(image, dataset, arguments, keep=keep, timeout=timeout, progress=progress)
        with contextlib.closing(found):
            for result in found:
                totals.add(result)
                if folder is not None and not result.error:
                    (folder / result.name.partition("/")[2]).write_bytes(result.output)
                results.append(result)
        took = time.monotonic() - began
        moves = opened.placement.moves
    results.sort(key=lambda one: one.shard)
    report = FleetMapped(dataset, totals, moves, took, results)
    common.say(report, _shown(report))
    if totals.done < totals.shards:
        sys.exit(1)


@fleet.command()
@_fleet
@_dataset
@click.argument("expression")
@question_options
@common.job_timeout_option
@common.json_option(QueryAnswered | QueryExplained)
def query(
    fleet: FleetFile,
    scheduler: str | None,
    patience: float,
    dataset: str,
    expression: str,
    timeout: float | None,
    **options: Any,
) -> None:
    """Query DATASET, whose shards are tables.

    `potash query --help` describes EXPRESSION.
    """
    question = question_of(expression, **options)
    if question.explain:
        drives, host = combining.split(question.plan)
        explain({"each drive": drives, "this host": host})
        return
    with _opened(fleet, scheduler, patience) as opened, showing() as progress:
        plan = question.plan
        with opened.run_plan(dataset, plan, timeout=timeout, progress=progress) as answer:
            question.show(answer)


def _shown(report: FleetMapped) -> list[str]:
    rows: list[Sequence[str]] = [("shard", "drive", "bytes", "output", "returned", "ms")]
    for one in report.shards[:SHOWN]:
        value = "" if one.return_value is None else common.returned(one.return_value)
        held = "" if one.held is None else str(one.held)
        rows.append(
            (one.name, one.drive or "?", held, str(one.produced), value, f"{one.seconds * 1e3:.0f}")
        )
    lines = columns(rows, "<<>")
    if len(report.shards) > SHOWN:
        lines.append(f"… and {len(report.shards) - SHOWN} more; --json has them all")
    lines += [f"{one.name}: {one.error}" for one in report.shards if one.error][:SHOWN]
    totals = report.totals
    lines.append(
        f"{totals.done} of {len(report.shards)} shards done, {totals.failed} failed,"
        f" {totals.missing} missing, in {report.seconds:.2f} s"
    )
    lines.append(f"moved between drives and workers: {totals.moved} bytes, programs included;"
                 f" held: {totals.held}")  # fmt: skip
    if report.moves:
        lines.append(f"drives that have come back on another worker: {report.moves}")
    return lines


def _status(opened: Fleet, scheduler: str | None) -> FleetStatus:
    seen = opened.seen()
    drives = []
    for name, place in opened.placement.places.items():
        one = seen.get(name)
        sizes: tuple[int | None, ...] = (None, None, None)
        if one is not None:
            sizes = len(one.files), sum(file.size for file in one.files), one.room
        drives.append(FleetDrive(name, place.worker, place.reason, *sizes))
    return FleetStatus(scheduler, drives, opened.datasets())


def _described(report: FleetStatus) -> list[str]:
    rows: list[Sequence[str]] = [("drive", "files", "bytes", "room", "worker")]
    for drive in report.drives:
        numbers = ("" if one is None else str(one) for one in (drive.files, drive.held, drive.room))
        rows.append((drive.name, *numbers, drive.worker or drive.reason))
    lines = columns(rows, "<>>><")
    for one in report.datasets:
        line = f"{one.name}: {one.files} shards, {one.held} bytes"
        if one.missing:
            line += f"; missing: {numbered(one.missing)}"
        lines.append(line)
    return lines
