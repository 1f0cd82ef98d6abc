"""DEPTHWISE_CONV_2D of int8: every input channel has kernels of its own.

The core multiplies blocks of channels with blocks of channels, so that a block of weights has
numbers on a diagonal only.

Source: `tflite/kernels/depthwise_conv.cc`, `internal/reference/integer_ops/depthwise_conv.h`.
"""

from collections.abc import Sequence

import numpy as np

from potash_firmware.tflite.capi import Array, Node, WindowOptions
from potash_firmware.tflite.operators import convolution
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
from potash_firmware.tflite.quantization import QuantizationError
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError, Surface, feasible, layouts


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this convolution; None when it does."""
    reason = convolution.refusal(node, settings, "a depthwise convolution")
    if reason is not None:
        return reason
    source, weights, bias, output = convolution.tensors(node)
    if not isinstance(node.options, WindowOptions) or len(source.shape) != 4:
        return "a depthwise convolution has options, and images as input"
    reason = convolution.weights_refusal(weights, bias, output.shape[-1])
    if reason is not None:
        return reason
    if len(weights.shape) != 4 or weights.shape[0] != 1:
        return "the weights have another shape than they should"
    try:
        shape, _ = _shape(node)
        if not feasible(shape, settings.config, _finish(node, settings).steps):
            return "the VTA's buffers are too small for the convolution"
    except (QuantizationError, ScheduleError) as error:
        return str(error)
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    source, weights, _, output = convolution.tensors(node)
    assert weights.constant is not None
    shape, margin = _shape(node)
    its = _finish(node, settings)
    block = settings.config.block_out
    packed = layouts.pack_oihw(
        _diagonal(weights.constant[0], shape.multiplier, block), settings.config
    )

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        image, *_ = inputs
        assert image is not None
        convolution.emit(builder, shape, packed, its, image.grown(*margin), outputs[0])

    inputs = (Layout.image(source.shape, margin), *[None] * (len(node.inputs) - 1))
    return Plan(inputs, (Layout.image(output.shape),), Compute(emit))


def _diagonal(weights: Array, multiplier: int, block: int) -> Array:
    """Weights [h][w][O] as those of a convolution that sees a block of channels, [O][block][h][w].

    Output o sees channel o / multiplier, and of that channel's block the place that it has there.
    """
    height, width, channels = weights.shape
    whole = np.zeros((channels, block, height, width), weights.dtype)
    outputs = np.arange(channels)
    whole[outputs, outputs // multiplier % block] = weights.transpose(2, 0, 1)
    return whole


def _shape(node: Node) -> tuple[Conv2d, Margin]:
    source, weights, _, output = convolution.tensors(node)
    assert isinstance(node.options, WindowOptions)
    return convolution.shape(
        node.options, source, (weights.shape[1], weights.shape[2]), output, depthwise=True
    )


def _finish(node: Node, settings: Settings) -> convolution.Finish:
    source, weights, bias, output = convolution.tensors(node)
    assert isinstance(node.options, WindowOptions)
    assert weights.constant is not None
    scales = convolution.scales_of(weights, output.shape[-1], 3)
    return convolution.finish(
        weights.constant[0].transpose(2, 0, 1),
        bias,
        source,
        output,
        convolution.multipliers(source, scales, output),
        node.options.activation,
        settings,
    )
