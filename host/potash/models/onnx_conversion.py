"""The state of a conversion from ONNX to TensorFlow Lite: the tensors of its values so far.

Values of four dimensions are images: N×C×H×W in ONNX, and N×H×W×C in TensorFlow Lite from input to
output; axes in attributes are ONNX's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash.models.builder import FusedActivation, GraphBuilder, Tensor
from potash.models.onnx_graph import Array, Node, OnnxGraph
from potash.sdk.errors import PotashError
from potash_firmware.tflite.windows import same_padding

PICTURE = 4
TO_LAST = (0, 2, 3, 1)
"""For each axis of N×H×W×C, which one of N×C×H×W it is."""
TO_FIRST = (0, 3, 1, 2)
LOWEST = -128
UINT8_OFFSET = 128
"""The difference between unsigned and signed values of the same numbers."""
NONE = FusedActivation.NONE


@dataclass(frozen=True)
class Value:
    """A tensor that is computed."""

    tensor: Tensor
    rectified: bool = False
    """Whether it is the result of an activation without negative values."""

    @property
    def nonnegative(self) -> bool:
        """Whether no value can be below zero, by its activation or by its zero point."""
        return self.rectified or (
            self.tensor.scale is not None and self.tensor.zero_point == LOWEST
        )


@dataclass(frozen=True)
class Stored:
    """Constant numbers, with their scales when they are quantised."""

    array: Array
    scales: Array | None = None
    axis: int = 0

    @property
    def reals(self) -> Array:
        """The real values."""
        if self.scales is None:
            return self.array
        shape = [-1 if at == self.axis else 1 for at in range(self.array.ndim)]
        scales = self.scales.reshape(shape) if self.scales.size > 1 else self.scales.reshape(())
        reals: Array = (self.array * scales).astype(np.float32)
        return reals


@dataclass(frozen=True)
class Target:
    """A node's result: the value's name, the activation that is fused into it, and its
    quantisation."""

    name: str
    activation: FusedActivation
    scale: float | None
    zero_point: int


class Conversion:
    """A model that is being converted."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self.build = GraphBuilder("from ONNX")
        self.stored = {name: Stored(array) for name, array in graph.constants.items()}
        self.values: dict[str, Value] = {}
        self.taken: set[str] = set()
        """Results that have been fused into another node's."""
        self.inputs: list[Tensor] = []
        for name, shape in graph.inputs:
            if len(shape) == PICTURE:
                shape = tuple(shape[axis] for axis in TO_LAST)
            scale, zero_point = self.quantisation(name)
            if graph.quantised and scale is None:
                raise PotashError(f"input {name} is not quantised, as the model's values are")
            self.inputs.append(self.build.tensor(shape, scale, zero_point, name=name))
            self.values[name] = Value(self.inputs[-1])

    def value(self, name: str) -> Value:
        """A value that is computed. Raises PotashError for a constant."""
        if name not in self.values:
            raise PotashError(f"the model has {name!r} constant, where a value is expected")
        return self.values[name]

    def constant(self, node: Node, at: int) -> Stored:
        """An input that has to be constant."""
        name = node.inputs[at] if at < len(node.inputs) else ""
        if name not in self.stored:
            raise node.refuse(f"has an input {at} that is not constant")
        return self.stored[name]

    def numbers(self, node: Node, at: int, attribute: str) -> list[int] | None:
        """Whole numbers that are an attribute in older models, and an input in newer ones."""
        if attribute in node.attributes:
            return [int(number) for number in node.attributes[attribute]]
        if at < len(node.inputs) and node.inputs[at]:
            return [int(number) for number in self.constant(node, at).array.reshape(-1)]
        return None

    def quantisation(self, name: str) -> tuple[float | None, int]:
        """Scale and zero point that a value is quantised with; no scale where it is not."""
        for user in self.graph.users.get(name, []):
            if user.kind == "QuantizeLinear":
                return self.scale_of(user)
        return None, 0

    def scale_of(self, node: Node) -> tuple[float, int]:
        """The one scale of QuantizeLinear or DequantizeLinear, and its zero point as int8 has
        it."""
        scale = self.constant(node, 1).array
        point = self.constant(node, 2).array if len(node.inputs) > 2 else np.zeros(1, np.uint8)
        if scale.size != 1 or point.size != 1 or point.dtype not in (np.int8, np.uint8):
            raise node.refuse("does not quantise values to 8 bits with one scale")
        shift = UINT8_OFFSET if point.dtype == np.uint8 else 0
        return float(scale.reshape(())), int(point.reshape(())) - shift

    def target(self, node: Node, name: str | None = None) -> Target:
        """The result of a node, with the activation after it fused."""
        name = name or node.output
        activation, user = NONE, self.graph.only_user(name)
        if user is not None:
            activation = self.activation(user)
            name = name if activation is NONE else user.output
        scale, zero_point = self.quantisation(name)
        if self.graph.quantised and scale is None:
            raise node.refuse("gives values that are not quantised")
        return Target(name, activation, scale, zero_point)

    def activation(self, node: Node) -> FusedActivation:
        """The activation that a node computes; NONE for any other node."""
        if node.kind == "Relu":
            return FusedActivation.RELU
        if node.kind != "Clip":
            return NONE
        bounds = []
        for at, attribute, default in ((1, "min", -math.inf), (2, "max", math.inf)):
            given = at < len(node.inputs) and node.inputs[at]
            value = self.constant(node, at).reals if given else node.attributes.get(attribute)
            bounds.append(default if value is None else float(np.asarray(value).reshape(())))
        low, high = bounds
        if low == 0 and high == 6:
            return FusedActivation.RELU6
        return FusedActivation.RELU if low == 0 and high > np.finfo(np.float32).max / 2 else NONE

    def give(self, target: Target, tensor: Tensor) -> None:
        """Record a target's tensor."""
        self.values[target.name] = Value(tensor, target.activation is not NONE)

    def same(self, node: Node, tensor: Tensor, *, rectified: bool = False) -> None:
        """Record a node's result, which has its input's scale."""
        self.values[node.output] = Value(tensor, rectified)

    def requantised(self, x: Tensor, scale: float | None, zero_point: int) -> Tensor:
        """The same values with another scale."""
        if scale is None or (x.scale, x.zero_point) == (float(np.float32(scale)), zero_point):
            return x
        output = self.build.tensor(x.shape, scale, zero_point)
        code = schema.BuiltinOperator.QUANTIZE
        return self.build.operator(code, (x,), output, schema.QuantizeOptionsT(), version=2)

    def first(self, x: Tensor) -> Tensor:
        """A picture as ONNX has it, N×C×H×W."""
        return self.build.transpose(x, TO_FIRST) if len(x.shape) == PICTURE else x


