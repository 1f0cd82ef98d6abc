"""Random int8 networks: a few nodes of every operator, whose tensors many nodes read in many ways.

A network is drawn from a number, node by node, so that fewer nodes of the same number are its
beginning: what fails is made smaller by asking for fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from support import tflite_graph_moves as moves
from support.graph_builder import FusedActivation, GraphBuilder, Padding, Tensor, extents
from support.tflite import Int8
from support.tflite_values import spread

Item = TypeVar("Item")

MOST_NODES = 12
MOST_VALUES = 1 << 13
"""In one tensor."""
_MOST_WEIGHTS = 1 << 14
_ACTIVATIONS = (
    FusedActivation.NONE,
    FusedActivation.RELU,
    FusedActivation.RELU_N1_TO_1,
    FusedActivation.RELU6,
)


class Quantization(NamedTuple):
    """A tensor's scale and zero point."""

    scale: float
    zero_point: int


class Network(NamedTuple):
    """A model, the shapes of its inputs, and its operators' names in order."""

    model: bytes
    shapes: tuple[tuple[int, ...], ...]
    operators: tuple[str, ...]

    def inputs(self, seed: int) -> list[Int8]:
        """Values for it."""
        return [spread(shape, seed + number) for number, shape in enumerate(self.shapes)]


def network(seed: int, nodes: int | None = None) -> Network:
    """The network of that number, or the first `nodes` nodes of it."""
    random = np.random.default_rng([seed, 0])
    drawing = Drawing(random)
    names: list[str] = []
    for _ in range(int(random.integers(2, MOST_NODES + 1))):
        if nodes is None or len(names) < nodes:
            names.append(drawing.node())
    return Network(*drawing.finish(np.random.default_rng([seed, 1])), tuple(names))


