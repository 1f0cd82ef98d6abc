"""`potash drive fit`: the profile of a real drive, from measurements by fio."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from potash.cli.device import drive_reports as reports
from potash.cli.device.drive_options import modelling, profile_names
from potash.cli.drive.common import FILE, WritableFile, json_option, output_option, say
from potash.cli.progress import showing
from potash.files import STREAM, replacing
from potash.sdk.errors import restated
from potash.tables import columns
from potash_device.flash.profiles import PROFILES

if TYPE_CHECKING:
    from potash.timing.fitting import Compared, Fitted
    from potash_device.flash.profile import Profile

MICRO = 1000
"""Nanoseconds."""
WIDTH, HEIGHT = 640, 640
LEFT, TOP, RIGHT, BOTTOM = 80, 60, 610, 570
COLOURS = {50.0: "#1f6fb2", 99.0: "#c0392b"}


@click.command()
@click.argument("results", nargs=-1, type=FILE)
@click.option(
    "--jobs",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Write the jobs for fio into this directory, and fit nothing.",
)
@click.option(
    "--base",
    metavar="PROFILE",
    default="tlc",
    shell_complete=profile_names,
    help=f"The kind of flash: {', '.join(PROFILES)} or a TOML file. What no job shows is as in it.",
)
@output_option("TOML file for the profile (- for standard output).")
@click.option(
    "--picture", type=WritableFile(), help="SVG file: measured and modelled latencies of each job."
)
@json_option(reports.DriveFitted | reports.DriveJobs)
def fit(
    results: Sequence[Path],
    jobs: Path | None,
    base: str,
    output: Path | None,
    picture: Path | None,
) -> None:
    """Find the profile of a real drive that was measured.

    RESULTS are files of fio's JSON output. The profile is the one whose modelled latencies agree
    with them.
    """
    if jobs is not None and results:
        raise click.UsageError("--jobs writes the jobs, before there are RESULTS")
    if jobs is not None:
        written = _write_jobs(jobs)
        say(written, written.files)
        return
    if not results:
        raise click.UsageError("no RESULTS; --jobs DIRECTORY writes the jobs that make them")
    from potash import timing

    profile, measured = timing.profile(base), timing.measurements(results)
    with contextlib.ExitStack() as stack:
        # Files that cannot be written are refused at once.
        files: list[BinaryIO | None] = [
            None if path is None else stack.enter_context(replacing(path))
            for path in (output, picture)
        ]
        with modelling(), showing() as progress:
            found = timing.fit(measured, profile, progress)
        for file, data in zip(
            files, (_toml(base, profile, found), _draw(found.compared)), strict=True
        ):
            if file is not None:
                file.write(data)
    report = reports.DriveFitted(
        output=None if output is None else str(output),
        picture=None if picture is None else str(picture),
        base=base,
        numbers=[
            reports.FittedNumber(
                name,
                _integers(getattr(found.profile, name)),
                _integers(getattr(profile, name)),
                name in found.shown,
            )
            for name in (*found.shown, *found.kept)
        ],
        jobs=[
            reports.FittedJob(
                compared.job.name, compared.kind, _latency(compared, 50.0), _latency(compared, 99.0)
            )
            for compared in found.compared
        ],
    )
    say(report, _lines(report), aside=STREAM in (output, picture))


def _write_jobs(directory: Path) -> reports.DriveJobs:
    from potash.timing import fio

    paths = []
    with restated(OSError, f"{directory} cannot be written"):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in fio.job_files().items():
            paths.append(directory / name)
            paths[-1].write_text(text)
    return reports.DriveJobs(list(map(str, paths)))


def _integers(value: int | Sequence[int]) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


def _latency(compared: Compared, percentile: float) -> reports.FittedLatency:
    measured, modelled = (
        compared.measured.percentiles[percentile],
        compared.modelled.percentiles[percentile],
    )
    return reports.FittedLatency(measured / MICRO, modelled / MICRO, modelled / measured - 1)


def _lines(report: reports.DriveFitted) -> list[str]:
    rows: list[Sequence[str]] = [
        ("job", "", "p50 µs", "modelled", "error", "p99 µs", "modelled", "error")
    ]
    for job in report.jobs:
        cells = [
            (f"{found.measured_us:.1f}", f"{found.modelled_us:.1f}", f"{found.error:+.1%}")
            for found in (job.p50, job.p99)
        ]
        rows.append((job.job, job.kind, *cells[0], *cells[1]))
    numbers: list[Sequence[str]] = [("profile", "fitted", report.base, "")]
    for number in report.numbers:
        values = (" ".join(map(str, some)) for some in (number.value, number.base))
        numbers.append((number.name, *values, "" if number.shown else "no job shows it"))
    return [*columns(rows, "<<>"), "", *columns(numbers, "<>><")]


def _toml(base: str, profile: Profile, found: Fitted) -> bytes:
    """The fitted profile as changes to the base, or whole if that is a file."""
    lines = [f"# Fitted to {len(found.compared)} measurements by `potash drive fit`."]
    lines += [f'base = "{base}"'] if base in PROFILES else []
    for field in fields(profile):
        value = getattr(found.profile, field.name)
        if base not in PROFILES or value != getattr(profile, field.name):
            lines.append(f"{field.name} = {_toml_value(value)}")
    if found.kept:
        lines.append(f"# No measurement shows {', '.join(found.kept)}: as in {base}.")
    return "\n".join([*lines, ""]).encode()


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _draw(compared: Sequence[Compared]) -> bytes:
    """A picture as SVG: modelled latencies over measured ones; on the line, they agree."""
    from potash.vta.svg import Axes, Decades, Picture

    title = "Latencies of fio's jobs, measured and modelled"
    picture = Picture(WIDTH, HEIGHT, title)
    picture.text((LEFT + RIGHT) / 2, 26, title, text_anchor="middle", font_size=14)
    points = [
        (
            colour,
            latencies,
            latencies.measured.percentiles[part] / MICRO,
            latencies.modelled.percentiles[part] / MICRO,
        )
        for part, colour in COLOURS.items()
        for latencies in compared
    ]
    scale = Decades.around([time for _, _, *both in points for time in both])
    axes = Axes(LEFT, TOP, RIGHT, BOTTOM, scale, scale)
    axes.draw(picture, ("measured latency in µs", "modelled latency in µs"))
    ends = (axes.at(end, end) for end in (scale.low, scale.high))
    picture.line(*ends, stroke="#888888")
    for colour, latencies, measured, modelled in points:
        x, y = axes.at(measured, modelled)
        hint = f"{latencies.job.name}, {latencies.kind}: {measured:g} and {modelled:g} µs"
        style = {"fill": colour if latencies.kind == "read" else "white", "stroke": colour}
        picture.add("circle", cx=x, cy=y, r=4, hint=hint, **style)
    for number, (part, colour) in enumerate(COLOURS.items()):
        picture.add("rect", x=LEFT + 90 * number, y=38, width=12, height=12, fill=colour)
        picture.text(LEFT + 90 * number + 18, 48, f"p{part:g}")
    picture.text(LEFT + 180, 48, "filled: reads, open: writes")
    return bytes(picture)
