"""A model on the VTA, on TensorFlow Lite's fast kernels and on its reference kernels.

A model's file may leave shapes open, as height and width of pictures of any size. `with_shapes`
writes the given ones into the file, so that every tool and the drive find the same model. Source:
`tflite/schema/schema.fbs`.
"""

import math
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import chain, combinations
from typing import Annotated, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from csd_spec.reporting import Amount, Count, Form, Key
from potash.sdk.errors import PotashError
from potash_device.trace import COMPUTE
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.apu.models import DRAM_BYTES, Meter
from potash_firmware.tflite import runtime
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter
from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.runtime import Model, NodeReport, TensorReport
from potash_firmware.vta_runtime import Runtime

OUTPUT_ROOM = 1 << 28
"""Bytes of output at most. Pages that nothing is written to cost nothing."""
_SHAPE, _SIGNATURE = 4, 18
"""Slots of a tensor's fields."""


class Target(StrEnum):
    """A target that runs a model."""

    VTA = "vta"
    """The VTA, with TensorFlow Lite's fast kernels for nodes that the VTA cannot run."""
    CPU = "cpu"
    """TensorFlow Lite's fast kernels, as they round."""
    REFERENCE = "reference"
    """TensorFlow Lite's reference kernels, whose bits the VTA gives where it rounds exactly."""


Tensor = Annotated[TensorReport, Form(title="Tensor")]
Node = Annotated[NodeReport, Form(title="Node")]


class Description(NamedTuple):
    """Inputs, outputs and nodes of a model."""

    bytes: Annotated[Count, "Size of the model in bytes."]
    rounding: Annotated[Rounding, "The VTA's rounding."]
    inputs: Annotated[Sequence[Tensor], "The inputs, in the order of their bytes."]
    outputs: Annotated[Sequence[Tensor], "The outputs, in the order of their bytes."]
    nodes: Annotated[Sequence[Node], "All nodes, in execution order."]

    @property
    def nodes_on_vta(self) -> Annotated[Count, Key()]:
        """Number of nodes that the VTA runs."""
        return sum(node.claimed for node in self.nodes)


class Ran(NamedTuple):
    """The result of a model."""

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
    """Duration of the run, without loading the model."""


class Difference(NamedTuple):
    """Differences between the outputs of two targets."""

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


def describe(model: bytes, config: Config, rounding: Rounding = Rounding.EXACT) -> Description:
    """The inputs, outputs and nodes of a model that has not run. Raises ModelError."""
    nodes = runtime.inspect(model, _delegate(config, rounding))
    loaded = runtime.Model(model, delegate=None, reference=True)
    return Description(len(model), rounding, loaded.inputs, loaded.outputs, nodes)


def run(
    model: bytes, inputs: bytes, target: Target, config: Config, rounding: Rounding = Rounding.EXACT
) -> Ran:
    """Run a model once; `rounding` is the VTA's alone. Raises ModelError."""
    delegate = _delegate(config, rounding) if target is Target.VTA else None
    with COMPUTE.span("tflite.load", bytes=len(model)):
        loaded = runtime.Model(model, delegate=delegate, reference=target is Target.REFERENCE)
    output = bytearray(OUTPUT_ROOM)
    began = time.perf_counter()
    with memoryview(output) as buffer:
        with COMPUTE.span("tflite.invoke"):
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
    """The differences between each two targets, for each output."""
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
    core = Core.create(config, DRAM_BYTES)
    if COMPUTE.sink is not None:
        Meter().attach(core)
    return VtaDelegate(Runtime(core), rounding)


def with_shapes(model: bytes, shapes: Sequence[tuple[int, ...]]) -> bytes:
    """The model with these shapes of its inputs, in their order, and of all tensors whose shapes
    depend on those alone. Raises PotashError, ModelError."""
    inputs = Model(model, delegate=None).inputs
    if len(shapes) != len(inputs):
        inputs_of = f"{len(inputs)} input{'s' * (len(inputs) != 1)}"
        raise PotashError(f"the model has {inputs_of}, and --shape is given {len(shapes)} times")
    for tensor, shape in zip(inputs, shapes, strict=True):
        _check(tensor, shape)
    changed = bytearray(model)
    graph = schema.Model.GetRootAs(changed, 0).Subgraphs(0)
    for at, shape in enumerate(shapes):
        for slot in (_SHAPE, _SIGNATURE):
            _write(changed, graph.Tensors(graph.Inputs(at)), slot, shape)
    Model(bytes(changed), delegate=None)  # refuses what TensorFlow Lite cannot prepare
    interpreter = Interpreter(model_content=bytes(changed))
    interpreter.allocate_tensors()
    for details in interpreter.get_tensor_details():
        if details["index"] < graph.TensorsLength():
            _write(changed, graph.Tensors(details["index"]), _SHAPE, details["shape"])
    return bytes(changed)


def _check(tensor: TensorReport, shape: tuple[int, ...]) -> None:
    fixed = [None if at in tensor.open else one for at, one in enumerate(tensor.shape)]
    fits = len(shape) == len(fixed) and all(
        one in (None, mine) for one, mine in zip(fixed, shape, strict=True)
    )
    if not fits:
        pattern = "x".join("?" if one is None else str(one) for one in fixed) or "none"
        raise PotashError(
            f"input {tensor.name!r} has the shape {pattern}, which {'x'.join(map(str, shape))} is "
            "not one of"
        )


def _write(model: bytearray, tensor: schema.Tensor, slot: int, shape: Sequence[int]) -> None:
    """Write a vector of extents where the file has one of as many."""
    table = tensor._tab
    offset = table.Offset(slot)
    if offset and table.VectorLen(offset) == len(shape):
        struct.pack_into(f"<{len(shape)}i", model, table.Vector(offset), *map(int, shape))
