"""Elements that change places: from one surface to another, loaded in one order, stored in another.

The core stores what the ALU has computed, so that each element is added to nothing on its way. What
is in an element stays as it is; only a host can take it apart.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from potash_device.vta.config import MemoryId
from potash_device.vta.isa import AluOpcode
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import steps, transfers
from potash_firmware.vta_runtime.schedules.pipeline import store, tiles_in_acc
from potash_firmware.vta_runtime.schedules.steps import NOTHING, Step
from potash_firmware.vta_runtime.schedules.surfaces import Surface
from potash_firmware.vta_runtime.schedules.tiles import Room
from potash_firmware.vta_runtime.schedules.transfers import Axis


class Way(NamedTuple):
    """An axis of what is moved: how many, and how many elements apart they lie before and after."""

    extent: int
    source: int
    target: int


def joined(source: Sequence[Axis], target: Sequence[Axis]) -> list[Way] | None:
    """The same elements, told by axes of their places before and after, outer ones first, as one
    list of axes. None where an axis of the one ends within an axis of the other."""
    one, other = list(_merged(source)), list(_merged(target))
    ways = []
    while one and other:
        (count, stride), (its_count, its_stride) = one.pop(), other.pop()
        inner = min(count, its_count)
        if count % inner or its_count % inner:
            return None
        ways.append(Way(inner, stride, its_stride))
        if count > inner:
            one.append(Axis(count // inner, stride * inner))
        if its_count > inner:
            other.append(Axis(its_count // inner, its_stride * inner))
    return ways[::-1]


def between(source: Surface, target: Surface) -> list[Way]:
    """All elements of a surface to those of one of the same sizes."""
    axes = source.axes(source.blocks, source.height, source.width)
    others = target.axes(target.blocks, target.height, target.width)
    return [
        Way(source.groups, source.group, target.group),
        *(
            Way(one.extent, one.stride, other.stride)
            for one, other in zip(axes, others, strict=True)
        ),
    ]


def move(runtime: Runtime, source: Surface, target: Surface, ways: Iterable[Way]) -> None:
    """Append a move from the beginning of one surface to that of another to the runtime's stream;
    what follows in it may use the target.

    Raises ValueError where a buffer is too small, VtaMemoryError.
    """
    threads = min(2, runtime.config.depth(MemoryId.ACC))
    room = Room.of(runtime.config, threads, NOTHING)
    nothing = (Step(AluOpcode.ADD, 0),)
    pieces = _pieces(_best(ways), room.acc)
    for (begin, end, piece), acc in tiles_in_acc(runtime, pieces, threads, room.acc):
        axes = [Axis(way.extent, way.source) for way in piece]
        transfers.load(runtime, source.buffer, MemoryId.ACC_8BIT, acc, source.first + begin, axes)
        count = math.prod(way.extent for way in piece)
        for kernel in steps.kernels(nothing, acc, acc, 1, count, room.micro_ops):
            runtime.push_alu(kernel)
        axes = [Axis(way.extent, way.target) for way in piece]
        store(runtime, target, acc, target.first + end, axes)


def _merged(axes: Iterable[Axis]) -> Iterator[Axis]:
    """The same places with as few axes as there can be."""
    last = Axis(1, 0)
    for axis in axes:
        if axis.extent == 1:
            continue
        if last.stride == axis.extent * axis.stride:
            last = Axis(last.extent * axis.extent, axis.stride)
        else:
            if last.extent > 1:
                yield last
            last = axis
    if last.extent > 1:
        yield last


def _best(ways: Iterable[Way]) -> list[Way]:
    """In the order of the places before or of those after: in which there are fewer instructions."""
    all_ways = list(ways)
    by_source = sorted(all_ways, key=lambda way: -way.source)
    by_target = sorted(all_ways, key=lambda way: -way.target)

    def instructions(order: list[Way]) -> int:
        loads = transfers.rectangles([Axis(way.extent, way.source) for way in order])
        stores = transfers.rectangles([Axis(way.extent, way.target) for way in order])
        return sum(1 for _ in itertools.chain(loads, stores))

    return min(by_source, by_target, key=instructions)


def _pieces(ways: Sequence[Way], room: int) -> Iterator[tuple[int, int, list[Way]]]:
    """The move in pieces of at most `room` elements: where each begins, before and after, and the
    axes of it."""
    if not ways:
        yield 0, 0, []
        return
    (extent, source, target), *inner = ways
    size = room // math.prod(way.extent for way in inner)
    if size == 0:
        for first in range(extent):
            for begin, end, piece in _pieces(inner, room):
                yield first * source + begin, first * target + end, piece
        return
    for first in range(0, extent, size):
        count = min(size, extent - first)
        yield first * source, first * target, [Way(count, source, target), *inner]
