"""ONNX's operators on windows and with weights, as TensorFlow Lite's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potash.models.builder import Padding, Tensor
from potash.models.onnx_conversion import (
    PICTURE,
    TO_LAST,
    Conversion,
    Stored,
    pads_of,
    pair_of,
    same_pads,
)
from potash.models.onnx_graph import Array, Node


def conv(work: Conversion, node: Node) -> None:
    weights = work.constant(node, 1)
    x = work.value(node.inputs[0]).tensor
    if weights.array.ndim != PICTURE or len(x.shape) != PICTURE:
        raise node.refuse("is not of two dimensions")
    outputs, inputs, height, width = weights.array.shape
    groups = int(node.attributes.get("group", 1))
    if groups < 1 or inputs * groups != x.shape[3] or outputs % groups:
        raise node.refuse(f"has weights {weights.array.shape} for {x.shape[3]} channels")
    bias = work.constant(node, 2) if len(node.inputs) > 2 and node.inputs[2] else None
    name = node.output
    normalised = work.graph.only_user(name)
    if normalised is not None and normalised.kind == "BatchNormalization":
        if weights.scales is not None:
            raise normalised.refuse("follows weights that are quantised")
        factors, offsets = _normalisation(work, normalised)
        scaled = weights.array * factors.reshape(-1, 1, 1, 1)
        bias = Stored((0 if bias is None else bias.reals) * factors + offsets)
        weights, name = Stored(scaled.astype(np.float32)), normalised.output
        work.taken.add(name)
    stride, dilation = pair_of(node, "strides"), pair_of(node, "dilations")
    window = [(size - 1) * step + 1 for size, step in zip((height, width), dilation, strict=True)]
    pads = pads_of(node, x, window, stride)
    target = work.target(node, name)
    if not any(map(sum, pads)):
        padding = Padding.VALID
    elif pads == same_pads(x, window, stride):
        padding = Padding.SAME
    else:
        padding = Padding.VALID
        x = work.build.pad(x, ((0, 0), *pads, (0, 0)))
    depthwise = groups == x.shape[3] and inputs == 1 and groups > 1
    order, axis = ((1, 2, 3, 0), 3) if depthwise else ((0, 2, 3, 1), 0)
    kernel = _weights(work, node, weights, order, axis)
    emit = work.build.depthwise_conv2d if depthwise else work.build.conv2d
    tensor = emit(
        x,
        kernel,
        _bias(work, node, bias, x, kernel, outputs),
        target.scale,
        target.zero_point,
        stride=stride,
        dilation=dilation,
        padding=padding,
        activation=target.activation,
    )
    work.give(target, tensor)


def gemm(work: Conversion, node: Node) -> None:
    if node.attributes.get("transA", 0):
        raise node.refuse("takes its input transposed")
    weights = work.constant(node, 1)
    factors = [float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta")]
    if factors != [1.0, 1.0] and work.graph.quantised:
        raise node.refuse("scales what is quantised")
    bias = work.constant(node, 2) if len(node.inputs) > 2 and node.inputs[2] else None
    if factors != [1.0, 1.0]:
        weights = Stored((weights.array * factors[0]).astype(np.float32))
        bias = None if bias is None else Stored((bias.array * factors[1]).astype(np.float32))
    transposed = bool(node.attributes.get("transB", 0))
    _connected(work, node, weights, bias, transposed=transposed)


def matmul(work: Conversion, node: Node) -> None:
    _connected(work, node, work.constant(node, 1), None, transposed=False)


def _connected(
    work: Conversion, node: Node, weights: Stored, bias: Stored | None, *, transposed: bool
) -> None:
    x = work.value(node.inputs[0]).tensor
    inputs_axis = 1 if transposed else 0
    if weights.array.ndim != 2 or len(x.shape) not in (2, 3):
        raise node.refuse("is not of rows and a matrix")
    if x.shape[-1] != weights.array.shape[inputs_axis]:
        raise node.refuse(f"has weights {weights.array.shape} for rows of {x.shape[-1]}")
    order = (0, 1) if transposed else (1, 0)
    kernel = _weights(work, node, weights, order, 0)
    target = work.target(node)
    tensor = work.build.fully_connected(
        x,
        kernel,
        None if bias is None else _bias(work, node, bias, x, kernel, kernel.shape[0]),
        target.scale,
        target.zero_point,
        keep_dimensions=len(x.shape) > 2,
        activation=target.activation,
    )
    work.give(target, tensor)


def _weights(
    work: Conversion, node: Node, weights: Stored, order: Sequence[int], axis: int
) -> Tensor:
    """Weights with their axes in TensorFlow Lite's order, and scales along `axis` of that."""
    array = np.ascontiguousarray(weights.array.transpose(order))
    if not work.graph.quantised:
        return work.build.constant(array.astype(np.float32))
    if weights.scales is None or array.dtype != np.int8:
        raise node.refuse("has weights that are not quantised to 8 bits")
    if weights.scales.size > 1 and order[axis] != weights.axis:
        raise node.refuse("has weights whose scales are not those of its outputs")
    return work.build.constant(array, weights.scales.tolist(), axis=axis)


