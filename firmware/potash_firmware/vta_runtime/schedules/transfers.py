"""Pieces of arrays between DRAM and the chip, in as few instructions as the encoding needs.

An instruction moves rows with one stride in DRAM, which are contiguous on the chip, and counts in
16 bits; a LOAD pads them with at most 15 zeroes on each side.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from potash_device.vta.config import MemoryId
from potash_firmware.vta_runtime.buffers import Buffer
from potash_firmware.vta_runtime.runtime import Runtime

MOST = (1 << 16) - 1
"""Maximum of a size or a stride."""
MOST_PAD = (1 << 4) - 1


class Axis(NamedTuple):
    """`extent` elements, rows or planes in DRAM, with a stride of that many elements."""

    extent: int
    stride: int


class Rectangle(NamedTuple):
    """The data that one instruction moves; addresses are relative to the piece's first element."""

    sram: int
    dram: int
    y_size: int
    x_size: int
    x_stride: int

    def at(self, sram: int, offset: int) -> dict[str, Any]:
        """The arguments of `load_2d` or `store_2d` for a piece that begins there."""
        stride = min(self.x_stride, MOST)
        sizes = {"x_size": self.x_size, "y_size": self.y_size, "x_stride": stride}
        return {"sram": sram + self.sram, "offset": offset + self.dram, **sizes}


class Span(NamedTuple):
    """Positions on an axis: some before the image, some in it from `start` on, some after it."""

    before: int
    start: int
    inside: int
    after: int

    @property
    def padded(self) -> bool:
        """True if there are positions outside the image."""
        return self.inside < self.total

    @property
    def total(self) -> int:
        return self.before + self.inside + self.after


def span(first: int, step: int, count: int, limit: int) -> Span:
    """`count` positions from `first` on, with a stride of `step`, on an axis from 0 to `limit`."""
    before = min(count, max(0, -(first // step)))
    start = first + before * step
    there = max(0, min(count - before, -((start - limit) // step)))
    return Span(before, start, there, count - before - there)


def merged_axes(axes: Iterable[Axis]) -> list[Axis]:
    """Axes of the same elements, as few as possible."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        if merged and merged[-1].stride == axis.extent * axis.stride:
            merged[-1] = Axis(merged[-1].extent * axis.extent, axis.stride)
        else:
            merged.append(axis)
    return merged


def rectangles(axes: Sequence[Axis]) -> Iterator[Rectangle]:
    """A piece of an array, outer axis first, in rectangles."""
    merged = merged_axes(axes)
    if not merged or merged[-1].stride != 1:
        merged.append(Axis(1, 1))
    width = merged.pop().extent
    rows = merged.pop() if merged and merged[-1].stride <= MOST else Axis(1, width)
    for number, indices in enumerate(itertools.product(*(range(axis.extent) for axis in merged))):
        place = sum(count * axis.stride for count, axis in zip(indices, merged, strict=True))
        yield Rectangle(number * rows.extent * width, place, rows.extent, width, rows.stride)


def load(
    runtime: Runtime, buffer: Buffer, memory: MemoryId, sram: int, offset: int, axes: Sequence[Axis]
) -> None:
    """Load a piece of an array that begins at element `offset` of `buffer`."""
    for one in rectangles(axes):
        runtime.load_2d(buffer, memory, **one.at(sram, offset))


def store(runtime: Runtime, buffer: Buffer, sram: int, offset: int, axes: Sequence[Axis]) -> None:
    """Store a piece of an array that begins at element `offset` of `buffer`."""
    for one in rectangles(axes):
        runtime.store_2d(buffer, **one.at(sram, offset))


def load_padded(
    runtime: Runtime,
    buffer: Buffer,
    memory: MemoryId,
    sram: int,
    offset: int,
    pitch: int,
    rows: Span,
    columns: Span,
) -> None:
    """Load a window of an image that may exceed it; the image begins at element `offset`, and the
    window's rows have the stride `pitch`."""
    first = offset + columns.start
    pads = (rows.before, rows.after, columns.before, columns.after)
    if rows.inside and columns.inside and max(pads) <= MOST_PAD and pitch <= MOST:
        runtime.load_2d(
            buffer,
            memory,
            sram=sram,
            offset=first,
            x_size=columns.inside,
            y_size=rows.inside,
            x_stride=pitch,
            x_pad=(columns.before, columns.after),
            y_pad=(rows.before, rows.after),
        )
        return
    zeroes(runtime, buffer, memory, sram, rows.total * columns.total)
    if columns.inside:
        for row in range(rows.inside):
            runtime.load_2d(
                buffer,
                memory,
                sram=sram + (rows.before + row) * columns.total + columns.before,
                offset=first + row * pitch,
                x_size=columns.inside,
            )


def zeroes(runtime: Runtime, buffer: Buffer, memory: MemoryId, sram: int, count: int) -> None:
    """Zero `count` elements on the chip: padding around no row at all."""
    runtime.load_2d(buffer, memory, sram=sram, offset=0, x_size=count, y_size=0, y_pad=(1, 0))
