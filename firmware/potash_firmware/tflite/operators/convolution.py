"""CONV_2D, DEPTHWISE_CONV_2D and FULLY_CONNECTED of int8: products, a bias, a scale.

The input's zero point z goes into the bias: sum(w * (x - z)) + b = sum(w * x) + (b - z * sum(w)).
The margin around a padded input holds z too, so that this is right at the borders as well.

In a depthwise convolution every input channel has kernels of its own. The core multiplies blocks of
channels with blocks of channels, so that a block of weights has numbers on a diagonal only. A fully
connected layer is a convolution of images of one pixel, but for how its sums are scaled: LiteRT's
reference kernel multiplies them by a floating-point number and rounds once, with halves away from
zero; that of tflite-runtime scales them as those of convolutions.

Sources: `tflite/kernels/conv.cc`, `depthwise_conv.cc`, `fully_connected.cc`, and `conv.h`,
`depthwise_conv.h` and `fully_connected.h` of `internal/reference/integer_ops`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from potash_device.vta.config import Config
from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite import LITERT, runtime_package
from potash_firmware.tflite.arithmetic.ramps import FAR, MOST_SHIFT, Scale
from potash_firmware.tflite.arithmetic.requantization import Steps, requantize
from potash_firmware.tflite.capi import (
    Array,
    BuiltinOperator,
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
    INT8_MAX,
    INT8_MIN,
    Multiplier,
    QuantizationError,
    activation_range,
    multipliers_of_floats,
    quantize_multiplier,
    rounded,
)
from potash_firmware.tflite.windows import count, same_padding
from potash_firmware.vta_runtime.schedules import (
    Conv2d,
    Plane,
    ScheduleError,
    Surface,
    conv2d,
    fewest_steps,
    layouts,
)

SCRATCH = (Plane(1), Plane(2))
MOST_STEPS = 1 << 15
"""Maximum number of steps of a stream, of several instructions each; most have hundreds."""


class Operands(NamedTuple):
    """The tensors of a node, and the constants' values."""

    source: Tensor
    weights: Tensor
    values: Array
    bias: Array | None
    output: Tensor


def operands(node: Node, settings: Settings, what: str) -> Operands:
    """A node's. Raises Refusal where they are not those of `what` on the VTA."""
    (source,), output = checks.tensors(node, (2, 3), what, 1)
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
    """Multipliers as in `PopulateConvolutionQuantizationParams` (`kernel_util.cc`), from doubles.
    Raises QuantizationError."""
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


class Products(NamedTuple):
    """Products of an operator and the scaling of their sums: the weights as [O, ...], a bias and a
    multiplier for each channel, and an upper bound of all sums if one is known."""

    weights: Array
    bias: Array
    multipliers: Sequence[Multiplier]
    reach: int = FAR

    @classmethod
    def of(cls, its: Operands, by_channel: Array, multipliers: Sequence[Multiplier]) -> "Products":
        """Raises Refusal where the bias does not fit."""
        bias = np.zeros(len(by_channel), np.int64)
        if its.bias is not None:
            if its.bias.size != len(by_channel):
                raise Refusal("the bias has not a value for each output channel")
            bias = its.bias.reshape(-1).astype(np.int64)
        return cls(by_channel, bias, multipliers)

    def ends(self, zero_point: int) -> Array:
        """The smallest and the largest sum of each channel that inputs with this zero point
        give."""
        lowest, highest = (value - zero_point for value in (INT8_MIN, INT8_MAX))
        flat = self.weights.reshape(len(self.weights), -1)
        up, down = (
            half.sum(axis=1, dtype=np.int64) for half in (np.maximum(flat, 0), np.minimum(flat, 0))
        )
        found: Array = self.bias + np.stack(
            (up * lowest + down * highest, up * highest + down * lowest)
        )
        return found

    def check_wrapping(self, zero_point: int) -> None:
        """Raise Refusal where a multiplier of 1 or more may take a sum out of 32 bits: there the
        reference kernels wrap, and the VTA clamps."""
        shifts = np.array([max(one.shift, 0) for one in self.multipliers], np.int64)
        if shifts.any():
            low, high = self.ends(zero_point) << shifts
            if ((shifts > 0) & ((low < -FAR) | (high >= FAR))).any():
                raise Refusal("its sums, times a multiplier of 1 or more, may exceed 32 bits")

    def settled(self, its: Operands, rounding: Rounding, real: Array | None = None) -> "Products":
        """These products, where channels with tiny multipliers whose output no input changes have
        only a bias. Weights that training has let vanish are such. `real` are the factors if they
        are not the multipliers."""
        small = np.array(
            [one.shift < -MOST_SHIFT or one.significand == 0 for one in self.multipliers]
        )
        if not small.any() or rounding is Rounding.ALKALI:
            return self
        ends = self.ends(its.source.zero_point)
        reach = np.abs(ends).max(axis=0) + 1
        scale = Scale.of(self.multipliers, 0, INT8_MIN, INT8_MAX, rounding, checked=False)
        results = scale.scaled(ends) if real is None else rounded(ends * real).astype(np.int64)
        results = np.clip(results + its.output.zero_point, INT8_MIN, INT8_MAX)
        settled = small & (results[0] == results[1]) & (reach <= FAR)
        bias = np.where(settled, (results[0] - its.output.zero_point) << 8, self.bias)
        weights = self.weights.copy()
        weights[settled] = 0
        multipliers = [
            _SETTLED if known else one for one, known in zip(self.multipliers, settled, strict=True)
        ]
        # The constants are below 2^16.
        known = min(int(reach[~settled].max(initial=1 << 16)), FAR)
        return Products(weights, bias, multipliers, known if (small & ~settled).any() else FAR)


