"""CONV_2D of int8, with weights of int8 and a scale for each output channel.

Source: `tflite/kernels/conv.cc`, `internal/reference/integer_ops/conv.h`.
"""

from collections.abc import Sequence

from potash_firmware.tflite.capi import Node, Tensor, WindowOptions
from potash_firmware.tflite.operators import checks, convolution
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
from potash_firmware.tflite.quantization import QuantizationError
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError, Surface, feasible, layouts


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this convolution; None when it does."""
    reason = checks.first(
        (
            checks.core(settings.config),
            checks.arity(node, (2, 3), "a convolution"),
            checks.quantized(node.inputs[0] if node.inputs else None),
            checks.quantized(node.outputs[0] if node.outputs else None),
        )
    )
    if reason is not None:
        return reason
    if node.inputs[1] is None:
        return "the weights are left out"
    source, weights, bias, output = _tensors(node)
    if not isinstance(node.options, WindowOptions) or len(source.shape) != 4:
        return "a convolution has options, and images as input"
    reason = convolution.weights_refusal(weights, bias, output.shape[-1])
    if reason is not None:
        return reason
    if weights.shape[-1] != source.shape[-1]:
        return "the convolution is one of groups of channels"
    try:
        shape, _ = _shape(node)
        its = _finish(node, settings)
        if not feasible(shape, settings.config, its.steps):
            return "the VTA's buffers are too small for the convolution"
    except (QuantizationError, ScheduleError) as error:
        return str(error)
    return None


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    source, weights, _, output = _tensors(node)
    shape, margin = _shape(node)
    its = _finish(node, settings)
    assert weights.constant is not None
    packed = layouts.pack_ohwi(weights.constant, settings.config)

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        image, *_ = inputs
        assert image is not None
        convolution.emit(builder, shape, packed, its, image.grown(*margin), outputs[0])

    inputs = (Layout.image(source.shape, margin), *[None] * (len(node.inputs) - 1))
    return Plan(inputs, (Layout.image(output.shape),), Compute(emit))


def _tensors(node: Node) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The image, the weights, the bias if there is one, and the output."""
    source, weights, *rest = node.inputs
    output = node.outputs[0]
    assert source and weights and output
    return source, weights, rest[0] if rest else None, output


def _shape(node: Node) -> tuple[Conv2d, Margin]:
    """The convolution of the image with its margin, and the margin."""
    source, weights, _, output = _tensors(node)
    assert isinstance(node.options, WindowOptions)
    images, height, width, channels = source.shape
    kernel = weights.shape[1], weights.shape[2]
    size, margin = convolution.window_margin(node.options, kernel, (height, width))
    if output.shape != (images, *size, weights.shape[0]):
        raise ScheduleError("the convolution's output has another shape than it should")
    shape = Conv2d(
        images=images,
        in_channels=channels,
        height=height + margin.top + margin.bottom,
        width=width + margin.left + margin.right,
        out_channels=weights.shape[0],
        kernel=kernel,
        stride=node.options.stride,
        dilation=node.options.dilation,
    )
    return shape, margin


def _finish(node: Node, settings: Settings) -> convolution.Finish:
    source, weights, bias, output = _tensors(node)
    assert isinstance(node.options, WindowOptions) and weights.constant is not None
    scales = convolution.scales_of(weights, output.shape[-1], 0)
    multipliers = convolution.multipliers(source, scales, output)
    return convolution.finish(
        weights.constant, bias, source, output, multipliers, node.options.activation, settings
    )
