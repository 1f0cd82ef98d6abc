"""MEAN of int8 over height, width or both: sums, less the zero points, and one scale for all.

The multiplier between the scales is divided by the number of values beforehand, in integers. So do
LiteRT's reference kernels; those of TensorFlow Lite 2.14 divide twice where the axes are kept.
Source: `tflite/kernels/reduce.cc`, `internal/reference/reduce.h` (QuantizedMeanOrSum).
"""

import math
from collections.abc import Sequence

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Scale, Steps, requantize
from potash_firmware.tflite.capi import Array, Node, Tensor
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import Layout, Sizes
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
from potash_firmware.tflite.quantization import (
    INT8_MAX,
    INT8_MIN,
    Multiplier,
    QuantizationError,
    quantize_multiplier,
)
from potash_firmware.vta_runtime.schedules import (
    Plane,
    Pool2d,
    Pooling,
    ScheduleError,
    Surface,
    Sweep,
    pool2d,
)
from potash_firmware.vta_runtime.schedules.shapes import blocks

SCRATCH = (Plane(1), Plane(2), Plane(3))
MOST_VALUES = (1 << 23) - 1
"""The sums of more values leave the ALU's 32 bits."""


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this mean; None when it does."""
    reason = checks.first(
        (
            checks.core(settings.config),
            checks.arity(node, (2,), "a mean"),
            *map(checks.quantized, (*node.inputs[:1], *node.outputs)),
            *(checks.numbers(tensor) for tensor in node.inputs[1:]),
        )
    )
    if reason is not None:
        return reason
    source, axes, output = _tensors(node)
    rank = len(source.shape)
    gone = {axis for axis in axes if source.shape[axis % rank] > 1} if rank else set()
    if rank < 3 or not {axis % rank for axis in gone} <= {rank - 3, rank - 2}:
        return "the mean is one of other axes than height and width"
    try:
        if math.prod(_sizes(node)) != output.size:
            return "the mean's output has another shape than it should"
        _pooling(node, settings)
    except (QuantizationError, ScheduleError) as error:
        return str(error)
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    source, _, _ = _tensors(node)
    pooling, vectors = _pooling(node, settings)

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        image, _ = inputs
        assert image is not None
        channels = [
            builder.channels(np.broadcast_to(vector, source.shape[-1])) for vector in vectors
        ]
        pooling.emit(builder.runtime, image, outputs[0], channels=channels)

    return Plan((Layout.image(source.shape), None), (Layout(_sizes(node)),), Compute(emit))


def _tensors(node: Node) -> tuple[Tensor, list[int], Tensor]:
    """The image, the axes, and the output."""
    source, axes = node.inputs
    output = node.outputs[0]
    assert source and axes and output and axes.constant is not None
    return source, axes.constant.reshape(-1).tolist(), output


def _sizes(node: Node) -> Sizes:
    """The output as images, whatever its axes are."""
    source, axes, _ = _tensors(node)
    rank = len(source.shape)
    gone = {axis % rank for axis in axes}
    images, height, width, channels = Layout.image(source.shape).sizes
    return Sizes(
        images,
        1 if rank - 3 in gone else height,
        1 if rank - 2 in gone else width,
        channels,
    )


def _pooling(node: Node, settings: Settings) -> tuple[Pooling, Sequence[Array]]:
    """The sums, and the vectors of the steps after them."""
    source, _, output = _tensors(node)
    whole, left = Layout.image(source.shape).sizes, _sizes(node)
    down, across = whole.height // left.height, whole.width // left.width
    if down * across > MOST_VALUES:
        raise ScheduleError("the mean is one of too many values for the VTA's 32 bits")
    multiplier = _multiplier(source, output, down * across)
    steps = Steps()
    steps.add(AluOpcode.ADD, -source.zero_point * down * across)
    reach = down * across * (INT8_MAX - INT8_MIN) + 1
    rounding = settings.rounding.elsewhere
    scale = Scale.of([multiplier], output.zero_point, INT8_MIN, INT8_MAX, rounding, reach)
    requantize(steps, scale, SCRATCH)
    shape = Pool2d(
        blocks(whole.images, settings.config.batch),
        blocks(whole.channels, settings.config.block_out),
        Sweep(whole.height, left.height, down),
        Sweep(whole.width, left.width, across),
    )
    return pool2d(shape, settings.config, AluOpcode.ADD, steps.steps), steps.vectors


def _multiplier(source: Tensor, output: Tensor, count: int) -> Multiplier:
    """That of the scales, divided by `count`."""
    whole = quantize_multiplier(source.scale / output.scale)
    shift = min(count.bit_length() - 1, 31 + whole.shift)
    return Multiplier((whole.significand << shift) // count, whole.shift - shift)
