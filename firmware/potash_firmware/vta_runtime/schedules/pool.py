"""Windows that slide over images: the largest, the smallest or the sum of each window's values.

The part of the image under a tile's windows is loaded into ACC. Each element of a window, a *tap*,
is one ALU operation on all outputs of the tile, whose source advances by the stride; where the taps
of some outputs are outside the image, it is on the others only. Large windows are reduced along the
rows first, which serves all windows that contain the row. A tile of one output is folded, one half
of its window onto the other, until one value is left: the window may be larger than ACC.

As in `elementwise`, LOAD has no part in it.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potash_device.vta.config import Config
from potash_device.vta.isa import AluOpcode, MicroOp
from potash_firmware.vta_runtime.buffers import Buffer
from potash_firmware.vta_runtime.kernels import AluKernel, Loop
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import layouts, transfers
from potash_firmware.vta_runtime.schedules.elementwise import cut, largest_extent, tiles
from potash_firmware.vta_runtime.schedules.nests import nests
from potash_firmware.vta_runtime.schedules.pipeline import Finish, store, tiles_in_acc
from potash_firmware.vta_runtime.schedules.shapes import ScheduleError, blocks
from potash_firmware.vta_runtime.schedules.steps import Epilogue, Step
from potash_firmware.vta_runtime.schedules.surfaces import Extent, Surface
from potash_firmware.vta_runtime.schedules.tiles import THREADS, Share

NEUTRAL = {AluOpcode.MAX: -128, AluOpcode.MIN: 127, AluOpcode.ADD: 0}
"""The operations, and which value of 8 bits changes no result of theirs."""


class Sweep(NamedTuple):
    """Windows along one axis of an image of `length` pixels: so many `windows`, of `size` taps. The
    first one begins `before` pixels before the image, or inside it where that is negative."""

    length: int
    windows: int
    size: int = 1
    stride: int = 1
    before: int = 0

    @property
    def taps(self) -> range:
        """The taps that are in the image for some window."""
        earliest = self.before - (self.windows - 1) * self.stride
        return range(max(0, earliest), min(self.size, self.length + self.before))

    def seen(self, first: int, count: int, taps: range) -> range:
        """The pixels of the image under these taps of `count` windows from `first` on."""
        start = first * self.stride - self.before
        end = start + (count - 1) * self.stride + taps.stop
        return range(max(0, start + taps.start), min(self.length, end))

    def within(self, first: int, count: int, places: range) -> "Sweep":
        """`count` windows from `first` on, on those pixels of the image."""
        before = self.before - first * self.stride + places.start
        return Sweep(len(places), count, self.size, self.stride, before)

    def outputs(self, tap: int) -> range:
        """The windows that have this tap in the image."""
        its = transfers.span(tap - self.before, self.stride, self.windows, self.length)
        return range(its.before, its.before + its.inside)

    def place(self, window: int, tap: int) -> int:
        """The pixel of the image under a tap of a window."""
        return window * self.stride - self.before + tap


class Pool2d(NamedTuple):
    """Windows on images of `groups` x `blocks` planes of elements."""

    groups: int
    blocks: int
    down: Sweep
    across: Sweep

    @property
    def image(self) -> Extent:
        return Extent(self.groups, self.blocks, self.down.length, self.across.length)

    @property
    def extent(self) -> Extent:
        return Extent(self.groups, self.blocks, self.down.windows, self.across.windows)

    @property
    def taps(self) -> tuple[int, int]:
        """Numbers of taps, down and across."""
        return len(self.down.taps), len(self.across.taps)

    @property
    def separate(self) -> bool:
        """True if rows are reduced first. As that takes memory, it has to save a third of the
        work."""
        height, width = self.taps
        return 3 * (self.down.stride * (width + 1) + height + 1) <= 2 * height * width

    def window(self, piece: Extent, taps: tuple[int, int]) -> Extent:
        """The largest part of the image under so many taps of a piece of the output."""
        rows = (piece.height - 1) * self.down.stride + taps[0]
        columns = (piece.width - 1) * self.across.stride + taps[1]
        return piece._replace(
            height=min(rows, self.down.length), width=min(columns, self.across.length)
        )


class Grid(NamedTuple):
    """Elements of ACC: the first, and the strides of blocks, rows and columns."""

    first: int
    block: int = 0
    row: int = 0
    column: int = 0

    @classmethod
    def dense(cls, first: int, extent: Extent) -> "Grid":
        return cls(first, extent.height * extent.width, extent.width, 1)

    def place(self, row: int, column: int) -> int:
        return self.first + row * self.row + column * self.column


@dataclass(frozen=True)
class Pooling:
    """`opcode` on all values of a window, then the epilogue's steps. `piece` of the output is a
    tile; `taps` are how many, down and across, are done at a time, all unless it is of one output.

    Raises ScheduleError for a pooling that does not exist, or where a tile does not fit.
    """

    shape: Pool2d
    config: Config
    opcode: AluOpcode
    epilogue: Epilogue
    piece: Extent
    taps: tuple[int, int]
    threads: int = 2

    def __post_init__(self) -> None:
        down, across = self.shape.down, self.shape.across
        if min(*self.shape.image, *down[:4], *across[:4]) < 1 or self.opcode not in NEUTRAL:
            raise ScheduleError(f"there is no pooling {self.shape} with {self.opcode!r}")
        if not _fits(self.shape, self.config, self.epilogue, self.piece, self.taps, self.threads):
            raise ScheduleError(f"{self.piece} of a pooling does not fit into the accumulators")
        if not self.folded and self.taps != self.shape.taps:
            raise ScheduleError("only a tile of one output is done a few taps at a time")

    @property
    def folded(self) -> bool:
        """True if tiles are of one output."""
        return self.piece.height * self.piece.width == 1

    def emit(
        self, runtime: Runtime, image: Surface, output: Surface, *, channels: Sequence[Buffer] = ()
    ) -> None:
        """Append the operation to the runtime's stream; what follows in it may use the output.

        `channels` are the epilogue's vectors, an element for each block. Raises ValueError where a
        surface or a vector has other sizes, VtaMemoryError.
        """
        Surface.of(image, self.shape.image)
        Surface.of(output, self.shape.extent)
        if len(channels) != self.epilogue.vectors:
            raise ScheduleError(f"the pooling has {self.epilogue.vectors} vectors")
        share = _share(self.config, self.epilogue, self.threads)
        finish = Finish(runtime, self.epilogue, channels, share.micro_ops)
        cut = tiles(self.shape.extent, self.piece)
        for (at, size), acc in tiles_in_acc(runtime, cut, self.threads, share.acc):
            self._reduce(runtime, image, at, size, acc, share.micro_ops)
            finish.append(acc, at, size)
            store(runtime, output, acc, *output.piece(at, size))

    def _reduce(
        self, runtime: Runtime, image: Surface, at: Extent, size: Extent, acc: int, limit: int
    ) -> None:
        """Append what computes a tile's outputs at `acc`."""
        first = acc + self.epilogue.planes * size.elements + self.epilogue.vectors * size.blocks
        target, begun = Grid.dense(acc, size), False
        memory = layouts.alu_memory(runtime.config)
        for taps in itertools.product(
            _cut_taps(self.shape.down.taps, self.taps[0]),
            _cut_taps(self.shape.across.taps, self.taps[1]),
        ):
            rows = self.shape.down.seen(at.height, size.height, taps[0])
            columns = self.shape.across.seen(at.width, size.width, taps[1])
            if not rows or not columns:
                continue
            window = size._replace(height=len(rows), width=len(columns))
            begin = at._replace(height=rows.start, width=columns.start)
            piece = image.piece(begin, window)
            transfers.load(runtime, image.buffer, memory, first, *piece)
            source = Grid.dense(first, window)
            if self.folded:
                kernels = _fold(self.opcode, target, source, window, limit, begun)
            else:
                down = self.shape.down.within(at.height, size.height, rows)
                across = self.shape.across.within(at.width, size.width, columns)
                kernels = self._gather(target, source, window, down, across, limit)
            for kernel in kernels:
                runtime.push_alu(kernel)
            begun = True

    def _gather(
        self, target: Grid, source: Grid, window: Extent, down: Sweep, across: Sweep, limit: int
    ) -> Iterator[AluKernel]:
        """The taps of windows in `window`."""
        count = window.blocks
        if not self.shape.separate:
            yield from _taps(self.opcode, target, source, count, down, across, limit)
            return
        reduced = window._replace(width=across.windows)
        between = Grid.dense(source.first + window.elements, reduced)
        rows, columns = (Sweep(length, length) for length in (window.height, across.windows))
        yield from _taps(self.opcode, between, source, count, rows, across, limit)
        yield from _taps(self.opcode, target, between, count, down, columns, limit)


