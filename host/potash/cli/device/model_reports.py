"""What `potash model` reports as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

from potash.models.running import Difference
from potash.schema import Amount, Count, Form, Positive


@dataclass(frozen=True)
class ModelMade:
    """The network that was made."""

    network: Annotated[str, "What was made."]
    seed: Annotated[Count, "What its weights come of."]
    output: Annotated[str, "Where the model was written; - for standard output."]
    bytes: Annotated[Count, "Of the model."]


@dataclass(frozen=True)
class NetworkEntry:
    """A network that can be made."""

    name: Annotated[str, "What it is called."]
    summary: Annotated[str, "What it is."]


@dataclass(frozen=True)
class Networks:
    """The networks that can be made."""

    networks: Annotated[Sequence[NetworkEntry], "Those that can be made."]


@dataclass(frozen=True)
class Tensor:
    """An input or an output of a model."""

    name: Annotated[str, "What the model calls it."]
    dtype: Annotated[str, "The type of an element, as NumPy calls it."]
    shape: Annotated[Sequence[Count], "Elements in each dimension; none for a scalar."]
    bytes: Annotated[Count, "As it lies in memory."]
    scale: Annotated[Amount | None, "What a step stands for; null where it is not quantised."]
    zero_point: Annotated[
        int | None, "The value that stands for zero; null where it is not quantised."
    ]


@dataclass(frozen=True)
class Node:
    """A node of a model."""

    graph: Annotated[Count, "The subgraph that it is in."]
    node: Annotated[Count, "Its number there."]
    operator: Annotated[str, "What it does, as TensorFlow Lite calls it."]
    version: Annotated[Positive, "The operator's version."]
    on: Annotated[str, Form(enum=["vta", "cpu"]), "Where it runs."]
    reason: Annotated[str | None, "Why the VTA does not run it; null where it does."]


@dataclass(frozen=True)
class ModelInfo:
    """What a model takes and gives, and where its nodes run."""

    bytes: Annotated[Count, "Of the model."]
    rounding: Annotated[str, Form(enum=["exact", "single", "alkali"]), "How the VTA rounds."]
    inputs: Annotated[Sequence[Tensor], "What it takes, in the order of the bytes."]
    outputs: Annotated[Sequence[Tensor], "What it gives, likewise."]
    nodes: Annotated[Sequence[Node], "In the order in which they run."]
    nodes_on_vta: Annotated[Count, "How many of them the VTA runs."]


@dataclass(frozen=True)
class ComparedTensor(Tensor):
    """An output, compared."""

    pairs: Annotated[Sequence[Difference], "Each two places."]


class ModelRun(TypedDict):
    """What a model gave."""

    model: Annotated[str, "Its file."]
    on: Annotated[
        str,
        Form(enum=["vta", "cpu", "reference"]),
        "Where it ran: the VTA, TensorFlow Lite's fast kernels, or its reference kernels.",
    ]
    rounding: Annotated[str, Form(enum=["exact", "single", "alkali"]), "How the VTA rounds."]
    input_bytes: Annotated[Count, "That it took."]
    output_bytes: Annotated[Count, "That it gave."]
    nodes_on_vta: Annotated[Count, "How many of its nodes the VTA ran."]
    seconds: Annotated[Amount, "The run, without loading the model."]
    output: NotRequired[Annotated[str, "Where the output was written; - for standard output."]]
    outputs: NotRequired[
        Annotated[Sequence[ComparedTensor], "Of --compare: where two places differ."]
    ]


@dataclass(frozen=True)
class ModelQuantized:
    """A model that was made int8."""

    output: Annotated[str, "Where it was written; - for standard output."]
    bytes: Annotated[Count, "Of the model."]
    samples: Annotated[Count, "That its scales were made of."]
    operators: Annotated[Count, "That it has."]
    float_operators: Annotated[Count, "Operators that still give float32."]
    float_tensors: Annotated[Sequence[str], "Inputs and outputs that are still float32."]
