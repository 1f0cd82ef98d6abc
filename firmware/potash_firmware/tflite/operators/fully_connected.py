"""FULLY_CONNECTED of int8: a convolution of images of one pixel, but for how its sums are scaled.

LiteRT's reference kernel multiplies them by a floating-point number and rounds once, with halves
away from zero; that of TensorFlow Lite 2.14 scales them as those of convolutions. Source:
`tflite/kernels/fully_connected.cc`, `internal/reference/integer_ops/fully_connected.h`.
"""

import numpy as np

from potash_firmware.tflite.capi import Array, Node
from potash_firmware.tflite.lowering import Lowering, Refusal, Rounding, Settings
from potash_firmware.tflite.operators import checks, convolution
from potash_firmware.tflite.operators.convolution import Operands
from potash_firmware.tflite.packing import Layout, Sizes
from potash_firmware.tflite.quantization import (
    Multiplier,
    multipliers_of_floats,
    quantize_multiplier,
)
from potash_firmware.vta_runtime.schedules import Conv2d, layouts

_PLAIN_WEIGHTS = 0


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal, QuantizationError, ScheduleError."""
    what = "a fully connected layer"
    its = convolution.operands(node, settings, what)
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
    steps = convolution.epilogue(its, its.values, factors, options.activation, rounded)

    def pack() -> Array:
        return layouts.pack_oihw(its.values[:, :, None, None], settings.config)

    rows = Layout(Sizes(shape.images, 1, 1, inputs)), Layout(Sizes(shape.images, 1, 1, outputs))
    return convolution.lowering(node, settings, what, shape, steps, pack, rows)


def _multipliers(its: Operands, settings: Settings) -> tuple[list[Multiplier], Rounding]:
    """The multipliers of the sums, and how these are rounded. Raises QuantizationError."""
    scales = convolution.scales_of(its.weights, len(its.values), 0)
    if settings.floats and settings.rounding is Rounding.EXACT:
        factors = [its.source.scale * scale / its.output.scale for scale in scales]
        return multipliers_of_floats(factors, its.output.zero_point), Rounding.SINGLE
    if len(its.weights.scales) > 1:
        return convolution.multipliers(its, scales), settings.rounding
    # As `GetQuantizedConvolutionMultipler` (`kernel_util.cc`), which multiplies in float32.
    product = float(np.float32(its.source.scale) * np.float32(scales[0]))
    return [quantize_multiplier(product / its.output.scale)] * len(scales), settings.rounding
