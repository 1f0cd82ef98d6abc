"""A model on the VTA, on TensorFlow Lite's fast kernels and on its reference kernels."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import chain, combinations
from typing import Annotated, NamedTuple

import numpy as np

from csd_spec.reporting import Amount, Count, Form, Key
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.tflite import runtime
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.runtime import NodeReport, TensorReport
from potash_firmware.vta_runtime import Runtime

OUTPUT_ROOM = 1 << 28
"""Bytes of output at most. Pages that nothing is written to cost nothing."""


class Target(StrEnum):
    """Where a model runs."""

    VTA = "vta"
    """What the VTA has kernels for there, and the rest on the fast kernels."""
    CPU = "cpu"
    """TensorFlow Lite's fast kernels, as they round."""
    REFERENCE = "reference"
    """TensorFlow Lite's reference kernels, whose bits the VTA gives where it rounds exactly."""


Tensor = Annotated[TensorReport, Form(title="Tensor")]
Node = Annotated[NodeReport, Form(title="Node")]


class ModelInfo(NamedTuple):
    """Inputs, outputs and nodes of a model."""

    bytes: Annotated[Count, "Size of the model in bytes."]
    rounding: Annotated[Rounding, "How the VTA rounds."]
    inputs: Annotated[Sequence[Tensor], "The inputs, in the order of their bytes."]
    outputs: Annotated[Sequence[Tensor], "The outputs, likewise."]
    nodes: Annotated[Sequence[Node], "All nodes, in execution order."]

    @property
    def nodes_on_vta(self) -> Annotated[Count, Key()]:
        """Number of nodes that the VTA runs."""
        return sum(node.claimed for node in self.nodes)


class Ran(NamedTuple):
    """What a model gave."""

    output: bytes
    tensors: tuple[TensorReport, ...]
    taken: int
    """Bytes of input that it used."""
    nodes_on_vta: int
    nodes: tuple[NodeReport, ...]
    """All nodes, where the VTA is the target."""
    without_reference: tuple[str, ...]
    """Operators that have no reference kernel, where those are the target."""
    seconds: float
    """Of the run, without loading the model."""


class Difference(NamedTuple):
    """How the outputs of two targets differ."""

    left: Annotated[Target, "A target."]
    right: Annotated[Target, "Another target."]
    differing: Annotated[Count, "Number of elements that differ."]
    largest: Annotated[
        Amount | None,
        "The largest difference, for int8 in steps of the scale; null if it is not finite.",
    ]


@dataclass(frozen=True)
class ComparedTensor(TensorReport):
    """An output, compared."""

    pairs: Annotated[Sequence[Difference], "One for each pair of targets."]


def describe(model: bytes, config: Config, rounding: Rounding = Rounding.EXACT) -> ModelInfo:
    """What is known of a model before it runs. Raises ModelError."""
    nodes = runtime.inspect(model, _delegate(config, rounding))
    loaded = runtime.Model(model, delegate=None, reference=True)
    return ModelInfo(len(model), rounding, loaded.inputs, loaded.outputs, nodes)


def run(
    model: bytes, inputs: bytes, target: Target, config: Config, rounding: Rounding = Rounding.EXACT
) -> Ran:
    """Run a model once; `rounding` is the VTA's alone. Raises ModelError."""
    delegate = _delegate(config, rounding) if target is Target.VTA else None
    loaded = runtime.Model(model, delegate=delegate, reference=target is Target.REFERENCE)
    output = bytearray(OUTPUT_ROOM)
    began = time.perf_counter()
    with memoryview(output) as buffer:
        length = loaded(inputs, buffer)
        seconds = time.perf_counter() - began
        return Ran(
            output=bytes(buffer[:length]),
            tensors=loaded.outputs,
            taken=sum(tensor.bytes for tensor in loaded.inputs),
            nodes_on_vta=delegate.nodes_run if delegate else 0,
            nodes=tuple(chain(*delegate.decisions)) if delegate else (),
            without_reference=tuple(sorted(loaded.without_reference)),
            seconds=seconds,
        )


def compare(results: Mapping[Target, Ran]) -> list[ComparedTensor]:
    """For each output, how much each two targets differ."""
    tensors = next(iter(results.values())).tensors
    offset, compared = 0, []
    for tensor in tensors:
        values = {
            target: np.frombuffer(ran.output[offset : offset + tensor.bytes], tensor.dtype)
            for target, ran in results.items()
        }
        pairs = [_difference(a, b, values) for a, b in combinations(results, 2)]
        compared.append(ComparedTensor(**asdict(tensor), pairs=pairs))
        offset += tensor.bytes
    return compared


def _difference(
    left: Target,
    right: Target,
    values: Mapping[Target, np.ndarray[tuple[int], np.dtype[np.generic]]],
) -> Difference:
    a, b = values[left], values[right]
    differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
    differences = np.abs(a[differ].astype(np.float64) - b[differ].astype(np.float64))
    largest = float(differences.max(initial=0.0))
    finite = largest if math.isfinite(largest) else None
    return Difference(left, right, int(differ.sum()), finite)


def _delegate(config: Config, rounding: Rounding) -> VtaDelegate:
    return VtaDelegate(Runtime(Core.create(config, DRAM_BYTES)), rounding)
