"""Lab 2, solved: of all tilings that fit, the one that loads the least from DRAM."""

from itertools import product

from potash_device.vta.config import Config, MemoryId
from potash_firmware.vta_runtime.schedules import Conv2d, Epilogue, Tile
from potash_firmware.vta_runtime.schedules.tiles import fits, window


def parts(total: int) -> list[int]:
    """Sizes that divide an axis evenly."""
    return [size for size in range(1, total + 1) if total % size == 0]


def loaded(shape: Conv2d, tile: Tile, config: Config) -> int:
    """Bytes that are loaded for all tiles: an image's window and the weights, for each."""
    rows, columns = window(shape, tile.rows, tile.columns, tile.taps)
    places = -(-shape.out_height // tile.rows) * -(-shape.out_width // tile.columns)
    tiles = places * -(-shape.out_blocks(config) // tile.out_blocks)
    taps = shape.kernel[0] * shape.kernel[1]
    image = rows * columns * shape.depth(config) * config.element_bytes(MemoryId.INP)
    weights = taps * tile.out_blocks * shape.depth(config) * config.element_bytes(MemoryId.WGT)
    return tiles * (image + weights)


def tile(shape: Conv2d, epilogue: Epilogue, config: Config) -> Tile:
    """Whole kernels and one block of input channels at a time leave the most room for outputs; two
    virtual threads load one half of the buffers while the core computes on the other."""
    axes = (parts(shape.out_height), parts(shape.out_width), parts(shape.out_blocks(config)))
    every = [Tile(*sizes, 1, shape.kernel, threads=2) for sizes in product(*axes)]
    fitting = [one for one in every if fits(shape, one, epilogue, config)]
    return min(fitting, key=lambda one: loaded(shape, one, config))
