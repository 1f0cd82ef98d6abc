"""Convolutions: the stream for a tiling.

Step *k* of the whole stream uses the part of INP and WGT of virtual thread *k* modulo their number,
and tile *t* the part of ACC of thread *t* modulo it. A part is loaded again when the products of
the step before it are done, and added up into again when the tile before it is stored; those are
the tokens from COMPUTE to LOAD and from STORE to COMPUTE. A part's contents are not loaded again.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import MicroOp
from potash_firmware.vta_runtime.buffers import Buffer
from potash_firmware.vta_runtime.kernels import GemmKernel, Loop
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import pipeline, transfers
from potash_firmware.vta_runtime.schedules.elementwise import cut, tiles
from potash_firmware.vta_runtime.schedules.nests import nests, pieces
from potash_firmware.vta_runtime.schedules.shapes import Conv2d, ScheduleError
from potash_firmware.vta_runtime.schedules.steps import NOTHING, Epilogue
from potash_firmware.vta_runtime.schedules.surfaces import Extent, Surface
from potash_firmware.vta_runtime.schedules.tiles import Outer, Share, Tile, fits, row_step, window
from potash_firmware.vta_runtime.schedules.transfers import Axis


class Piece(NamedTuple):
    """A tile in the output: where it begins, and its sizes."""

    at: Extent
    size: Extent


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
    def input(self) -> Extent:
        groups, blocks = self.shape.groups(self.config), self.shape.in_blocks(self.config)
        return Extent(groups, blocks, self.shape.height, self.shape.width)

    @property
    def input_bytes(self) -> int:
        """Bytes of the packed images."""
        return self.input.elements * self.config.element_bytes(MemoryId.INP)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        taps = self.shape.kernel[0] * self.shape.kernel[1]
        blocks = self.shape.depth(self.config) * self.shape.out_blocks(self.config)
        return blocks * taps * self.config.element_bytes(MemoryId.WGT)

    @property
    def output_bytes(self) -> int:
        """Bytes of the packed output."""
        return self.output.elements * self.config.element_bytes(MemoryId.OUT)

    @property
    def output(self) -> Extent:
        groups, blocks = self.shape.groups(self.config), self.shape.out_blocks(self.config)
        return Extent(groups, blocks, self.shape.out_height, self.shape.out_width)

    def tiles(self) -> list[Piece]:
        tile = self.tile
        size = Extent(1, tile.out_blocks, tile.rows, tile.columns)
        made = [Piece(*one) for one in tiles(self.output, size)]
        if tile.outer is Outer.IMAGE:
            return sorted(made, key=lambda one: (one.at.groups, one.at.height, one.at.width))
        return sorted(made, key=lambda one: one.at.blocks)

    def parts(self) -> list[Part]:
        """The steps of every tile in their order."""
        shape, tile = self.shape, self.tile
        return [
            Part(*blocks, *rows, *columns)
            for blocks in cut(shape.depth(self.config), tile.in_blocks)
            for rows in cut(shape.kernel[0], tile.taps[0])
            for columns in cut(shape.kernel[1], tile.taps[1])
        ]

    @property
    def steps(self) -> int:
        tile, (groups, deep, height, width) = self.tile, self.output
        pixels = -(-height // tile.rows) * -(-width // tile.columns)
        return groups * -(-deep // tile.out_blocks) * pixels * len(self.parts())

    def emit(
        self,
        runtime: Runtime,
        image: Buffer | Surface,
        weights: Buffer,
        output: Buffer | Surface,
        *,
        channels: Sequence[Buffer] = (),
        pieces: int | None = None,
    ) -> None:
        """Append the convolution to the runtime's stream, or its first `pieces` tiles.

        `image`, `weights` and `output` are packed; `channels` are the epilogue's vectors, packed
        too. A buffer is taken for a dense surface. What follows in the same stream may use all of
        them. Raises ValueError where a buffer is too small or a surface has other sizes,
        VtaMemoryError.
        """
        if len(channels) != self.epilogue.vectors:
            raise ScheduleError(
                f"the epilogue has {self.epilogue.vectors} vectors, not {len(channels)}"
            )
        emission = _Emission(self, runtime, _surface(image, self.input), weights)
        stored, micro_ops = _surface(output, self.output), self.share.micro_ops
        finish = pipeline.Finish(runtime, self.epilogue, channels, micro_ops)
        threads, part, parts = self.tile.threads, self.share.acc, self.parts()
        for piece, acc in pipeline.tiles_in_acc(
            runtime, self.tiles()[:pieces], threads, part, loads=True
        ):
            runtime.push_all(emission.resets(acc, piece.size.elements))
            for step in parts:
                emission.step(piece, step, acc)
            finish.append(acc, *piece)
            pipeline.store(runtime, stored, acc, *stored.piece(*piece))

    def resets(self, acc: int, elements: int) -> tuple[GemmKernel, ...]:
        return tuple(
            GemmKernel(nest.micro_ops, nest.loops, reset=True)
            for first, rows, row in pieces(elements, self.share.micro_ops)
            for nest in nests(
                MicroOp(acc + first), (Loop(rows, row), Loop(row, 1)), self.share.micro_ops
            )
        )

    def products(
        self, acc: int, inp: int, wgt: int, size: Extent, part: tuple[int, int, int]
    ) -> tuple[GemmKernel, ...]:
        """The products of a step, for a tile of that size; `part` are input blocks and taps."""
        shape, limit = self.shape, self.share.micro_ops
        _, out_blocks, rows, columns = size
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


def _surface(given: Buffer | Surface, extent: Extent) -> Surface:
    """An argument as a surface of these sizes, flattened where the shape was."""
    if isinstance(given, Surface) and extent == (*given.extent[:2], 1, given.plane):
        given = given.flattened()
    return Surface.of(given, extent)


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
        runtime.dep_pop(pipeline.COMPUTE, pipeline.LOAD)
        inp, wgt = thread * plan.share.inp, thread * plan.share.wgt
        blocks = piece.at.blocks, piece.size.blocks
        image = [(one.groups, one.height, one.width) for one in piece]
        if self._is_new("image", thread, (image, plan.shape.depthwise and blocks, part)):
            self._load_image(piece, part, inp)
        if self._is_new("weights", thread, (blocks, part)):
            self._load_weights(piece, part, wgt)
        runtime.dep_push(pipeline.LOAD, pipeline.COMPUTE)
        runtime.dep_pop(pipeline.LOAD, pipeline.COMPUTE)
        sizes = part.in_blocks, part.tap_rows, part.tap_columns
        runtime.push_all(self._products(acc, inp, wgt, piece.size, sizes))
        runtime.dep_push(pipeline.COMPUTE, pipeline.LOAD)

    def _is_new(self, what: str, place: int, wanted: object) -> bool:
        """True if a part of a buffer has held other contents; from now on it holds these."""
        held, self._held[what, place] = self._held.get((what, place)), wanted
        return held != wanted

    def _load_image(self, piece: Piece, part: Part, sram: int) -> None:
        shape, (at, size) = self._plan.shape, piece
        height, width = window(shape, size.height, size.width, (part.tap_rows, part.tap_columns))
        step = row_step(shape, size.height, part.tap_rows)
        top = at.height * shape.stride[0] + part.tap_row * shape.dilation[0] - shape.padding[0]
        left = at.width * shape.stride[1] + part.tap_column * shape.dilation[1] - shape.padding[2]
        rows = transfers.span(top, step, height, shape.height)
        columns = transfers.span(left, 1, width, shape.width)
        image = self._image
        block = shape.first_block(self._plan.config, at.blocks) + part.in_block
        blocks = part.in_blocks * (size.blocks if shape.depthwise else 1)
        offset = image.place(at.groups, block, rows.start, 0)
        if not rows.padded and not columns.padded:
            axes = (Axis(blocks, image.plane), Axis(height, step * image.row), Axis(width, 1))
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
        offset = piece.at.blocks * deep + part.in_block * taps
        offset += part.tap_row * shape.kernel[1] + part.tap_column
        axes = (
            Axis(piece.size.blocks, deep),
            Axis(part.in_blocks, taps),
            Axis(part.tap_rows, shape.kernel[1]),
            Axis(part.tap_columns, 1),
        )
        transfers.load(self._runtime, self._weights, MemoryId.WGT, sram, offset, axes)
