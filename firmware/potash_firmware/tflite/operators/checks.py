"""Checks that operators have in common. Each raises Refusal."""

from collections.abc import Container, Mapping
from types import MappingProxyType

from potash_firmware.tflite.capi import Allocation, Node, Options, Tensor, TensorType
from potash_firmware.tflite.lowering import Refusal
from potash_firmware.tflite.quantization import INT8_MAX, INT8_MIN

INT8: Mapping[int, int] = MappingProxyType({TensorType.INT8: 0})
BYTES: Mapping[int, int] = MappingProxyType({**INT8, TensorType.UINT8: 128})
"""Types, and how much more their values are than those of int8."""


def tensors(
    node: Node,
    counts: Container[int],
    what: str,
    activations: int | None = None,
    types: Mapping[int, int] = INT8,
) -> tuple[list[Tensor], Tensor]:
    """The first `activations` inputs of a node (all where it is not given), and its output: of one
    of the `types`, with one scale each. `counts` are the numbers of inputs that `what` may have."""
    if len(node.inputs) not in counts or len(node.outputs) != 1 or node.outputs[0] is None:
        raise Refusal(f"{what} has other inputs and outputs than it should")
    sources = [quantized(tensor, types) for tensor in node.inputs[:activations]]
    return sources, quantized(node.outputs[0], types)


def same_scale(source: Tensor, output: Tensor) -> None:
    """Check that equal values of both are the same number."""
    if (source.scale, source.zero_point) != (output.scale, output.zero_point):
        raise Refusal(f"tensors {source.name!r} and {output.name!r} differ in scale or zero point")


def numbers(tensor: Tensor | None) -> list[int]:
    """The integers of a constant, such as axes."""
    if tensor is None:
        raise Refusal("an input is left out")
    if tensor.constant is None or tensor.type not in (TensorType.INT32, TensorType.INT64):
        raise Refusal(f"tensor {tensor.name!r} does not hold constant integers")
    found: list[int] = tensor.constant.reshape(-1).tolist()
    return found


def options(node: Node, what: str) -> Options:
    """The node's options."""
    if node.options is None:
        raise Refusal(f"{what} has no options")
    return node.options


def quantized(tensor: Tensor | None, types: Mapping[int, int] = INT8) -> Tensor:
    """A tensor with one scale and zero point, whose size is known."""
    if tensor is None:
        raise Refusal("an input is left out")
    if tensor.type not in types:
        names = " or ".join(TensorType(one).name.lower() for one in types)
        raise Refusal(f"tensor {tensor.name!r} is not {names}")
    if tensor.variable:
        raise Refusal(f"tensor {tensor.name!r} is a variable")
    if tensor.allocation == Allocation.DYNAMIC:
        raise Refusal(f"the shape of tensor {tensor.name!r} is not known before it runs")
    if tensor.size == 0:
        raise Refusal(f"tensor {tensor.name!r} has no values")
    if tensor.scale == 0:
        raise Refusal(f"tensor {tensor.name!r} has no scale for the whole of it")
    if not INT8_MIN <= tensor.zero_point - types[tensor.type] <= INT8_MAX:
        name = TensorType(tensor.type).name.lower()
        raise Refusal(f"the zero point of tensor {tensor.name!r} does not fit into {name}")
    return tensor
