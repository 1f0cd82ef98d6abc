"""From ONNX to TensorFlow Lite.

Values of four dimensions are images: N×C×H×W in ONNX, and N×H×W×C in TensorFlow Lite from input to
output; axes in attributes are ONNX's. A quantised model (QuantizeLinear and DequantizeLinear)
becomes one in int8, any other one in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from potash.models import onnx_graph
from potash.models.builder import FusedActivation, Tensor
from potash.models.onnx_conversion import (
    NONE,
    PICTURE,
    TO_LAST,
    UINT8_OFFSET,
    Conversion,
    Stored,
    logical_shape,
)
from potash.models.onnx_graph import Node
from potash.models.onnx_layers import (
    conv,
    gemm,
    global_average,
    matmul,
    mean,
    normalise,
    pool,
)
from potash.sdk.errors import PotashError


@dataclass(frozen=True)
class Imported:
    """A converted model."""

    model: bytes
    quantised: bool
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def convert(data: bytes) -> Imported:
    """Convert an ONNX model. Raises PotashError for what is not supported."""
    try:
        return _convert(data)
    except PotashError as error:
        raise PotashError(_printable(str(error))) from error.__cause__
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Shapes and types that do not fit each other, found by numpy or the builder.
        raise PotashError(f"the model contradicts itself: {_printable(str(error))}") from error


def _printable(text: str) -> str:
    """One line: a model's names may be anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _convert(data: bytes) -> Imported:
    graph = onnx_graph.read(data)
    complaint = onnx_graph.unsupported(graph, sorted(CONVERSIONS))
    if complaint:
        raise PotashError(complaint)
    work = Conversion(graph)
    for node in graph.nodes:
        if node.output not in work.values and node.output not in work.taken:
            CONVERSIONS[node.kind](work, node)
    outputs = tuple(work.value(name).tensor for name in graph.outputs)
    model = work.build.finish(work.inputs, outputs)
    return Imported(model, graph.quantised, tuple(work.inputs), outputs)


def _quantize(work: Conversion, node: Node) -> None:
    name = node.inputs[0]
    if name in work.stored:
        work.stored[node.output] = _quantized(work, node)
        return
    scale, zero_point = work.scale_of(node)
    x = work.value(name)
    tensor = work.requantised(x.tensor, scale, zero_point)
    work.same(node, tensor, rectified=x.rectified)


def _quantized(work: Conversion, node: Node) -> Stored:
    """Constants that the model quantises at run time."""
    array, scales = work.constant(node, 0).array, work.constant(node, 1).array
    given = len(node.inputs) > 2 and node.inputs[2]
    points = work.constant(node, 2).array if given else np.zeros(scales.shape, np.uint8)
    axis = int(node.attributes.get("axis", 1)) % max(array.ndim, 1)
    shape = [-1 if at == axis else 1 for at in range(array.ndim)] if scales.size > 1 else []
    if points.dtype not in (np.int8, np.uint8) or scales.size not in (1, array.shape[axis]):
        raise node.refuse("does not quantise to 8 bits")
    limits = np.iinfo(points.dtype)
    whole = np.rint(array / scales.reshape(shape)) + points.reshape(shape)
    return Stored(np.clip(whole, limits.min, limits.max).astype(points.dtype))


def _dequantize(work: Conversion, node: Node) -> None:
    name = node.inputs[0]
    if name in work.values:
        work.values[node.output] = work.values[name]
        return
    array = work.constant(node, 0).array
    scales = work.constant(node, 1).array.reshape(-1)
    given = len(node.inputs) > 2 and node.inputs[2]
    points = work.constant(node, 2).array.reshape(-1) if given else np.zeros(1, array.dtype)
    if array.dtype == np.uint8:
        array = (array.astype(np.int16) - UINT8_OFFSET).astype(np.int8)
        points = points.astype(np.int16) - UINT8_OFFSET
    if array.dtype not in (np.int8, np.int32) or points.any():
        raise node.refuse("has constants that are not symmetric int8 or int32")
    axis = int(node.attributes.get("axis", 1)) % max(array.ndim, 1)
    if scales.size not in (1, array.shape[axis] if array.ndim else 1):
        raise node.refuse(f"has {scales.size} scales for the shape {array.shape}")
    work.stored[node.output] = Stored(array, scales, axis)


def _binary(work: Conversion, node: Node) -> None:
    left, right = _operands(work, node)
    target = work.target(node)
    emit = {"Add": work.build.add, "Sub": work.build.sub, "Mul": work.build.mul}[node.kind]
    tensor = emit(left, right, target.scale, target.zero_point, activation=target.activation)
    work.give(target, tensor)


def _extreme(work: Conversion, node: Node) -> None:
    emit = {"Min": work.build.minimum, "Max": work.build.maximum}[node.kind]
    tensor = None
    for name in node.inputs:
        pair = replace(node, inputs=(node.inputs[0], name))
        left, right = _operands(work, pair)
        if tensor is None:
            tensor = left
            continue
        tensor = emit(tensor, work.requantised(right, tensor.scale, tensor.zero_point))
    assert tensor is not None
    work.same(node, tensor)


def _operands(work: Conversion, node: Node) -> tuple[Tensor, Tensor]:
    """Both tensors; a constant is transposed to the order of the other."""
    ranks = [len(work.values[name].tensor.shape) for name in node.inputs if name in work.values]
    if not ranks or max(ranks) != min(ranks):
        raise node.refuse("has inputs that do not fit each other")
    left, right = (
        work.values[name].tensor
        if name in work.values
        else _operand(work, work.constant(node, at), ranks[0])
        for at, name in enumerate(node.inputs)
    )
    return left, right


