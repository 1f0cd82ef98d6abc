"""Streams of the firmware's schedules, with what has to come out of them: the convolutions of
ResNet-18, a product of matrices and an addition.

What is done to the sums of products is a shift, and ReLU.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from potash.models.resnet import LAYERS as CONVOLUTION_SHAPES
from potash.vta.streams import Stream, put, recorded
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.isa import Alu, AluOpcode, Gemm, encode_stream
from potash_device.vta.stream import decode_stream
from potash_device.vta.timing.parameters import PYNQ, Parameters
from potash_firmware.vta_runtime import Runtime
from potash_firmware.vta_runtime.schedules import (
    Conv2d,
    Convolution,
    Epilogue,
    Extent,
    Plane,
    Step,
    Tile,
    conv2d,
    elementwise,
    layouts,
)

SHIFT = 5
STEPS = (Step(AluOpcode.SHR, SHIFT), Step(AluOpcode.MAX, 0), Step(AluOpcode.MIN, 127))
TILES: Mapping[str, Tile] = {
    "C2": Tile(rows=14, columns=56, out_blocks=1, in_blocks=1, taps=(3, 3)),
    "C6": Tile(rows=14, columns=28, out_blocks=2, in_blocks=1, taps=(3, 3)),
    "C9": Tile(rows=14, columns=14, out_blocks=4, in_blocks=1, taps=(3, 3)),
    "C12": Tile(rows=7, columns=7, out_blocks=16, in_blocks=2, taps=(3, 3)),
}
"""Tiles of the paper's kind, by its names of layers: two virtual threads have a half of every
buffer each, so that one loads while the other computes."""


def tiled(shape: Conv2d, config: Config, tile: Tile) -> Convolution:
    """A layer in given tiles. Raises ScheduleError where they do not fit into the core."""
    return Convolution(shape, config, tile, Epilogue(STEPS))


def plan(
    shape: Conv2d, config: Config, parameters: Parameters = PYNQ, threads: int | None = None
) -> Convolution:
    return conv2d(shape, config, STEPS, parameters=parameters, threads=threads)


def scheduled(shape: Conv2d, tile: Tile | None = None) -> Stream:
    """A convolution's stream for the platform's core, in tiles of the scheduler's choice or in
    these."""
    config = Config.default()
    made = tiled(shape, config, tile) if tile else plan(shape, config)
    random = np.random.default_rng(shape.products)
    size = (shape.images, shape.in_channels, shape.height, shape.width)
    images = random.integers(-8, 8, size, np.int8)
    size = (shape.out_channels, shape.in_channels, *shape.kernel)
    weights = random.integers(-8, 8, size, np.int8)
    left, right = layouts.pack_nchw(images, config), layouts.pack_oihw(weights, config)
    room = left.nbytes + right.nbytes + made.output_bytes
    runtime = Runtime(Core.create(config, room + (1 << 21)))
    image, kernels = put(runtime, left), put(runtime, right)
    output = runtime.alloc(made.output_bytes)
    made.emit(runtime, image, kernels, output)
    return recorded(runtime, output, _expected(images, weights, shape, config), shape.products)


def matrix(size: int = 1024, rows: int = 32, blocks: int = 16) -> Stream:
    """The product of two square matrices, a 1x1 convolution: a tile is `rows` by `blocks` blocks,
    `blocks` deep."""
    shape = Conv2d(1, size, 1, size, size, (1, 1))
    return scheduled(shape, tile=Tile(1, rows, blocks, blocks, (1, 1)))


def addition(count: int = 200_000) -> Stream:
    """Two int8 vectors, added and scaled by fixed-point numbers to an int8 one."""
    config, factor, shift, zero = Config.default(), 181, 8, -3
    steps = [Step(AluOpcode.ADD, Plane(1)), Step(AluOpcode.MUL, factor)]
    steps += [Step(AluOpcode.SHR, shift), Step(AluOpcode.ADD, zero)]
    steps += [Step(AluOpcode.MIN, 127), Step(AluOpcode.MAX, -128)]
    extent = Extent(1, 1, 1, count // config.block_out)
    made = elementwise(extent, config, [MemoryId.ACC_8BIT] * 2, steps)
    left, right = np.random.default_rng(count).integers(-128, 128, (2, count), np.int8)
    runtime = Runtime(Core.create(config, 4 * count + (1 << 21)))
    tensors, output = [put(runtime, left), put(runtime, right)], runtime.alloc(count)
    made.emit(runtime, tensors, output)
    sums = ((left.astype(np.int64) + right) * factor >> shift) + zero
    return recorded(runtime, output, np.clip(sums, -128, 127).astype(np.int8).tobytes(), 0)


def _expected(
    images: layouts.Array, weights: layouts.Array, shape: Conv2d, config: Config
) -> bytes:
    """NumPy's result, packed. The sums are small enough for exact floating point."""
    top, bottom, left, right = shape.padding
    padded = np.pad(images, ((0, 0), (0, 0), (top, bottom), (left, right))).astype(np.float32)
    down, across = shape.stride
    rows, columns = shape.out_height, shape.out_width
    sums = np.zeros((shape.images, shape.out_channels, rows * columns), np.float32)
    for y, x in np.ndindex(shape.kernel):
        seen = padded[:, :, y : y + rows * down : down, x : x + columns * across : across]
        seen = seen[:, :, :rows, :columns].reshape(shape.images, shape.in_channels, -1)
        sums += weights[:, :, y, x].astype(np.float32) @ seen
    clamped = np.clip(sums.astype(np.int64) >> SHIFT, 0, 127)
    whole = clamped.reshape(shape.images, shape.out_channels, rows, columns)
    return layouts.pack_like_output(whole, config).tobytes()


SHAPES: Mapping[str, Conv2d] = {name: layer.shape for name, layer in CONVOLUTION_SHAPES.items()}
"""All layers, by the paper's names."""

SCHEDULED: Mapping[str, Callable[[], Stream]] = {
    f"{name}-scheduled" if name in TILES else name: partial(scheduled, shape)
    for name, shape in SHAPES.items()
}
"""Streams of the scheduler for the shapes."""
LAYERS: Mapping[str, Callable[[], Stream]] = {
    **{name: partial(scheduled, SHAPES[name], tile) for name, tile in TILES.items()},
    "matmul-1024": matrix,
}
"""Streams with tiles that are given."""
BOUND = {
    name: shape
    for name, shape in SHAPES.items()
    if shape.kernel == (1, 1) or shape.in_channels < 16
}
"""Shapes that GEMM alone does not bound: few products per value, or blocks mostly empty."""


def without(stream: Stream, *kinds: type[Gemm | Alu]) -> bytes:
    """The stream with instructions of these kinds doing nothing but passing tokens on."""
    config = Config.default()
    found = [
        replace(one, uop_end=one.uop_bgn) if isinstance(one, kinds) else one
        for one in decode_stream(stream.code, config)
    ]
    return encode_stream(found, config)


def of_use(stream: Stream) -> float:
    """Share of a stream's products that the layer needs: empty channels of a block are multiplied
    too."""
    config = Config.default()
    gemms = (one for one in decode_stream(stream.code, config) if isinstance(one, Gemm))
    steps = sum(one.steps for one in gemms if not one.reset)
    return stream.products / (steps * config.batch * config.block_in * config.block_out)
