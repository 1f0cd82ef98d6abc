"""What CONV_2D, DEPTHWISE_CONV_2D and FULLY_CONNECTED have in common: products, a bias, a scale.

The input's zero point z goes into the bias: sum(w * (x - z)) + b = sum(w * x) + (b - z * sum(w)).
The margin around a padded input holds z too, so that this is right at the borders as well.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Scale, Steps, requantize
from potash_firmware.tflite.capi import (
    Array,
    Node,
    Options,
    Padding,
    Tensor,
    TensorType,
)
from potash_firmware.tflite.lowering import Builder, Compute, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import NO_MARGIN, Layout, Margin
from potash_firmware.tflite.quantization import (
    Multiplier,
    QuantizationError,
    activation_range,
    quantize_multiplier,
)
from potash_firmware.tflite.windows import count, same_padding
from potash_firmware.vta_runtime.schedules import Conv2d, Plane, Surface, conv2d, feasible

SCRATCH = (Plane(1), Plane(2))


class Operands(NamedTuple):
    """The tensors of a node, and the constants' values."""

    source: Tensor
    weights: Tensor
    values: Array
    bias: Array | None
    output: Tensor


def operands(node: Node, settings: Settings, what: str) -> Operands:
    """A node's. Raises Refusal where they are not those of `what` on the VTA."""
    (source,), output = checks.tensors(node, settings, (2, 3), what, 1)
    weights, bias = (*node.inputs[1:], None)[:2]
    if weights is None:
        raise Refusal("the weights are left out")
    if weights.constant is None or weights.type != TensorType.INT8:
        raise Refusal("the weights are not constants of int8")
    if bias is not None and (bias.constant is None or bias.type != TensorType.INT32):
        raise Refusal("the bias is not constants of int32")
    return Operands(source, weights, weights.constant, bias.constant if bias else None, output)


def scales_of(weights: Tensor, channels: int, axis: int) -> tuple[float, ...]:
    """The weights' scale of each output channel. Raises QuantizationError."""
    if len(weights.scales) == channels and weights.axis == axis:
        scales = weights.scales
    elif len(weights.scales) == 1:
        scales = weights.scales * channels
    else:
        raise QuantizationError("the weights have no scale for each output channel")
    if any(weights.zero_points):
        raise QuantizationError("the weights have a zero point")
    return scales


def multipliers(its: Operands, scales: Sequence[float]) -> list[Multiplier]:
    """Those of `PopulateConvolutionQuantizationParams` (`kernel_util.cc`): in double precision.

    Raises QuantizationError.
    """
    return [quantize_multiplier(its.source.scale * scale / its.output.scale) for scale in scales]


def windows(
    options: Options, kernel: tuple[int, int], image: tuple[int, int]
) -> tuple[tuple[int, int], Margin]:
    """Rows and columns of the output, and the padding, which is none where windows end inside."""
    same = options.padding == Padding.SAME
    axes = list(zip(image, kernel, options.stride, options.dilation, strict=True))
    height, width = (count(*axis, same=same) for axis in axes)
    pads = [pad for axis in axes for pad in same_padding(*axis)] if same else ()
    return (height, width), Margin(*pads)


def epilogue(
    its: Operands,
    by_channel: Array,
    multipliers: Sequence[Multiplier],
    activation: int,
    settings: Settings,
) -> Steps:
    """The steps after the products; `by_channel` are the weights as [O, ...].

    Raises Refusal, QuantizationError.
    """
    sums = by_channel.reshape(len(by_channel), -1).sum(axis=1, dtype=np.int64)
    values = -its.source.zero_point * sums
    if its.bias is not None:
        if its.bias.size != len(sums):
            raise Refusal("the bias has not a value for each output channel")
        values = values + its.bias.reshape(-1)
    steps = Steps()
    # The low 32 bits, as of the sums themselves.
    steps.add(AluOpcode.ADD, values.astype(np.int32).astype(np.int64))
    low, high = activation_range(activation, its.output.scale, its.output.zero_point)
    scale = Scale.of(multipliers, its.output.zero_point, low, high, settings.rounding)
    requantize(steps, scale, SCRATCH)
    return steps


def lowering(
    node: Node,
    settings: Settings,
    what: str,
    shape: Conv2d,
    steps: Steps,
    pack: Callable[[], Array],
    layouts: tuple[Layout, Layout],
    margin: Margin = NO_MARGIN,
) -> Lowering:
    """A convolution, `what`, of the image with that margin around it. `pack` gives the weights as
    the core reads them, `layouts` are those of the image and of the output.

    Raises Refusal where no tiling fits.
    """
    if not feasible(shape, settings.config, steps.steps):
        raise Refusal(f"the VTA's buffers are too small for {what}")

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        image, output = inputs[0], outputs[0]
        assert image is not None
        image = image.grown(*margin)
        # Rows without a margin between them are taken for a single one.
        flat = image.is_dense and output.is_dense
        channels = [builder.channels(vector, shape.out_channels) for vector in steps.vectors]
        weights = builder.constant(pack())
        plan = conv2d(shape, builder.config, steps.steps, flat=flat)
        plan.emit(builder.runtime, image, weights, output, channels=channels)

    image, output = layouts
    inputs = (image.with_margin(margin), *[None] * (len(node.inputs) - 1))
    return Lowering.fixed(inputs, (output,), Compute(emit))
