"""`potash drive compare`: drives, translation layers and policies on their way to steady state."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from potash.cli.device import drive_reports as reports
from potash.cli.device.drive_options import (
    DriveOptions,
    as_served,
    modelling,
    prepared,
    require_no_input,
    workload_options,
    written_options,
)
from potash.cli.drive.common import json_option, output_option, say
from potash.cli.progress import showing
from potash.files import STREAM, replacing
from potash.sdk.progress import Progress
from potash.tables import columns

PAGE = "page"
"""The translation layer that has policies."""


@click.command()
@output_option("SVG file (- for standard output).")
@as_served(
    "drive",
    "names",
    multiple=True,
    default=["tlc"],
    help="A drive as for `plot`; may be repeated.",
)
@as_served(
    "ftl",
    "ftls",
    multiple=True,
    default=[PAGE],
    help="Flash translation layer: page, or one of an extension; may be repeated.",
)
@as_served(
    "policies",
    "policies",
    metavar="KIND=POLICY[,...]",
    help="Policies of the FTL page, of different kinds, such as gc=fifo,wear=gap; may be repeated.",
)
@written_options
@workload_options
@json_option(reports.DriveCompared)
def compare(
    output: Path | None,
    names: Sequence[str],
    ftls: Sequence[str],
    policies: Sequence[str],
    writes: float,
    reads: int,
    depth: int,
    windows: int,
    **options: Any,
) -> None:
    """Draw how several modelled drives reach their steady state.

    Each --drive is combined with each --ftl, and the FTL page with each --policy. All have the same
    random requests, as those of `plot`. The picture has percentiles of their latencies and write
    amplification over the amount written; the table has their means in the last quarter.
    """
    from potash import timing
    from potash.timing.steady import COMPARED, draw_compared

    variants = {
        ", ".join((name, ftl, *named)): DriveOptions(name=name, ftl=ftl, named=named, **options)
        for name, ftl, named in _combinations(names, ftls, policies)
    }
    if len(variants) > len(COMPARED):
        raise click.UsageError(
            f"--drive, --ftl and --policy have {len(variants)} combinations, "
            f"and the picture has room for {len(COMPARED)}"
        )
    for variant in variants.values():
        require_no_input(output, variant)
    found: dict[str, reports.DriveVariant] = {}
    # A file that cannot be written is refused at once.
    sink = contextlib.nullcontext() if output is None else replacing(output)
    with modelling(), showing() as progress, sink as file:
        for variant in variants.values():  # and a drive that is none
            prepared(variant._replace(fill=0, overwrite=0.0))
        for name, variant in variants.items():
            progress(name, None)
            drive, _ = prepared(variant)
            load = (writes, reads / 100, depth, windows, variant.seed)
            steady = timing.steady(drive, *load, _of(progress, name), variant.skew)
            found[name] = reports.DriveVariant(
                variant.name, variant.ftl, variant.named, steady, drive.report
            )
        if file is not None:
            skew = "" if options["skew"] is None else " {} % to {} %,".format(*options["skew"])
            curves = {name: variant.windows for name, variant in found.items()}
            file.write(draw_compared(curves, f"random 4 KiB,{skew} {depth} in flight"))
    said = None if output is None else str(output)
    report = reports.DriveCompared(said, list(found.values()))
    say(report, _lines(found), aside=output == STREAM)


def _of(progress: Progress, name: str) -> Progress:
    return lambda _, part: progress(name, part)


def _combinations(
    names: Sequence[str], ftls: Sequence[str], policies: Sequence[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Drives, translation layers and their policies. Policies without the FTL page are kept, so
    that they are refused. Raises UsageError."""
    sets = [tuple(policy.split(",")) for policy in policies] or [()]
    for named in sets:
        kinds = [policy.partition("=")[0] for policy in named]
        if any(kind and kinds.count(kind) > 1 for kind in kinds):
            raise click.UsageError(
                f"--policy {','.join(named)} has a kind twice; repeat --policy to compare policies"
            )
    for name, ftl in itertools.product(names, ftls):
        for named in sets if ftl == PAGE or PAGE not in ftls else [()]:
            yield name, ftl, named


def _lines(found: Mapping[str, reports.DriveVariant]) -> list[str]:
    """Means of the last quarter of the intervals."""
    ends = {
        name: variant.windows[-max(1, len(variant.windows) // 4) :]
        for name, variant in found.items()
    }
    every = [window for end in ends.values() for window in end]
    kinds = [kind for kind in ("writes", "reads") if any(getattr(window, kind) for window in every)]
    heads = [head for kind in kinds for head in (f"{kind}: p50 µs", "p99", "p99.9")]
    rows: list[Sequence[str]] = [("", "amplification", *heads)]
    for name, end in ends.items():
        row = [name, _mean((window.write_amplification for window in end if window.writes), ".3f")]
        for kind in kinds:
            some = [latencies for window in end if (latencies := getattr(window, kind))]
            row += [_mean((latencies[number] for latencies in some), ".1f") for number in range(3)]
        rows.append(row)
    return columns(rows, "<>")


def _mean(values: Iterable[float], form: str) -> str:
    found = list(values)
    return format(sum(found) / len(found), form) if found else ""