def _bias(
    work: Conversion, node: Node, bias: Stored | None, x: Tensor, weights: Tensor, outputs: int
) -> Tensor | None:
    if bias is None:
        return None
    if bias.array.size not in (1, outputs):
        raise node.refuse(f"adds {bias.array.size} values to {outputs} channels")
    flat = np.broadcast_to(bias.array.reshape(-1), (outputs,))
    if not work.graph.quantised:
        return work.build.constant(flat.astype(np.float32))
    if bias.array.dtype == np.int32:
        return work.build.bias(flat, x, weights)
    scales = np.array(weights.scales, np.float64) * float(x.scale or 1.0)
    limits = np.iinfo(np.int32)
    whole = np.clip(np.rint(flat / scales), limits.min, limits.max)
    return work.build.bias(whole.astype(np.int32), x, weights)


def _normalisation(work: Conversion, node: Node) -> tuple[Array, Array]:
    """What BatchNormalization multiplies each channel by, and what it adds then."""
    gamma, beta, mean, variance = (work.constant(node, at).reals for at in range(1, 5))
    factors = gamma / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    return factors, beta - mean * factors


def normalise(work: Conversion, node: Node) -> None:
    x = work.value(node.inputs[0]).tensor
    if work.graph.quantised or len(x.shape) not in (2, PICTURE):
        raise node.refuse("cannot be fused into a convolution")
    factors, offsets = (values.astype(np.float32) for values in _normalisation(work, node))
    scaled = work.build.mul(x, work.build.constant(factors))
    target = work.target(node)
    offset = work.build.constant(offsets)
    work.give(target, work.build.add(scaled, offset, activation=target.activation))


def pool(work: Conversion, node: Node) -> None:
    value = work.value(node.inputs[0])
    x, kernel, stride = value.tensor, pair_of(node, "kernel_shape"), pair_of(node, "strides")
    if len(x.shape) != PICTURE or pair_of(node, "dilations") != (1, 1) or len(node.outputs) > 1:
        raise node.refuse("is not a pool of two dimensions")
    pads = pads_of(node, x, kernel, stride)
    largest = node.kind == "MaxPool"
    counted = bool(node.attributes.get("count_include_pad", 0))
    padding = Padding.VALID
    if not any(map(sum, pads)):
        pass
    elif pads == same_pads(x, kernel, stride) and not counted:
        padding = Padding.SAME
    elif counted if not largest else value.nonnegative:
        # Zeroes are never the largest where nothing is below them.
        x = work.build.pad(x, ((0, 0), *pads, (0, 0)))
    else:
        raise node.refuse("has padding that TensorFlow Lite has no like of")
    if (
        node.attributes.get("ceil_mode", 0)
        and any(
            (extent - size) % step
            for extent, size, step in zip(x.shape[1:3], kernel, stride, strict=True)
        )
        and padding is Padding.VALID
    ):
        raise node.refuse("rounds its size up (ceil_mode)")
    emit = work.build.max_pool2d if largest else work.build.average_pool2d
    tensor = emit(x, kernel, stride=stride, padding=padding)
    work.same(node, tensor, rectified=value.rectified)


def global_average(work: Conversion, node: Node) -> None:
    _mean_of(work, node, [2, 3], keep=True)


def mean(work: Conversion, node: Node) -> None:
    axes = work.numbers(node, 1, "axes")
    rank = len(work.value(node.inputs[0]).tensor.shape)
    if not axes:
        raise node.refuse("is the mean of everything")
    if not all(-rank <= axis < rank for axis in axes):
        raise node.refuse(f"is along axes {axes} of {rank}")
    _mean_of(
        work, node, [axis % rank for axis in axes], keep=bool(node.attributes.get("keepdims", 1))
    )


def _mean_of(work: Conversion, node: Node, axes: Sequence[int], *, keep: bool) -> None:
    x = work.value(node.inputs[0]).tensor
    if len(x.shape) == PICTURE:
        left = [axis for axis in TO_LAST if axis not in axes]
        if keep or left == sorted(left):
            axes = sorted(TO_LAST.index(axis) for axis in axes)
        else:
            x = work.first(x)
    scale, zero_point = work.quantisation(node.output)
    if work.graph.quantised and scale is None:
        scale, zero_point = x.scale, x.zero_point
    tensor = work.build.mean(x, axes, scale, zero_point, keep_dimensions=keep)
    work.same(node, tensor)
