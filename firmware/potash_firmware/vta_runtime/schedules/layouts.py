"""Packing: between arrays as in numpy and arrays as the core reads them.

The core moves elements, which are small matrices. An image becomes
`[images / BATCH][channels / BLOCK][height][width][BATCH][BLOCK]`, weights
`[out / BLOCK_OUT][in / BLOCK_IN][height][width][BLOCK_OUT][BLOCK_IN]`; what a block lacks is zero.
An output has an image's layout, so that it can be the next operation's input where BLOCK_IN and
BLOCK_OUT agree.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", section 3.2 (data layout).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_firmware.vta_runtime.schedules.shapes import blocks

Array = NDArray[Any]


def pack_nchw(images: Array, config: Config) -> Array:
    """Images [N][C][H][W] as the core's input [N'][C'][H][W][BATCH][BLOCK_IN]."""
    return _pack(images, config.batch, config.block_in, value_type(config, MemoryId.INP))


def pack_like_output(images: Array, config: Config, memory: MemoryId = MemoryId.OUT) -> Array:
    """Images [N][C][H][W] in the layout of the core's output, [N'][C'][H][W][BATCH][BLOCK_OUT],
    with the values' width in `memory`: OUT, ACC or ACC_8BIT."""
    return _pack(images, config.batch, config.block_out, value_type(config, memory))


def pack_oihw(weights: Array, config: Config) -> Array:
    """Weights [O][I][H][W] as [O'][I'][H][W][BLOCK_OUT][BLOCK_IN]."""
    return _pack(weights, config.block_out, config.block_in, value_type(config, MemoryId.WGT))


def pack_ohwi(weights: Array, config: Config) -> Array:
    """Weights [O][H][W][I] as [O'][I'][H][W][BLOCK_OUT][BLOCK_IN]."""
    return pack_oihw(weights.transpose(0, 3, 1, 2), config)


def pack_channels(values: Array, config: Config) -> Array:
    """A number for each output channel, [O], as accumulators [O'][BATCH][BLOCK_OUT]."""
    whole = np.zeros(blocks(len(values), config.block_out) * config.block_out, np.int32)
    whole[: len(values)] = values
    rows = whole.reshape(-1, 1, config.block_out)
    return np.ascontiguousarray(np.broadcast_to(rows, (len(rows), config.batch, rows.shape[2])))


def alu_memory(config: Config) -> MemoryId:
    """Memory type as which the ALU loads an output: ACC if it has 32 bits, else ACC_8BIT, whose
    elements are those of an output only if it has 8 bits."""
    return MemoryId.ACC if config.value_bits(MemoryId.OUT) == 32 else MemoryId.ACC_8BIT


def alike(one: MemoryId, other: MemoryId, config: Config) -> bool:
    """True if elements of both are the same bytes in DRAM."""
    return config.element_shape(one) == config.element_shape(other) and config.value_bits(
        one
    ) == config.value_bits(other)


def value_type(config: Config, memory: MemoryId) -> np.dtype[Any]:
    """The type in numpy of an element's values."""
    return np.dtype(f"<i{config.value_bits(memory) // 8}")


def _pack(values: Array, first: int, second: int, kind: np.dtype[Any]) -> Array:
    """[A][B][H][W] as [A / first][B / second][H][W][first][second]."""
    outer, inner, height, width = values.shape
    whole = np.zeros(
        (blocks(outer, first) * first, blocks(inner, second) * second, height, width), kind
    )
    whole[:outer, :inner] = values
    cut = whole.reshape(-1, first, blocks(inner, second), second, height, width)
    return np.ascontiguousarray(cut.transpose(0, 2, 4, 5, 1, 3))
