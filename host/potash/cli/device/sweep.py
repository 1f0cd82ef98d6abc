"""`potash sweep`: compare configurations of the tensor accelerator."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import click

from csd_spec.reporting import Form
from potash.cli.device.parallel import parallel_options, pool
from potash.cli.device.vta_clock import clock_options, core_option, parameters_of
from potash.cli.device.vta_options import writable_file
from potash.cli.drive.common import json_option, say
from potash.cli.progress import showing
from potash.files import STREAM, replacing
from potash.sdk.errors import restated
from potash.sweep import networks as known
from potash.sweep import points, space
from potash.sweep.networks import Network
from potash.sweep.points import COSTS, Point, carry_out
from potash.tables import columns
from potash.units import completing, human
from potash.vta.layers import LAYERS
from potash.vta.svg import Axes, Decades, Picture, Powers
from potash_device.vta.config import CORES, Config

DEFAULT_NETWORK = "resnet18"
WIDTH, HEIGHT = 760, 480
LEFT, RIGHT, TOP, BOTTOM = 80, 730, 50, 420
COLOURS = ("#1f6fb2", "#c0392b", "#2a9d8f", "#e08a1e", "#9467bd", "#8c6d31", "#6a9a3b", "#444444")
LABELS = {
    "sram": "bytes of buffers on the chip",
    "multipliers": "multipliers",
    "bandwidth": "bytes of a memory channel in a cycle",
}


class Swept(NamedTuple):
    """Configurations of the tensor accelerator on networks."""

    networks: Annotated[Sequence[Network], "The networks."]
    against: Annotated[
        Annotated[Sequence[Annotated[str, Form(enum=list(COSTS))]], Form(minItems=1)],
        "The costs that are compared with latency.",
    ]
    points: Annotated[Sequence[Point], "One for each configuration and network."]
    plot: Annotated[str | None, "The SVG file; null without --plot."]


@click.command()
@click.argument(
    "networks",
    nargs=-1,
    metavar="[NETWORK]...",
    shell_complete=completing(lambda: (DEFAULT_NETWORK, *LAYERS)),
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
    type=click.Choice(list(COSTS)),
    multiple=True,
    default=("sram",),
    help="Cost of a core that is compared with latency; may be repeated.",
)
@click.option("--plot", type=writable_file, help="Draw all points to this file, as SVG.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also show configurations that are not on the Pareto front.",
)
@parallel_options
@clock_options
@core_option
@json_option(Swept)
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
    work_pool = pool(carry_out, jobs, scheduler)
    against = tuple(dict.fromkeys(against))
    with restated(space.SpaceError, "--vary", click.UsageError):
        axes = [space.axis(text) for text in varied or space.DEFAULT]
        cores = list(space.cores(axes, config or CORES["paper"], parameters_of(build, assumed)))
    tried = [known.network(name) for name in dict.fromkeys(networks or (DEFAULT_NETWORK,))]
    with showing(steps=True) as progress, work_pool as work:
        found = points.swept(cores, tried, against, work, progress)
    if plot is not None:
        with replacing(plot) as file:
            file.write(draw(found, against))
    lines = []
    for number, one in enumerate(tried):
        mine = found[number * len(cores) :][: len(cores)]
        lines += [*_described(one), "", *_table(mine, everything), "", *_summary(mine), ""]
    lines.append("Latencies are modelled, and were not calibrated on a board.")
    if plot not in (None, STREAM):
        lines.append(f"{plot} shows all of it")
    report = Swept(tried, against, found, None if plot is None else str(plot))
    say(report, lines, aside=plot == STREAM)


def _described(network: Network) -> list[str]:
    layers = network.layers
    of_these = f"{layers} layers of {network.distinct} shapes" if layers > 1 else "one layer"
    lines = [f"{network.name}: {of_these}, {network.operations / 1e9:.3g} GOP"]
    if network.left_out:
        named = ", ".join(f"{count} {name}" for name, count in network.left_out.items())
        lines.append(f"  left out: {named}")
    return lines


def _table(points: Sequence[Point], everything: bool) -> list[str]:
    """The front, or every feasible core, the fastest first."""
    shown = [point for point in points if point.feasible and (everything or point.front)]
    if not shown:
        return ["  no configuration is feasible"]
    heads = ("SRAM", "multipliers", "bus bytes", "ms", "GOP/s", "of its peak")
    rows = [
        (
            "*" if point.front else "",
            *(f"{value:g}" for value in point.varied.values()),
            human(point.sram_bytes or 0),
            str(point.multipliers),
            str(point.bus_bytes),
            f"{point.latency * 1e3:.3f}",
            f"{point.gops or 0:.1f}",
            f"{point.utilisation or 0:.1%}",
        )
        for point in sorted(shown, key=lambda point: point.latency)
    ]
    return columns([("", *points[0].varied, *heads), *rows])


def _summary(points: Sequence[Point]) -> list[str]:
    front = sum(point.front for point in points)
    reasons = Counter(point.reason for point in points if not point.feasible)
    behind = len(points) - front - reasons.total()
    lines = [f"{len(points)} configurations: {front} on the front (*), {behind} behind it"]
    if reasons:
        lines[0] += f", {reasons.total()} not feasible:"
        lines += [f"  {count}: {reason}" for reason, count in reasons.most_common()]
    return lines


def draw(tried: Sequence[Point], against: Sequence[str]) -> bytes:
    """The picture as SVG; the first of `against` is horizontal. A front's points are filled
    and joined, and each says under the mouse what it is."""
    across = against[0]
    feasible = [point for point in tried if point.feasible]
    picture = Picture(WIDTH, HEIGHT, "Configurations of the tensor accelerator")
    if not feasible:
        picture.text(WIDTH / 2, HEIGHT / 2, "no configuration is feasible", text_anchor="middle")
        return bytes(picture)

    def cost(point: Point) -> float:
        return COSTS[across](point.core.config, point.core.parameters)

    def place(point: Point) -> tuple[float, float]:
        return axes.at(cost(point), point.latency)

    costs, times = list(map(cost, feasible)), [point.latency for point in feasible]
    # Powers of two around all costs, which are not the same.
    low = 2.0 ** math.floor(math.log2(min(costs)) - 0.1)
    span = Powers(low, max(2.0 ** math.ceil(math.log2(max(costs)) + 0.1), 2 * low))
    axes = Axes(LEFT, TOP, RIGHT, BOTTOM, span, Decades.around(times))
    say = (lambda value: human(int(value))) if across == "sram" else "{:g}".format
    axes.draw(picture, (LABELS[across], "latency in ms"), say, lambda value: f"{value * 1e3:.3g}")
    names = list(dict.fromkeys(point.network for point in tried))
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        mine = [point for point in feasible if point.network == name]
        front = sorted((point for point in mine if point.front), key=place)
        if len(against) == 1:
            for one, next_ in itertools.pairwise(front):
                start, end = place(one), place(next_)
                # Until the next core can be paid, it is this one's latency.
                picture.line(start, (end[0], start[1]), stroke=colour, stroke_width=1.5)
                picture.line((end[0], start[1]), end, stroke=colour, stroke_width=1.5)
        for point in sorted(mine, key=lambda one: one.front):
            x, y = place(point)
            fill = {"fill": colour} if point.front else {"fill": "white", "stroke": colour}
            picture.add("circle", cx=x, cy=y, r=4, hint=_hint(point), **fill)
        picture.add("rect", x=LEFT + 150 * number, y=18, width=12, height=12, fill=colour)
        picture.text(LEFT + 150 * number + 18, 28, name)
    return bytes(picture)


def _hint(point: Point) -> str:
    varied = ", ".join(f"{name} {value:g}" for name, value in point.varied.items())
    return (
        f"{point.network}: {varied or 'as it is'}\n{point.latency * 1e3:.3g} ms, "
        f"{point.gops or 0:.3g} GOP/s{', on the front' if point.front else ''}"
    )
