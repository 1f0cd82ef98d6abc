"""Operators that take values out of a tensor or give them other places: STRIDED_SLICE, SPLIT,
SPLIT_V, DEPTH_TO_SPACE, SPACE_TO_DEPTH, EXPAND_DIMS and SQUEEZE.

Sources: `tflite/kernels/strided_slice.cc`, `split.cc`, `split_v.cc`, `depth_to_space.cc`,
`space_to_depth.cc`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from potash_firmware.tflite.capi import Array, BuiltinOperator, Node, Tensor
from potash_firmware.tflite.lowering import Arrange, Builder, Compute, Lowering, Refusal, Settings
from potash_firmware.tflite.operators import checks, moves
from potash_firmware.tflite.packing import Layout
from potash_firmware.vta_runtime.schedules import MovedAxis, Surface, move


def lower_rank(node: Node, settings: Settings) -> Lowering:
    """EXPAND_DIMS and SQUEEZE: the output is the input. Raises Refusal."""
    (source,), output = checks.tensors(node, (1, 2), "a change of the rank", 1)
    checks.same_scale(source, output)
    if source.size != output.size:
        raise Refusal("the output has another size than its input")
    for tensor in node.inputs[1:]:
        checks.numbers(tensor)
    return moves.same_surface(output)


class _Taken(NamedTuple):
    """The part of an axis in a slice."""

    first: int
    step: int
    length: int


def lower_strided_slice(node: Node, settings: Settings) -> Lowering:
    """STRIDED_SLICE: moves where the channels are whole blocks. Raises Refusal."""
    what = "a slice"
    (source,), output = checks.tensors(node, (4,), what, 1)
    checks.same_scale(source, output)
    options = checks.options(node, what)
    if options.ellipsis_mask or options.new_axis_mask or options.offset:
        raise Refusal("the slice has an ellipsis, new axes or offsets")
    numbers = [checks.numbers(tensor) for tensor in node.inputs[1:]]
    rank = len(source.shape)
    if any(len(its) != rank for its in numbers):
        raise Refusal("the slice has other numbers than one for each axis")
    taken = []
    for axis, (begin, end, step) in enumerate(zip(*numbers, strict=True)):
        bit, extent = 1 << axis, source.shape[axis]
        if step < 1:
            raise Refusal("the slice goes backwards")
        if options.shrink_axis_mask & bit:
            first = begin + extent if begin < 0 else begin
            span = range(first, first + 1)
        else:
            bounds = (
                None if options.begin_mask & bit else begin,
                None if options.end_mask & bit else end,
            )
            span = range(*slice(*bounds, step).indices(extent))
        taken.append(_Taken(span.start, step, len(span)))
    fits = all(
        one.length and 0 <= one.first < n for one, n in zip(taken, source.shape, strict=True)
    )
    if not fits or math.prod(one.length for one in taken) != output.size:
        raise Refusal("the slice's output has another shape than it should")
    sliced = tuple(
        slice(one.first, one.first + (one.length - 1) * one.step + 1, one.step) for one in taken
    )
    inner = Layout.image([one.length for one in taken])
    return _moved(
        node,
        settings,
        Layout.image(source.shape),
        inner,
        lambda values: values[sliced].reshape(output.shape),
        _sliced(source, taken, settings),
    )


Axes: TypeAlias = Callable[[Surface, Surface], tuple[int, Sequence[MovedAxis]]]
"""The first element of a move in the source, and the move."""


def _sliced(source: Tensor, taken: Sequence[_Taken], settings: Settings) -> Axes | None:
    """The move of a slice; None where values change places within elements."""
    config = settings.config
    one = _Taken(0, 1, 1)
    match list(taken):
        case [images, channels]:
            down = across = one
        case [down, across, channels]:
            images = one
        case [images, down, across, channels]:
            pass
        case _:
            return None
    block = config.block_out
    if channels.step != 1 or channels.first % block:
        return None
    if channels.length % block and channels.first + channels.length != source.shape[-1]:
        return None
    if config.batch > 1 and images != _Taken(0, 1, Layout.image(source.shape).sizes.images):
        return None

    def axes(its: Surface, other: Surface) -> tuple[int, Sequence[MovedAxis]]:
        first = its.place(images.first, channels.first // block, down.first, across.first)
        return first, (
            MovedAxis(other.groups, its.group * images.step, other.group),
            MovedAxis(other.blocks, its.plane, other.plane),
            MovedAxis(other.height, its.row * down.step, other.row),
            MovedAxis(other.width, across.step, 1),
        )

    return axes


def lower_split(node: Node, settings: Settings) -> Lowering:
    """SPLIT and SPLIT_V: moves where the channels of the pieces are whole blocks. Raises
    Refusal."""
    what = "a split"
    if len(node.inputs) != (2 if node.operator == BuiltinOperator.SPLIT else 3):
        raise Refusal(f"{what} has other inputs than it should")
    at, along = (1, 0) if node.operator == BuiltinOperator.SPLIT else (0, 2)
    outputs = []
    for output in node.outputs:
        part = replace(node, inputs=(node.inputs[at],), outputs=(output,))
        (source,), made = checks.tensors(part, (1,), what)
        checks.same_scale(source, made)
        outputs.append(made)
    rank, numbers = len(source.shape), checks.numbers(node.inputs[along])
    if len(numbers) != 1 or not -rank <= numbers[0] < rank:
        raise Refusal("the split is along no axis of its input")
    axis, first, moving = numbers[0] % rank, 0, []
    for output in outputs:
        shape = list(source.shape)
        shape[axis] = output.shape[axis] if len(output.shape) == rank else 0
        if tuple(shape) != output.shape:
            raise Refusal("the split's pieces have other shapes than they should")
        taken = [_Taken(0, 1, extent) for extent in shape]
        taken[axis] = _Taken(first, 1, shape[axis])
        first += shape[axis]
        found = _sliced(source, taken, settings)
        if found is None:
            raise Refusal("the split's pieces are no whole blocks of channels")
        moving.append(found)
    if first != source.shape[axis]:
        raise Refusal("the split's pieces are not the whole of its input")

    def emit(builder: Builder, whole: Surface, *targets: Surface) -> None:
        for target, axes in zip(targets, moving, strict=True):
            begin, its = axes(whole, target)
            move(builder.runtime, replace(whole, first=begin), target, its)

    inputs = [None, None, None][: len(node.inputs)]
    layouts = [Layout.image(output.shape) for output in outputs]
    placed = [*inputs[:at], Layout.image(source.shape), *inputs[at + 1 :]]
    return Lowering.fixed(placed, layouts, Compute.of_one(emit))


def lower_blocks(node: Node, settings: Settings) -> Lowering:
    """DEPTH_TO_SPACE and SPACE_TO_DEPTH: moves where the channels of a pixel of the larger image
    are whole blocks. Raises Refusal."""
    what = "a move between depth and space"
    (source,), output = checks.tensors(node, (1,), what)
    checks.same_scale(source, output)
    size = checks.options(node, what).block_size
    deep, wide = source.shape, output.shape
    to_depth = node.operator == BuiltinOperator.SPACE_TO_DEPTH
    if to_depth:
        deep, wide = wide, deep
    if (
        len(deep) != 4
        or size < 1
        or wide != (deep[0], deep[1] * size, deep[2] * size, deep[3] // size**2)
    ):
        raise Refusal("the output has another shape than it should")
    images, height, width, channels = wide

    def arrange(values: Array) -> Array:
        if to_depth:
            tiles = values.reshape(images, height // size, size, width // size, size, channels)
            return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(deep)
        tiles = values.reshape(images, height // size, width // size, size, size, channels)
        return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(wide)

    def axes(one: Surface, other: Surface) -> tuple[int, Sequence[MovedAxis]]:
        many, few = (other, one) if to_depth else (one, other)
        parts = few.blocks
        found = [
            (few.groups, many.group, few.group),
            (size, size * parts * many.plane, few.row),
            (size, parts * many.plane, 1),
            (parts, many.plane, few.plane),
            (many.height, many.row, size * few.row),
            (many.width, 1, size),
        ]
        if to_depth:
            found = [(extent, its, others) for extent, others, its in found]
        return one.first, [MovedAxis(*axis) for axis in found]

    aligned = channels % settings.config.block_out == 0
    return _moved(
        node,
        settings,
        Layout.image(source.shape),
        Layout.image(output.shape),
        arrange,
        axes if aligned else None,
    )


def _moved(
    node: Node,
    settings: Settings,
    before: Layout,
    after: Layout,
    arrange: Callable[[Array], Array],
    axes: Axes | None,
) -> Lowering:
    """A move on the accelerator, or else an arrangement by the host."""
    inputs = (before, *[None] * (len(node.inputs) - 1))
    if axes is None:
        return Lowering.fixed(inputs, (after,), Arrange(arrange))
    found = axes

    def emit(builder: Builder, source: Surface, target: Surface) -> None:
        first, moving = found(source, target)
        move(builder.runtime, replace(source, first=first), target, moving)

    return Lowering.fixed(inputs, (after,), Compute.of_one(emit))
