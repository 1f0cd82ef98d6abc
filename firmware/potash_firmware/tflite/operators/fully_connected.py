"""FULLY_CONNECTED of int8: a convolution of images of one pixel, but for how its sums are scaled.

LiteRT's reference kernel multiplies them by a floating-point number and rounds once, with halves away from zero;
that of TensorFlow Lite 2.14 scales them as those of convolutions.
Source: `tflite/kernels/fully_connected.cc`, `internal/reference/integer_ops/fully_connected.h`.
"""

from collections.abc import Sequence

import numpy as np

from potash_firmware.tflite.capi import FullyConnectedOptions, Node
from potash_firmware.tflite.operators import convolution
from potash_firmware.tflite.packing import Layout, Sizes
from potash_firmware.tflite.plans import Builder, Compute, Plan, Rounding, Settings
from potash_firmware.tflite.quantization import (
    Multiplier,
    QuantizationError,
    multipliers_of_floats,
    quantize_multiplier,
)
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError, Surface, feasible, layouts

_PLAIN_WEIGHTS = 0


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this product; None when it does."""
    reason = convolution.refusal(node, settings, "a fully connected layer")
    if reason is not None:
        return reason
    source, weights, bias, output = convolution.tensors(node)
    options = node.options
    if not isinstance(options, FullyConnectedOptions) or options.weights_format != _PLAIN_WEIGHTS:
        return "the weights of the fully connected layer lie in another order"
    if len(weights.shape) != 2:
        return "the weights are no matrix"
    reason = convolution.weights_refusal(weights, bias, weights.shape[0])
    if reason is not None:
        return reason
    outputs, inputs = weights.shape
    if source.size % inputs or output.size != source.size // inputs * outputs:
        return "the shapes of the fully connected layer do not fit together"
    try:
        if not feasible(_shape(node), settings.config, _finish(node, settings).steps):
            return "the VTA's buffers are too small for the product"
    except (QuantizationError, ScheduleError) as error:
        return str(error)
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    _, weights, _, _ = convolution.tensors(node)
    assert weights.constant is not None
    shape = _shape(node)
    its = _finish(node, settings)
    packed = layouts.pack_oihw(weights.constant[:, :, None, None], settings.config)

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        image, *_ = inputs
        assert image is not None
        convolution.emit(builder, shape, packed, its, image, outputs[0])

    rows = Layout(Sizes(shape.images, 1, 1, shape.in_channels))
    result = Layout(Sizes(shape.images, 1, 1, shape.out_channels))
    return Plan((rows, *[None] * (len(node.inputs) - 1)), (result,), Compute(emit))


def _shape(node: Node) -> Conv2d:
    source, weights, _, _ = convolution.tensors(node)
    outputs, inputs = weights.shape
    return Conv2d(source.size // inputs, inputs, 1, 1, outputs, (1, 1))


def _finish(node: Node, settings: Settings) -> convolution.Finish:
    source, weights, bias, output = convolution.tensors(node)
    assert isinstance(node.options, FullyConnectedOptions)
    assert weights.constant is not None
    scales = convolution.scales_of(weights, weights.shape[0], 0)
    if settings.floats and settings.rounding is Rounding.EXACT:
        factors = [source.scale * scale / output.scale for scale in scales]
        multipliers = multipliers_of_floats(factors, output.zero_point)
        settings = settings._replace(rounding=Rounding.SINGLE)
    elif len(weights.scales) == 1:
        multipliers = [_multiplier(source.scale, weights.scales[0], output.scale)] * len(scales)
    else:
        multipliers = convolution.multipliers(source, scales, output)
    return convolution.finish(
        weights.constant,
        bias,
        source,
        output,
        multipliers,
        node.options.activation,
        settings,
    )


def _multiplier(source: float, weights: float, output: float) -> Multiplier:
    """As `GetQuantizedConvolutionMultipler` (`kernel_util.cc`), which multiplies in float32."""
    product = float(np.float32(source) * np.float32(weights))
    return quantize_multiplier(product / output)