def pool2d(shape: Pool2d, config: Config, opcode: AluOpcode, steps: Sequence[Step] = ()) -> Pooling:
    """`opcode` (MAX, MIN or ADD) on what each window sees, and `steps` on the results.

    There are two virtual threads where there is work for both, and the largest tiles that fit.
    Raises ScheduleError where none does.
    """
    epilogue = Epilogue(tuple(steps))
    for number in THREADS[::-1]:
        found = largest_piece(shape, config, epilogue, number)
        if found is not None and shape.extent.elements >= number:
            return Pooling(shape, config, opcode, epilogue, *found, number)
    raise ScheduleError("the accumulators have no room for a pooling")


def largest_piece(
    shape: Pool2d, config: Config, epilogue: Epilogue, threads: int
) -> tuple[Extent, tuple[int, int]] | None:
    """The largest tile that fits, and the taps that are done at a time. None where not even one
    tap of one output fits."""
    taps = shape.taps

    def fits(piece: Extent) -> bool:
        return _fits(shape, config, epilogue, piece, taps, threads)

    one = Extent(1, 1, 1, 1)
    while not fits(one):
        if taps == (1, 1):
            return None
        # Whole rows of a window, if one fits.
        down, across = taps
        taps = (blocks(down, 2), across) if down > 1 else (1, blocks(across, 2))
    if taps != shape.taps:
        return one, taps
    return largest_extent(shape.extent, fits, threads), taps


