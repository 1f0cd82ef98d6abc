"""From ONNX to TensorFlow Lite.

Values of four dimensions are pictures: N×C×H×W in ONNX, N×H×W×C in TensorFlow Lite, where they stand
so from input to output; axes in what is asked for are ONNX's. A model that says how its values are
quantised (QuantizeLinear and DequantizeLinear) becomes one in int8, any other one in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash.models import onnx_graph
from potash.models.builder import (
    FusedActivation,
    GraphBuilder,
    Padding,
    Tensor,
    same_padding,
)
from potash.models.onnx_graph import Array, Node, OnnxGraph
from potash.sdk.errors import PotashError

PICTURE = 4
TO_LAST = (0, 2, 3, 1)
"""For each axis of N×H×W×C, which one of N×C×H×W it is."""
TO_FIRST = (0, 3, 1, 2)
UINT8_OFFSET = 128
"""What unsigned values are more than the signed ones that stand for the same."""
NONE = FusedActivation.NONE


@dataclass(frozen=True)
class Imported:
    """What came of a model."""

    model: bytes
    quantised: bool
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Value:
    """A tensor that is computed."""

    tensor: Tensor
    nonnegative: bool = False


@dataclass(frozen=True)
class Stored:
    """Constant numbers, with their scales when they are quantised."""

    array: Array
    scales: Array | None = None
    axis: int = 0

    @property
    def reals(self) -> Array:
        """What they stand for."""
        if self.scales is None:
            return self.array
        shape = [-1 if at == self.axis else 1 for at in range(self.array.ndim)]
        scales = self.scales.reshape(shape) if self.scales.size > 1 else self.scales.reshape(())
        reals: Array = (self.array * scales).astype(np.float32)
        return reals


@dataclass(frozen=True)
class Target:
    """What a node's result is to be: the value's name, and what is done on the way to it."""

    name: str
    activation: FusedActivation
    scale: float | None
    zero_point: int


def convert(data: bytes) -> Imported:
    """Convert an ONNX model. Raises PotashError for what is not supported."""
    try:
        return _convert(data)
    except PotashError as error:
        raise PotashError(_printable(str(error))) from error.__cause__
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Shapes and types that do not fit each other, wherever numpy or the builder finds it.
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


class Conversion:
    """A model that is being converted."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self.build = GraphBuilder("from ONNX")
        self.stored = {name: Stored(array) for name, array in graph.constants.items()}
        self.values: dict[str, Value] = {}
        self.taken: set[str] = set()
        """Results that have been taken into another node's."""
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
        """The one scale of QuantizeLinear or DequantizeLinear, and its zero point as int8 has it."""
        scale = self.constant(node, 1).array
        point = self.constant(node, 2).array if len(node.inputs) > 2 else np.zeros(1, np.uint8)
        if scale.size != 1 or point.size != 1 or point.dtype not in (np.int8, np.uint8):
            raise node.refuse("does not quantise values to 8 bits with one scale")
        shift = UINT8_OFFSET if point.dtype == np.uint8 else 0
        return float(scale.reshape(())), int(point.reshape(())) - shift

    def target(self, node: Node, name: str | None = None) -> Target:
        """What a result becomes, with an activation behind it taken in."""
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
        """The activation that a node is; NONE for any other node."""
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
        """Take down the tensor that a target has become."""
        self.values[target.name] = Value(tensor, target.activation is not NONE)

    def same(self, node: Node, tensor: Tensor, *, nonnegative: bool = False) -> None:
        """Take down a node's result, which has its input's scale."""
        self.values[node.output] = Value(tensor, nonnegative)

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


def _quantize(work: Conversion, node: Node) -> None:
    name = node.inputs[0]
    if name in work.stored:
        work.stored[node.output] = _quantized(work, node)
        return
    scale, zero_point = work.scale_of(node)
    x = work.value(name)
    tensor = work.requantised(x.tensor, scale, zero_point)
    work.same(node, tensor, nonnegative=x.nonnegative)


def _quantized(work: Conversion, node: Node) -> Stored:
    """Constants that the model quantises each time it runs."""
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


def _conv(work: Conversion, node: Node) -> None:
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
            raise normalised.refuse("stands behind weights that are quantised")
        factors, offsets = _normalisation(work, normalised)
        scaled = weights.array * factors.reshape(-1, 1, 1, 1)
        bias = Stored((0 if bias is None else bias.reals) * factors + offsets)
        weights, name = Stored(scaled.astype(np.float32)), normalised.output
        work.taken.add(name)
    stride, dilation = _pair(node, "strides"), _pair(node, "dilations")
    window = [(size - 1) * apart + 1 for size, apart in zip((height, width), dilation, strict=True)]
    pads = _pads(node, x, window, stride)
    target = work.target(node, name)
    if not any(map(sum, pads)):
        padding = Padding.VALID
    elif pads == _same(x, window, stride):
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


