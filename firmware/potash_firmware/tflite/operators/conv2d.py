"""CONV_2D of int8, with weights of int8 and a scale for each output channel.

Source: `tflite/kernels/conv.cc`, `internal/reference/integer_ops/conv.h`.
"""

from collections.abc import Sequence

from potash_firmware.tflite.capi import Node, WindowOptions
from potash_firmware.tflite.operators import convolution
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
from potash_firmware.tflite.quantization import QuantizationError
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError, Surface, feasible, layouts


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this convolution; None when it does."""
    reason = convolution.refusal(node, settings, "a convolution")
    if reason is not None:
        return reason
    source, weights, bias, output = convolution.tensors(node)
    if not isinstance(node.options, WindowOptions) or len(source.shape) != 4:
        return "a convolution has options, and images as input"
    reason = convolution.weights_refusal(weights, bias, output.shape[-1])
    if reason is not None:
        return reason
    if len(weights.shape) != 4 or weights.shape[-1] != source.shape[-1]:
        return "the convolution is one of groups of channels"
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
    packed = layouts.pack_ohwi(weights.constant, settings.config)

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        image, *_ = inputs
        assert image is not None
        convolution.emit(builder, shape, packed, its, image.grown(*margin), outputs[0])

    inputs = (Layout.image(source.shape, margin), *[None] * (len(node.inputs) - 1))
    return Plan(inputs, (Layout.image(output.shape),), Compute(emit))


def _shape(node: Node) -> tuple[Conv2d, Margin]:
    source, weights, _, output = convolution.tensors(node)
    assert isinstance(node.options, WindowOptions)
    return convolution.shape(node.options, source, (weights.shape[1], weights.shape[2]), output)


def _finish(node: Node, settings: Settings) -> convolution.Finish:
    source, weights, bias, output = convolution.tensors(node)
    assert isinstance(node.options, WindowOptions)
    assert weights.constant is not None
    scales = convolution.scales_of(weights, output.shape[-1], 0)
    multipliers = convolution.multipliers(source, scales, output)
    return convolution.finish(
        weights.constant, bias, source, output, multipliers, node.options.activation, settings
    )