def _share(config: Config, epilogue: Epilogue, threads: int) -> Share:
    # What ALU operations have as source besides the epilogue's planes is a tensor that was loaded.
    return Share.of(config, threads, Epilogue(epilogue.steps, (layouts.alu_memory(config),)))


def _fits(
    shape: Pool2d,
    config: Config,
    epilogue: Epilogue,
    piece: Extent,
    taps: tuple[int, int],
    threads: int,
) -> bool:
    if min(piece) < 1 or min(taps) < 1 or piece.groups > 1 or epilogue.tensors:
        return False
    window = shape.window(piece, taps)
    need = epilogue.planes * piece.elements + epilogue.vectors * piece.blocks + window.elements
    if shape.separate and piece.height * piece.width > 1:
        need += window._replace(width=piece.width).elements
    return need <= _share(config, epilogue, threads).acc


def _cut_taps(taps: range, size: int) -> list[range]:
    return [taps[first : first + count] for first, count in cut(len(taps), size)]


def _taps(
    opcode: AluOpcode,
    target: Grid,
    source: Grid,
    count: int,
    down: Sweep,
    across: Sweep,
    limit: int,
) -> Iterator[AluKernel]:
    """`opcode` on each tap of `count` blocks of windows, one after the other."""
    whole = Extent(1, count, down.windows, across.windows)
    partial = []
    for row, column in itertools.product(down.taps, across.taps):
        rows, columns = down.outputs(row), across.outputs(column)
        if not rows or not columns:
            continue
        first = down.place(rows.start, row), across.place(columns.start, column)
        partial.append(
            (
                Extent(1, count, len(rows), len(columns)),
                target._replace(first=target.place(rows.start, columns.start)),
                Grid(
                    source.place(*first),
                    source.block,
                    source.row * down.stride,
                    source.column * across.stride,
                ),
            )
        )
    everywhere = next((one for one in partial if one[0] == whole), None)
    if everywhere is not None:
        partial.remove(everywhere)
        yield from _copy(target, everywhere[2], whole, limit)
    else:
        yield from _apply(AluOpcode.MUL, target, 0, whole, limit)
        yield from _apply(AluOpcode.ADD, target, NEUTRAL[opcode], whole, limit)
    for extent, outputs, places in partial:
        yield from _apply(opcode, outputs, places, extent, limit)


def _fold(
    opcode: AluOpcode, target: Grid, source: Grid, window: Extent, limit: int, begun: bool
) -> Iterator[AluKernel]:
    """`opcode` on all pixels of each block, and on what the target has once it is `begun`."""
    count = window.height * window.width
    while count > 1:
        half = blocks(count, 2)
        kept = Grid(source.first, source.block, 0, 1)
        other = kept._replace(first=source.first + half)
        yield from _apply(opcode, kept, other, Extent(1, window.blocks, 1, count - half), limit)
        count = half
    one = Extent(1, window.blocks, 1, 1)
    if begun:
        yield from _apply(opcode, target, source, one, limit)
    else:
        yield from _copy(target, source, one, limit)


def _copy(target: Grid, source: Grid, extent: Extent, limit: int) -> Iterator[AluKernel]:
    yield from _apply(AluOpcode.MUL, target, 0, extent, limit)
    yield from _apply(AluOpcode.ADD, target, source, extent, limit)


def _apply(
    opcode: AluOpcode, target: Grid, source: Grid | int, extent: Extent, limit: int
) -> tuple[AluKernel, ...]:
    """`target = opcode(target, source)` on so many blocks, rows and columns."""
    its = source if isinstance(source, Grid) else Grid(0)
    loops = (
        Loop(extent.blocks, target.block, its.block),
        Loop(extent.height, target.row, its.row),
        Loop(extent.width, target.column, its.column),
    )
    immediate = source if isinstance(source, int) else None
    return tuple(
        AluKernel(opcode, nest.micro_ops, nest.loops, immediate)
        for nest in nests(MicroOp(target.first, its.first), loops, limit)
    )
