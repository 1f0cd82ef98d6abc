"""MEAN of int8 over height, width or both: sums, less the zero points, and one scale for all.

The multiplier between the scales is divided by the number of values beforehand, in integers. So do
LiteRT's reference kernels; those of TensorFlow Lite 2.14 divide twice where the axes are kept.
Source: `tflite/kernels/reduce.cc`, `internal/reference/reduce.h` (QuantizedMeanOrSum).
"""

import math

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Scale, Steps, requantize
from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.lowering import Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks, pooling
from potash_firmware.tflite.packing import Layout, Sizes
from potash_firmware.tflite.quantization import (
    INT8_MAX,
    INT8_MIN,
    Multiplier,
    quantize_multiplier,
)
from potash_firmware.vta_runtime.schedules import Plane, Pool2d, Sweep, pool2d
from potash_firmware.vta_runtime.schedules.shapes import blocks

SCRATCH = (Plane(1), Plane(2), Plane(3))
MOST_VALUES = (1 << 23) - 1
"""The sums of more values leave the ALU's 32 bits."""


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal, QuantizationError, ScheduleError."""
    (source,), output = checks.tensors(node, settings, (2,), "a mean", 1)
    rank, axes = len(source.shape), checks.numbers(node.inputs[1])
    reduced = {axis % rank for axis in axes} if rank else set()
    long = {axis for axis in reduced if source.shape[axis] > 1}
    if rank < 3 or not long <= {rank - 3, rank - 2}:
        raise Refusal("the mean is one of other axes than height and width")
    image = Layout.image(source.shape)
    images, height, width, channels = image.sizes
    down = height if rank - 3 in reduced else 1
    across = width if rank - 2 in reduced else 1
    result = Layout(Sizes(images, height // down, width // across, channels))
    if math.prod(result.sizes) != output.size:
        raise Refusal("the mean's output has another shape than it should")
    if down * across > MOST_VALUES:
        raise Refusal("the mean is one of too many values for the VTA's 32 bits")
    steps = Steps()
    steps.add(AluOpcode.ADD, -source.zero_point * down * across)
    scale = Scale.of(
        [_multiplier(source, output, down * across)],
        output.zero_point,
        INT8_MIN,
        INT8_MAX,
        settings.rounding.elsewhere,
        reach=down * across * (INT8_MAX - INT8_MIN) + 1,
    )
    requantize(steps, scale, SCRATCH)
    shape = Pool2d(
        blocks(images, settings.config.batch),
        blocks(channels, settings.config.block_out),
        Sweep(height, result.sizes.height, down),
        Sweep(width, result.sizes.width, across),
    )
    pooled = pool2d(shape, settings.config, AluOpcode.ADD, steps.steps)
    return pooling.lowering([pooling.Part(pooled, steps)], (image, None), result)


def _multiplier(source: Tensor, output: Tensor, count: int) -> Multiplier:
    """That of the scales, divided by `count`."""
    whole = quantize_multiplier(source.scale / output.scale)
    shift = min(count.bit_length() - 1, 31 + whole.shift)
    return Multiplier((whole.significand << shift) // count, whole.shift - shift)
