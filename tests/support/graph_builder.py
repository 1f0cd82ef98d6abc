"""Models for tests: every operator that the delegate knows, in int8 or in float32.

Each method adds one operator and gives its output, whose shape follows from the inputs' as it does
in TensorFlow Lite's kernels (`tflite/kernels/*.cc`, Prepare). A tensor with a scale is quantised;
in a graph of float32 there are no scales. The flatbuffer's tables are
`potash_firmware.tflite.writer`'s.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from potash.models.builder import Padding
from potash_firmware.tflite.windows import count
from potash_firmware.tflite.writer import FusedActivation, ModelBuilder

__all__ = ["FusedActivation", "GraphBuilder", "Padding", "Tensor", "extents"]

Array: TypeAlias = npt.NDArray[Any]
Operator: TypeAlias = Any
"""A number of `schema.BuiltinOperator`."""
Code = schema.BuiltinOperator
Pair: TypeAlias = int | tuple[int, int]
"""For height and for width; one number is for both."""


def pair(value: Pair) -> tuple[int, int]:
    """Both numbers, where one may be given for both."""
    return (value, value) if isinstance(value, int) else value


def extents(
    spatial: Sequence[int], size: Sequence[int], stride: Pair, dilation: Pair, padding: Padding
) -> tuple[int, int]:
    """Height and width of a window operator's output."""
    axes = zip(spatial, size, pair(stride), pair(dilation), strict=True)
    height, width = (count(*axis, same=padding is Padding.SAME) for axis in axes)
    return height, width


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph: its number there, its shape, and its quantisation."""

    index: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scales: tuple[float, ...] = ()
    """None, one for all values, or one for each index of an axis; as float32 has them."""
    zero_point: int = 0

    @property
    def scale(self) -> float | None:
        """The one scale of all values; None for a tensor that is not quantised, or by channels."""
        return self.scales[0] if len(self.scales) == 1 else None


class Steps(TypedDict, total=False):
    """How a window moves over an image."""

    stride: Pair
    padding: Padding
    activation: FusedActivation


class Window(Steps, total=False):
    """The same of a convolution's, which by default moves by one and has the padding SAME."""

    dilation: Pair


