"""MAX_POOL_2D, AVERAGE_POOL_2D, MEAN, REDUCE_MAX and REDUCE_MIN of int8: windows on images.

Padding has no part in a window: taps outside the image are left out. Averages are sums, divided by
how many values a window has in the image; those at the borders have fewer, so that the output is
computed in rectangles of windows with equally many. A mean over height, width or both is one window
of sums, less the zero points, scaled once: the multiplier between the scales is divided by the
number of values beforehand, in integers. So do LiteRT's reference kernels. A mean over channels is
the same of a product with ones.

Sources: `tflite/kernels/pooling.cc`, `reduce.cc`, `internal/reference/integer_ops/pooling.h`,
`internal/reference/reduce.h` (QuantizedMeanOrSum).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.ramps import Scale
from potash_firmware.tflite.arithmetic.requantization import MOST_VALUES, Steps, divide, requantize
from potash_firmware.tflite.capi import Array, BuiltinOperator, Node, Tensor
from potash_firmware.tflite.lowering import Builder, Compute, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks, convolution
from potash_firmware.tflite.packing import NO_MARGIN, Layout, Margin, Sizes
from potash_firmware.tflite.quantization import (
    INT8_MAX,
    INT8_MIN,
    Multiplier,
    activation_range,
    quantize_multiplier,
)
from potash_firmware.vta_runtime.schedules import (
    TILE,
    Conv2d,
    Plane,
    Pool2d,
    Pooling,
    ScheduleError,
    Surface,
    Sweep,
    layouts,
    pool2d,
)
from potash_firmware.vta_runtime.schedules.shapes import blocks

MOST_PARTS = 1024
"""With more rectangles than that the stream would be too long for what it does."""

SCRATCH = (Plane(1), Plane(2))


class Part(NamedTuple):
    """The windows of one rectangle, the steps after them, and what of the output is around it."""

    pooling: Pooling
    steps: Steps
    around: Margin = NO_MARGIN


def lower_max(node: Node, settings: Settings) -> Lowering:
    """MAX_POOL_2D. Raises Refusal, QuantizationError, ScheduleError."""
    its = _operands(node, settings)
    steps = Steps()
    _clamp(steps, its)
    pooling = pool2d(its.shape, settings.config, AluOpcode.MAX, steps.steps)
    return lowering([Part(pooling, steps)], [Layout.image(its.source.shape)], its.layout)


def lower_average(node: Node, settings: Settings) -> Lowering:
    """AVERAGE_POOL_2D. Raises Refusal, QuantizationError, ScheduleError."""
    its = _operands(node, settings)
    shape = its.shape
    down, across = list(_runs(shape.down)), list(_runs(shape.across))
    if len(down) * len(across) > MOST_PARTS:
        raise ScheduleError("the pooling has windows of too many sizes at its borders")
    parts = []
    for (top, rows, height), (left, columns, width) in itertools.product(down, across):
        steps = Steps()
        divide(steps, height * width, SCRATCH)
        _clamp(steps, its)
        below = shape.down.windows - top - rows.windows
        right = shape.across.windows - left - columns.windows
        part = shape._replace(down=rows, across=columns)
        pooling = pool2d(part, settings.config, AluOpcode.ADD, steps.steps)
        parts.append(Part(pooling, steps, Margin(top, below, left, right)))
    return lowering(parts, [Layout.image(its.source.shape)], its.layout)


def lowering(parts: Sequence[Part], inputs: Sequence[Layout | None], output: Layout) -> Lowering:
    """Windows on the first input."""

    def emit(builder: Builder, image: Surface, whole: Surface) -> None:
        for pooling, steps, around in parts:
            channels = [builder.channels(vector, output.sizes.channels) for vector in steps.vectors]
            target = whole.grown(*(-places for places in around))
            pooling.emit(builder.runtime, image, target, channels=channels)

    return Lowering.fixed(inputs, (output,), Compute.of_one(emit))


class _Operands(NamedTuple):
    source: Tensor
    output: Tensor
    activation: int
    shape: Pool2d

    @property
    def layout(self) -> Layout:
        return Layout.image(self.output.shape)


def _operands(node: Node, settings: Settings) -> _Operands:
    """Raises Refusal, and ScheduleError where the output has another shape."""
    what, config = "a pooling", settings.config
    (source,), output = checks.tensors(node, (1,), what)
    options = checks.options(node, what)
    if len(source.shape) != 4:
        raise Refusal("a pooling has images as input")
    if min(*options.size, *options.stride) < 1:
        raise Refusal("a pooling has no window or stride of 0")
    checks.same_scale(source, output)
    images, height, width, channels = source.shape
    size, margin = convolution.windows(options, options.size, (height, width))
    if output.shape != (images, *size, channels):
        raise ScheduleError("the pooling's output has another shape than it should")
    shape = Pool2d(
        blocks(images, config.batch),
        blocks(channels, config.block_out),
        Sweep(height, size[0], options.size[0], options.stride[0], margin.top),
        Sweep(width, size[1], options.size[1], options.stride[1], margin.left),
    )
    return _Operands(source, output, options.activation, shape)


def _clamp(steps: Steps, its: _Operands) -> None:
    """Append the fused activation. Raises QuantizationError."""
    low, high = activation_range(its.activation, its.output.scale, its.output.zero_point)
    if low > INT8_MIN:
        steps.add(AluOpcode.MAX, low, TILE)
    if high < INT8_MAX:
        steps.add(AluOpcode.MIN, high, TILE)


def _runs(sweep: Sweep) -> Iterator[tuple[int, Sweep, int]]:
    """Adjacent windows with equally many pixels of the image: the first, they, and how many
    pixels."""
    windows = range(sweep.windows)
    pixels = itertools.groupby(windows, lambda first: len(sweep.seen(first, 1, sweep.taps)))
    for count, its in pixels:
        first, *others = its
        before = sweep.before - first * sweep.stride
        yield first, sweep._replace(windows=1 + len(others), before=before), count


def lower_extreme(node: Node, settings: Settings) -> Lowering:
    """REDUCE_MAX and REDUCE_MIN over height, width or both, or over all values. Raises Refusal,
    ScheduleError."""
    (source,), output = checks.tensors(node, (2,), "an extreme", 1)
    checks.same_scale(source, output)
    rank, axes = len(source.shape), checks.numbers(node.inputs[1])
    if not all(-rank <= axis < rank for axis in axes):
        raise Refusal("the extreme is one of other axes than its input has")
    reduced = {axis % rank for axis in axes}
    long = {axis for axis in reduced if source.shape[axis] > 1}
    whole = long == {axis for axis, extent in enumerate(source.shape) if extent > 1}
    if whole:
        # As a single channel, with sides that are as even as they can be.
        across = next(n for n in range(math.isqrt(source.size), 0, -1) if source.size % n == 0)
        image = Layout(Sizes(1, source.size // across, across, 1))
    elif rank >= 3 and long <= {rank - 3, rank - 2}:
        image = Layout.image(source.shape)
    else:
        raise Refusal("the extreme is one of other axes than height and width, or all")
    down = image.sizes.height if whole or rank - 3 in reduced else 1
    across = image.sizes.width if whole or rank - 2 in reduced else 1
    opcode = AluOpcode.MAX if node.operator == BuiltinOperator.REDUCE_MAX else AluOpcode.MIN
    if not _gives(output, image, down, across):
        raise Refusal("the extreme's output has another shape than it should")
    return _windows_of(image, down, across, opcode, Steps(), settings)


def lower_mean(node: Node, settings: Settings) -> Lowering:
    """MEAN over height, width or both, or over channels. Raises Refusal, QuantizationError,
    ScheduleError."""
    (source,), output = checks.tensors(node, (2,), "a mean", 1)
    rank, axes = len(source.shape), checks.numbers(node.inputs[1])
    reduced = {axis % rank for axis in axes} if rank else set()
    long = {axis for axis in reduced if source.shape[axis] > 1}
    if rank and long == {rank - 1}:
        return _mean_of_channels(node, settings, source, output)
    if rank < 3 or not long <= {rank - 3, rank - 2}:
        raise Refusal("the mean is one of other axes than height and width, or channels")
    image = Layout.image(source.shape)
    down = image.sizes.height if rank - 3 in reduced else 1
    across = image.sizes.width if rank - 2 in reduced else 1
    if not _gives(output, image, down, across):
        raise Refusal("the mean's output has another shape than it should")
    steps = _scaling(source, output, down * across, settings)
    return _windows_of(image, down, across, AluOpcode.ADD, steps, settings)


def _gives(output: Tensor, image: Layout, down: int, across: int) -> bool:
    """True if an output has a value for each window of `down` rows and `across` columns."""
    return output.size * down * across == math.prod(image.sizes)


def _windows_of(
    image: Layout, down: int, across: int, opcode: AluOpcode, steps: Steps, settings: Settings
) -> Lowering:
    """`opcode` on windows of `down` rows and `across` columns, side by side. Raises
    ScheduleError."""
    images, height, width, channels = image.sizes
    result = Layout(Sizes(images, height // down, width // across, channels))
    shape = Pool2d(
        blocks(images, settings.config.batch),
        blocks(channels, settings.config.block_out),
        Sweep(height, result.sizes.height, down),
        Sweep(width, result.sizes.width, across),
    )
    pooled = pool2d(shape, settings.config, opcode, steps.steps)
    return lowering([Part(pooled, steps)], (image, None), result)


def _mean_of_channels(node: Node, settings: Settings, source: Tensor, output: Tensor) -> Lowering:
    """A product with ones. Raises Refusal, QuantizationError, ScheduleError."""
    image = Layout.image(source.shape)
    images, height, width, channels = image.sizes
    result = Layout(Sizes(images, height, width, 1))
    if math.prod(result.sizes) != output.size:
        raise Refusal("the mean's output has another shape than it should")
    steps = _scaling(source, output, channels, settings)
    shape = Conv2d(images, channels, height, width, 1, (1, 1))
    ones = np.ones((1, channels, 1, 1), np.int8)

    def pack() -> Array:
        return layouts.pack_oihw(ones, settings.config)

    what = "a mean of channels"
    return convolution.lowering(node, settings, what, shape, steps, pack, (image, result))


def _scaling(source: Tensor, output: Tensor, count: int, settings: Settings) -> Steps:
    """The steps from sums of so many values to their means. Raises Refusal, QuantizationError."""
    if count > MOST_VALUES:
        raise Refusal("the mean is one of too many values for the VTA's 32 bits")
    steps = Steps()
    steps.add(AluOpcode.ADD, -source.zero_point * count)
    scale = Scale.of(
        [_multiplier(source, output, count)],
        output.zero_point,
        INT8_MIN,
        INT8_MAX,
        settings.rounding.elsewhere,
        reach=count * (INT8_MAX - INT8_MIN) + 1,
    )
    requantize(steps, scale, (*SCRATCH, Plane(3)))
    return steps


def _multiplier(source: Tensor, output: Tensor, count: int) -> Multiplier:
    """The multiplier of the scales, divided by `count`."""
    whole = quantize_multiplier(source.scale / output.scale)
    shift = min(count.bit_length() - 1, 31 + whole.shift)
    return Multiplier((whole.significand << shift) // count, whole.shift - shift)
