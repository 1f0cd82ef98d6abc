"""What MAX_POOL_2D and AVERAGE_POOL_2D have in common: windows on images, one scale before and after.

Padding has no part in a window: taps that lie outside the image are left out.
"""

from potash_device.vta.config import Config
from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import Node, Tensor, WindowOptions
from potash_firmware.tflite.operators import checks, convolution
from potash_firmware.tflite.plans import Settings
from potash_firmware.tflite.quantization import INT8_MAX, INT8_MIN, activation_range
from potash_firmware.vta_runtime.schedules import TILE, Pool2d, ScheduleError, Sweep
from potash_firmware.vta_runtime.schedules.shapes import blocks


def refusal(node: Node, settings: Settings) -> str | None:
    """Why this is no pooling for the VTA; None when it may be one."""
    reason = checks.first(
        (
            checks.core(settings.config),
            checks.arity(node, (1,), "a pooling"),
            *map(checks.quantized, (*node.inputs, *node.outputs)),
        )
    )
    if reason is not None:
        return reason
    source, output = tensors(node)
    if not isinstance(node.options, WindowOptions) or len(source.shape) != 4:
        return "a pooling has options, and images as input"
    if min(*node.options.size, *node.options.stride) < 1:
        return "a pooling has no window or stride of 0"
    return checks.same_scale(source, output)


def tensors(node: Node) -> tuple[Tensor, Tensor]:
    """The image and the output."""
    source, output = node.inputs[0], node.outputs[0]
    assert source and output
    return source, output


def shape(node: Node, config: Config) -> Pool2d:
    """The windows. Raises ScheduleError where the output has another shape."""
    source, output = tensors(node)
    its = node.options
    assert isinstance(its, WindowOptions)
    images, height, width, channels = source.shape
    size, margin = convolution.window_margin(its, its.size, (height, width))
    if output.shape != (images, *size, channels):
        raise ScheduleError("the pooling's output has another shape than it should")
    return Pool2d(
        blocks(images, config.batch),
        blocks(channels, config.block_out),
        Sweep(height, size[0], its.size[0], its.stride[0], margin.top),
        Sweep(width, size[1], its.size[1], its.stride[1], margin.left),
    )


def clamp(steps: Steps, node: Node) -> None:
    """Append the fused activation. Raises QuantizationError."""
    _, output = tensors(node)
    assert isinstance(node.options, WindowOptions)
    low, high = activation_range(node.options.activation, output.scale, output.zero_point)
    if low > INT8_MIN:
        steps.add(AluOpcode.MAX, low, TILE)
    if high < INT8_MAX:
        steps.add(AluOpcode.MIN, high, TILE)
