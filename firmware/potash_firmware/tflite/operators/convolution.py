"""CONV_2D, DEPTHWISE_CONV_2D and FULLY_CONNECTED of int8: products, a bias, a scale.

The input's zero point z goes into the bias: sum(w * (x - z)) + b = sum(w * x) + (b - z * sum(w)).
The margin around a padded input holds z too, so that this is right at the borders as well.

In a depthwise convolution every input channel has kernels of its own. The core multiplies blocks of
channels with blocks of channels, so that a block of weights has numbers on a diagonal only. A fully
connected layer is a convolution of images of one pixel, but for how its sums are scaled: LiteRT's
reference kernel multiplies them by a floating-point number and rounds once, with halves away from
zero; that of TensorFlow Lite 2.14 scales them as those of convolutions.

Sources: `tflite/kernels/conv.cc`, `depthwise_conv.cc`, `fully_connected.cc`, and `conv.h`,
`depthwise_conv.h` and `fully_connected.h` of `internal/reference/integer_ops`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from potash_device.vta.config import Config
from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.ramps import Scale
from potash_firmware.tflite.arithmetic.requantization import Steps, requantize
from potash_firmware.tflite.capi import (
    Array,
    Node,
    Options,
    Padding,
    Tensor,
    TensorType,
)
from potash_firmware.tflite.lowering import Builder, Compute, Lowering, Refusal, Rounding, Settings
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import NO_MARGIN, Layout, Margin, Sizes
from potash_firmware.tflite.quantization import (
    Multiplier,
    QuantizationError,
    activation_range,
    multipliers_of_floats,
    quantize_multiplier,
)
from potash_firmware.tflite.windows import count, same_padding
from potash_firmware.vta_runtime.schedules import (
    Conv2d,
    Plane,
    ScheduleError,
    Surface,
    conv2d,
    feasible,
    layouts,
)

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


def lower(node: Node, settings: Settings) -> Lowering:
    """CONV_2D. Raises Refusal, QuantizationError, ScheduleError."""
    return _lower(node, settings, "a convolution", depthwise=False)


def lower_depthwise(node: Node, settings: Settings) -> Lowering:
    """DEPTHWISE_CONV_2D. Raises Refusal, QuantizationError, ScheduleError."""
    return _lower(node, settings, "a depthwise convolution", depthwise=True)


def _lower(node: Node, settings: Settings, what: str, *, depthwise: bool) -> Lowering:
    its = operands(node, settings, what)
    source, weights = its.source, its.weights
    options = checks.options(node, what)
    if len(source.shape) != 4 or len(weights.shape) != 4:
        raise Refusal(f"{what} has images as input, and kernels of height and width")
    if depthwise and weights.shape[0] != 1:
        raise Refusal("the weights have another shape than they should")
    if not depthwise and weights.shape[3] != source.shape[3]:
        raise Refusal("the convolution is one of groups of channels")
    shape, margin = _shape(options, its, depthwise)
    scales = scales_of(weights, shape.out_channels, 3 if depthwise else 0)
    by_channel = its.values[0].transpose(2, 0, 1) if depthwise else its.values
    factors = multipliers(its, scales)
    steps = epilogue(its, by_channel, factors, options.activation, settings)

    def pack() -> Array:
        if depthwise:
            return _pack_diagonal(by_channel, shape, settings.config)
        return layouts.pack_ohwi(its.values, settings.config)

    images = Layout.image(source.shape), Layout.image(its.output.shape)
    return lowering(node, settings, what, shape, steps, pack, images, margin)


def _shape(options: Options, its: Operands, depthwise: bool) -> tuple[Conv2d, Margin]:
    """The convolution of the image with its margin, and the margin. Raises ScheduleError."""
    images, height, width, channels = its.source.shape
    kernel = its.weights.shape[1], its.weights.shape[2]
    if min(*options.stride, *options.dilation, *kernel) < 1:
        raise ScheduleError("a stride, a dilation or a side of the kernel is zero")
    size, margin = windows(options, kernel, (height, width))
    out_channels = its.weights.shape[3 if depthwise else 0]
    if its.output.shape != (images, *size, out_channels):
        raise ScheduleError("the convolution's output has another shape than it should")
    made = Conv2d(
        images=images,
        in_channels=channels,
        height=height + margin.top + margin.bottom,
        width=width + margin.left + margin.right,
        out_channels=out_channels,
        kernel=kernel,
        stride=options.stride,
        dilation=options.dilation,
        depthwise=depthwise,
    )
    return made, margin


def _pack_diagonal(weights: Array, shape: Conv2d, config: Config) -> Array:
    """Depthwise weights [O][h][w] as those of a convolution that sees a block of channels.

    Output o sees channel o / multiplier, and in that channel's block its place there.
    """
    channels, height, width = weights.shape
    block = config.block_in
    whole = np.zeros((channels, block, height, width), weights.dtype)
    outputs = np.arange(channels)
    whole[outputs, outputs // shape.multiplier % block] = weights
    return layouts.pack_oihw(whole, config)


_PLAIN_WEIGHTS = 0


def lower_fully_connected(node: Node, settings: Settings) -> Lowering:
    """FULLY_CONNECTED. Raises Refusal, QuantizationError, ScheduleError."""
    what = "a fully connected layer"
    its = operands(node, settings, what)
    options = checks.options(node, what)
    if options.weights_format != _PLAIN_WEIGHTS:
        raise Refusal("the weights of the fully connected layer are in another order")
    if len(its.weights.shape) != 2:
        raise Refusal("the weights are no matrix")
    outputs, inputs = its.weights.shape
    if its.source.size % inputs or its.output.size != its.source.size // inputs * outputs:
        raise Refusal("the shapes of the fully connected layer do not fit together")
    shape = Conv2d(its.source.size // inputs, inputs, 1, 1, outputs, (1, 1))
    factors, rounding = _multipliers(its, settings)
    rounded = settings._replace(rounding=rounding)
    steps = epilogue(its, its.values, factors, options.activation, rounded)

    def pack() -> Array:
        return layouts.pack_oihw(its.values[:, :, None, None], settings.config)

    rows = Layout(Sizes(shape.images, 1, 1, inputs)), Layout(Sizes(shape.images, 1, 1, outputs))
    return lowering(node, settings, what, shape, steps, pack, rows)


def _multipliers(its: Operands, settings: Settings) -> tuple[list[Multiplier], Rounding]:
    """The multipliers of the sums, and how these are rounded. Raises QuantizationError."""
    scales = scales_of(its.weights, len(its.values), 0)
    if settings.floats and settings.rounding is Rounding.EXACT:
        factors = [its.source.scale * scale / its.output.scale for scale in scales]
        return multipliers_of_floats(factors, its.output.zero_point), Rounding.SINGLE
    if len(its.weights.scales) > 1:
        return multipliers(its, scales), settings.rounding
    # As `GetQuantizedConvolutionMultipler` (`kernel_util.cc`), which multiplies in float32.
    product = float(np.float32(its.source.scale) * np.float32(scales[0]))
    return [quantize_multiplier(product / its.output.scale)] * len(scales), settings.rounding
