"""`potash drive wear` and `plot`: what writing does to a modelled drive."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from potash.cli.device import drive_reports as reports
from potash.cli.device.drive_options import drive_options, modelling, prepared
from potash.cli.drive.common import json_option, output_option, say
from potash.cli.progress import showing, ticking
from potash.files import STREAM, replacing
from potash.tables import columns
from potash.units import human
from potash_device.timing.profile import PAGE

if TYPE_CHECKING:
    from potash.timing.steady import Window

BAR = 40
"""Characters of the longest bar."""
SHOWN = 10
"""Windows in the table."""


@click.command()
@drive_options
@json_option(reports.DriveWorn)
def wear(name: str, named: tuple[str, ...], fill: int, overwrite: float, seed: int) -> None:
    """Show the wear of a modelled drive.

    It is shown as SMART would, with the erases of superblocks.
    """
    with modelling(), ticking("modelling the drive"):
        drive, took = prepared(name, named, fill, overwrite, seed)
    profile, found = drive.profile, drive.report
    allowed = profile.cycles * profile.blocks - found.spread.total
    programmed = took.host * took.write_amplification
    report = reports.DriveWorn(
        profile=name,
        written=took.host * PAGE,
        write_amplification=took.write_amplification,
        endurance=int(max(0, allowed) * profile.superblock_pages * took.host / programmed) * PAGE
        if profile.cycles and took.host
        else None,
        wear=found,
    )
    say(report, _wear_lines(report))


def _wear_lines(report: reports.DriveWorn) -> list[str]:
    found, erases = report.wear.wear, report.wear.spread
    rows = [
        ("mapped", human(report.wear.mapped)),
        ("percentage used", f"{found.percentage_used} %"),
        ("available spare", f"{found.available_spare} %"),
        ("superblocks", f"{found.free} free, {found.retired} retired"),
        ("erases", f"{erases.total}; of a superblock {erases.min} to {erases.max}"),
        ("mean erases", f"{erases.mean:.1f}"),
        ("percentiles", f"p50 {erases.p50}, p90 {erases.p90}, p99 {erases.p99}"),
    ]
    if report.written:
        rows.append(("write amplification", f"{report.write_amplification:.3f}"))
    if report.endurance is not None:
        rows.append(("still writable", human(report.endurance)))
    histogram = report.wear.erases
    most = max(one.superblocks for one in histogram)
    bars = [
        (f"{one.min} to {one.max}", str(one.superblocks), "#" * (one.superblocks * BAR // most))
        for one in histogram
    ]
    lines = columns(rows, "<<") + columns([("erases", "superblocks", ""), *bars], "<><")
    return lines + ["the drive is worn out and refuses writes"] * found.worn


@click.command()
@output_option("SVG file (- for standard output).")
@drive_options
@click.option(
    "--writes",
    type=click.FloatRange(0, 100, min_open=True),
    default=3.0,
    help="Amount that is written, as a multiple of the drive's capacity.",
)
@click.option(
    "--reads", type=click.IntRange(0, 99), default=0, help="Percentage of reads among the requests."
)
@click.option(
    "--depth", type=click.IntRange(1, 65536), default=32, help="Number of requests in flight."
)
@click.option(
    "--windows",
    type=click.IntRange(1, 10_000),
    default=100,
    help="Number of intervals that the figures are given for.",
)
@json_option(reports.DrivePlotted)
def plot(
    output: Path | None,
    name: str,
    named: tuple[str, ...],
    fill: int,
    overwrite: float,
    seed: int,
    writes: float,
    reads: int,
    depth: int,
    windows: int,
) -> None:
    """Draw how a modelled drive reaches its steady state.

    Random pages are written. The picture has percentiles of latency and write amplification over
    the modelled time. The drive is empty at first, unless there is --fill.
    """
    from potash import timing
    from potash.timing.steady import draw

    # A file that cannot be written is refused at once.
    sink = contextlib.nullcontext() if output is None else replacing(output)
    with modelling(), showing() as progress, sink as file:
        drive, _ = prepared(name, named, fill, overwrite, seed)
        found = timing.steady(drive, writes, reads / 100, depth, windows, seed, progress)
        if file is not None:
            file.write(draw(found, f"{name}: random 4 KiB, {depth} in flight"))
    said = None if output is None else str(output)
    report = reports.DrivePlotted(said, name, found, drive.report)
    say(report, _plot_lines(found), aside=output == STREAM)


def _plot_lines(found: Sequence[Window]) -> list[str]:
    heads = ("s", "GiB written", "amplification", "writes: p50 µs", "p99", "p99.9")
    reads = any(one.reads for one in found)
    rows: list[Sequence[str]] = [(*heads, *(("reads: p50 µs", "p99", "p99.9") if reads else ()))]
    for one in found[:: max(1, len(found) // SHOWN)]:
        rows.append(
            (
                f"{one.seconds:.3f}",
                f"{one.written / 2**30:.2f}",
                f"{one.write_amplification:.3f}",
                *(
                    f"{figure:.1f}" if some else ""
                    for some in ((one.writes, one.reads) if reads else (one.writes,))
                    for figure in some or (0.0,) * 3
                ),
            )
        )
    return columns(rows, ">")
