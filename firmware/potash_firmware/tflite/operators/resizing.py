"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR of int8 images.

The reference kernels' positions have 10 bits of fraction, so that the products of two weights have
20, and a sum of four values stays below 2^28: the ALU computes it without rounding, and rounds once
at the end, halves away from zero. Rows and columns are cut into runs with equal weights at equal
distances; doubling an image takes at most four runs of rows and four of columns. The image's
borders are runs of their own, so that nothing is padded.

Sources: `tflite/kernels/resize_bilinear.cc`, `resize_nearest_neighbor.cc`, and
`internal/reference/resize_bilinear.h` (ResizeBilinearInteger), `resize_nearest_neighbor.h`.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from potash_device.vta.config import Config
from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.capi import BuiltinOperator, Node, Options
from potash_firmware.tflite.lowering import Builder, Compute, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.operators.pooling import MOST_PARTS
from potash_firmware.tflite.packing import Layout
from potash_firmware.vta_runtime import Buffer
from potash_firmware.vta_runtime.schedules import (
    Elementwise,
    Extent,
    Plane,
    Step,
    Surface,
    elementwise,
    layouts,
    transfers,
)
from potash_firmware.vta_runtime.schedules.transfers import Axis

FRACTION_BITS = 10
_ONE = 1 << FRACTION_BITS
_MOST_PERIOD = 32
"""Runs at larger distances are not searched for."""
_SIGN_SHIFT = 31
_MOST_HALF = 15
"""The largest number of fraction bits for which one half is an immediate."""


class Mix(NamedTuple):
    """Rows or columns of the input, and their weights, whose sum is 2^shift."""

    sources: tuple[int, ...]
    weights: tuple[int, ...] = (1,)
    shift: int = 0


class Progression(NamedTuple):
    """Rows or columns of the output with the same weights: `length` of them from `first` on,
    `stride` apart. `mix` is that of the first; the sources of each further one are `step` later."""

    first: int
    stride: int
    length: int
    mix: Mix
    step: int

    def source(self, first: int) -> "Progression":
        """The rows or columns of the input from `first` on."""
        return self._replace(first=first, stride=self.step)


class Part(NamedTuple):
    """The output at some rows and columns, and the steps from its inputs, one for each weight."""

    down: Progression
    across: Progression
    steps: tuple[Step, ...]

    def emit(self, builder: Builder, image: Surface, target: Surface, config: Config) -> None:
        """Append it for one group of images."""
        sources = [
            _axes(image, self.down.source(y), self.across.source(x))
            for y, x in itertools.product(self.down.mix.sources, self.across.mix.sources)
        ]
        result = _axes(target, self.down, self.across)

        def instructions(order: Sequence[int]) -> int:
            """About how many, with as many tiles as the outer axis is long."""
            loads, stores = (
                sum(1 for _ in transfers.rectangles([axes[axis] for axis in order]))
                for _, axes in (sources[0], result)
            )
            return len(self.steps) * result[1][order[0]].extent + len(sources) * loads + stores

        order = min(itertools.permutations(range(3)), key=instructions)
        tensors = [_surface(image.buffer, *source, order) for source in sources]
        output = _surface(target.buffer, *result, order)
        _schedule(output.extent, self, config).emit(builder.runtime, tensors, output)


def lower(node: Node, settings: Settings) -> Lowering:
    """RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR. Raises Refusal, ScheduleError."""
    what, config = "a resizing", settings.config
    (source,), output = checks.tensors(node, (2,), what, 1)
    options = checks.options(node, what)
    if len(source.shape) != 4:
        raise Refusal("a resizing has images as input")
    images, height, width, channels = source.shape
    size = checks.numbers(node.inputs[1])
    if len(size) != 2 or output.shape != (images, *size, channels):
        raise Refusal("the resizing's output has another shape than it should")
    mixes = _bilinear if node.operator == BuiltinOperator.RESIZE_BILINEAR else _nearest
    down = runs(mixes(height, size[0], options))
    across = runs(mixes(width, size[1], options))
    if len(down) * len(across) > MOST_PARTS:
        raise Refusal("the resizing has too many different weights")
    parts = []
    for rows, columns in itertools.product(down, across):
        parts.append(Part(rows, columns, tuple(_steps(rows.mix, columns.mix).steps)))
        _schedule(Extent(1, 1, 1, 1), parts[-1], config)

    def emit(builder: Builder, image: Surface, target: Surface) -> None:
        for part, group in itertools.product(parts, range(target.groups)):
            its = [replace(one, first=one.place(group, 0, 0, 0)) for one in (image, target)]
            part.emit(builder, its[0], its[1], config)

    layouts = Layout.image(source.shape), Layout.image(output.shape)
    return Lowering.fixed((layouts[0], None), layouts[1:], Compute.of_one(emit))


def runs(mixes: Sequence[Mix]) -> list[Progression]:
    """Rows or columns of an output as few runs; more than MOST_PARTS are cut off there."""
    best = list(itertools.islice(_runs(mixes, 1), MOST_PARTS + 1))
    for period in range(2, min(len(mixes), _MOST_PERIOD) + 1):
        # Each place of a period begins a run.
        if len(best) <= period:
            break
        found = itertools.islice(_runs(mixes, period), MOST_PARTS + 1)
        best = min(best, list(found), key=len)
    return best


