"""Tilings: a convolution in pieces that fit into a core's buffers.

A *tile* is what is in ACC at a time: some rows and columns of the output for some blocks of output
channels. A *step* is what is added to it at a time: some blocks of input channels and some taps of
the kernel, whose inputs and weights are in INP and WGT. With two virtual threads every buffer has
two halves, used alternately: while the core computes with one it loads into the other.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", sections 2.3 and 3.3 (virtual
threading).
"""

import math
from dataclasses import dataclass
from enum import Enum

from potash_device.vta.config import Config, MemoryId
from potash_firmware.vta_runtime.schedules.shapes import Conv2d
from potash_firmware.vta_runtime.schedules.steps import Epilogue
from potash_firmware.vta_runtime.schedules.transfers import MOST

THREADS = (1, 2)
"""Possible numbers of virtual threads."""


class Outer(Enum):
    """The outer loop: what stays loaded longer, a piece of the weights or of the image."""

    WEIGHTS = "weights"
    IMAGE = "image"


@dataclass(frozen=True)
class Tile:
    """Sizes of a tile and of a step, in output rows and columns, blocks of channels, and taps."""

    rows: int
    columns: int
    out_blocks: int
    in_blocks: int
    taps: tuple[int, int]
    threads: int = 2
    outer: Outer = Outer.WEIGHTS


def row_step(shape: Conv2d, rows: int, taps: int) -> int:
    """The stride of the image's rows that a window of that many output rows and taps needs: those
    between them are not loaded."""
    steps = (shape.stride[0] if rows > 1 else 0, shape.dilation[0] if taps > 1 else 0)
    return math.gcd(*steps) or 1


def window(shape: Conv2d, rows: int, columns: int, taps: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the image that are loaded for a piece of the output."""
    step = row_step(shape, rows, taps[0])
    down = (rows - 1) * shape.stride[0] + (taps[0] - 1) * shape.dilation[0]
    across = (columns - 1) * shape.stride[1] + (taps[1] - 1) * shape.dilation[1]
    return down // step + 1, across + 1


def input_blocks(shape: Conv2d, tile: Tile) -> int:
    """Blocks of input channels that a step loads."""
    return tile.in_blocks * (tile.out_blocks if shape.depthwise else 1)


@dataclass(frozen=True)
class Share:
    """A virtual thread's share of each buffer, in elements, and the longest kernel, in
    micro-ops."""

    inp: int
    wgt: int
    acc: int
    micro_ops: int

    @classmethod
    def of(cls, config: Config, threads: int, epilogue: Epilogue) -> "Share":
        """The share of each of `threads`; a kernel takes at most a sixteenth of the micro-op
        buffer, which so holds those of two threads and of smaller tiles at the borders."""
        inp, wgt, acc = (
            min(config.depth(memory), MOST) for memory in (MemoryId.INP, MemoryId.WGT, MemoryId.ACC)
        )
        if epilogue.planes > 1 or epilogue.vectors or epilogue.tensors:
            # A micro-op names an ALU operation's source in as many bits as a place in INP.
            acc = min(acc, inp)
        micro_ops = max(1, config.depth(MemoryId.UOP) // 16)
        return cls(inp // threads, wgt // threads, acc // threads, micro_ops)


def fits(shape: Conv2d, tile: Tile, epilogue: Epilogue, config: Config) -> bool:
    """True if a thread's part of each buffer holds what a tile and a step need."""
    share = Share.of(config, tile.threads, epilogue)
    rows, columns = window(shape, tile.rows, tile.columns, tile.taps)
    elements = tile.rows * tile.columns * epilogue.planes + epilogue.vectors
    if tile.out_blocks > 1 and shape.is_single(config):
        return False
    return (
        rows * columns * input_blocks(shape, tile) <= share.inp
        and tile.in_blocks * tile.out_blocks * tile.taps[0] * tile.taps[1] <= share.wgt
        and elements * tile.out_blocks <= share.acc
    )
