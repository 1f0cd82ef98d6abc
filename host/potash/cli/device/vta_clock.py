"""`potash vta time`, `roofline` and `trace`: the tensor accelerator's timing model."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from potash.cli.device import vta_options
from potash.cli.device import vta_reports as reports
from potash.cli.device.model_files import isolated_on, read_model
from potash.cli.drive.common import json_option, output_option, say, together
from potash.cli.progress import showing, ticking
from potash.files import STREAM, replacing
from potash.sdk.errors import PotashError, restated
from potash.tables import columns
from potash.units import Parsed, completing, human
from potash.vta.layers import LAYERS, THREADS, ModelTime, Tiles, Timed, timed
from potash_device.vta import assembly, figures, timing
from potash_device.vta.config import CORES, Config, MemoryId
from potash_device.vta.isa import Stage
from potash_device.vta.stream import StreamError
from potash_device.vta.timing.parameters import BUILDS, ParameterError, Parameters
from potash_device.vta.timing.result import Activity, Stall, Timing
from potash_firmware.tflite.decisions import NodeReport

PAPER_PEAK = {1: 0.70, 2: 0.88}
"""The peak utilisation that the paper measured without and with latency hiding (section 5)."""


def _assumption(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    known = [field.name for field in dataclasses.fields(Parameters)]
    if name not in known:
        raise ValueError(f"{name!r} is none of {', '.join(known)}")
    try:
        return name, float(number) if name == "clock" else int(number, 0)
    except ValueError:
        raise ValueError(f"{number!r} is not a number for {name}") from None


clock_options = together(
    click.option(
        "--build",
        type=click.Choice(list(BUILDS)),
        default="pynq",
        help="Build whose parameters the timing model uses.",
    ),
    click.option(
        "--set",
        "assumed",
        type=Parsed("NAME=VALUE", _assumption),
        multiple=True,
        help="Change a parameter of the timing model; may be repeated.",
    ),
)

core_option = vta_options.config_option(None, "paper")


_layer_option = click.option(
    "--layer",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=completing(lambda: LAYERS),
    help="Only this layer, C1 to C12; may be repeated.",
)
_tiles_option = click.option(
    "--tiles",
    type=click.Choice(["scheduled", "fixed"]),
    default="scheduled",
    help="Tiles of the scheduler; or fixed ones for C2, C6, C9 and C12, the same for one and for "
    "two virtual threads.",
)


_model_argument = click.argument(
    "model", required=False, metavar="[MODEL]", type=vta_options.readable_file
)


@click.command()
@_model_argument
@vta_options.shapes_option
@_layer_option
@_tiles_option
@click.option(
    "--insns",
    type=vta_options.readable_file,
    help="Time this stream instead; the default core is platform then.",
)
@clock_options
@core_option
@json_option(reports.Times | ModelTime)
def time(
    model: Path | None,
    shapes: Sequence[tuple[int, ...]],
    names: tuple[str, ...],
    tiles: str,
    insns: Path | None,
    build: str,
    assumed: Sequence[tuple[str, float]],
    config: Config | None,
) -> None:
    """Show modelled times of layers, or of a model's nodes.

    Without MODEL, a .tflite file, they are ResNet-18's layers.

    It also shows what the core's modules wait for. Each layer is timed with one and with two
    virtual threads. A model's nodes are timed as the drive runs them; the default core for them is
    platform.
    """
    parameters = parameters_of(build, assumed)
    _check_model(model, shapes, names, insns)
    if model is not None:
        nodes = _of_model(model, shapes, config or Config.default(), parameters)
        say(nodes, node_table(nodes))
        return
    if insns is not None:
        if names:
            raise click.UsageError("--insns and --layer cannot both be given")
        core = config or Config.default()
        with showing(steps=True) as progress:
            stream = vta_options.read_stream(insns, progress)
        found = [Timed(insns.name, 0, _clocked(insns, stream, core, parameters))]
        summaries, lines = None, _stream_table(found)
    else:
        core = config or CORES["paper"]
        found = _timed(names, tiles, core, parameters)
        summaries = _summaries(found)
        lines = [*_stream_table(found), "", *_said(summaries)]
    peak = figures.peak_throughput(core, parameters.clock) / vta_options.GIGA
    assumed_values = dataclasses.asdict(parameters)
    report = reports.Times(core.name, core.to_mapping(), assumed_values, peak, found, summaries)
    say(report, [*lines, "", *_assumptions(core, parameters, peak)])


@click.command()
@_model_argument
@vta_options.output_option
@vta_options.shapes_option
@_layer_option
@_tiles_option
@clock_options
@core_option
@json_option(reports.Roofline)
def roofline(
    model: Path | None,
    output: Path,
    shapes: Sequence[tuple[int, ...]],
    names: tuple[str, ...],
    tiles: str,
    build: str,
    assumed: Sequence[tuple[str, float]],
    config: Config | None,
) -> None:
    """Draw a roofline diagram of layers, or of a model's nodes.

    It is an SVG file. Without MODEL, the layers are ResNet-18's.

    It corresponds to figure 15 of the paper: operations per second over operations per byte,
    without and with latency hiding. With MODEL, it shows the nodes that multiply matrices, and the
    default core is platform.
    """
    from potash.vta.roofline import Point, draw

    parameters = parameters_of(build, assumed)
    _check_model(model, shapes, names)
    if model is None:
        title, core = "ResNet-18", config or CORES["paper"]
        found = _timed(names, tiles, core, parameters)
        points = [Point(one.name, "", one.threads, one.timing, one.throughput) for one in found]
    else:
        title, core = model.name, config or Config.default()
        layers = _of_model(model, shapes, core, parameters).layers
        points = [
            Point(number, layer.node.operator, 0, layer.time, layer.gops)
            for number, layer in zip(
                node_numbers([one.node for one in layers]), layers, strict=True
            )
            if layer.time and layer.time.products and layer.gops
        ]
        if not points:
            raise PotashError(f"{model}: no node multiplies matrices on this core")
    with replacing(output) as file:
        file.write(draw(title, points, core, parameters))
    report = reports.Roofline(str(output), len(points))
    say(report, [f"{len(points)} points are in {output}"], aside=output == STREAM)


@click.command()
@vta_options.insns_option
@output_option(
    "File for the trace (- for standard output); a picture if the name ends in .svg.", required=True
)
@clock_options
@vta_options.vta_config_option
@json_option(reports.StreamTrace)
def trace(
    insns: Path, output: Path, build: str, assumed: Sequence[tuple[str, float]], config: Config
) -> None:
    """Write the modelled activity of a stream as a trace.

    ui.perfetto.dev shows the trace: each instruction by module, what modules wait for, tokens, and
    transfers from and to DRAM.
    """
    from potash.tracing import streams
    from potash.vta import timeline

    parameters = parameters_of(build, assumed)
    with showing(steps=True) as progress:
        stream = vta_options.read_stream(insns, progress)
    found = _clocked(insns, stream, config, parameters)
    texts = [assembly.disassemble(word, config) for word in assembly.words(stream)]
    with replacing(output) as file:
        if output.suffix == ".svg":
            file.write(timeline.draw(found, texts))
        else:
            streams.write(file, found, texts)
    line = f"{len(found)} instructions take {found.cycles} cycles; {output} shows them"
    report = reports.StreamTrace(str(output), len(found), found.cycles)
    say(report, [line], aside=output == STREAM)


def parameters_of(build: str, assumed: Sequence[tuple[str, float]]) -> Parameters:
    """The clock's parameters. Raises PotashError for those that no core has."""
    with restated(ParameterError, "--set"):
        return dataclasses.replace(BUILDS[build], **dict(assumed))  # type: ignore[arg-type]  # checked there


