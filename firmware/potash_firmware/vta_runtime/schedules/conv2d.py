"""Convolutions: the stream for a tiling.

Step *k* of the whole stream uses the part of INP and WGT of virtual thread *k* modulo their number,
and tile *t* the part of ACC of thread *t* modulo it. A part is loaded again when the products of
the step before it are done, and added up into again when the tile before it is stored; those are
the tokens from COMPUTE to LOAD and from STORE to COMPUTE. A part's contents are not loaded again.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import MicroOp
from potash_firmware.vta_runtime.buffers import Buffer
from potash_firmware.vta_runtime.kernels import GemmKernel, Loop
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import transfers
from potash_firmware.vta_runtime.schedules.nests import nests, pieces
from potash_firmware.vta_runtime.schedules.pipeline import (
    COMPUTE,
    LOAD,
    Finish,
    store,
    tiles_in_acc,
)
from potash_firmware.vta_runtime.schedules.shapes import Conv2d, ScheduleError
from potash_firmware.vta_runtime.schedules.steps import NOTHING, Epilogue
from potash_firmware.vta_runtime.schedules.surfaces import Surface
from potash_firmware.vta_runtime.schedules.tiles import Outer, Share, Tile, fits, row_step, window
from potash_firmware.vta_runtime.schedules.transfers import Axis


class Piece(NamedTuple):
    """A tile in the output: its first row, column and block, and its sizes."""

    group: int
    row: int
    rows: int
    column: int
    columns: int
    out_block: int
    out_blocks: int


class Part(NamedTuple):
    """A step of a tile: its first input block and taps, and its sizes."""

    in_block: int
    in_blocks: int
    tap_row: int
    tap_rows: int
    tap_column: int
    tap_columns: int


@dataclass(frozen=True)
class Convolution:
    """A convolution with its tiling on a core. Raises ScheduleError where that does not fit."""

    shape: Conv2d
    config: Config
    tile: Tile
    epilogue: Epilogue = NOTHING

    def __post_init__(self) -> None:
        if not fits(self.shape, self.tile, self.epilogue, self.config):
            raise ScheduleError(f"{self.tile} does not fit into the core's buffers")

    @functools.cached_property
    def share(self) -> Share:
        """The share of the buffers of a virtual thread."""
        return Share.of(self.config, self.tile.threads, self.epilogue)

    @property
    def input_bytes(self) -> int:
        """Bytes of the packed images."""
        pixels = self.shape.height * self.shape.width
        elements = self.shape.groups(self.config) * self.shape.in_blocks(self.config) * pixels
        return elements * self.config.element_bytes(MemoryId.INP)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        taps = self.shape.kernel[0] * self.shape.kernel[1]
        blocks = self.shape.depth(self.config) * self.shape.out_blocks(self.config)
        return blocks * taps * self.config.element_bytes(MemoryId.WGT)

    @property
    def output_elements(self) -> int:
        """Elements of the packed output."""
        pixels = self.shape.out_height * self.shape.out_width
        return self.shape.groups(self.config) * self.shape.out_blocks(self.config) * pixels

    @property
    def output_bytes(self) -> int:
        """Bytes of the packed output."""
        return self.output_elements * self.config.element_bytes(MemoryId.OUT)

    def tiles(self) -> Iterator[Piece]:
        """The tiles in their order."""
        shape, tile = self.shape, self.tile
        image = list(
            itertools.product(
                range(shape.groups(self.config)),
                _cut(shape.out_height, tile.rows),
                _cut(shape.out_width, tile.columns),
            )
        )
        weights = list(_cut(shape.out_blocks(self.config), tile.out_blocks))
        pairs: Iterator[tuple[tuple[int, tuple[int, int], tuple[int, int]], tuple[int, int]]]
        if tile.outer is Outer.IMAGE:
            pairs = itertools.product(image, weights)
        else:
            pairs = ((place, blocks) for blocks in weights for place in image)
        for (group, rows, columns), blocks in pairs:
            yield Piece(group, *rows, *columns, *blocks)

    def parts(self) -> list[Part]:
        """The steps of every tile in their order."""
        shape, tile = self.shape, self.tile
        return [
            Part(*blocks, *rows, *columns)
            for blocks in _cut(shape.depth(self.config), tile.in_blocks)
            for rows in _cut(shape.kernel[0], tile.taps[0])
            for columns in _cut(shape.kernel[1], tile.taps[1])
        ]

    def emit(
        self,
        runtime: Runtime,
        image: Buffer | Surface,
        weights: Buffer,
        output: Buffer | Surface,
        *,
        channels: Sequence[Buffer] = (),
        tensors: Sequence[Buffer | Surface] = (),
    ) -> None:
        """Append the convolution to the runtime's stream.

        `image`, `weights` and `output` are packed; `channels` are the epilogue's vectors, packed
        too, and `tensors` its tensors, which are as large as the output. A buffer is taken for a
        dense surface. What follows in the same stream may use all of them. Raises ValueError where
        a buffer is too small or a surface has other sizes, VtaMemoryError.
        """
        if (len(channels), len(tensors)) != (self.epilogue.vectors, len(self.epilogue.tensors)):
            raise ScheduleError(
                f"the epilogue has {self.epilogue.vectors} vectors and "
                f"{len(self.epilogue.tensors)} tensors, not {len(channels)} and {len(tensors)}"
            )
        seen = self._surface(image, self.shape.in_blocks, self.shape.height, self.shape.width)
        stored, *added = (
            self._surface(one, self.shape.out_blocks, self.shape.out_height, self.shape.out_width)
            for one in (output, *tensors)
        )
        emission = _Emission(self, runtime, seen, weights)
        finish = Finish(
            runtime, self.epilogue, self.epilogue.planes, channels, self.share.micro_ops
        )
        kinds = self.epilogue.tensors
        threads, part = self.tile.threads, self.share.acc
        for piece, acc in tiles_in_acc(runtime, self.tiles(), threads, part, loads=True):
            plane = piece.out_blocks * piece.rows * piece.columns
            for kernel in emission.resets(acc, plane):
                runtime.push_gemm(kernel)
            for step in self.parts():
                emission.step(piece, step, acc)
            for index, (memory, tensor) in enumerate(zip(kinds, added, strict=True), start=1):
                first, axes = _place(tensor, piece)
                transfers.load(runtime, tensor.buffer, memory, acc + index * plane, first, axes)
            pixels = piece.rows * piece.columns
            finish.append(acc, 0, piece.out_block, piece.out_blocks, pixels)
            store(runtime, stored, acc, *_place(stored, piece))

    def resets(self, acc: int, elements: int) -> tuple[GemmKernel, ...]:
        """Zero the accumulators of a tile."""
        return tuple(
            GemmKernel(nest.micro_ops, nest.loops, reset=True)
            for first, rows, row in pieces(elements, self.share.micro_ops)
            for nest in nests(
                MicroOp(acc + first), (Loop(rows, row), Loop(row, 1)), self.share.micro_ops
            )
        )

    def products(
        self,
        acc: int,
        inp: int,
        wgt: int,
        sizes: tuple[int, int, int],
        part: tuple[int, int, int],
    ) -> tuple[GemmKernel, ...]:
        """The products of a step; `sizes` are output blocks, rows and columns, `part` input
        blocks and taps."""
        shape, limit = self.shape, self.share.micro_ops
        out_blocks, rows, columns = sizes
        in_blocks, tap_rows, tap_columns = part
        taps = tap_rows * tap_columns
        height, width = window(shape, rows, columns, (tap_rows, tap_columns))
        step = row_step(shape, rows, tap_rows)
        down, across = shape.stride
        made = []
        for first, count, row in pieces(columns, limit):
            loops = (
                Loop(
                    out_blocks,
                    dst=rows * columns,
                    src=height * width if shape.depthwise else 0,
                    wgt=in_blocks * taps,
                ),
                Loop(rows, dst=columns, src=down // step * width),
                Loop(count, dst=row, src=row * across),
                Loop(in_blocks, src=height * width, wgt=taps),
                Loop(tap_rows, src=shape.dilation[0] // step * width, wgt=tap_columns),
                Loop(tap_columns, src=shape.dilation[1], wgt=1),
                Loop(row, dst=1, src=across),
            )
            start = MicroOp(acc + first, inp + first * across, wgt)
            made += [GemmKernel(nest.micro_ops, nest.loops) for nest in nests(start, loops, limit)]
        return tuple(made)

    def _surface(
        self,
        given: Buffer | Surface,
        blocks: Callable[[Config], int],
        height: int,
        width: int,
    ) -> Surface:
        """An argument as a surface of the right sizes."""
        sizes = (self.shape.groups(self.config), blocks(self.config), height, width)
        if not isinstance(given, Surface):
            return Surface.dense(given, *sizes)
        if (given.groups, given.blocks) == sizes[:2] and (height, width) == (1, given.plane):
            # The shape was flattened.
            given = given.flattened()
        if (given.groups, given.blocks, given.height, given.width) != sizes:
            raise ScheduleError(f"the convolution has a surface of {sizes}, not {given}")
        return given


class _Emission:
    """The buffers' contents while a convolution's stream is generated."""

    def __init__(
        self, plan: Convolution, runtime: Runtime, image: Surface, weights: Buffer
    ) -> None:
        self._plan = plan
        self._runtime = runtime
        self._image = image
        self._weights = weights
        self._steps = 0
        # The same few kernels occur again and again.
        self.resets = functools.cache(plan.resets)
        self._products = functools.cache(plan.products)
        self._held: dict[tuple[str, int], object] = {}

    def step(self, piece: Piece, part: Part, acc: int) -> None:
        """Load what a step needs, and multiply."""
        plan, runtime = self._plan, self._runtime
        thread = self._steps % plan.tile.threads
        self._steps += 1
        runtime.dep_pop(COMPUTE, LOAD)
        inp, wgt = thread * plan.share.inp, thread * plan.share.wgt
        blocks = piece[5:] if plan.shape.depthwise else ()
        if self._is_new("image", thread, (piece[:5], blocks, part)):
            self._load_image(piece, part, inp)
        if self._is_new("weights", thread, (piece[5:], part)):
            self._load_weights(piece, part, wgt)
        runtime.dep_push(LOAD, COMPUTE)
        runtime.dep_pop(LOAD, COMPUTE)
        for kernel in self._products(
            acc,
            inp,
            wgt,
            (piece.out_blocks, piece.rows, piece.columns),
            (part.in_blocks, part.tap_rows, part.tap_columns),
        ):
            runtime.push_gemm(kernel)
        runtime.dep_push(COMPUTE, LOAD)

    def _is_new(self, what: str, place: int, wanted: object) -> bool:
        """Whether a part of a buffer holds other contents so far; then it gets these."""
        held, self._held[what, place] = self._held.get((what, place)), wanted
        return held != wanted

    def _load_image(self, piece: Piece, part: Part, sram: int) -> None:
        shape = self._plan.shape
        height, width = window(shape, piece.rows, piece.columns, (part.tap_rows, part.tap_columns))
        step = row_step(shape, piece.rows, part.tap_rows)
        top = piece.row * shape.stride[0] + part.tap_row * shape.dilation[0] - shape.padding[0]
        left = (
            piece.column * shape.stride[1] + part.tap_column * shape.dilation[1] - shape.padding[2]
        )
        rows = transfers.span(top, step, height, shape.height)
        columns = transfers.span(left, 1, width, shape.width)
        image = self._image
        block, blocks = part.in_block, part.in_blocks
        if shape.depthwise:
            block, blocks = piece.out_block // shape.multiplier, piece.out_blocks
        offset = image.place(piece.group, block, rows.start, 0)
        if not rows.padded and not columns.padded:
            axes = (
                Axis(blocks, image.plane),
                Axis(height, step * image.row),
                Axis(width, 1),
            )
            offset += columns.start
            transfers.load(self._runtime, image.buffer, MemoryId.INP, sram, offset, axes)
            return
        for number in range(blocks):
            transfers.load_padded(
                self._runtime,
                image.buffer,
                MemoryId.INP,
                sram + number * height * width,
                offset + number * image.plane,
                step * image.row,
                rows,
                columns,
            )

    def _load_weights(self, piece: Piece, part: Part, sram: int) -> None:
        shape, config = self._plan.shape, self._plan.config
        taps = shape.kernel[0] * shape.kernel[1]
        deep = shape.depth(config) * taps
        offset = (
            piece.out_block * deep
            + part.in_block * taps
            + part.tap_row * shape.kernel[1]
            + part.tap_column
        )
        axes = (
            Axis(piece.out_blocks, deep),
            Axis(part.in_blocks, taps),
            Axis(part.tap_rows, shape.kernel[1]),
            Axis(part.tap_columns, 1),
        )
        transfers.load(self._runtime, self._weights, MemoryId.WGT, sram, offset, axes)


def _place(surface: Surface, piece: Piece) -> tuple[int, tuple[Axis, ...]]:
    """The first element and the axes of a tile in the output, or in a surface of that layout."""
    first = surface.place(piece.group, piece.out_block, piece.row, piece.column)
    return first, surface.axes(piece.out_blocks, piece.rows, piece.columns)


def _cut(total: int, size: int) -> list[tuple[int, int]]:
    """Pieces of `size` and what is left, as (first, count)."""
    return [(first, min(size, total - first)) for first in range(0, total, size)]
