"""Checks of each operator's parameters, as the model gives them.

TensorFlow Lite's kernels check most of this when they are prepared, some only with an assertion,
and some not at all: they divide by a scale of zero, or multiply extents until they overflow. A
check raises CheckError with a clause that follows the operator's name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite import TFLITE_RUNTIME, runtime_package
from potash_firmware.tflite.quantization import QuantizationError, quantize_addition
from potash_firmware.tflite.windows import count, reach

Array: TypeAlias = npt.NDArray[Any]
Options: TypeAlias = Any
"""A table of options with the accessors of the generated schema classes, which are untyped."""

INT8 = schema.TensorType.INT8
EXTENT_LIMIT = 1 << 20
"""Maximum of windows, strides and dilations."""
ELEMENT_LIMIT = 1 << 30
"""Maximum number of elements that an operator makes from smaller inputs."""
LIST_LIMIT = 64
"""Maximum length of a list of axes or paddings, which have one or two per dimension."""


class CheckError(ValueError):
    """Something is wrong with an operator; the message is the rest of a sentence about it."""


@dataclass(frozen=True)
class Scales:
    """A summary of a tensor's scales: operators may name the same tensor many times."""

    count: int
    lowest: float
    highest: float
    axis: int
    """The axis of several scales."""


NO_SCALES = Scales(0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class TensorView:
    """A tensor of a model."""

    name: str
    """The tensor's name, in quotes."""
    type: int
    shape: tuple[int, ...]
    """The shape; empty for a scalar, and if it is not known before the model runs."""
    scales: Scales
    data: Array | None
    """A constant's bytes."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def scale(self) -> float:
        """The one scale; 0 where there is none, or several."""
        return self.scales.lowest if self.scales.count == 1 else 0.0


class Call(NamedTuple):
    """An operator of a model."""

    inputs: tuple[TensorView | None, ...]
    outputs: tuple[TensorView | None, ...]
    options: Options

    def input(self, at: int) -> TensorView:
        """An input that has to be there. Raises CheckError."""
        tensor = self.inputs[at] if at < len(self.inputs) else None
        if tensor is None:
            raise CheckError(f"has no input {at}")
        return tensor

    @property
    def output(self) -> TensorView:
        """The first output. Raises CheckError."""
        if not self.outputs or self.outputs[0] is None:
            raise CheckError("has no output")
        return self.outputs[0]


class Rule(NamedTuple):
    """An operator's numbers of inputs, its table of options, and further checks."""

    inputs: range
    options: type[Any] | None
    check: Callable[[Call], object]


_CALLS: Mapping[int, tuple[type[Any], tuple[str, ...]]] = {
    schema.BuiltinOptions.IfOptions: (schema.IfOptions, ("ThenSubgraphIndex", "ElseSubgraphIndex")),
    schema.BuiltinOptions.WhileOptions: (
        schema.WhileOptions,
        ("CondSubgraphIndex", "BodySubgraphIndex"),
    ),
    schema.BuiltinOptions.CallOptions: (schema.CallOptions, ("Subgraph",)),
    schema.BuiltinOptions.CallOnceOptions: (schema.CallOnceOptions, ("InitSubgraphIndex",)),
}


def called_graphs(operator: Any) -> set[int]:
    """The graphs that an operator of the schema has run."""
    table, found = operator.BuiltinOptions(), _CALLS.get(operator.BuiltinOptionsType())
    if found is None or table is None:
        return set()
    options = found[0]()
    options.Init(table.Bytes, table.Pos)
    return {getattr(options, name)() for name in found[1]}


def check_operator(code: int, options_type: int, table: Any, call: Call) -> None:
    """Check an operator, if there is a rule for it. Raises CheckError."""
    rule = RULES.get(code)
    if rule is None:
        return
    if len(call.inputs) not in rule.inputs or len(call.outputs) != 1:
        raise CheckError(f"has {len(call.inputs)} inputs and {len(call.outputs)} outputs")
    options = None
    if options_type != schema.BuiltinOptions.NONE:
        named = _OPTIONS.get(options_type, str(options_type))
        if rule.options is None or named != rule.options.__name__:
            raise CheckError(f"has the options of another, {named}")
        if table is None:
            raise CheckError("has no options")
        options = rule.options()
        options.Init(table.Bytes, table.Pos)
    rule.check(call._replace(options=options))


_OPTIONS = {
    number: name for name, number in vars(schema.BuiltinOptions).items() if not name.startswith("_")
}


def _check_convolution(call: Call) -> None:
    x, weights = _check_kernel(call)
    outputs = weights.shape[0]
    if x.shape and x.shape[3] % weights.shape[3]:
        raise CheckError(
            f"has weights for {weights.shape[3]} channels, which do not divide {x.shape[3]}"
        )
    _check_sums(call, weights, outputs, 0)


def _check_transposed(call: Call) -> None:
    shape, weights, x = _numbers(call.input(0)), call.input(1), call.input(2)
    options = call.options
    _check_steps(options, ("StrideH", "StrideW"))
    _check_rank(x, 4)
    _check_weights(weights, 4)
    if x.shape and x.shape[3] != weights.shape[3]:
        raise CheckError(f"has weights for {weights.shape[3]} channels, not {x.shape[3]}")
    if x.shape and shape is not None:
        if len(shape) != 4 or min(shape) < 1:
            raise CheckError(f"makes the shape {shape}")
        _check_size(shape)
        same = options.Padding() == schema.Padding.SAME
        strides = options.StrideH(), options.StrideW()
        axes = zip(shape[1:3], weights.shape[1:3], strides, strict=True)
        # A kernel writes outside of an output with other images or channels.
        made = shape[0], *(count(*axis, same=same) for axis in axes), shape[3]
        if made != (*x.shape[:3], weights.shape[0]):
            raise CheckError(f"makes the shape {shape} of {x.shape}")
    _check_sums(call._replace(inputs=(x, weights, *call.inputs[3:])), weights, weights.shape[0], 0)


def _check_depthwise(call: Call) -> None:
    x, weights = _check_kernel(call)
    outputs = weights.shape[3]
    if x.shape and (x.shape[3] == 0 or outputs % x.shape[3]):
        raise CheckError(f"makes {outputs} channels of {x.shape[3]}")
    _check_sums(call, weights, outputs, 3)


def _check_connected(call: Call) -> None:
    x, weights = call.input(0), call.input(1)
    _check_weights(weights, 2)
    outputs, inputs = weights.shape
    if x.shape and x.elements % inputs:
        raise CheckError(f"has weights for rows of {inputs}, which do not divide {x.elements}")
    several = x.type == INT8 and weights.scales.count > 1
    if several and len(call.output.shape) != 2 and runtime_package() == TFLITE_RUNTIME:
        # Its kernel takes the first two extents for all, and leaves the rest unwritten.
        raise CheckError("has scales for channels of what is no matrix, which only LiteRT can run")
    _check_sums(call, weights, outputs, 0)


def _check_addition(call: Call) -> None:
    left, right = _check_broadcast(call)
    # The kernel makes the output of the inputs' type, whatever the model calls it.
    left_shift = _ADDITION_LEFT_SHIFT.get(left.type)
    if left_shift is None:
        return
    try:
        quantize_addition(left.scale, right.scale, call.output.scale, left_shift)
    except QuantizationError as error:
        raise CheckError(f"cannot be scaled: {error}") from None


def _check_product(call: Call) -> None:
    left, right = _check_broadcast(call)
    if left.type == INT8:
        _check_factor(_scale(left) * _scale(right), call.output)


def _check_pool(call: Call) -> None:
    options = call.options
    _check_rank(call.input(0), 4)
    _check_steps(options, ("StrideH", "StrideW", "FilterHeight", "FilterWidth"))
    _check_window(call.input(0), options, (options.FilterHeight(), options.FilterWidth()))


def _check_mean(call: Call) -> None:
    x, axes = call.input(0), _numbers(call.input(1))
    if x.shape and axes is not None and not all(-len(x.shape) <= n < len(x.shape) for n in axes):
        raise CheckError(f"takes the mean along axes {axes} of {len(x.shape)}")
    _check_scaling(call)


def _check_pad(call: Call) -> None:
    x, paddings = call.input(0), _numbers(call.input(1))
    if not x.shape or paddings is None:
        return
    if len(paddings) != 2 * len(x.shape):
        raise CheckError(f"has {len(paddings)} paddings for {len(x.shape)} dimensions")
    if min(paddings) < 0:
        raise CheckError(f"has a padding of {min(paddings)}")
    befores, afters = paddings[::2], paddings[1::2]
    _check_size(map(sum, zip(x.shape, befores, afters, strict=True)))


def _check_unary(call: Call) -> None:
    call.input(0)
    _check_scaling(call)


def _check_reshape(call: Call) -> None:
    x = call.input(0)
    shape = _numbers(call.input(1)) if len(call.inputs) > 1 else None
    if not x.shape or shape is None:
        return
    if min(shape, default=0) < -1 or shape.count(-1) > 1:
        raise CheckError(f"makes the shape {shape}")
    known = math.prod(extent for extent in shape if extent != -1)
    fits = known > 0 and x.elements % known == 0 if -1 in shape else known == x.elements
    if not fits:
        raise CheckError(f"makes the shape {shape} of {x.elements} values")


def _check_transpose(call: Call) -> None:
    x, order = call.input(0), _numbers(call.input(1))
    if not x.shape or order is None:
        return
    rank = len(x.shape)
    if sorted(axis + rank if axis < 0 else axis for axis in order) != list(range(rank)):
        raise CheckError(f"puts the axes in the order {order}")


def _check_concatenation(call: Call) -> None:
    tensors = [call.input(at) for at in range(len(call.inputs))]
    axis = call.options.Axis() if call.options else 0
    rank = len(tensors[0].shape)
    if not all(tensor.shape for tensor in tensors):
        return
    if not -rank <= axis < rank:
        raise CheckError(f"joins along axis {axis} of {rank}")
    axis %= rank
    others = {(*tensor.shape[:axis], *tensor.shape[axis + 1 :]) for tensor in tensors}
    if len(others) > 1 or any(len(tensor.shape) != rank for tensor in tensors):
        raise CheckError("joins tensors whose shapes do not fit")
    if sum(tensor.elements for tensor in tensors) > ELEMENT_LIMIT:
        raise CheckError("makes a tensor that is too large")
    if tensors[0].type == INT8:
        for tensor in (*tensors, call.output):
            _scale(tensor)


def _check_softmax(call: Call) -> None:
    x = call.input(0)
    if x.type in (INT8, schema.TensorType.UINT8):
        beta = call.options.Beta() if call.options else 0.0
        # `PreprocessSoftmaxScaling` aborts the process.
        if not 1 < beta * _scale(x) * _SOFTMAX_UNITS < math.inf:
            raise CheckError(f"scales its input by {beta:g}")


_SOFTMAX_UNITS = 1 << 26

# What add.cc and sub.cc shift operands left by, for the types that they scale.
_ADDITION_LEFT_SHIFT: Mapping[int, int] = {
    schema.TensorType.INT8: 20,
    schema.TensorType.UINT8: 20,
    schema.TensorType.INT16: 15,
}


def _check_rank(tensor: TensorView, rank: int) -> None:
    if tensor.shape and len(tensor.shape) != rank:
        raise CheckError(f"takes {rank} dimensions, and tensor {tensor.name} has {tensor.shape}")


def _check_weights(weights: TensorView, rank: int) -> None:
    if len(weights.shape) != rank or 0 in weights.shape:
        raise CheckError(f"has weights of the shape {weights.shape}")


def _check_steps(options: Options, names: Sequence[str]) -> None:
    """Check strides, dilations and sizes of a window."""
    if options is None:
        raise CheckError("has no options")
    for name in names:
        value = getattr(options, name)()
        if not 0 < value <= EXTENT_LIMIT:
            raise CheckError(f"has {name} {value}")
    if options.Padding() not in (schema.Padding.SAME, schema.Padding.VALID):
        raise CheckError(f"has the padding {options.Padding()}")


def _check_window(x: TensorView, options: Options, window: Sequence[int]) -> None:
    """Check that a window fits where nothing is padded."""
    if not x.shape or options.Padding() != schema.Padding.VALID:
        return
    if any(size > extent for size, extent in zip(window, x.shape[1:3], strict=True)):
        raise CheckError(f"has a window of {tuple(window)} on {x.shape[1:3]}")


def _check_kernel(call: Call) -> tuple[TensorView, TensorView]:
    """The image and the kernels of a convolution, whose window fits."""
    options, image, weights = call.options, call.input(0), call.input(1)
    _check_steps(options, ("StrideH", "StrideW", "DilationHFactor", "DilationWFactor"))
    _check_rank(image, 4)
    _check_weights(weights, 4)
    dilation = options.DilationHFactor(), options.DilationWFactor()
    window = [reach(*axis) for axis in zip(weights.shape[1:3], dilation, strict=True)]
    _check_window(image, options, window)
    return image, weights


def _check_sums(call: Call, weights: TensorView, outputs: int, axis: int) -> None:
    """Bias and scales of an operator that adds products up."""
    bias = call.inputs[2] if len(call.inputs) > 2 else None
    if bias is not None and bias.shape and bias.elements != outputs:
        raise CheckError(f"adds a bias of {bias.elements} values to {outputs} channels")
    x = call.input(0)
    if (x.type, weights.type) != (INT8, INT8):
        return
    scales = weights.scales
    if scales.count not in (1, outputs) or (scales.count > 1 and scales.axis != axis):
        raise CheckError(
            f"has {scales.count} scales along axis {scales.axis} of its weights, "
            f"for {outputs} channels"
        )
    if not scales.lowest > 0:
        raise CheckError(f"needs scales above 0 for tensor {weights.name}")
    for scale in (scales.lowest, scales.highest):
        _check_factor(_scale(x) * scale, call.output)


def _check_scaling(call: Call) -> None:
    if call.input(0).type == INT8:
        _check_factor(_scale(call.input(0)), call.output)


def _check_factor(scale: float, output: TensorView) -> None:
    """Check the factor from `scale` to the output's."""
    factor = scale / _scale(output)
    # Past these, frexp's exponent does not fit the shift that a kernel makes of it.
    if not 2.0**-1000 < factor < 2.0**31:
        raise CheckError(f"scales its result by {factor:g}")


def _scale(tensor: TensorView) -> float:
    if not tensor.scale > 0:
        raise CheckError(f"needs one scale above 0 for tensor {tensor.name}")
    return tensor.scale


def _check_broadcast(call: Call) -> tuple[TensorView, TensorView]:
    """The two inputs, whose shapes broadcast."""
    left, right = call.input(0), call.input(1)
    try:
        shape = np.broadcast_shapes(left.shape, right.shape)
    except ValueError:
        raise CheckError(f"takes tensors of {left.shape} and {right.shape}") from None
    _check_size(shape)
    return left, right


def _check_size(shape: Any) -> None:
    if math.prod(shape) > ELEMENT_LIMIT:
        raise CheckError("makes a tensor that is too large")


def _numbers(tensor: TensorView) -> list[int] | None:
    """A constant list of axes, paddings or extents; None where it is not constant."""
    if tensor.data is None:
        return None
    dtype = {schema.TensorType.INT32: "<i4", schema.TensorType.INT64: "<i8"}.get(tensor.type)
    if dtype is None:
        raise CheckError(f"has tensor {tensor.name} for whole numbers")
    if tensor.elements > LIST_LIMIT:
        raise CheckError(f"has {tensor.elements} numbers in tensor {tensor.name}")
    return [int(number) for number in tensor.data.view(dtype)]


_OPERATOR = schema.BuiltinOperator
ONE, TWO, THREE = range(1, 2), range(2, 3), range(3, 4)
TWO_OR_THREE, THREE_OR_FOUR = range(2, 4), range(3, 5)

RULES: Mapping[int, Rule] = {
    _OPERATOR.CONV_2D: Rule(THREE, schema.Conv2DOptions, _check_convolution),
    _OPERATOR.DEPTHWISE_CONV_2D: Rule(THREE, schema.DepthwiseConv2DOptions, _check_depthwise),
    _OPERATOR.TRANSPOSE_CONV: Rule(THREE_OR_FOUR, schema.TransposeConvOptions, _check_transposed),
    _OPERATOR.FULLY_CONNECTED: Rule(TWO_OR_THREE, schema.FullyConnectedOptions, _check_connected),
    _OPERATOR.ADD: Rule(TWO, schema.AddOptions, _check_addition),
    _OPERATOR.SUB: Rule(TWO, schema.SubOptions, _check_addition),
    _OPERATOR.MUL: Rule(TWO, schema.MulOptions, _check_product),
    _OPERATOR.MINIMUM: Rule(TWO, schema.MaximumMinimumOptions, _check_broadcast),
    _OPERATOR.MAXIMUM: Rule(TWO, schema.MaximumMinimumOptions, _check_broadcast),
    _OPERATOR.MAX_POOL_2D: Rule(ONE, schema.Pool2DOptions, _check_pool),
    _OPERATOR.AVERAGE_POOL_2D: Rule(ONE, schema.Pool2DOptions, _check_pool),
    _OPERATOR.MEAN: Rule(TWO, schema.ReducerOptions, _check_mean),
    _OPERATOR.PAD: Rule(TWO, schema.PadOptions, _check_pad),
    _OPERATOR.RELU: Rule(ONE, None, _check_unary),
    _OPERATOR.RELU6: Rule(ONE, None, _check_unary),
    _OPERATOR.HARD_SWISH: Rule(ONE, schema.HardSwishOptions, _check_unary),
    _OPERATOR.LEAKY_RELU: Rule(ONE, schema.LeakyReluOptions, _check_unary),
    _OPERATOR.PRELU: Rule(TWO, None, _check_unary),
    _OPERATOR.QUANTIZE: Rule(ONE, schema.QuantizeOptions, _check_unary),
    _OPERATOR.SOFTMAX: Rule(ONE, schema.SoftmaxOptions, _check_softmax),
    _OPERATOR.RESHAPE: Rule(range(1, 3), schema.ReshapeOptions, _check_reshape),
    _OPERATOR.TRANSPOSE: Rule(TWO, schema.TransposeOptions, _check_transpose),
    _OPERATOR.CONCATENATION: Rule(
        range(1, 1 << 16), schema.ConcatenationOptions, _check_concatenation
    ),
}
"""Operators that the delegate has kernels for, and one more that may end the process."""