def _operand(work: Conversion, stored: Stored, rank: int) -> Tensor:
    array = stored.reals.astype(np.float32)
    if rank == PICTURE and array.ndim <= PICTURE:
        array = array.reshape((1,) * (PICTURE - array.ndim) + array.shape).transpose(TO_LAST)
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    if not work.graph.quantised:
        return work.build.constant(np.ascontiguousarray(array))
    scale = float(stored.scales.reshape(-1)[0]) if stored.scales is not None else 0.0
    if stored.scales is None or stored.scales.size > 1 or stored.array.dtype != np.int8:
        scale = float(np.abs(array).max(initial=0.0)) / 127 or 1.0
    return work.build.constant(np.rint(array / scale).astype(np.int8), scale)


def _relu(work: Conversion, node: Node) -> None:
    activation = work.activation(node)
    if activation is NONE:
        raise node.refuse("has bounds other than 0 and 6")
    x = work.value(node.inputs[0]).tensor
    scale, zero_point = work.quantisation(node.output)
    if work.graph.quantised and scale is None:
        scale, zero_point = x.scale, x.zero_point
    emit = work.build.relu if activation is FusedActivation.RELU else work.build.relu6
    work.same(node, emit(x, scale, zero_point), rectified=True)


def _pad(work: Conversion, node: Node) -> None:
    x = work.value(node.inputs[0]).tensor
    pads = work.numbers(node, 1, "pads")
    rank = len(x.shape)
    mode = node.attributes.get("mode", b"constant")
    value = node.attributes.get("value", 0.0)
    if len(node.inputs) > 2 and node.inputs[2]:
        value = float(work.constant(node, 2).reals.reshape(()))
    if mode != b"constant" or value != 0 or len(node.inputs) > 3:
        raise node.refuse("pads with something else than zeroes")
    if pads is None or len(pads) != 2 * rank or min(pads) < 0:
        raise node.refuse(f"has the paddings {pads}")
    each = list(zip(pads[:rank], pads[rank:], strict=True))
    order = TO_LAST if rank == PICTURE else range(rank)
    work.same(node, work.build.pad(x, [each[axis] for axis in order]))


def _reshape(work: Conversion, node: Node) -> None:
    x = work.value(node.inputs[0]).tensor
    shape = work.numbers(node, 1, "shape")
    logical = logical_shape(x)
    if shape is None or (0 in shape and node.attributes.get("allowzero", 0)):
        raise node.refuse("has no shape to make")
    if any(extent == 0 and at >= len(logical) for at, extent in enumerate(shape)):
        raise node.refuse(f"makes the shape {shape}")
    _reshaped(work, node, [extent or logical[at] for at, extent in enumerate(shape)])


def _flatten(work: Conversion, node: Node) -> None:
    logical = logical_shape(work.value(node.inputs[0]).tensor)
    axis = int(node.attributes.get("axis", 1))
    axis += len(logical) if axis < 0 else 0
    _reshaped(work, node, [math.prod(logical[:axis]), math.prod(logical[axis:])])


def _reshaped(work: Conversion, node: Node, shape: Sequence[int]) -> None:
    value = work.value(node.inputs[0])
    x = value.tensor
    known = -math.prod(shape) if -1 in shape else math.prod(shape)
    fits = known > 0 and math.prod(x.shape) % known == 0
    if shape.count(-1) > 1 or not fits or (-1 not in shape and known != math.prod(x.shape)):
        raise node.refuse(f"makes the shape {list(shape)} of {math.prod(x.shape)} values")
    # One pixel's values have the same order either way.
    if len(x.shape) == PICTURE and x.shape[1:3] != (1, 1):
        x = work.first(x)
    tensor = work.build.reshape(x, shape)
    if len(shape) == PICTURE:
        tensor = work.build.transpose(tensor, TO_LAST)
    work.same(node, tensor, rectified=value.rectified)


def _transpose(work: Conversion, node: Node) -> None:
    x = work.value(node.inputs[0]).tensor
    rank = len(x.shape)
    order = [int(axis) for axis in node.attributes.get("perm", range(rank)[::-1])]
    if sorted(order) != list(range(rank)):
        raise node.refuse(f"puts the axes in the order {order}")
    if rank == PICTURE:
        order = [TO_LAST.index(order[axis]) for axis in TO_LAST]
    work.same(node, x if order == list(range(rank)) else work.build.transpose(x, order))


def _concat(work: Conversion, node: Node) -> None:
    tensors = [work.value(name).tensor for name in node.inputs]
    rank = len(tensors[0].shape)
    axis = int(node.attributes.get("axis", 0)) % rank
    if any(len(tensor.shape) != rank for tensor in tensors):
        raise node.refuse("has inputs that do not fit each other")
    scale, zero_point = work.quantisation(node.output)
    if scale is None:
        scale, zero_point = tensors[0].scale, tensors[0].zero_point
    tensors = [work.requantised(tensor, scale, zero_point) for tensor in tensors]
    at = TO_LAST.index(axis) if rank == PICTURE else axis
    work.same(node, work.build.concatenation(tensors, at))


CONVERSIONS: Mapping[str, Callable[[Conversion, Node], None]] = {
    "Add": _binary,
    "AveragePool": pool,
    "BatchNormalization": normalise,
    "Clip": _relu,
    "Concat": _concat,
    "Conv": conv,
    "DequantizeLinear": _dequantize,
    "Flatten": _flatten,
    "Gemm": gemm,
    "GlobalAveragePool": global_average,
    "MatMul": matmul,
    "Max": _extreme,
    "MaxPool": pool,
    "Min": _extreme,
    "Mul": _binary,
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "ReduceMean": mean,
    "Relu": _relu,
    "Reshape": _reshape,
    "Sub": _binary,
    "Transpose": _transpose,
}
"""ONNX's operators, and what becomes of each."""
