"""Streams to measure the tensor accelerator with, and what has to come out of them by NumPy.

They are the firmware's schedules of ResNet-18's convolutions, of a product of matrices and of an
addition, and one stream without any order. Sums of products are shifted, and ReLU follows.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash.models.resnet import LAYERS as CONVOLUTION_SHAPES
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.isa import Alu, AluOpcode, Gemm, MicroOp, Stage, encode_stream
from potash_device.vta.stream import decode_stream
from potash_device.vta.timing.parameters import PYNQ, Parameters
from potash_firmware.vta_runtime import Buffer, GemmKernel, Loop, Runtime
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
INP, WGT, BLOCK = 2048, 1024, 16
"""Elements on the chip, and values of one."""
TILES: Mapping[str, Tile] = {
    "C2": Tile(rows=14, columns=56, out_blocks=1, in_blocks=1, taps=(3, 3)),
    "C6": Tile(rows=14, columns=28, out_blocks=2, in_blocks=1, taps=(3, 3)),
    "C9": Tile(rows=14, columns=14, out_blocks=4, in_blocks=1, taps=(3, 3)),
    "C12": Tile(rows=7, columns=7, out_blocks=16, in_blocks=2, taps=(3, 3)),
}
"""Tiles of the paper's kind, by its names of layers: two virtual threads have a half of every
buffer each, so that one loads while the other computes."""


class Stream(NamedTuple):
    """A stream as bytes, the DRAM that it runs on, and what has to lie where in it afterwards."""

    code: bytes
    image: bytes
    products: int
    """Multiplications and additions in pairs: half the operations."""
    output: slice
    expected: bytes


def recorded(runtime: Runtime, output: Buffer, expected: bytes, products: int) -> Stream:
    """The stream in a runtime, which leaves `expected` in `output`."""
    code, start = runtime.take(), output.physical - runtime.core.base
    place = slice(start, start + len(expected))
    return Stream(code, bytes(runtime.core.dram), products, place, expected)


def put(runtime: Runtime, values: NDArray[Any]) -> Buffer:
    """Values in DRAM, in the order of their axes."""
    buffer = runtime.alloc(values.nbytes)
    buffer.view[:] = np.ascontiguousarray(values).tobytes()
    return buffer


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


def irregular(turns: int = 64) -> Stream:
    """Micro-ops without any order, again and again: nothing to make tiles of."""
    random = np.random.default_rng(turns)
    inputs = random.integers(-8, 8, (INP, BLOCK), np.int8)
    weights = random.integers(-8, 8, (WGT, BLOCK, BLOCK), np.int8)
    places = random.integers(0, (256, INP, WGT), (1024, 3))
    vta = Runtime(Core.create(Config.default(), 32 << 20))
    vta.load_2d(put(vta, inputs), MemoryId.INP, sram=0, offset=0, x_size=INP)
    vta.load_2d(put(vta, weights), MemoryId.WGT, sram=0, offset=0, x_size=WGT)
    output = vta.alloc(256 * BLOCK)
    vta.dep_push(Stage.LOAD, Stage.COMPUTE)
    vta.dep_pop(Stage.LOAD, Stage.COMPUTE)
    vta.push_gemm(GemmKernel((MicroOp(0),), (Loop(256, dst=1),), reset=True))
    micro_ops = tuple(MicroOp(*map(int, place)) for place in places)
    for _ in range(turns):
        vta.push_gemm(GemmKernel(micro_ops))
    vta.dep_push(Stage.COMPUTE, Stage.STORE)
    vta.dep_pop(Stage.COMPUTE, Stage.STORE)
    vta.store_2d(output, sram=0, offset=0, x_size=256)
    sums = np.zeros((256, BLOCK), np.int64)
    for dst, src, wgt in places:
        sums[dst] += weights[wgt].astype(np.int64) @ inputs[src]
    expected = (sums * turns).astype(np.int8)
    return recorded(vta, output, expected.tobytes(), turns * len(places) * BLOCK * BLOCK)


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
