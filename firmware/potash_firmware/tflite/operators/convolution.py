"""What CONV_2D, DEPTHWISE_CONV_2D and FULLY_CONNECTED have in common: products, a bias, a scale.

The input's zero point z goes into the bias: sum(w * (x - z)) + b = sum(w * x) + (b - z * sum(w)).
The margin around a padded input holds z too, so that this is right at the borders as well.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Scale, Steps, requantize
from potash_firmware.tflite.capi import Array, Node, Padding, Tensor, TensorType, WindowOptions
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import Margin
from potash_firmware.tflite.plans import Builder, Settings
from potash_firmware.tflite.quantization import (
    Multiplier,
    QuantizationError,
    activation_range,
    quantize_multiplier,
)
from potash_firmware.vta_runtime.schedules import (
    Conv2d,
    Plane,
    ScheduleError,
    Step,
    Surface,
    conv2d,
)

SCRATCH = (Plane(1), Plane(2))


class Finish(NamedTuple):
    """What happens to the sums: ALU steps, and their vectors."""

    steps: tuple[Step, ...]
    vectors: tuple[Array, ...]


def tensors(node: Node) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The input, the weights, the bias if there is one, and the output."""
    source, weights, *rest = node.inputs
    output = node.outputs[0]
    assert source
    assert weights
    assert output
    return source, weights, rest[0] if rest else None, output


def refusal(node: Node, settings: Settings, what: str) -> str | None:
    """Why `what` has not the tensors that it should have; None when it has."""
    reason = checks.first((checks.core(settings.config), checks.arity(node, (2, 3), what)))
    if reason is not None:
        return reason
    if node.inputs[1] is None:
        return "the weights are left out"
    return checks.first(map(checks.quantized, (node.inputs[0], node.outputs[0])))


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


def weights_refusal(weights: Tensor | None, bias: Tensor | None, channels: int) -> str | None:
    """Why weights and bias are not those of a convolution on the VTA; None when they are."""
    if weights is None or weights.constant is None or weights.type != TensorType.INT8:
        return "the weights are not constants of int8"
    if bias is not None and (
        bias.constant is None or bias.type != TensorType.INT32 or bias.size != channels
    ):
        return "the bias is not constants of int32, one for each output channel"
    return None


def finish(
    weights: Array,
    bias: Tensor | None,
    source: Tensor,
    output: Tensor,
    multipliers: Sequence[Multiplier],
    activation: int,
    settings: Settings,
) -> Finish:
    """The steps after the products; `weights` are [O, ...]. Raises QuantizationError."""
    sums = weights.reshape(len(weights), -1).sum(axis=1, dtype=np.int64)
    values = -source.zero_point * sums
    if bias is not None and bias.constant is not None:
        values = values + bias.constant.reshape(-1)
    steps = Steps()
    # As the sums themselves, it is what 32 bits keep of it.
    steps.add(AluOpcode.ADD, values.astype(np.int32).astype(np.int64))
    low, high = activation_range(activation, output.scale, output.zero_point)
    scale = Scale.of(multipliers, output.zero_point, low, high, settings.rounding)
    requantize(steps, scale, SCRATCH)
    return Finish(tuple(steps.steps), tuple(steps.vectors))


def multipliers(source: Tensor, scales: Sequence[float], output: Tensor) -> list[Multiplier]:
    """Those of `PopulateConvolutionQuantizationParams` (`kernel_util.cc`): in double precision.

    Raises QuantizationError.
    """
    return [quantize_multiplier(source.scale * scale / output.scale) for scale in scales]


def window_margin(
    options: WindowOptions, kernel: tuple[int, int], image: tuple[int, int]
) -> tuple[tuple[int, int], Margin]:
    """Rows and columns of the output, and the padding: `ComputePaddingHeightWidth` (`padding.h`).

    Padding is what windows reach beyond the image; there is none where they end inside.
    """
    sizes, pads = [], []
    for length, size, stride, dilation in zip(
        image, kernel, options.stride, options.dilation, strict=True
    ):
        reach = (size - 1) * dilation + 1
        if options.padding == Padding.SAME:
            count = -(-length // stride)
            total = max((count - 1) * stride + reach - length, 0)
        else:
            count = (length - reach) // stride + 1
            total = 0
        sizes.append(count)
        pads += [total // 2, total - total // 2]
    return (sizes[0], sizes[1]), Margin(*pads)


def shape(
    options: WindowOptions,
    source: Tensor,
    kernel: tuple[int, int],
    output: Tensor,
    *,
    depthwise: bool = False,
) -> tuple[Conv2d, Margin]:
    """The convolution of the image with its margin, and the margin. Raises ScheduleError."""
    images, height, width, channels = source.shape
    if min(*options.stride, *options.dilation, *kernel) < 1:
        raise ScheduleError("a stride, a dilation or a side of the kernel is zero")
    size, margin = window_margin(options, kernel, (height, width))
    if output.shape != (images, *size, output.shape[-1]):
        raise ScheduleError("the convolution's output has another shape than it should")
    made = Conv2d(
        images=images,
        in_channels=channels,
        height=height + margin.top + margin.bottom,
        width=width + margin.left + margin.right,
        out_channels=output.shape[-1],
        kernel=kernel,
        stride=options.stride,
        dilation=options.dilation,
        depthwise=depthwise,
    )
    return made, margin


def emit(
    builder: Builder, shape: Conv2d, packed: Array, its: Finish, image: Surface, output: Surface
) -> None:
    """Append a convolution: of `image` with what surrounds it, where the shape says so."""
    dense = image.is_dense and output.is_dense
    plan = conv2d(shape, builder.config, its.steps, flat=dense)
    channels = [
        builder.channels(np.broadcast_to(vector, shape.out_channels)) for vector in its.vectors
    ]
    plan.emit(builder.runtime, image, builder.constant(packed), output, channels=channels)
