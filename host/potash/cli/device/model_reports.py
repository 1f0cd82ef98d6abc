"""What `potash model` reports as JSON."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from potash.models.public import Public
from potash.models.quantizing import Quantized
from potash.models.running import ComparedTensor, Node
from potash.schema import INLINE, OPTIONAL, Amount, Count, Form


class ModelMade(NamedTuple):
    """A generated network."""

    network: Annotated[str, "Name of the network."]
    seed: Annotated[Count, "Seed of its random weights."]
    output: Annotated[str, "The model's file; - for standard output."]
    bytes: Annotated[Count, "Size of the model in bytes."]


class NetworkEntry(NamedTuple):
    """A built-in network."""

    name: Annotated[str, "The network's name."]
    summary: Annotated[str, "A description."]


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
    rounding: Annotated[str, Form(enum=["exact", "single", "alkali"]), "How the VTA rounds."]
    input_bytes: Annotated[Count, "Number of input bytes."]
    output_bytes: Annotated[Count, "Number of output bytes."]
    nodes_on_vta: Annotated[Count, "Number of nodes that the VTA ran."]
    seconds: Annotated[Amount, "Duration in seconds, without loading the model."]
    output: Annotated[str | None, OPTIONAL, "The output file; - for standard output."] = None
    outputs: Annotated[
        Sequence[ComparedTensor] | None,
        OPTIONAL,
        "With --compare: the differences between targets.",
    ] = None
    nodes: Annotated[
        Sequence[Node] | None,
        OPTIONAL,
        "With --compare: where each node runs if the target is the VTA.",
    ] = None
    without_reference: Annotated[
        Sequence[str] | None,
        OPTIONAL,
        "With --compare: operators that have no reference kernel; others run them there.",
    ] = None


class ModelQuantized(NamedTuple):
    """A quantised model."""

    output: Annotated[str, "The model's file; - for standard output."]
    bytes: Annotated[Count, "Size of the model in bytes."]
    quantized: Annotated[Quantized, INLINE]
