"""An ONNX model: nodes, constants, and the users of each value.

Source: the ONNX specification (`docs/IR.md`) and its operators (`docs/Operators.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from potash.models.extras import extra
from potash.sdk.errors import PotashError

EXTRA = "onnx"
SAME_VALUE = {"Identity", "Dropout"}
"""Operators that change nothing outside of training."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Node:
    """One operator. Inputs and outputs are values' names, empty where one is left out."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def output(self) -> str:
        return self.outputs[0]

    def refuse(self, why: str) -> PotashError:
        """The error that something of this node is not supported."""
        return PotashError(f"{self.kind} {self.name or self.output} {why}")


@dataclass
class OnnxGraph:
    """A model's graph."""

    inputs: list[tuple[str, tuple[int, ...]]]
    outputs: list[str]
    nodes: list[Node]
    constants: dict[str, Array]
    users: dict[str, list[Node]] = field(default_factory=dict)
    quantised: bool = False
    """Whether the model is quantised already (QuantizeLinear and DequantizeLinear)."""

    def only_user(self, value: str) -> Node | None:
        """The node that uses a value, if there is one only and the model does not give it."""
        users = self.users.get(value, [])
        return users[0] if len(users) == 1 and value not in self.outputs else None


def read(data: bytes) -> OnnxGraph:
    """The graph of an ONNX file. Raises PotashError."""
    onnx = extra("onnx", EXTRA)
    numpy_helper = extra("onnx.numpy_helper", EXTRA)
    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # noqa: BLE001  # protobuf's own error, whose class depends on its version
        raise PotashError("this is not an ONNX model") from None
    graph = model.graph
    if not graph.node or not graph.output:
        raise PotashError("this is not an ONNX model")
    external = onnx.TensorProto.EXTERNAL
    if any(tensor.data_location == external for tensor in graph.initializer):
        raise PotashError("the model has its weights in another file; save it as one file")
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = [_node(onnx, node) for node in graph.node]
    inputs = [(item.name, _shape(item)) for item in graph.input if item.name not in constants]
    kept, outputs = _without_copies(nodes, [item.name for item in graph.output], constants)
    made = OnnxGraph(inputs, outputs, kept, constants)
    for node in kept:
        for name in node.inputs:
            made.users.setdefault(name, []).append(node)
    made.quantised = any(node.kind == "QuantizeLinear" for node in kept)
    _check_order(made)
    return made


def unsupported(graph: OnnxGraph, kinds: Sequence[str]) -> str | None:
    """A sentence about the operators that are not among `kinds`."""
    others = Counter(node.kind for node in graph.nodes if node.kind not in kinds)
    if not others:
        return None
    names = ", ".join(f"{kind} ({count})" for kind, count in sorted(others.items()))
    return f"the model has operators that are not supported: {names}"


def _node(onnx: Any, node: Any) -> Node:
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    return Node(node.op_type, node.name, tuple(node.input), tuple(node.output), attributes)


def _shape(item: Any) -> tuple[int, ...]:
    """An input's shape: a first dimension without a number is the batch, of one sample."""
    shape = []
    for at, dimension in enumerate(item.type.tensor_type.shape.dim):
        if dimension.dim_value <= 0 and at > 0:
            raise PotashError(f"input {item.name} has a dimension {at} without a number")
        shape.append(max(dimension.dim_value, 1))
    return tuple(shape)


def _without_copies(
    nodes: Sequence[Node], outputs: Sequence[str], constants: dict[str, Array]
) -> tuple[list[Node], list[str]]:
    """The nodes that compute something; values that are the same get one name."""
    same: dict[str, str] = {}
    kept = []
    for node in nodes:
        renamed = Node(
            node.kind,
            node.name,
            tuple(same.get(name, name) for name in node.inputs),
            node.outputs,
            node.attributes,
        )
        if not node.outputs:
            raise PotashError(f"{node.kind} {node.name} gives nothing")
        if node.kind in SAME_VALUE and renamed.inputs:
            same[node.output] = renamed.inputs[0]
        elif node.kind == "Constant":
            constants[node.output] = _constant(node)
        else:
            kept.append(renamed)
    return kept, [same.get(name, name) for name in outputs]


def _constant(node: Node) -> Array:
    numpy_helper = extra("onnx.numpy_helper", EXTRA)
    for name, value in node.attributes.items():
        if name == "value":
            array: Array = numpy_helper.to_array(value)
            return array
        if name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
    raise node.refuse("is not of numbers")


def _check_order(graph: OnnxGraph) -> None:
    """Check that every value is computed before it is used, as ONNX requires."""
    known = {"", *graph.constants, *(name for name, _ in graph.inputs)}
    for node in graph.nodes:
        for name in node.inputs:
            if name not in known:
                raise node.refuse(f"uses {name}, which is not there yet")
        known.update(node.outputs)
    for name in graph.outputs:
        if name not in known:
            raise PotashError(f"the model gives {name}, which nothing computes")
