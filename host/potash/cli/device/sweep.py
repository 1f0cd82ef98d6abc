"""`potash sweep`: compare configurations of the tensor accelerator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from potash.cli.device import reports
from potash.cli.device.vta_clock import (
    clock_options,
    core_option,
    layer_names,
    parameters_of,
)
from potash.cli.device.vta_options import writable_file
from potash.cli.drive.common import completing, json_option, say
from potash.cli.progress import showing
from potash.files import STREAM, replacing
from potash.tables import columns
from potash.units import human
from potash_device.vta.config import Config
from potash_device.vta.timing.parameters import PYNQ_CORE

if TYPE_CHECKING:
    from potash.sweep.networks import Network
    from potash.sweep.points import Point

AGAINST = ("sram", "multipliers", "bandwidth")
DEFAULT_NETWORK = "resnet18"


@click.command()
@click.argument(
    "networks",
    nargs=-1,
    metavar="[NETWORK]...",
    shell_complete=completing(lambda: (DEFAULT_NETWORK, *layer_names())),
)
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="NAME=VALUE,VALUE...",
    help="Values to try. NAME is block, block_in, block_out, batch; buffers (relative size of INP, "
    "WGT and ACC), uop, inp, wgt, acc (sizes); or a parameter of the timing model, such as "
    "bus_bytes. May be repeated (default: block=8,16,32 buffers=1/4,1/2,1 bus_bytes=4,8,16).",
)
@click.option(
    "--against",
    type=click.Choice(AGAINST),
    multiple=True,
    default=("sram",),
    show_default=True,
    help="Cost of a core that is compared with latency; may be repeated.",
)
@click.option("--plot", type=writable_file, help="Draw all points to this file, as SVG.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also show configurations that are not on the Pareto front.",
)
@click.option(
    "--jobs", type=click.IntRange(1), help="Number of processes (default: one per processor)."
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Use the Dask cluster of the scheduler at this address.",
)
@clock_options
@core_option
@json_option(reports.Swept)
def sweep(
    networks: tuple[str, ...],
    varied: tuple[str, ...],
    against: tuple[str, ...],
    plot: Path | None,
    everything: bool,
    jobs: int | None,
    scheduler: str | None,
    build: str,
    assumed: Sequence[tuple[str, float]],
    config: Config | None,
) -> None:
    """Compare configurations of the tensor accelerator on networks.

    A NETWORK is resnet18 (the default), one of its layers C1 to C12, or a TensorFlow Lite model, a
    file that ends in .tflite. For each configuration, schedules are searched and timed by the
    timing model. The result is the Pareto front: the configurations for which no other one is at
    least as good in latency and all costs, and better in one of them.
    """
    from potash.sweep import networks as known
    from potash.sweep import picture, points, space, workers

    if jobs is not None and scheduler is not None:
        raise click.UsageError("--jobs and --scheduler exclude each other")
    against = tuple(dict.fromkeys(against))
    try:
        axes = [space.axis(text) for text in varied or space.DEFAULT]
        cores = list(space.cores(axes, config or PYNQ_CORE, parameters_of(build, assumed)))
    except space.SpaceError as error:
        raise click.UsageError(f"--vary: {error}") from None
    tried = [known.network(name) for name in dict.fromkeys(networks or (DEFAULT_NETWORK,))]
    crew = workers.cluster(scheduler) if scheduler else workers.local(jobs or workers.processors())
    with showing(steps=True) as progress, crew as work:
        found = points.swept(cores, tried, against, work, progress)
    if plot is not None:
        with replacing(plot) as file:
            file.write(picture.draw(found, against))
    lines = []
    for one in tried:
        mine = [point for point in found if point.network is one]
        lines += [*_described(one), "", *_table(mine, everything), "", *_summary(mine), ""]
    lines.append("Latencies are modelled, and were not calibrated on a board.")
    if plot not in (None, STREAM):
        lines.append(f"{plot} shows all of it")
    say(_report(tried, against, found, plot), lines, aside=plot == STREAM)


def _report(
    networks: Sequence[Network], against: Sequence[str], found: Sequence[Point], plot: Path | None
) -> reports.Swept:
    described = [
        reports.Network(
            one.name, sum(one.shapes.values()), len(one.shapes), one.operations, one.left_out
        )
        for one in networks
    ]
    points = [_point(point) for point in found]
    return reports.Swept(described, against, points, None if plot is None else str(plot))


def _point(point: Point) -> reports.Point:
    from potash.sweep.points import multipliers, sram_bytes

    core, done = point.core, point.cycles is not None
    there = not core.reason
    return reports.Point(
        network=point.network.name,
        varied=dict(core.varied),
        config=core.config.to_mapping() if there else {},
        parameters=vars(core.parameters) if there else {},
        feasible=done,
        reason=point.reason,
        sram_bytes=sram_bytes(core.config) if there else None,
        multipliers=multipliers(core.config) if there else None,
        bus_bytes=core.parameters.bus_bytes if there else None,
        cycles=point.cycles,
        latency_seconds=point.latency if done else None,
        gops=point.gops if done else None,
        peak_gops=point.peak_gops if there else None,
        utilisation=point.gops / point.peak_gops if done else None,
        front=point.front,
    )


def _described(network: Network) -> list[str]:
    layers = sum(network.shapes.values())
    of_these = f"{layers} layers of {len(network.shapes)} shapes" if layers > 1 else "one layer"
    lines = [f"{network.name}: {of_these}, {network.operations / 1e9:.3g} GOP"]
    if network.left_out:
        named = ", ".join(f"{count} {name}" for name, count in network.left_out.items())
        lines.append(f"  left out: {named}")
    return lines


def _table(points: Sequence[Point], everything: bool) -> list[str]:
    """The front, or every feasible core, the fastest first."""
    from potash.sweep.points import multipliers, sram_bytes

    shown = [point for point in points if point.cycles is not None and (everything or point.front)]
    if not shown:
        return ["  no configuration is feasible"]
    names = [name for name, _ in points[0].core.varied]
    rows: list[Sequence[str]] = [
        ("", *names, "SRAM", "multipliers", "bus bytes", "ms", "GOP/s", "of its peak")
    ]
    for point in sorted(shown, key=lambda one: one.latency):
        config, parameters = point.core.config, point.core.parameters
        rows.append(
            (
                "*" if point.front else "",
                *(f"{value:g}" for _, value in point.core.varied),
                human(sram_bytes(config)),
                str(multipliers(config)),
                str(parameters.bus_bytes),
                f"{point.latency * 1e3:.3f}",
                f"{point.gops:.1f}",
                f"{point.gops / point.peak_gops:.1%}",
            )
        )
    return columns(rows)


def _summary(points: Sequence[Point]) -> list[str]:
    front = sum(point.front for point in points)
    reasons = Counter(point.reason for point in points if point.cycles is None)
    behind = len(points) - front - reasons.total()
    lines = [f"{len(points)} configurations: {front} on the front (*), {behind} behind it"]
    if reasons:
        lines[0] += f", {reasons.total()} not feasible:"
        lines += [f"  {count}: {reason}" for reason, count in reasons.most_common()]
    return lines