def _runs(mixes: Sequence[Mix], period: int) -> Iterator[Progression]:
    for begin in range(period):
        run = Progression(begin, period, 1, mixes[begin], 1)
        for place in range(begin + period, len(mixes), period):
            mix = mixes[place]
            step = mix.sources[0] - mixes[place - period].sources[0]
            same = mix.weights == run.mix.weights and step > 0
            if same and (run.length == 1 or step == run.step):
                run = run._replace(length=run.length + 1, step=step)
            else:
                yield run
                run = Progression(place, period, 1, mix, 1)
        yield run


def _bilinear(before: int, after: int, options: Options) -> list[Mix]:
    """The mix of each row or column. Raises Refusal."""
    scale = (_ONE * before + after // 2) // after
    if options.align_corners and after > 1:
        scale = (_ONE * (before - 1) + (after - 1) // 2) // (after - 1)
    offset = scale // 2 - _ONE // 2 if options.half_pixel_centers else 0
    return [_mix(place * scale + offset, before) for place in range(after)]


def _mix(position: int, extent: int) -> Mix:
    """The two neighbours of a position, or the one whose weight is everything."""
    low = max(position, 0) // _ONE
    fraction = position - low * _ONE
    if low >= extent:
        raise Refusal("the resizing's rounded scale leads beyond its input")
    if position < 0 or fraction == 0 or low == extent - 1:
        return Mix((low,))
    common = math.gcd(fraction, _ONE)
    weights = (_ONE - fraction) // common, fraction // common
    return Mix((low, low + 1), weights, (_ONE // common).bit_length() - 1)


def _nearest(before: int, after: int, options: Options) -> list[Mix]:
    """The row or column of the input for each; in single precision, as in the kernel."""
    scale = np.float32(before) / np.float32(after)
    if options.align_corners and after > 1:
        scale = np.float32(before - 1) / np.float32(after - 1)
    places = np.arange(after, dtype=np.float32)
    places = (places + np.float32(0.5 if options.half_pixel_centers else 0)) * scale
    # No place is negative, so that halves away from zero are halves up.
    places = np.floor(places + np.float32(0.5 if options.align_corners else 0))
    return [Mix((int(place),)) for place in np.clip(places, 0, before - 1)]


def _schedule(extent: Extent, part: Part, config: Config) -> Elementwise:
    """Raises ScheduleError."""
    taps = len(part.down.mix.weights) * len(part.across.mix.weights)
    return elementwise(extent, config, (layouts.alu_memory(config),) * taps, part.steps)


def _axes(
    surface: Surface, rows: Progression, columns: Progression
) -> tuple[int, tuple[Axis, Axis, Axis]]:
    """The first element of some rows and columns, and the axes of blocks, rows and columns."""
    return surface.place(0, 0, rows.first, columns.first), (
        Axis(surface.blocks, surface.plane),
        Axis(rows.length, rows.stride * surface.row),
        Axis(columns.length, columns.stride),
    )


def _surface(buffer: Buffer, first: int, axes: Sequence[Axis], order: Sequence[int]) -> Surface:
    """Axes of any strides as a surface with rows of one element, as those of a row are adjacent."""
    (groups, group), (planes, plane), (height, row) = (axes[axis] for axis in order)
    return Surface(buffer, groups, planes, height, 1, row, plane, group, first)


def _steps(down: Mix, across: Mix) -> Steps:
    """The weighted sum of planes, those of a row one after another, into the tile; rounded."""
    steps, columns = Steps(), len(across.weights)
    planes = [Plane(number) for number in range(len(down.weights) * columns)]
    for first in range(0, len(planes), columns):
        _add_weighted(steps, planes[first : first + columns], across.weights)
    _add_weighted(steps, planes[::columns], down.weights)
    shift, sign = down.shift + across.shift, Plane(len(planes))
    if not shift:
        # What is stored has to be computed.
        steps.add(AluOpcode.ADD, 0)
        return steps
    # Halves of negative sums are rounded down: -1 for them.
    steps.copy(planes[0], sign)
    steps.add(AluOpcode.SHR, _SIGN_SHIFT, sign)
    steps.add(AluOpcode.ADD, sign)
    if shift > _MOST_HALF:
        steps.add(AluOpcode.SHR, shift - _MOST_HALF)
        shift = _MOST_HALF
    steps.add(AluOpcode.ADD, 1 << (shift - 1))
    steps.add(AluOpcode.SHR, shift)
    return steps


def _add_weighted(steps: Steps, planes: Sequence[Plane], weights: Sequence[int]) -> None:
    """The sum of the planes, each times its weight, into the first."""
    for plane, weight in zip(planes, weights, strict=True):
        if weight != 1:
            steps.add(AluOpcode.MUL, weight, plane)
    for plane in planes[1:]:
        steps.add(AluOpcode.ADD, plane, planes[0])