def _gemm(work: Conversion, node: Node) -> None:
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


def _matmul(work: Conversion, node: Node) -> None:
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


def _normalise(work: Conversion, node: Node) -> None:
    x = work.value(node.inputs[0]).tensor
    if work.graph.quantised or len(x.shape) not in (2, PICTURE):
        raise node.refuse("stands where it cannot be taken into a convolution")
    factors, offsets = (values.astype(np.float32) for values in _normalisation(work, node))
    scaled = work.build.mul(x, work.build.constant(factors))
    target = work.target(node)
    offset = work.build.constant(offsets)
    work.give(target, work.build.add(scaled, offset, activation=target.activation))


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
    """Both tensors; a constant is put into the order that the other has."""
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
    work.same(node, emit(x, scale, zero_point), nonnegative=True)


def _pool(work: Conversion, node: Node) -> None:
    value = work.value(node.inputs[0])
    x, kernel, stride = value.tensor, _pair(node, "kernel_shape"), _pair(node, "strides")
    if len(x.shape) != PICTURE or _pair(node, "dilations") != (1, 1) or len(node.outputs) > 1:
        raise node.refuse("is not a pool of two dimensions")
    pads = _pads(node, x, kernel, stride)
    largest = node.kind == "MaxPool"
    counted = bool(node.attributes.get("count_include_pad", 0))
    padding = Padding.VALID
    if not any(map(sum, pads)):
        pass
    elif pads == _same(x, kernel, stride) and not counted:
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
    work.same(node, tensor, nonnegative=value.nonnegative)


def _global_average(work: Conversion, node: Node) -> None:
    _mean_of(work, node, [2, 3], keep=True)


def _mean(work: Conversion, node: Node) -> None:
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
    logical = work_shape(x)
    if shape is None or (0 in shape and node.attributes.get("allowzero", 0)):
        raise node.refuse("has no shape to make")
    if any(extent == 0 and at >= len(logical) for at, extent in enumerate(shape)):
        raise node.refuse(f"makes the shape {shape}")
    _reshaped(work, node, [extent or logical[at] for at, extent in enumerate(shape)])


def _flatten(work: Conversion, node: Node) -> None:
    logical = work_shape(work.value(node.inputs[0]).tensor)
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
    # One pixel's values stand in the same order either way.
    if len(x.shape) == PICTURE and x.shape[1:3] != (1, 1):
        x = work.first(x)
    tensor = work.build.reshape(x, shape)
    if len(shape) == PICTURE:
        tensor = work.build.transpose(tensor, TO_LAST)
    work.same(node, tensor, nonnegative=value.nonnegative)


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
    "AveragePool": _pool,
    "BatchNormalization": _normalise,
    "Clip": _relu,
    "Concat": _concat,
    "Conv": _conv,
    "DequantizeLinear": _dequantize,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "MatMul": _matmul,
    "Max": _extreme,
    "MaxPool": _pool,
    "Min": _extreme,
    "Mul": _binary,
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "ReduceMean": _mean,
    "Relu": _relu,
    "Reshape": _reshape,
    "Sub": _binary,
    "Transpose": _transpose,
}
"""ONNX's operators, and what becomes of each."""


def work_shape(x: Tensor) -> tuple[int, ...]:
    """A tensor's shape as ONNX has it."""
    return tuple(x.shape[axis] for axis in TO_FIRST) if len(x.shape) == PICTURE else x.shape


def _pair(node: Node, name: str) -> tuple[int, int]:
    given = [int(number) for number in node.attributes.get(name, (1, 1))]
    if len(given) != 2 or min(given) < 1:
        raise node.refuse(f"has {name} {given}")
    return given[0], given[1]


def _same(x: Tensor, window: Sequence[int], stride: Sequence[int]) -> list[tuple[int, int]]:
    return [
        same_padding(extent, size, step)
        for extent, size, step in zip(x.shape[1:3], window, stride, strict=True)
    ]


def _pads(
    node: Node, x: Tensor, window: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int]]:
    """Zeroes before and behind, for height and for width."""
    automatic = node.attributes.get("auto_pad", b"NOTSET")
    if automatic == b"SAME_UPPER":
        return _same(x, window, stride)
    if automatic == b"SAME_LOWER":
        return [(behind, before) for before, behind in _same(x, window, stride)]
    if automatic == b"VALID":
        return [(0, 0), (0, 0)]
    pads = [int(number) for number in node.attributes.get("pads", (0, 0, 0, 0))]
    if len(pads) != 4 or min(pads) < 0:
        raise node.refuse(f"has the paddings {pads}")
    return [(pads[0], pads[2]), (pads[1], pads[3])]
