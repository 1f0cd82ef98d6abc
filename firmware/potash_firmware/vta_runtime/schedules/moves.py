"""Moves of elements from one surface to another, loaded in one order and stored in another; and
surfaces that are filled with a number.

The core stores what the ALU has computed, so 0 is added to each element in between. The values in
an element keep their order; only a host can permute those.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from potash_device.vta.config import MemoryId
from potash_device.vta.isa import AluOpcode
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import layouts, steps, transfers
from potash_firmware.vta_runtime.schedules.pipeline import store, tiles_in_acc
from potash_firmware.vta_runtime.schedules.steps import NOTHING, Step
from potash_firmware.vta_runtime.schedules.surfaces import Surface
from potash_firmware.vta_runtime.schedules.tiles import Share
from potash_firmware.vta_runtime.schedules.transfers import Axis


class MovedAxis(NamedTuple):
    """An axis of a move: its extent, and its strides in elements in the source and the target."""

    extent: int
    source: int
    target: int


def common_axes(source: Sequence[Axis], target: Sequence[Axis]) -> list[MovedAxis] | None:
    """Axes of the same elements in two surfaces, outer ones first, as axes of a move. None where an
    axis of the one ends within an axis of the other."""
    one, other = transfers.merged_axes(source), transfers.merged_axes(target)
    axes = []
    while one and other:
        (count, stride), (its_count, its_stride) = one.pop(), other.pop()
        inner = min(count, its_count)
        if count % inner or its_count % inner:
            return None
        axes.append(MovedAxis(inner, stride, its_stride))
        if count > inner:
            one.append(Axis(count // inner, stride * inner))
        if its_count > inner:
            other.append(Axis(its_count // inner, its_stride * inner))
    return axes[::-1]


def between(source: Surface, target: Surface) -> list[MovedAxis]:
    """The move of all elements of a surface to one of the same sizes."""
    axes = source.axes(source.blocks, source.height, source.width)
    others = target.axes(target.blocks, target.height, target.width)
    return [
        MovedAxis(source.groups, source.group, target.group),
        *(
            MovedAxis(one.extent, one.stride, other.stride)
            for one, other in zip(axes, others, strict=True)
        ),
    ]


def move(runtime: Runtime, source: Surface, target: Surface, axes: Iterable[MovedAxis]) -> None:
    """Append a move from the beginning of one surface to that of another to the runtime's stream;
    what follows in it may use the target.

    Raises ValueError where a buffer is too small, VtaMemoryError.
    """
    threads = min(2, runtime.config.depth(MemoryId.ACC))
    share = Share.of(runtime.config, threads, NOTHING)
    nothing, memory = (Step(AluOpcode.ADD, 0),), layouts.alu_memory(runtime.config)
    pieces = _pieces(_best(axes), share.acc)
    for (begin, end, piece), acc in tiles_in_acc(runtime, pieces, threads, share.acc):
        source_axes = [Axis(axis.extent, axis.source) for axis in piece]
        transfers.load(runtime, source.buffer, memory, acc, source.first + begin, source_axes)
        count = math.prod(axis.extent for axis in piece)
        for kernel in steps.kernels(nothing, acc, acc, 1, count, share.micro_ops):
            runtime.push_alu(kernel)
        target_axes = [Axis(axis.extent, axis.target) for axis in piece]
        store(runtime, target, acc, target.first + end, target_axes)


def fill(runtime: Runtime, pieces: Iterable[Surface], value: int) -> None:
    """Append stores of a number of 8 bits to all values of some surfaces of one buffer; what
    follows in the stream may use them. Raises ValueError where a buffer is too small,
    VtaMemoryError."""
    threads = min(2, runtime.config.depth(MemoryId.ACC))
    share = Share.of(runtime.config, threads, NOTHING)
    # Whatever a value was.
    constant = (Step(AluOpcode.MIN, value), Step(AluOpcode.MAX, value))
    cut = [
        (surface, begin, piece)
        for surface in pieces
        for begin, _, piece in _pieces(between(surface, surface), share.acc)
    ]
    for (surface, begin, piece), acc in tiles_in_acc(runtime, cut, threads, share.acc):
        count = math.prod(axis.extent for axis in piece)
        for kernel in steps.kernels(constant, acc, acc, 1, count, share.micro_ops):
            runtime.push_alu(kernel)
        axes = [Axis(axis.extent, axis.target) for axis in piece]
        store(runtime, surface, acc, surface.first + begin, axes)


def _best(axes: Iterable[MovedAxis]) -> list[MovedAxis]:
    """The axes in the order of the source or of the target, whichever takes fewer instructions."""
    every = list(axes)
    by_source = sorted(every, key=lambda axis: -axis.source)
    by_target = sorted(every, key=lambda axis: -axis.target)

    def instructions(order: list[MovedAxis]) -> int:
        loads = transfers.rectangles([Axis(axis.extent, axis.source) for axis in order])
        stores = transfers.rectangles([Axis(axis.extent, axis.target) for axis in order])
        return sum(1 for _ in itertools.chain(loads, stores))

    return min(by_source, by_target, key=instructions)


def _pieces(axes: Sequence[MovedAxis], limit: int) -> Iterator[tuple[int, int, list[MovedAxis]]]:
    """The move in pieces of at most `limit` elements: the first element of each in the source and
    in the target, and its axes."""
    if not axes:
        yield 0, 0, []
        return
    (extent, source, target), *inner = axes
    size = limit // math.prod(axis.extent for axis in inner)
    if size == 0:
        for first in range(extent):
            for begin, end, piece in _pieces(inner, limit):
                yield first * source + begin, first * target + end, piece
        return
    for first in range(0, extent, size):
        count = min(size, extent - first)
        yield first * source, first * target, [MovedAxis(count, source, target), *inner]
