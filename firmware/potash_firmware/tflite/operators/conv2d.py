"""CONV_2D and DEPTHWISE_CONV_2D of int8, with weights of int8 and a scale for each output channel.

In a depthwise convolution every input channel has kernels of its own. The core multiplies blocks of
channels with blocks of channels, so that a block of weights has numbers on a diagonal only.

Source: `tflite/kernels/conv.cc`, `depthwise_conv.cc`, `internal/reference/integer_ops/conv.h` and
`depthwise_conv.h`.
"""

import numpy as np

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Array, Node, Options
from potash_firmware.tflite.lowering import Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks, convolution
from potash_firmware.tflite.operators.convolution import Operands
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError, layouts


def lower(node: Node, settings: Settings) -> Lowering:
    """CONV_2D. Raises Refusal, QuantizationError, ScheduleError."""
    return _lower(node, settings, "a convolution", depthwise=False)


def lower_depthwise(node: Node, settings: Settings) -> Lowering:
    """DEPTHWISE_CONV_2D. Raises Refusal, QuantizationError, ScheduleError."""
    return _lower(node, settings, "a depthwise convolution", depthwise=True)


def _lower(node: Node, settings: Settings, what: str, *, depthwise: bool) -> Lowering:
    its = convolution.operands(node, settings, what)
    source, weights = its.source, its.weights
    options = checks.options(node, what)
    if len(source.shape) != 4 or len(weights.shape) != 4:
        raise Refusal(f"{what} has images as input, and kernels of height and width")
    if depthwise and weights.shape[0] != 1:
        raise Refusal("the weights have another shape than they should")
    if not depthwise and weights.shape[3] != source.shape[3]:
        raise Refusal("the convolution is one of groups of channels")
    shape, margin = _shape(options, its, depthwise)
    scales = convolution.scales_of(weights, shape.out_channels, 3 if depthwise else 0)
    by_channel = its.values[0].transpose(2, 0, 1) if depthwise else its.values
    factors = convolution.multipliers(its, scales)
    steps = convolution.epilogue(its, by_channel, factors, options.activation, settings)

    def pack() -> Array:
        if depthwise:
            return _pack_diagonal(by_channel, shape, settings.config)
        return layouts.pack_ohwi(its.values, settings.config)

    images = Layout.image(source.shape), Layout.image(its.output.shape)
    return convolution.lowering(node, settings, what, shape, steps, pack, images, margin)


def _shape(options: Options, its: Operands, depthwise: bool) -> tuple[Conv2d, Margin]:
    """The convolution of the image with its margin, and the margin. Raises ScheduleError."""
    images, height, width, channels = its.source.shape
    kernel = its.weights.shape[1], its.weights.shape[2]
    if min(*options.stride, *options.dilation, *kernel) < 1:
        raise ScheduleError("a stride, a dilation or a side of the kernel is zero")
    size, margin = convolution.windows(options, kernel, (height, width))
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