def _clocked(insns: Path, stream: bytes, config: Config, parameters: Parameters) -> Timing:
    with restated(StreamError, insns), ticking("timing the stream"):
        return timing.run(config, parameters, stream)


def _timed(names: Sequence[str], tiles: str, config: Config, parameters: Parameters) -> list[Timed]:
    for name in names:
        if name not in LAYERS:
            raise PotashError(f"{name!r} is not a layer; there are {', '.join(LAYERS)}")
    with ticking("timing the layers"):
        found = list(timed(names or LAYERS, config, parameters, Tiles(tiles)))
    if not found:
        raise PotashError("there is no schedule for these layers on this core")
    return found


def _check_model(model: Path | None, shapes: Sequence[object], *others: object) -> None:
    """Raises click.UsageError for a MODEL beside other sources, and for --shape without one."""
    if model is not None and any(others):
        raise click.UsageError("MODEL excludes --layer and --insns")
    if model is None and shapes:
        raise click.UsageError("--shape needs MODEL")


def _of_model(
    path: Path, shapes: Sequence[tuple[int, ...]], core: Config, parameters: Parameters
) -> ModelTime:
    """A model's nodes on the clock. Raises PotashError."""
    from potash.vta.inference import time_nodes  # brings TensorFlow Lite

    with showing() as progress:
        data = read_model(path, shapes, progress)
    return isolated_on(path, time_nodes, data, core, parameters)


def _summaries(points: Sequence[Timed]) -> list[reports.ThreadsSummary]:
    return [
        reports.ThreadsSummary(
            virtual_threads=threads,
            peak_utilisation=max(used),
            mean_utilisation=statistics.fmean(used),
            mean_gops=statistics.fmean(one.throughput for one in of_them),
            paper_peak_utilisation=PAPER_PEAK.get(threads),
        )
        for threads in THREADS
        if (of_them := [one for one in points if one.threads == threads])
        and (used := [one.timing.utilisation for one in of_them])
    ]


class _Row(NamedTuple):
    """A row of a table of times."""

    first: Sequence[str]
    """The first cells of the row."""
    time: Activity | None
    throughput: float | None
    note: str = ""
    """Text in place of all other cells."""


