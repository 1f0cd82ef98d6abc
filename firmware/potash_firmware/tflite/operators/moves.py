"""Operators that move int8 values without computing: CONCATENATION, PACK, RESHAPE and TRANSPOSE.

Where whole elements move the accelerator moves them, and where nothing does the output is the
input's surface, or a part of it. What permutes values within elements is packing.

Sources: `tflite/kernels/concatenation.cc`, `pack.cc`, `reshape.cc`, `transpose.cc`.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Activation, Allocation, Array, Node, Tensor
from potash_firmware.tflite.lowering import (
    Alias,
    Arrange,
    Builder,
    Compute,
    Layouts,
    Lowering,
    Placement,
    Refusal,
    Settings,
)
from potash_firmware.tflite.operators import checks
from potash_firmware.tflite.packing import NO_MARGIN, Layout
from potash_firmware.vta_runtime.schedules import MovedAxis, Surface, between, move


def lower_concatenation(node: Node, settings: Settings) -> Lowering:
    """CONCATENATION: moves where the pieces begin with an element. Raises Refusal."""
    what = "a concatenation"
    counts = range(1, len(node.inputs) + 1)
    sources, output = checks.tensors(node, counts, what)
    options = checks.options(node, what)
    if options.activation != Activation.NONE:
        raise Refusal("the concatenation has a fused activation")
    return _joined(sources, sources, output, options.axis, np.concatenate, settings)


def lower_pack(node: Node, settings: Settings) -> Lowering:
    """PACK: a concatenation of tensors with another axis, of one. Raises Refusal."""
    what = "a packing"
    sources, output = checks.tensors(node, range(1, len(node.inputs) + 1), what)
    axis, rank = checks.options(node, what).axis, len(output.shape)
    at = axis % rank if rank else 0
    parts = [replace(one, shape=(*one.shape[:at], 1, *one.shape[at:])) for one in sources]
    return _joined(sources, parts, output, axis, np.stack, settings)


def _joined(
    tensors: Sequence[Tensor],
    sources: Sequence[Tensor],
    output: Tensor,
    along: int,
    join: Callable[[Sequence[Array], int], Array],
    settings: Settings,
) -> Lowering:
    """A concatenation of `sources`, which is what `join` does with the `tensors`. Raises
    Refusal."""
    rank = len(output.shape)
    if not -rank <= along < rank:
        raise Refusal("the concatenation is along no axis of its output")
    axis = along % rank
    if any(len(source.shape) != rank for source in sources):
        raise Refusal("the tensors of the concatenation differ in rank")
    sizes = [source.shape[axis] for source in sources]
    if output.shape[axis] != sum(sizes) or any(
        (*source.shape[:axis], output.shape[axis], *source.shape[axis + 1 :]) != output.shape
        for source in sources
    ):
        raise Refusal("the shapes of the concatenation do not fit together")
    for source in sources:
        checks.same_scale(source, output)
    firsts = [0, *itertools.accumulate(sizes)][:-1]
    inputs = [Layout.image(source.shape) for source in sources]
    outputs = (Layout.image(output.shape),)
    # Axes after it: none for channels, then columns, rows, images.
    inner = min(rank - 1 - axis, 3)
    if rank == 2 and inner == 1:
        inner = 3
    step = _step(inner, rank, settings.config)
    if step is None or any(first % step for first in firsts):
        arrange = Arrange(lambda *values: join(values, axis))
        return Lowering.fixed([Layout.image(one.shape) for one in tensors], outputs, arrange)

    def emit(builder: Builder, pieces: Sequence[Surface | None], wholes: Sequence[Surface]) -> None:
        for surface, first in zip(pieces, firsts, strict=True):
            assert surface is not None
            target = _part(wholes[0], inner, first // step, surface)
            move(builder.runtime, surface, target, between(surface, target))

    return Lowering.fixed(inputs, outputs, Compute(emit))


def _step(inner: int, rank: int, config: Config) -> int | None:
    """Number of places of the axis in an element; None if the images have several axes."""
    if inner > 2:
        return config.batch if rank <= 4 else None
    return config.block_out if inner == 0 else 1


def _part(whole: Surface, inner: int, first: int, size: Surface) -> Surface:
    """The part of a surface from an element of an axis on, as large as `size`."""
    group, row, column, block = (first if inner == axis else 0 for axis in (3, 2, 1, 0))
    return replace(
        whole,
        first=whole.place(group, block, row, column),
        groups=size.groups,
        blocks=size.blocks,
        height=size.height,
        width=size.width,
    )


def lower_reshape(node: Node, settings: Settings) -> Lowering:
    """RESHAPE: a tensor of any shape may have a layout of images of any sizes, so that nothing is
    done until a node wants another layout. Raises Refusal."""
    (source,), output = checks.tensors(node, (1, 2), "a reshape", 1)
    checks.same_scale(source, output)
    shape = node.inputs[1] if len(node.inputs) > 1 else None
    if shape and shape.allocation not in (Allocation.MMAP_RO, Allocation.PERSISTENT_RO):
        raise Refusal("the reshape's shape is computed while the model runs")
    if shape and shape.constant is not None and not _fits(checks.numbers(shape), output.shape):
        raise Refusal("the reshape's output has another shape than it should")
    if source.size != output.size:
        raise Refusal("the reshape's output has another size than its input")
    return same_surface(output)


def _fits(wanted: Sequence[int], shape: Sequence[int]) -> bool:
    """True if a reshape's constant is this shape; a lone 0 is an old form of a scalar's."""
    if list(wanted) == [0]:
        return not shape
    return len(wanted) == len(shape) and all(
        one in (-1, extent) for one, extent in zip(wanted, shape, strict=True)
    )


def same_surface(output: Tensor) -> Lowering:
    """The output is the first input."""

    def place(given: Layouts) -> Placement:
        first, *others = given
        # Without a layout it gets the one that the output's readers are likely to want.
        layout = first.with_margin(NO_MARGIN) if first else Layout.image(output.shape)
        work = Alias(lambda surface: surface, lambda margin: margin)
        return Placement((layout, *[None] * len(others)), (layout,), work)

    return Lowering(place)


def lower_transpose(node: Node, settings: Settings) -> Lowering:
    """TRANSPOSE: nothing where values stay in order, moves where channels stay last. Raises
    Refusal."""
    (source,), output = checks.tensors(node, (2,), "a transposition", 1)
    checks.same_scale(source, output)
    rank, batch = len(source.shape), settings.config.batch
    order = [axis + rank if axis < 0 else axis for axis in checks.numbers(node.inputs[1])]
    if sorted(order) != list(range(rank)):
        raise Refusal("the transposition has other axes than its input")
    if tuple(source.shape[axis] for axis in order) != output.shape:
        raise Refusal("the transposition's output has another shape than it should")
    moving = [axis for axis in order if source.shape[axis] > 1]
    if moving == sorted(moving):
        return same_surface(output)
    inputs, outputs = (Layout.image(source.shape), None), (Layout.image(output.shape),)
    channels = rank - 1
    # With several images in an element, their axes have to stay as well.
    kept = {channels, *(range(channels - 2) if batch > 1 else ())}
    if channels < 2 or any(order[axis] != axis for axis in kept):
        return Lowering.fixed(inputs, outputs, Arrange(lambda values: np.transpose(values, order)))

    def emit(builder: Builder, before: Surface, after: Surface) -> None:
        its, others = _strides(before, source.shape), _strides(after, output.shape)
        axes = [
            MovedAxis(extent, its[axis], stride)
            for extent, axis, stride in zip(output.shape[:-1], order, others, strict=False)
        ]
        if batch > 1:
            # Images stay where they are, by groups.
            axes = [MovedAxis(before.groups, before.group, after.group), *axes[-2:]]
        deep = MovedAxis(before.blocks, before.plane, after.plane)
        move(builder.runtime, before, after, [*axes, deep])

    return Lowering.fixed(inputs, outputs, Compute.of_one(emit))


def _strides(surface: Surface, shape: Sequence[int]) -> list[int]:
    """The distance in elements of neighbours along each axis but the channels'."""
    strides = [surface.row, 1]
    image = surface.group
    for extent in shape[-4::-1]:
        strides.insert(0, image)
        image *= extent
    return strides