_SETTLED = Multiplier(1 << 30, -7)
"""Divides by 2^8."""


def epilogue(its: Operands, products: Products, activation: int, rounding: Rounding) -> Steps:
    """The steps after the products. Raises Refusal, QuantizationError."""
    weights, bias, multipliers, reach = products
    sums = weights.reshape(len(weights), -1).sum(axis=1, dtype=np.int64)
    values = bias - its.source.zero_point * sums
    steps = Steps()
    # The low 32 bits, as of the sums themselves.
    steps.add(AluOpcode.ADD, values.astype(np.int32).astype(np.int64))
    low, high = activation_range(activation, its.output.scale, its.output.zero_point)
    scale = Scale.of(multipliers, its.output.zero_point, low, high, rounding, reach)
    if rounding is not Rounding.ALKALI:
        products.check_wrapping(its.source.zero_point)
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
    the core reads them, `layouts` are those of the image and of the output. Raises Refusal where no
    tiling fits."""
    check_size(shape, steps, settings, what)

    def run(builder: Builder, image: Surface, output: Surface) -> None:
        emit(builder, shape, steps, pack(), image.grown(*margin), output)

    image, output = layouts
    inputs = (image.with_margin(margin), *[None] * (len(node.inputs) - 1))
    return Lowering.fixed(inputs, (output,), Compute.of_one(run, multiplies=True))


def check_size(shape: Conv2d, steps: Steps, settings: Settings, what: str) -> None:
    """Raise Refusal where no tiling fits, or where the stream would be too long."""
    fewest = fewest_steps(shape, settings.config, steps.steps)
    if fewest is None:
        raise Refusal(f"the VTA's buffers are too small for {what}")
    if fewest > MOST_STEPS:
        raise Refusal(f"{what} of this size takes too many instructions")


def emit(
    builder: Builder, shape: Conv2d, steps: Steps, weights: Array, image: Surface, output: Surface
) -> None:
    """Append a convolution of an image, with packed weights."""
    # Rows without a margin between them are taken for a single one.
    flat = image.is_dense and output.is_dense
    channels = [builder.channels(vector, shape.out_channels) for vector in steps.vectors]
    its_weights = builder.constant(weights)
    plan = conv2d(shape, builder.config, steps.steps, flat=flat)
    plan.emit(builder.runtime, image, its_weights, output, channels=channels)


def lower(node: Node, settings: Settings) -> Lowering:
    """CONV_2D, DEPTHWISE_CONV_2D. Raises Refusal, QuantizationError, ScheduleError."""
    depthwise = node.operator == BuiltinOperator.DEPTHWISE_CONV_2D
    what = "a depthwise convolution" if depthwise else "a convolution"
    its = operands(node, settings, what)
    source, weights = its.source, its.weights
    options = checks.options(node, what)
    if len(source.shape) != 4 or len(weights.shape) != 4:
        raise Refusal(f"{what} has images as input, and kernels of height and width")
    if depthwise and weights.shape[0] != 1:
        raise Refusal("the weights have another shape than they should")
    shape, margin = _shape(options, its, depthwise)
    scales = scales_of(weights, shape.out_channels, 3 if depthwise else 0)
    by_channel = its.values[0].transpose(2, 0, 1) if depthwise else _of_all_channels(its, settings)
    products = Products.of(its, by_channel, multipliers(its, scales))
    products = products.settled(its, settings.rounding)
    steps = epilogue(its, products, options.activation, settings.rounding)

    def pack() -> Array:
        if depthwise:
            return _pack_diagonal(products.weights, shape, settings.config)
        return layouts.pack_ohwi(products.weights, settings.config)

    images = Layout.image(source.shape), Layout.image(its.output.shape)
    return lowering(node, settings, what, shape, steps, pack, images, margin)


def _of_all_channels(its: Operands, settings: Settings) -> Array:
    """The weights of a convolution: where the channels are in groups, each of which has kernels of
    its own, with zeroes for those of other groups. Raises Refusal."""
    channels, (outputs, *kernel, its_channels) = its.source.shape[3], its.weights.shape
    if its_channels == channels:
        return its.values
    groups = channels // its_channels
    if channels % its_channels or outputs % groups:
        raise Refusal("the convolution's groups of channels are not equal")
    if groups > settings.config.block_in:
        # As wasteful as a depthwise convolution.
        raise Refusal("the convolution has more groups of channels than a block has channels")
    whole = np.zeros((groups, outputs // groups, *kernel, groups, its_channels), np.int8)
    places = np.arange(groups)
    whole[places, :, :, :, places] = its.values.reshape(groups, -1, *kernel, its_channels)
    return whole.reshape(outputs, *kernel, channels)


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
    """Depthwise weights [O][h][w] as those of a convolution that sees a block of channels, or some.

    Output o sees channel o / multiplier, at its place in the blocks that o's block sees.
    """
    channels, height, width = weights.shape
    seen = shape.depth(config) * config.block_in
    whole = np.zeros((channels, seen, height, width), weights.dtype)
    outputs = np.arange(channels)
    firsts = [shape.first_block(config, at // config.block_out) for at in range(channels)]
    first_channels = np.array(firsts) * config.block_in
    whole[outputs, outputs // shape.multiplier - first_channels] = weights
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
    products, rounding = _connected(its, settings)
    steps = epilogue(its, products, options.activation, rounding)

    def pack() -> Array:
        return layouts.pack_oihw(products.weights[:, :, None, None], settings.config)

    rows = Layout(Sizes(shape.images, 1, 1, inputs)), Layout(Sizes(shape.images, 1, 1, outputs))
    return lowering(node, settings, what, shape, steps, pack, rows)


def _connected(its: Operands, settings: Settings) -> tuple[Products, Rounding]:
    """The products, and how their sums are rounded. Raises Refusal, QuantizationError."""
    scales = scales_of(its.weights, len(its.values), 0)
    if settings.rounding is Rounding.EXACT and runtime_package() == LITERT:
        real = np.array([its.source.scale * scale / its.output.scale for scale in scales])
        rough = [quantize_multiplier(factor) for factor in real.tolist()]
        products = Products.of(its, its.values, rough).settled(its, settings.rounding, real)
        left = [at for at, one in enumerate(products.multipliers) if one is not _SETTLED]
        exact = multipliers_of_floats(real[left], its.output.zero_point) if left else []
        each = dict(zip(left, exact, strict=True))
        settled = [each.get(at, _SETTLED) for at in range(len(scales))]
        return products._replace(multipliers=settled), Rounding.SINGLE
    if len(its.weights.scales) > 1:
        factors = multipliers(its, scales)
    else:
        # As `GetQuantizedConvolutionMultipler` (`kernel_util.cc`), which multiplies in float32.
        product = float(np.float32(its.source.scale) * np.float32(scales[0]))
        factors = [quantize_multiplier(product / its.output.scale)] * len(scales)
    products = Products.of(its, its.values, factors)
    return products.settled(its, settings.rounding), settings.rounding
