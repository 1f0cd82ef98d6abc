"""Graphs in int8, operator by operator, with the operators that the networks here have.

Each method adds one operator and gives its output, whose shape follows from the inputs' as it does
in TensorFlow Lite's kernels (`tflite/kernels/*.cc`, Prepare). The flatbuffer's tables are
`potash_firmware.tflite.writer`'s.
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.windows import count
from potash_firmware.tflite.writer import FusedActivation, ModelBuilder

Code = schema.BuiltinOperator
Quantisation: TypeAlias = tuple[float, int]
"""Scale and zero point."""


class Padding(IntEnum):
    """`Padding` of the schema."""

    SAME = schema.Padding.SAME
    VALID = schema.Padding.VALID


class Window(NamedTuple):
    """Steps of a square window that moves over an image, and the activation of its output."""

    stride: int
    padding: Padding
    activation: FusedActivation = FusedActivation.NONE

    def extents(self, image: Sequence[int], size: int) -> tuple[int, int]:
        """Height and width of an operator's output."""
        same = self.padding is Padding.SAME
        height, width = (count(extent, size, self.stride, same=same) for extent in image)
        return height, width


class Tensor(NamedTuple):
    """A tensor of a graph: its number there, its shape, and its quantisation."""

    number: int
    shape: tuple[int, ...]
    scales: tuple[float, ...]
    """No scale, one for all values, or one for each index of an axis; each fits float32."""
    zero_point: int

    @property
    def quantisation(self) -> Quantisation:
        """The one scale of all values, and the zero point."""
        (scale,) = self.scales
        return scale, self.zero_point


class GraphBuilder:
    """A model with one graph. Operators that compute take the quantisation of their output; those
    that only move or choose values have their input's."""

    def __init__(self, description: str) -> None:
        self._writer = ModelBuilder(description)
        self._count = 0

    def tensor(self, shape: Sequence[int], scale: float, zero_point: int) -> Tensor:
        """A tensor for activations."""
        return self._tensor("tensor", shape, np.dtype(np.int8), scale, zero_point)

    def constant(
        self, values: npt.ArrayLike, scale: float | Sequence[float] | None = None, axis: int = 0
    ) -> Tensor:
        """A tensor with these values and their type; several scales are those of `axis`."""
        array = np.asarray(values)
        return self._tensor("constant", array.shape, array.dtype, scale, 0, axis, array)

    def bias(self, values: npt.NDArray[np.int32], x: Tensor, weights: Tensor) -> Tensor:
        """Values to be added to the products of `x` and `weights`, with these' scales."""
        scales = np.float32(x.quantisation[0]) * np.array(weights.scales, np.float32)
        return self.constant(values, scales.tolist())

    def conv2d(
        self,
        x: Tensor,
        weights: Tensor,
        bias: Tensor,
        window: Window,
        quantisation: Quantisation,
        *,
        depthwise: bool = False,
    ) -> Tensor:
        """CONV_2D of N×H×W×I with weights O×h×w×I and a bias O; or DEPTHWISE_CONV_2D, with weights
        1×h×w×O, O a multiple of I, whose scales are along the last axis (3)."""
        channels = weights.shape[3 if depthwise else 0]
        code, options = Code.CONV_2D, schema.Conv2DOptionsT()
        if depthwise:
            code, options = Code.DEPTHWISE_CONV_2D, schema.DepthwiseConv2DOptionsT()
            options.depthMultiplier = channels // x.shape[3]
        options.dilationHFactor = options.dilationWFactor = 1
        inputs, size = (x, weights, bias), weights.shape[1]
        return self._windows(code, inputs, options, window, size, channels, quantisation, 3)

    def fully_connected(
        self, x: Tensor, weights: Tensor, bias: Tensor, quantisation: Quantisation
    ) -> Tensor:
        """FULLY_CONNECTED of rows of I values with weights O×I and a bias O: rows × O."""
        options = schema.FullyConnectedOptionsT()
        outputs, inputs = weights.shape
        shape = math.prod(x.shape) // inputs, outputs
        return self._add(Code.FULLY_CONNECTED, (x, weights, bias), shape, options, quantisation, 4)

    def add(
        self,
        left: Tensor,
        right: Tensor,
        quantisation: Quantisation,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Tensor:
        """ADD of two tensors of one shape."""
        options = schema.AddOptionsT()
        options.potScaleInt16, options.fusedActivationFunction = False, activation
        return self._add(Code.ADD, (left, right), left.shape, options, quantisation, 2)

    def max_pool2d(self, x: Tensor, size: int, stride: int) -> Tensor:
        """MAX_POOL_2D without padding."""
        options, window = schema.Pool2DOptionsT(), Window(stride, Padding.VALID)
        options.filterHeight = options.filterWidth = size
        channels, quantisation = x.shape[3], x.quantisation
        return self._windows(
            Code.MAX_POOL_2D, (x,), options, window, size, channels, quantisation, 2
        )

    def mean(self, x: Tensor, quantisation: Quantisation) -> Tensor:
        """MEAN over height and width."""
        operands = x, self.constant(np.array([1, 2], np.int32))
        shape = x.shape[0], x.shape[3]
        return self._add(Code.MEAN, operands, shape, schema.ReducerOptionsT(), quantisation, 2)

    def pad(self, x: Tensor, paddings: Sequence[tuple[int, int]]) -> Tensor:
        """PAD with zeroes (the zero point): before and after, for each axis."""
        shape = [
            extent + before + after
            for extent, (before, after) in zip(x.shape, paddings, strict=True)
        ]
        operands = x, self.constant(np.array(paddings, np.int32))
        return self._add(Code.PAD, operands, shape, schema.PadOptionsT(), x.quantisation, 2)

    def finish(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bytes:
        """The model's bytes. Inputs and outputs can be called by their tensors' names."""
        given, wanted = ([tensor.number for tensor in tensors] for tensors in (inputs, outputs))
        self._writer.sign(given, wanted)
        return self._writer.build(given, wanted)

    def _tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        scale: float | Sequence[float] | None,
        zero_point: int,
        axis: int = 0,
        data: npt.NDArray[Any] | None = None,
    ) -> Tensor:
        scales = np.atleast_1d(np.asarray([] if scale is None else scale, np.float32))
        name = f"{name}-{self._count}"
        number = self._writer.tensor(
            name, shape, dtype, scale=scale, zero_point=zero_point, axis=axis, data=data
        )
        self._count += 1
        return Tensor(number, tuple(map(int, shape)), tuple(scales.tolist()), zero_point)

    def _windows(
        self,
        code: int,
        inputs: Sequence[Tensor],
        options: Any,
        window: Window,
        size: int,
        channels: int,
        quantisation: Quantisation,
        version: int,
    ) -> Tensor:
        options.strideH = options.strideW = window.stride
        options.padding, options.fusedActivationFunction = window.padding, window.activation
        images, *image, _ = inputs[0].shape
        shape = images, *window.extents(image, size), channels
        return self._add(code, inputs, shape, options, quantisation, version)

    def _add(
        self,
        code: int,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        options: Any,
        quantisation: Quantisation,
        version: int,
    ) -> Tensor:
        output = self.tensor(shape, *quantisation)
        self._writer.operator(
            code,
            [tensor.number for tensor in inputs],
            [output.number],
            # The schema names the number of a table of options after the table's class.
            options_type=getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T")),
            options=options,
            version=version,
        )
        return output