class GraphBuilder:
    """A model with one graph. Quantised operators take the `scale` and `zero_point` of their
    output; those that only move or choose values have their input's.
    """

    def __init__(self, description: str = "potash") -> None:
        self._writer = ModelBuilder(description)
        self._count = 0

    # Tensors

    def tensor(
        self,
        shape: Sequence[int],
        scale: float | None = None,
        zero_point: int = 0,
        *,
        dtype: npt.DTypeLike | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A tensor for activations: int8 with a scale, else float32, unless `dtype` says
        another."""
        kind = np.dtype(dtype or (np.float32 if scale is None else np.int8))
        return self._tensor(shape, kind, scale, zero_point, name=name)

    def constant(
        self,
        values: npt.ArrayLike,
        scale: float | Sequence[float] | None = None,
        zero_point: int = 0,
        *,
        axis: int = 0,
        name: str | None = None,
    ) -> Tensor:
        """A tensor with these values and their type; several scales are those of `axis`."""
        array = np.asarray(values)
        return self._tensor(array.shape, array.dtype, scale, zero_point, axis, array, name)

    def bias(self, values: npt.ArrayLike, x: Tensor, weights: Tensor) -> Tensor:
        """int32 values to be added to the products of `x` and `weights`, with these' scales."""
        if x.scale is None or not weights.scales:
            raise ValueError("a bias in int32 needs an input and weights that have scales")
        scales = np.float32(x.scale) * np.array(weights.scales, np.float32)
        return self.constant(np.asarray(values, np.int32), scales.tolist())

    # Operators with weights

    def conv2d(
        self,
        x: Tensor,
        weights: Tensor,
        bias: Tensor | None = None,
        scale: float | None = None,
        zero_point: int = 0,
        **window: Unpack[Window],
    ) -> Tensor:
        """CONV_2D of N×H×W×I with weights O×h×w×I and a bias O, zeroes if there is none."""
        operands = x, weights, bias, weights.shape[0]
        options = schema.Conv2DOptionsT()
        return self._convolution(Code.CONV_2D, options, *operands, scale, zero_point, window)

    def depthwise_conv2d(
        self,
        x: Tensor,
        weights: Tensor,
        bias: Tensor | None = None,
        scale: float | None = None,
        zero_point: int = 0,
        **window: Unpack[Window],
    ) -> Tensor:
        """DEPTHWISE_CONV_2D of N×H×W×I with weights 1×h×w×O, O a multiple of I, scales along the
        last axis (3), and a bias O, zeroes if there is none.
        """
        operands, multiplier = (x, weights, bias, weights.shape[3]), weights.shape[3] // x.shape[3]
        options = _options(schema.DepthwiseConv2DOptionsT, depthMultiplier=multiplier)
        code = Code.DEPTHWISE_CONV_2D
        return self._convolution(code, options, *operands, scale, zero_point, window)

    def fully_connected(
        self,
        x: Tensor,
        weights: Tensor,
        bias: Tensor | None = None,
        scale: float | None = None,
        zero_point: int = 0,
        *,
        keep_dimensions: bool = False,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Tensor:
        """FULLY_CONNECTED of rows of I values with weights O×I and a bias O: rows × O, or with
        `keep_dimensions` the input's shape with O in place of I.
        """
        options = _options(
            schema.FullyConnectedOptionsT,
            fusedActivationFunction=activation,
            keepNumDims=keep_dimensions,
        )
        outputs, inputs = weights.shape
        rows = x.shape[:-1] if keep_dimensions else (math.prod(x.shape) // inputs,)
        operands, shape, version = (x, weights, bias), (*rows, outputs), 4 + keep_dimensions
        return self._add(
            Code.FULLY_CONNECTED, operands, shape, options, scale, zero_point, version=version
        )

    # Operators on two tensors, which are broadcast as numpy does

    def add(self, left: Tensor, right: Tensor, *scaling: Any, **fused: Any) -> Tensor:
        """ADD: left + right. `scaling` and `fused` are those of `_binary`."""
        options = _options(schema.AddOptionsT, potScaleInt16=False)
        return self._binary(Code.ADD, options, left, right, *scaling, **fused)

    def sub(self, left: Tensor, right: Tensor, *scaling: Any, **fused: Any) -> Tensor:
        """SUB: left - right. `scaling` and `fused` are those of `_binary`."""
        options = _options(schema.SubOptionsT, potScaleInt16=False)
        return self._binary(Code.SUB, options, left, right, *scaling, **fused)

    def mul(self, left: Tensor, right: Tensor, *scaling: Any, **fused: Any) -> Tensor:
        """MUL: left * right. `scaling` and `fused` are those of `_binary`."""
        options = schema.MulOptionsT()
        return self._binary(Code.MUL, options, left, right, *scaling, **fused)

    def minimum(self, left: Tensor, right: Tensor) -> Tensor:
        """MINIMUM of two tensors whose scales agree."""
        return self._extreme(Code.MINIMUM, left, right)

    def maximum(self, left: Tensor, right: Tensor) -> Tensor:
        """MAXIMUM of two tensors whose scales agree."""
        return self._extreme(Code.MAXIMUM, left, right)

    # Windows without weights

    def max_pool2d(self, x: Tensor, size: Pair, **steps: Unpack[Steps]) -> Tensor:
        """MAX_POOL_2D; the padding is VALID, and the windows do not overlap, if not said."""
        return self._pool(Code.MAX_POOL_2D, x, size, steps)

    def average_pool2d(self, x: Tensor, size: Pair, **steps: Unpack[Steps]) -> Tensor:
        """AVERAGE_POOL_2D, padding left out of the averages; else as `max_pool2d`."""
        return self._pool(Code.AVERAGE_POOL_2D, x, size, steps)

    def mean(
        self,
        x: Tensor,
        axes: Sequence[int] = (1, 2),
        scale: float | None = None,
        zero_point: int = 0,
        *,
        keep_dimensions: bool = False,
    ) -> Tensor:
        """MEAN over `axes`, by default height and width."""
        options = _options(schema.ReducerOptionsT, keepDims=keep_dimensions)
        gone = {axis % len(x.shape) for axis in axes}
        shape = [
            1 if axis in gone else extent
            for axis, extent in enumerate(x.shape)
            if keep_dimensions or axis not in gone
        ]
        operands = x, self.constant(np.array(axes, np.int32))
        return self._add(Code.MEAN, operands, shape, options, scale, zero_point, version=2)

    # One tensor, value by value

    def relu(self, x: Tensor, scale: float | None = None, zero_point: int = 0) -> Tensor:
        """RELU, as an operator of its own."""
        return self._unary(Code.RELU, x, scale, zero_point)

    def relu6(self, x: Tensor, scale: float | None = None, zero_point: int = 0) -> Tensor:
        """RELU6, as an operator of its own."""
        return self._unary(Code.RELU6, x, scale, zero_point)

    # Operators that move values

    def pad(self, x: Tensor, paddings: Sequence[tuple[int, int]]) -> Tensor:
        """PAD with zeroes (the zero point): before and after, for each axis."""
        shape = [
            extent + before + after
            for extent, (before, after) in zip(x.shape, paddings, strict=True)
        ]
        operands = x, self.constant(np.array(paddings, np.int32))
        return self._move(Code.PAD, operands, shape, schema.PadOptionsT())

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """RESHAPE; one extent may be -1."""
        known = -math.prod(shape)
        whole = [math.prod(x.shape) // known if extent == -1 else extent for extent in shape]
        new = np.array(shape, np.int32)
        options = _options(schema.ReshapeOptionsT, newShape=new)
        return self._move(Code.RESHAPE, (x, self.constant(new)), whole, options, version=1)

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """TRANSPOSE: axis i of the output is axis `permutation[i]` of `x`."""
        operands = x, self.constant(np.array(permutation, np.int32))
        shape = [x.shape[axis] for axis in permutation]
        return self._move(Code.TRANSPOSE, operands, shape, schema.TransposeOptionsT())

    def concatenation(
        self,
        tensors: Sequence[Tensor],
        axis: int = -1,
        *,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Tensor:
        """CONCATENATION along `axis` of tensors whose scales agree."""
        options = _options(
            schema.ConcatenationOptionsT, axis=axis, fusedActivationFunction=activation
        )
        shape = list(tensors[0].shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        return self._move(Code.CONCATENATION, tuple(tensors), shape, options)

    def operator(
        self,
        code: Operator,
        inputs: Sequence[Tensor | None],
        output: Tensor,
        options: Any = None,
        *,
        others: Sequence[Tensor] = (),
        version: int = 1,
    ) -> Tensor:
        """Any other operator, with the schema's code and options, into `output` and then the
        `others`."""
        # The schema names the number of a table of options after the table's class.
        name = "NONE" if options is None else type(options).__name__
        self._writer.operator(
            code,
            [tensor.index for tensor in inputs if tensor is not None],
            [made.index for made in (output, *others)],
            options_type=getattr(schema.BuiltinOptions, name.removesuffix("T")),
            options=options,
            version=version,
        )
        return output

    def finish(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bytes:
        """The model's bytes. Inputs and outputs can be called by their tensors' names."""
        given, wanted = ([tensor.index for tensor in tensors] for tensors in (inputs, outputs))
        self._writer.sign(given, wanted)
        return self._writer.build(given, wanted)

    def _tensor(
        self,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        scale: float | Sequence[float] | None,
        zero_point: int,
        axis: int = 0,
        values: Array | None = None,
        name: str | None = None,
    ) -> Tensor:
        scales = np.atleast_1d(np.asarray([] if scale is None else scale, np.float32))
        index = self._writer.tensor(
            name or f"{'constant' if values is not None else 'tensor'}-{self._count}",
            shape,
            dtype,
            scale=scale,
            zero_point=zero_point,
            axis=axis,
            data=values,
        )
        self._count += 1
        return Tensor(index, tuple(map(int, shape)), dtype, tuple(scales.tolist()), zero_point)

    def _zeroes(self, count: int, x: Tensor, weights: Tensor) -> Tensor:
        """The bias that the kernels want even where nothing is added."""
        if x.dtype == np.float32:
            return self.constant(np.zeros(count, np.float32))
        return self.bias(np.zeros(count, np.int32), x, weights)

    def _add(
        self,
        code: Operator,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        options: Any,
        scale: float | None,
        zero_point: int,
        *,
        version: int,
    ) -> Tensor:
        first = inputs[0]
        assert first is not None
        if (scale is None) != (not first.scales):
            raise ValueError("an operator on quantised values needs a scale, and no other does")
        output = self._tensor(shape, first.dtype, scale, zero_point)
        floats = first.dtype == np.float32
        return self.operator(code, inputs, output, options, version=1 if floats else version)

    def _convolution(
        self,
        code: Operator,
        options: Any,
        x: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        channels: int,
        scale: float | None,
        zero_point: int,
        window: Window,
    ) -> Tensor:
        stride, dilation = window.get("stride", 1), window.get("dilation", 1)
        padding = window.get("padding", Padding.SAME)
        _set_steps(options, stride, padding, window)
        options.dilationHFactor, options.dilationWFactor = pair(dilation)
        size = extents(x.shape[1:3], weights.shape[1:3], stride, dilation, padding)
        inputs = (x, weights, bias or self._zeroes(channels, x, weights))
        shape = (x.shape[0], *size, channels)
        return self._add(code, inputs, shape, options, scale, zero_point, version=3)

    def _binary(
        self,
        code: Operator,
        options: Any,
        left: Tensor,
        right: Tensor,
        scale: float | None = None,
        zero_point: int = 0,
        *,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Tensor:
        options.fusedActivationFunction = activation
        shape = np.broadcast_shapes(left.shape, right.shape)
        return self._add(code, (left, right), shape, options, scale, zero_point, version=2)

    def _extreme(self, code: Operator, left: Tensor, right: Tensor) -> Tensor:
        shape = np.broadcast_shapes(left.shape, right.shape)
        return self._move(code, (left, right), shape, schema.MaximumMinimumOptionsT())

    def _pool(self, code: Operator, x: Tensor, size: Pair, steps: Steps) -> Tensor:
        height, width = pair(size)
        options = _options(schema.Pool2DOptionsT, filterHeight=height, filterWidth=width)
        stride, padding = steps.get("stride", size), steps.get("padding", Padding.VALID)
        _set_steps(options, stride, padding, steps)
        spatial = extents(x.shape[1:3], (height, width), stride, 1, padding)
        return self._move(code, (x,), (x.shape[0], *spatial, x.shape[3]), options)

    def _unary(self, code: Operator, x: Tensor, scale: float | None, zero_point: int) -> Tensor:
        return self._add(code, (x,), x.shape, None, scale, zero_point, version=2)

    def _move(
        self,
        code: Operator,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        options: Any,
        *,
        version: int = 2,
    ) -> Tensor:
        """An operator whose output has the scale of its first input."""
        x = inputs[0]
        return self._add(code, inputs, shape, options, x.scale, x.zero_point, version=version)


def _set_steps(options: Any, stride: Pair, padding: Padding, steps: Steps) -> None:
    options.strideH, options.strideW = pair(stride)
    options.padding = padding
    options.fusedActivationFunction = steps.get("activation", FusedActivation.NONE)


def _options(table: Callable[[], Any], **fields: Any) -> Any:
    """A table of options, with these fields."""
    options = table()
    vars(options).update(fields)
    return options
