"""TRANSPOSE_CONV of int8: each value of the input is multiplied by the kernel, and the products are
added up at distances of the stride.

Outputs whose places have the same remainder on division by the stride see the same taps. So this is
a convolution that computes, for a pixel of the input, the outputs of all remainders as channels,
each in blocks of its own; then the blocks are moved to their places. Taps that a remainder does not
have are zeroes: there are none where the stride divides the kernel's sides.

Source: `tflite/kernels/transpose_conv.cc`, `internal/reference/integer_ops/transpose_conv.h`.
"""

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from potash_device.vta.config import MemoryId
from potash_firmware.tflite.capi import Array, Node, Padding
from potash_firmware.tflite.lowering import Builder, Compute, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks, convolution
from potash_firmware.tflite.operators.convolution import Operands, Products
from potash_firmware.tflite.packing import Layout, Margin, Sizes
from potash_firmware.tflite.windows import count, same_padding
from potash_firmware.vta_runtime.schedules import Conv2d, MovedAxis, Surface, layouts, move
from potash_firmware.vta_runtime.schedules.shapes import blocks


class Places(NamedTuple):
    """Rows or columns of the output and the input: output `stride * q + remainder - padding` comes
    of `taps` values of the input up to `q`, for `q` from `first` on, before `end`."""

    extent: int
    output: int
    stride: int
    taps: int
    padding: int

    @classmethod
    def of(cls, extent: int, output: int, kernel: int, stride: int, padding: int) -> "Places":
        """Raises Refusal where the input is not what a convolution of the output would give."""
        same = padding == Padding.SAME
        if count(output, kernel, stride, same=same) != extent:
            raise Refusal("the transposed convolution's output has another shape than it should")
        before = same_padding(output, kernel, stride)[0] if same else 0
        return cls(extent, output, stride, blocks(kernel, stride), before)

    @property
    def first(self) -> int:
        return self.padding // self.stride

    @property
    def end(self) -> int:
        return (self.padding + self.output - 1) // self.stride + 1

    @property
    def around(self) -> tuple[int, int]:
        """Rows that the input needs before and after it; negative where it has some that no output
        comes of."""
        return self.taps - 1 - self.first, self.end - self.extent

    def moved(self, remainder: int) -> tuple[int, int, int]:
        """The first result of a remainder, the output that it is, and how many there are."""
        first = blocks(self.padding - remainder, self.stride)
        end = (self.padding + self.output - 1 - remainder) // self.stride + 1
        return first - self.first, first * self.stride + remainder - self.padding, end - first


def lower(node: Node, settings: Settings) -> Lowering:
    """TRANSPOSE_CONV. Raises Refusal, QuantizationError, ScheduleError."""
    what, config = "a transposed convolution", settings.config
    if len(node.inputs) not in (3, 4):
        raise Refusal(f"{what} has other inputs and outputs than it should")
    size, weights, source, *bias = node.inputs
    its = convolution.operands(replace(node, inputs=(source, weights, *bias)), settings, what)
    options = checks.options(node, what)
    shape, kernel = its.source.shape, its.weights.shape
    if len(shape) != 4 or len(kernel) != 4 or shape[3] != kernel[3]:
        raise Refusal(f"{what} has images as input, and kernels of height and width")
    expected = shape[0], *checks.numbers(size)[1:3], kernel[0]
    if its.output.shape != expected:
        raise Refusal(f"the output of {what} has another shape than it should")
    if min(*options.stride, *kernel) < 1:
        raise Refusal(f"{what} has no stride or kernel")
    down, across = (
        Places.of(*axis, options.padding)
        for axis in zip(shape[1:3], its.output.shape[1:3], kernel[1:3], options.stride, strict=True)
    )
    channels = blocks(kernel[0], config.block_out) * config.block_out
    products = _products(its, down, across, channels).settled(its, settings.rounding)
    steps = convolution.epilogue(its, products, options.activation, settings.rounding)
    around = Margin(*down.around, *across.around)
    convolved = Conv2d(
        shape[0],
        shape[3],
        down.extent + around.top + around.bottom,
        across.extent + around.left + around.right,
        len(products.weights),
        (down.taps, across.taps),
    )
    convolution.check_size(convolved, steps, settings, what)
    if not layouts.alike(MemoryId.OUT, layouts.alu_memory(config), config):
        raise Refusal("the VTA's ALU cannot load what the VTA stores")
    results = Layout(Sizes(shape[0], convolved.out_height, convolved.out_width, len(products.bias)))

    def emit(builder: Builder, image: Surface, target: Surface) -> None:
        made = results.surface(builder.allocate(results.bytes(config)), config)
        packed = layouts.pack_ohwi(products.weights, config)
        convolution.emit(builder, convolved, steps, packed, image.grown(*around), made)
        _move(builder, made, target, down, across)

    margin = Margin(*(max(places, 0) for places in around))
    image = Layout.image(shape, margin)
    return Lowering.fixed(
        (None, None, image, *[None] * len(bias)),
        (Layout.image(its.output.shape),),
        Compute.of_one(emit, multiplies=True),
    )


def _products(its: Operands, down: Places, across: Places, channels: int) -> Products:
    """The products of the convolution, whose outputs are `channels` for each pair of remainders.
    Raises Refusal, QuantizationError."""
    outputs, height, width, inputs = its.weights.shape
    scales = convolution.scales_of(its.weights, outputs, 0)
    one = Products.of(its, its.values, convolution.multipliers(its, scales))
    whole = np.zeros(
        (channels, down.taps * down.stride, across.taps * across.stride, inputs), np.int8
    )
    whole[:outputs, :height, :width] = its.values
    # Tap `stride * j + remainder` is that of the input `j` before the last.
    taps = whole.reshape(channels, down.taps, down.stride, across.taps, across.stride, inputs)
    weights: Array = taps[:, ::-1, :, ::-1].transpose(2, 4, 0, 1, 3, 5)
    remainders = down.stride * across.stride
    weights = weights.reshape(remainders * channels, down.taps, across.taps, inputs)
    # What follows the outputs in their last block is nothing; the first one's numbers will do.
    order = [at if at < outputs else 0 for at in range(channels)] * remainders
    return Products(weights, one.bias[order], [one.multipliers[at] for at in order])


def _move(builder: Builder, made: Surface, target: Surface, down: Places, across: Places) -> None:
    """Put the results of each pair of remainders into the output."""
    pairs = itertools.product(range(down.stride), range(across.stride))
    for number, (below, right) in enumerate(pairs):
        row, y, rows = down.moved(below)
        column, x, columns = across.moved(right)
        if not rows or not columns:
            continue
        source = replace(made, first=made.place(0, number * target.blocks, row, column))
        place = replace(target, first=target.place(0, 0, y, x))
        axes = (
            MovedAxis(target.groups, made.group, target.group),
            MovedAxis(target.blocks, made.plane, target.plane),
            MovedAxis(rows, made.row, down.stride * target.row),
            MovedAxis(columns, 1, across.stride),
        )
        move(builder.runtime, source, place, axes)
