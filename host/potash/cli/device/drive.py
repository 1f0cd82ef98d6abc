"""`potash drive`: latencies of requests on a modelled flash drive, and what writing does to it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from potash.cli.device import drive_reports as reports
from potash.cli.device.drive_compare import compare
from potash.cli.device.drive_fit import fit
from potash.cli.device.drive_options import (
    DriveOptions,
    drive_options,
    modelling,
    prepared,
    profile_names,
    require_no_input,
    workload_options,
)
from potash.cli.drive.common import FILE, json_option, output_option, say
from potash.cli.progress import showing, ticking
from potash.files import STREAM, replacing
from potash.tables import columns
from potash.units import Real, human
from potash_device.flash.profile import PAGE, Profile
from potash_device.flash.profiles import PROFILES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from potash.timing.steady import Window
    from potash.timing.traces import Trace
    from potash_firmware.ftl.interface import Ftl

MICRO = 1000
"""Nanoseconds."""
GIGA = 10**9
BAR = 40
"""Characters of the longest bar."""
SHOWN = 10
"""Windows in the table."""


@click.group()
def drive() -> None:
    """Model the time of a flash drive: run block traces on it, and see how it wears."""


drive.add_command(compare)
drive.add_command(fit)


@drive.command()
@click.argument("profile", default="tlc", shell_complete=profile_names)
@json_option(reports.DriveInfo)
def info(profile: str) -> None:
    """Show geometry and idle latencies of a modelled drive.

    PROFILE is a built-in profile or a TOML file.
    """
    from potash import timing

    found = timing.profile(profile)
    report = reports.DriveInfo(
        profile=profile,
        profiles=list(PROFILES),
        capacity=found.capacity,
        spare=(found.superblocks - found.slc_superblocks)
        * found.superblock_pages
        / found.logical_pages
        - 1,
        dies=found.total_dies,
        superblocks=found.superblocks,
        superblock=found.superblock_pages * PAGE,
        program_unit=found.unit_pages * PAGE,
        idle_read_us=[one / MICRO for one in _idle_reads(found)],
        idle_write_us=timing.Drive(found).submit(0, timing.Op.WRITE, 0, 1) / MICRO,
        slc=found.slc_superblocks,
    )
    reads = " / ".join(f"{one:g}" for one in report.idle_read_us)
    rows = [
        ("capacity", f"{human(found.capacity)}, {report.spare:.1%} spare"),
        ("dies", f"{found.total_dies} on {found.channels} channels, {found.planes} planes each"),
        ("superblocks", f"{found.superblocks} of {human(report.superblock)}"),
        ("program unit", human(report.program_unit)),
        *([("SLC cache", _cache(found))] if report.slc else ()),
        ("4 KiB read, idle", f"{reads} µs, by page type"),
        ("4 KiB write, idle", f"{report.idle_write_us:g} µs"),
        ("profiles", ", ".join(PROFILES)),
    ]
    say(report, columns(rows, "<<"))


def _cache(profile: Profile) -> str:
    size = human(profile.slc_superblocks * profile.slc_pages * PAGE)
    return f"{size}, {profile.slc_superblocks} superblocks with one bit of {profile.bits}"


def _idle_reads(profile: Profile) -> list[int]:
    """Nanoseconds of a read of one page of each type, once all was programmed."""
    from potash import timing

    drive = timing.Drive(profile)
    unit, dies, times = profile.unit_pages, profile.total_dies, []
    units = -(-len(profile.read_ns) // profile.program_pages)
    count = min((units - 1) * dies * unit + unit, profile.logical_pages)
    drive.submit(0, timing.Op.WRITE, 0, count, fua=True)
    drive.rest()
    for row in range(len(profile.read_ns)):
        block, inside = divmod(row, profile.program_pages)
        page = block * dies * unit + inside * profile.row_pages
        if page < count:
            now = (row + 1) * GIGA
            times.append(drive.submit(now, timing.Op.READ, page, 1) - now)
    return times


@drive.command()
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the drive; its name must end in .npz.",
)
@drive_options
@json_option(reports.DrivePreconditioned)
def precondition(output: Path, **options: Any) -> None:
    """Write to a modelled drive, and save it to a file.

    The file is a PROFILE for --drive.
    """
    from potash import timing

    chosen = DriveOptions(**options)
    if output.suffix != ".npz":
        raise click.UsageError("--output must end in .npz")
    with modelling(), ticking("modelling the drive"):
        drive, _ = prepared(chosen)
        timing.save(drive, output)
    valid = drive.report.mapped
    if isinstance(drive, timing.Drive):  # with pages of translations
        valid = int(drive.state.valid.sum()) * PAGE
    report = reports.DrivePreconditioned(str(output), valid, drive.spread.total)
    say(report, [f"{output}: {human(valid)} are mapped, {report.erases} superblocks were erased"])


@drive.command()
@click.argument("trace", type=FILE)
@click.option(
    "--faster",
    type=Real(min=0, min_open=True),
    default=1.0,
    help="Divide the times of the trace.",
)
@drive_options
@json_option(reports.DriveSimulated)
def simulate(trace: Path, faster: float, **options: Any) -> None:
    """Show the latencies of a block trace on a modelled drive.

    TRACE is a trace of blktrace (binary, or the text of blkparse), an iolog of fio, or one of the
    collections of MSR Cambridge, FIU, Alibaba or Tencent; it may be compressed (.gz). Requests
    arrive at the trace's times.
    """
    from potash.timing import traces

    chosen = DriveOptions(**options)
    with modelling(), ticking("modelling the drive"):
        drive, _ = prepared(chosen)
        read = traces.load(trace, drive.profile.logical_pages, faster)
        requests = read.requests
        # Compiling is not counted.
        drive.run(requests[:0])
        start = time.perf_counter()
        completions = drive.run(requests)
        seconds = time.perf_counter() - start
    report = _report(chosen.name, drive, read, completions)
    rate = len(requests) / max(seconds, 1e-9)
    lines = [
        f"drive {chosen.name}, FTL {chosen.ftl}, trace of {read.form}",
        *_lines(report),
        f"simulated in {seconds:.2f} s, {rate:,.0f} requests a second",
    ]
    say(report, lines)


def _report(
    name: str, drive: Ftl, trace: Trace, completions: NDArray[np.int64]
) -> reports.DriveSimulated:
    from potash import timing

    requests = trace.requests
    served = completions != timing.WORN
    latencies = completions - requests["time"]
    duration = int(completions.max()) if served.any() else 0
    found, counters, profile = drive.report, drive.counters, drive.profile
    return reports.DriveSimulated(
        profile=name,
        form=trace.form,
        requests=len(requests),
        folded=trace.folded,
        split=trace.split,
        refused=int((~served).sum()),
        modelled_seconds=duration / GIGA,
        latencies=[
            _latency(op.name.lower(), latencies[chosen], requests["count"][chosen])
            for op in (timing.Op.READ, timing.Op.WRITE)
            if (chosen := served & (requests["op"] == op)).any()
        ],
        write_amplification=counters.write_amplification,
        counters=counters._asdict(),
        dies_busy=counters.die_ns / max(1, duration * profile.total_dies),
        buses_busy=counters.bus_ns / max(1, duration * profile.channels),
        link_busy=counters.link_ns / max(1, duration * 2),
        cores_busy=counters.core_ns / max(1, duration * max(1, profile.cores)),
        cache_hits=found.cache_hits,
        wear=found,
    )


def _latency(
    kind: str, latencies: NDArray[np.int64], pages: NDArray[np.int64]
) -> reports.DriveLatency:
    from potash.timing.steady import percentiles

    return reports.DriveLatency(
        kind=kind,
        requests=len(latencies),
        bytes=int(pages.sum()) * PAGE,
        mean_us=float(latencies.mean()) / MICRO,
        percentiles=percentiles(latencies),
        max_us=float(latencies.max()) / MICRO,
    )


def _lines(report: reports.DriveSimulated) -> list[str]:
    rows: list[Sequence[str]] = [
        ("", "requests", "MiB", "mean µs", "p50", "p99", "p99.9", "max"),
        *(
            (
                one.kind,
                str(one.requests),
                f"{one.bytes / 2**20:.1f}",
                *(f"{figure:.1f}" for figure in (one.mean_us, *one.percentiles, one.max_us)),
            )
            for one in report.latencies
        ),
    ]
    busy = (report.dies_busy, report.buses_busy, report.link_busy, report.cores_busy)
    relocated, erased = report.counters["relocated"], report.counters["erased"]
    lines = [
        *columns(rows),
        "busy over {:.3f} s: dies {:.1%}, buses {:.1%}, link {:.1%}, cores {:.1%}".format(
            report.modelled_seconds, *busy
        ),
        f"write amplification {report.write_amplification:.3f}: "
        + f"{relocated} pages relocated, {erased} superblocks erased",
    ]
    counted = [
        f"{number} {what}"
        for key, what in (
            ("slc_programs", "programs in SLC mode"),
            ("folded", "pages folded"),
            ("refreshed", "pages refreshed"),
            ("retries", "read retries"),
            ("uncorrectable", "uncorrectable reads"),
            ("lost", "pages lost"),
            ("copied", "pages copied back"),
            ("read_hits", "hits of the read cache"),
            ("read_misses", "misses of it"),
        )
        if (number := report.counters[key])
    ]
    if counted:
        lines.append(", ".join(counted))
    if report.refused:
        lines.append(f"{report.refused} writes refused: the drive is worn out")
    return lines


@drive.command()
@drive_options
@json_option(reports.DriveWorn)
def wear(**options: Any) -> None:
    """Show the wear of a modelled drive.

    It is shown as SMART would, with the erases of superblocks.
    """
    chosen = DriveOptions(**options)
    with modelling(), ticking("modelling the drive"):
        drive, took = prepared(chosen)
    profile, found = drive.profile, drive.report
    allowed = profile.cycles * profile.superblocks - found.spread.total
    programmed = took.host * took.write_amplification
    report = reports.DriveWorn(
        profile=chosen.name,
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
        rows.append(("still writable", f"{report.endurance / 2**30:.1f} GiB"))
    histogram = report.wear.erases
    most = max(one.superblocks for one in histogram)
    bars = [
        (f"{one.min} to {one.max}", str(one.superblocks), "#" * (one.superblocks * BAR // most))
        for one in histogram
    ]
    lines = columns(rows, "<<") + columns([("erases", "superblocks", ""), *bars], "<><")
    return lines + ["the drive is worn out and refuses writes"] * found.worn


@drive.command()
@output_option("SVG file (- for standard output).")
@drive_options
@workload_options
@json_option(reports.DrivePlotted)
def plot(
    output: Path | None, writes: float, reads: int, depth: int, windows: int, **options: Any
) -> None:
    """Draw how a modelled drive reaches its steady state.

    Random pages are written. The picture has percentiles of latency and write amplification over
    the modelled time. The drive is empty at first, unless there is --fill.
    """
    from potash import timing
    from potash.timing.steady import draw

    chosen = DriveOptions(**options)
    require_no_input(output, chosen)
    # A file that cannot be written is refused at once.
    sink = contextlib.nullcontext() if output is None else replacing(output)
    with modelling(), showing() as progress, sink as file:
        drive, _ = prepared(chosen)
        load = (writes, reads / 100, depth, windows, chosen.seed)
        found = timing.steady(drive, *load, progress, chosen.skew)
        if file is not None:
            file.write(draw(found, f"{chosen.name}: random 4 KiB, {depth} in flight"))
    said = None if output is None else str(output)
    report = reports.DrivePlotted(said, chosen.name, found, drive.report)
    say(report, _plot_lines(found), aside=output == STREAM)


def _plot_lines(found: Sequence[Window]) -> list[str]:
    heads = ("s", "GiB written", "amplification", "writes: p50 µs", "p99", "p99.9")
    reads = any(sample.reads for sample in found)
    rows = [
        (
            f"{sample.seconds:.3f}",
            f"{sample.written / 2**30:.2f}",
            f"{sample.write_amplification:.3f}",
            *(
                f"{figure:.1f}" if some else ""
                for some in ((sample.writes, sample.reads) if reads else (sample.writes,))
                for figure in some or (0.0,) * 3
            ),
        )
        for sample in found[:: max(1, len(found) // SHOWN)]
    ]
    return columns([(*heads, *(("reads: p50 µs", "p99", "p99.9") if reads else ())), *rows], ">")