class Drawing:
    """A network under construction."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.graph = GraphBuilder()
        self.channels = [int(random.integers(1, 41)) for _ in range(2)]
        if self.one_in(2):
            self.channels[0] = int(random.choice([8, 16, 32]))
        self.quantizations = [
            Quantization(float(0.05 * 2 ** random.uniform(-2, 1)), self.zero_point())
            for _ in range(2)
        ]
        self.read: set[int] = set()
        self.weights: list[Tensor] = []
        images, height, width = (int(random.integers(1, most)) for most in (4, 10, 10))
        self.inputs: list[Tensor] = []
        for number in range(int(random.choice([1, 1, 2, 3]))):
            if number and self.one_in(3):
                height, width = width, height
            shape = (images, height, width, self.choose(self.channels))
            if number and self.one_in(4):
                shape = (images, 1, 1, shape[3])
            self.inputs.append(self.graph.tensor(shape, *self.quantization()))
        self.live = list(self.inputs)

    def node(self) -> str:
        """Add a node; its name."""
        while True:
            draw = self.choose(_NODES)
            made = draw(self)
            if made is not None:
                self.live.append(made)
                return draw.__name__.strip("_")

    def finish(self, random: np.random.Generator) -> tuple[bytes, tuple[tuple[int, ...], ...]]:
        """The model: most of what nobody reads goes out, and some of what somebody does."""
        made = self.live[len(self.inputs) :]
        outputs = [
            tensor
            for tensor in made
            if random.random() < (0.15 if tensor.index in self.read else 0.9)
        ]
        outputs = outputs or made[-1:]
        order = random.permutation(len(outputs))
        model = self.graph.finish(self.inputs, [outputs[at] for at in order])
        return model, tuple(tensor.shape for tensor in self.inputs)

    # What is drawn

    def one_in(self, count: int) -> bool:
        return bool(self.random.integers(count) == 0)

    def choose(self, items: Sequence[Item]) -> Item:
        return items[int(self.random.integers(len(items)))]

    def zero_point(self) -> int:
        return int(self.choose([0, -128, 127, *self.random.integers(-128, 128, 3)]))

    def quantization(self) -> Quantization:
        """One that several tensors have, mostly."""
        if self.one_in(6):
            return Quantization(self.choose(self.quantizations).scale, self.zero_point())
        return self.choose(self.quantizations)

    def activation(self) -> FusedActivation:
        return FusedActivation.NONE if self.one_in(2) else self.choose(_ACTIVATIONS)

    def tensor(self, ranks: Sequence[int] = (1, 2, 3, 4, 5)) -> Tensor | None:
        """One to read, of such a rank: late ones more often, and now and then a constant."""
        fitting = [tensor for tensor in self.live if len(tensor.shape) in ranks]
        if not fitting:
            return None
        found = self.choose(fitting[-3:] if self.one_in(2) else fitting)
        if self.one_in(16):
            return self.constant(found.shape, Quantization(found.scale or 0, found.zero_point))
        self.read.add(found.index)
        return found

    def constant(self, shape: Sequence[int], its: Quantization) -> Tensor:
        return self.graph.constant(spread(shape, int(self.random.integers(1 << 30))), *its)

    def kernel(
        self, shape: tuple[int, ...], terms: int, axis: int, x: Tensor, out: Quantization
    ) -> Tensor | None:
        """Weights with which outputs, sums of so many products, have all sizes."""
        if math.prod(shape) > _MOST_WEIGHTS:
            return None
        assert x.scale
        usual = out.scale * 50 / (x.scale * math.sqrt(terms) * 74 * 74)
        count = shape[axis] if self.one_in(2) else 1
        scales = usual * 2 ** self.random.uniform(-2, 1, count)
        values = self.random.integers(-127, 128, shape).astype(np.int8)
        return self.graph.constant(values, scales.tolist(), axis=axis)

    def bias(self, x: Tensor, weights: Tensor, count: int) -> Tensor | None:
        if self.one_in(3):
            return None
        return self.graph.bias(self.random.integers(-9000, 9000, count), x, weights)

    def window(
        self, x: Tensor, *, dilated: bool
    ) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], Padding] | None:
        """Size, stride, dilation and padding of a window on images."""
        size = self.choose([1, 2, 3, 3, 5]), self.choose([1, 2, 3, 3, 5])
        stride = self.choose([1, 1, 2, 3]), self.choose([1, 1, 2, 3])
        dilation = (self.choose([1, 1, 2]), self.choose([1, 1, 2])) if dilated else (1, 1)
        padding = self.choose([Padding.SAME, Padding.VALID])
        if min(extents(x.shape[1:3], size, stride, dilation, padding)) < 1:
            return None
        return size, stride, dilation, padding


def _conv2d(net: Drawing) -> Tensor | None:
    x = net.tensor((4,))
    window = net.window(x, dilated=True) if x else None
    if x is None or window is None:
        return None
    size, stride, dilation, padding = window
    out, channels = net.quantization(), net.choose(net.channels)
    shape = (channels, *size, x.shape[3])
    known = [one for one in net.weights if one.shape == shape]
    if known and net.one_in(2):
        weights: Tensor | None = known[0]
    else:
        weights = net.kernel(shape, math.prod(shape[1:]), 0, x, out)
    if weights is None:
        return None
    net.weights.append(weights)
    bias = net.bias(x, weights, channels)
    activation = net.activation()
    return net.graph.conv2d(
        x, weights, bias, *out,
        stride=stride, dilation=dilation, padding=padding, activation=activation,
    )  # fmt: skip


def _depthwise_conv2d(net: Drawing) -> Tensor | None:
    x = net.tensor((4,))
    window = net.window(x, dilated=True) if x else None
    if x is None or window is None:
        return None
    size, stride, dilation, padding = window
    multiplier = net.choose([1, 1, 1, 2, 3])
    out, channels = net.quantization(), x.shape[3] * multiplier
    if channels > 64:
        return None
    weights = net.kernel((1, *size, channels), math.prod(size), 3, x, out)
    if weights is None:
        return None
    bias = net.bias(x, weights, channels)
    activation = net.activation()
    return net.graph.depthwise_conv2d(
        x, weights, bias, *out,
        stride=stride, dilation=dilation, padding=padding, activation=activation,
    )  # fmt: skip


def _fully_connected(net: Drawing) -> Tensor | None:
    x = net.tensor()
    if x is None:
        return None
    kept = net.one_in(3)
    terms = x.shape[-1] if kept or net.one_in(3) else math.prod(x.shape[1:])
    out, channels = net.quantization(), net.choose(net.channels)
    weights = net.kernel((channels, terms), terms, 0, x, out)
    if weights is None:
        return None
    bias = net.bias(x, weights, channels)
    return net.graph.fully_connected(
        x, weights, bias, *out, keep_dimensions=kept, activation=net.activation()
    )


def _other(net: Drawing, x: Tensor, *, same: bool) -> Tensor:
    """A second operand that can be broadcast with `x`."""
    its = Quantization(x.scale or 0, x.zero_point)
    fitting = [
        tensor
        for tensor in net.live
        if _broadcast(x.shape, tensor.shape)
        and (not same or Quantization(tensor.scale or 0, tensor.zero_point) == its)
    ]
    if fitting and not net.one_in(3):
        found = net.choose(fitting)
        net.read.add(found.index)
        return found
    shape = [extent if net.one_in(2) else 1 for extent in x.shape]
    match net.random.integers(4):
        case 0:
            shape = list(x.shape)
        case 1:
            shape = list(x.shape[-1:])
        case 2:
            shape = [1]
    return net.constant(shape, its if same else net.quantization())


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    # TensorFlow Lite's own kernels take no more than four axes to broadcast.
    if one != other and max(len(one), len(other)) > 4:
        return False
    try:
        return math.prod(np.broadcast_shapes(one, other)) <= MOST_VALUES
    except ValueError:
        return False


def _arithmetic(net: Drawing, method: str) -> Tensor | None:
    x = net.tensor()
    if x is None:
        return None
    operands = [x, _other(net, x, same=False)]
    if net.one_in(2):
        operands.reverse()
    scale, zero_point = net.quantization()
    made: Tensor = getattr(net.graph, method)(
        *operands, scale * 2 ** net.random.uniform(-0.5, 2), zero_point, activation=net.activation()
    )
    return made


def _add(net: Drawing) -> Tensor | None:
    return _arithmetic(net, "add")


def _sub(net: Drawing) -> Tensor | None:
    return _arithmetic(net, "sub")


def _mul(net: Drawing) -> Tensor | None:
    return _arithmetic(net, "mul")


def _minimum(net: Drawing) -> Tensor | None:
    x = net.tensor()
    return net.graph.minimum(x, _other(net, x, same=True)) if x else None


def _maximum(net: Drawing) -> Tensor | None:
    x = net.tensor()
    return net.graph.maximum(_other(net, x, same=True), x) if x else None


def _max_pool2d(net: Drawing) -> Tensor | None:
    x = net.tensor((4,))
    window = net.window(x, dilated=False) if x else None
    if x is None or window is None:
        return None
    size, stride, _, padding = window
    return net.graph.max_pool2d(
        x, size, stride=stride, padding=padding, activation=net.activation()
    )


def _average_pool2d(net: Drawing) -> Tensor | None:
    x = net.tensor((4,))
    window = net.window(x, dilated=False) if x else None
    if x is None or window is None:
        return None
    size, stride, _, padding = window
    return net.graph.average_pool2d(
        x, size, stride=stride, padding=padding, activation=net.activation()
    )


def _mean(net: Drawing) -> Tensor | None:
    x = net.tensor((3, 4))
    if x is None:
        return None
    rank = len(x.shape)
    axes = net.choose([(rank - 3, rank - 2), (-2, -3), (-3,), (rank - 2,), (rank - 1,)])
    return net.graph.mean(x, axes, *net.quantization(), keep_dimensions=net.one_in(2))


def _relu(net: Drawing) -> Tensor | None:
    x = net.tensor()
    return net.graph.relu(x, *net.quantization()) if x else None


def _relu6(net: Drawing) -> Tensor | None:
    x = net.tensor()
    return net.graph.relu6(x, *net.quantization()) if x else None


def _relu_n1_to_1(net: Drawing) -> Tensor | None:
    x = net.tensor()
    if x is None:
        return None
    output = net.graph.tensor(x.shape, *net.quantization())
    return net.graph.operator(schema.BuiltinOperator.RELU_N1_TO_1, [x], output)


def _pad(net: Drawing) -> Tensor | None:
    x = net.tensor((3, 4))
    if x is None:
        return None
    pads = [(0, 0) for _ in x.shape]
    for axis in (-3, -2):
        pads[axis] = (int(net.random.integers(3)), int(net.random.integers(3)))
    if net.one_in(8):
        pads[net.choose([0, -1])] = (1, 0)
    if math.prod(extent + sum(pair) for extent, pair in zip(x.shape, pads, strict=True)) > (
        MOST_VALUES
    ):
        return None
    return net.graph.pad(x, pads)


def _reshape(net: Drawing) -> Tensor | None:
    x = net.tensor()
    if x is None:
        return None
    extents_ = list(net.random.permutation(x.shape) if net.one_in(2) else x.shape)
    while len(extents_) > 1 and net.one_in(2):
        at = int(net.random.integers(len(extents_) - 1))
        extents_[at : at + 2] = [extents_[at] * extents_[at + 1]]
    while len(extents_) < 4 and not net.one_in(3):
        at = int(net.random.integers(len(extents_)))
        factors = [number for number in range(1, 17) if extents_[at] % number == 0]
        factor = net.choose(factors)
        extents_[at : at + 1] = [extents_[at] // factor, factor]
    if len(extents_) == 4 and net.one_in(10):
        extents_.insert(0, 1)
    return net.graph.reshape(x, [int(extent) for extent in extents_])


def _transpose(net: Drawing) -> Tensor | None:
    x = net.tensor()
    if x is None:
        return None
    order = [int(axis) for axis in net.random.permutation(len(x.shape))]
    if len(order) == 4 and net.one_in(2):
        order = [0, 2, 1, 3]
    return net.graph.transpose(x, order)


def _concatenation(net: Drawing) -> Tensor | None:
    x = net.tensor()
    if x is None:
        return None
    axis = int(net.choose([-1, -1, *range(-len(x.shape), 0)]))

    def rest(shape: Sequence[int]) -> list[int]:
        return [extent for at, extent in enumerate(shape) if at != len(shape) + axis]

    fitting = [
        tensor
        for tensor in net.live
        if len(tensor.shape) == len(x.shape)
        and rest(tensor.shape) == rest(x.shape)
        and (tensor.scale, tensor.zero_point) == (x.scale, x.zero_point)
    ]
    pieces = [x]
    for _ in range(int(net.random.integers(0, 3))):
        if fitting and not net.one_in(4):
            pieces.append(net.choose(fitting))
            net.read.add(pieces[-1].index)
        else:
            shape = list(x.shape)
            shape[axis] = int(net.choose([1, 3, 8, 16]))
            pieces.append(net.constant(shape, Quantization(x.scale or 0, x.zero_point)))
    if sum(math.prod(piece.shape) for piece in pieces) > MOST_VALUES:
        return None
    order = net.random.permutation(len(pieces))
    return net.graph.concatenation([pieces[at] for at in order], axis)


def _function(net: Drawing) -> Tensor | None:
    """A table of values."""
    x = net.tensor()
    if x is None:
        return None
    output = net.graph.tensor(x.shape, *net.quantization())
    match net.random.integers(6):
        case 0:
            output = net.graph.tensor(x.shape, 1 / 256, -128)
            return net.graph.operator(schema.BuiltinOperator.LOGISTIC, [x], output)
        case 1:
            output = net.graph.tensor(x.shape, 1 / 128, 0)
            return net.graph.operator(schema.BuiltinOperator.TANH, [x], output)
        case 2:
            return net.graph.operator(schema.BuiltinOperator.QUANTIZE, [x], output, version=2)
        case 3:
            factors = net.constant((x.shape or (1,))[-1:], Quantization(0.01, 3))
            return net.graph.operator(schema.BuiltinOperator.PRELU, [x, factors], output)
        case 4:
            return net.graph.operator(schema.BuiltinOperator.HARD_SWISH, [x], output)
        case _:
            options = schema.LeakyReluOptionsT()
            options.alpha = 0.25
            code = schema.BuiltinOperator.LEAKY_RELU
            return net.graph.operator(code, [x], output, options, version=2)


def _elsewhere(net: Drawing) -> Tensor | None:
    """Something that the delegate has no operator for."""
    x = net.tensor()
    if x is None:
        return None
    output = net.graph.tensor(x.shape, *net.quantization())
    return net.graph.operator(schema.BuiltinOperator.ABS, [x], output)


_NODES: tuple[Callable[[Drawing], Tensor | None], ...] = (
    _conv2d, _conv2d, _conv2d, _depthwise_conv2d, _fully_connected,
    _add, _add, _sub, _mul, _minimum, _maximum,
    _max_pool2d, _average_pool2d, _mean, _relu, _relu6, _relu_n1_to_1,
    _pad, _pad, _reshape, _reshape, _transpose, _concatenation, _concatenation, _function,
    moves.strided_slice, moves.split, moves.blocks, moves.rank, moves.resize,
    _elsewhere,
)  # fmt: skip
