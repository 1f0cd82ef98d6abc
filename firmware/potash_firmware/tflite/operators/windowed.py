"""What CONV_2D and DEPTHWISE_CONV_2D have in common: kernels that slide over images."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Array, Node, Tensor, WindowOptions
from potash_firmware.tflite.operators import convolution
from potash_firmware.tflite.packing import Layout, Margin
from potash_firmware.tflite.plans import Builder, Compute, Plan, Settings
from potash_firmware.tflite.quantization import QuantizationError
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError, Surface, feasible


class Kind(NamedTuple):
    """One of the two."""

    what: str
    refusal: Callable[[Tensor, Tensor], str | None]
    """Why the input and the weights do not fit each other; None when they do."""
    channel_axis: int
    """That of the weights along which they have scales."""
    by_channel: Callable[[Array], Array]
    """The weights as [O, ...]."""
    packed: Callable[[Array, Conv2d, Config], Array]
    """The weights as the core reads them."""
    depthwise: bool = False


def supports(kind: Kind, node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this convolution; None when it does."""
    reason = convolution.refusal(node, settings, kind.what)
    if reason is not None:
        return reason
    source, weights, bias, output = convolution.tensors(node)
    if not isinstance(node.options, WindowOptions) or len(source.shape) != 4:
        return f"{kind.what} has options, and images as input"
    reason = convolution.weights_refusal(weights, bias, output.shape[-1])
    reason = reason or kind.refusal(source, weights)
    if reason is not None:
        return reason
    try:
        shape, _ = _shape(kind, node)
        if not feasible(shape, settings.config, _finish(kind, node, settings).steps):
            return "the VTA's buffers are too small for the convolution"
    except (QuantizationError, ScheduleError) as error:
        return str(error)
    return None


def plan(kind: Kind, node: Node, settings: Settings) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    source, weights, _, output = convolution.tensors(node)
    shape, margin = _shape(kind, node)
    values = weights.constant
    assert values is not None

    def emit(
        builder: Builder, inputs: Sequence[Surface | None], outputs: Sequence[Surface]
    ) -> None:
        image, *_ = inputs
        assert image is not None
        packed = kind.packed(values, shape, builder.config)
        its = _finish(kind, node, settings)
        convolution.emit(builder, shape, packed, its, image.grown(*margin), outputs[0])

    inputs = (Layout.image(source.shape, margin), *[None] * (len(node.inputs) - 1))
    return Plan(inputs, (Layout.image(output.shape),), Compute(emit))


def _shape(kind: Kind, node: Node) -> tuple[Conv2d, Margin]:
    source, weights, _, output = convolution.tensors(node)
    assert isinstance(node.options, WindowOptions)
    kernel = weights.shape[1], weights.shape[2]
    return convolution.shape(node.options, source, kernel, output, depthwise=kind.depthwise)


def _finish(kind: Kind, node: Node, settings: Settings) -> convolution.Finish:
    source, weights, bias, output = convolution.tensors(node)
    assert isinstance(node.options, WindowOptions)
    assert weights.constant is not None
    scales = convolution.scales_of(weights, output.shape[-1], kind.channel_axis)
    multipliers = convolution.multipliers(source, scales, output)
    values = kind.by_channel(weights.constant)
    return convolution.finish(
        values, bias, source, output, multipliers, node.options.activation, settings
    )