def _table(first: Sequence[str], found: Sequence[_Row]) -> list[str]:
    busy = [stage.name for stage in Stage]
    rows = [(*first, "cycles", "ms", "GOP/s", "used", *busy, "bound", "read", "written")]
    for row in found:
        one = row.time
        if one is None or one.bound is None:
            cycles = "" if one is None else str(one.cycles)
            rows.append((*row.first, cycles, *[""] * (len(rows[0]) - len(row.first) - 1)))
            continue
        rows.append(
            (
                *row.first,
                str(one.cycles),
                f"{one.seconds * 1e3:.3f}",
                "" if row.throughput is None else f"{row.throughput:.1f}",
                _share(one.utilisation),
                *(_share(one.busy[stage] / max(one.cycles, 1)) for stage in Stage),
                _bound(one, Stage[one.bound]),
                str(one.read_bytes),
                str(one.written_bytes),
            )
        )
    ends = ["COMPUTE waits", *(row.note or (row.time and _wait(row.time)) or "" for row in found)]
    shown = columns(rows, "<" + ">" * (len(rows[0]) - 1))
    return [f"{line}  {end}".rstrip() for line, end in zip(shown, ends, strict=True)]


def _stream_table(found: Sequence[Timed]) -> list[str]:
    rows = [_Row((one.name, str(one.threads or "")), one.timing, one.throughput) for one in found]
    return _table(("", "threads"), rows)


def _bound(one: Activity, busiest: Stage) -> str:
    """The busiest module, and what it does most."""
    work = one.work[busiest]
    return f"{busiest.name} {max(work, key=lambda kind: work[kind]).name}"


def node_numbers(nodes: Sequence[NodeReport]) -> list[str]:
    """The numbers of nodes, with those of their graphs where there are several."""
    several = any(node.graph for node in nodes)
    return [f"{node.graph}.{node.node}" if several else str(node.node) for node in nodes]


def node_table(model: ModelTime) -> list[str]:
    """A table of a model's nodes, the total, and the assumptions."""
    nodes = [layer.node for layer in model.layers]
    rows = [
        _Row(
            (number, layer.node.operator),
            layer.time,
            layer.gops,
            "" if layer.node.claimed else f"on the CPU: {layer.node.reason}",
        )
        for number, layer in zip(node_numbers(nodes), model.layers, strict=True)
    ]
    claimed = sum(node.claimed for node in nodes)
    total = (
        f"{claimed} of {len(nodes)} nodes on the VTA: {model.cycles} cycles, "
        f"{model.seconds * 1e3:.3f} ms"
    )
    config = Config.from_mapping(model.config)
    parameters = Parameters(**model.parameters)  # type: ignore[arg-type]  # the same again
    return [
        *_table(("", ""), rows), "", total, "", *_assumptions(config, parameters, model.peak_gops)
    ]  # fmt: skip


def _wait(one: Activity) -> str:
    """The longest wait of COMPUTE: without waits, it would always compute."""
    stalls = one.stalls[Stage.COMPUTE]
    cause = max(stalls, key=lambda stall: stalls[stall], default=None)
    if cause is None or not stalls[cause]:
        return ""
    givers = {Stall.PREVIOUS: Stage.LOAD.name, Stall.NEXT: Stage.STORE.name}
    said = givers.get(cause, cause.value.removeprefix("memory "))
    return f"{_share(stalls[cause] / one.cycles)} {said}"


def _said(summaries: Sequence[reports.ThreadsSummary]) -> list[str]:
    lines = []
    for one in summaries:
        threads = one.virtual_threads
        with_them = "one virtual thread" if threads == 1 else f"{threads} virtual threads"
        paper = one.paper_peak_utilisation
        beside = f" (the paper: {paper:.0%})" if paper else ""
        lines.append(
            f"{with_them}: peak utilisation {one.peak_utilisation:.1%}{beside}, "
            f"mean {one.mean_utilisation:.1%}, {one.mean_gops:.1f} GOP/s"
        )
    return lines


def _assumptions(config: Config, parameters: Parameters, peak: float) -> list[str]:
    numbers = [
        f"{field.name} {getattr(parameters, field.name)}"
        for field in dataclasses.fields(parameters)
        if field.name != "clock"
    ]
    uop = config.depth(MemoryId.UOP) * config.element_bytes(MemoryId.UOP)
    speed = f"{peak:.1f} GOP/s at {parameters.clock / vta_options.MEGA:g} MHz"
    core = f"the core {config.name!r}, " if config.name else ""
    lines = [f"assumed: {core}{speed}, {human(uop)} of micro-ops;"]
    for first in range(0, len(numbers), 5):
        lines.append("  " + ", ".join(numbers[first : first + 5]))
    return [*lines, "Times are modelled. These parameters are assumed, not measured on a board."]


def _share(value: float) -> str:
    return f"{value * 100:.1f}%"