def logical_shape(x: Tensor) -> tuple[int, ...]:
    """A tensor's shape as ONNX has it."""
    return tuple(x.shape[axis] for axis in TO_FIRST) if len(x.shape) == PICTURE else x.shape


def pair_of(node: Node, name: str) -> tuple[int, int]:
    given = [int(number) for number in node.attributes.get(name, (1, 1))]
    if len(given) != 2 or min(given) < 1:
        raise node.refuse(f"has {name} {given}")
    return given[0], given[1]


def same_pads(x: Tensor, window: Sequence[int], stride: Sequence[int]) -> list[tuple[int, int]]:
    return [
        same_padding(extent, size, step)
        for extent, size, step in zip(x.shape[1:3], window, stride, strict=True)
    ]


def pads_of(
    node: Node, x: Tensor, window: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int]]:
    """Zeroes before and after, for height and for width."""
    automatic = node.attributes.get("auto_pad", b"NOTSET")
    if automatic == b"SAME_UPPER":
        return same_pads(x, window, stride)
    if automatic == b"SAME_LOWER":
        return [(after, before) for before, after in same_pads(x, window, stride)]
    if automatic == b"VALID":
        return [(0, 0), (0, 0)]
    pads = [int(number) for number in node.attributes.get("pads", (0, 0, 0, 0))]
    if len(pads) != 4 or min(pads) < 0:
        raise node.refuse(f"has the paddings {pads}")
    return [(pads[0], pads[2]), (pads[1], pads[3])]
