"""The convolutions of ResNet-18 as the scheduler cuts them, with what has to come out of them.

What is done to the sums is what `streams` does: a shift, and ReLU.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from potash.models.resnet import LAYERS
from potash.vta.streams import CONVOLUTIONS, SHIFT, Stream
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.isa import Alu, AluOpcode, Gemm, encode_stream
from potash_device.vta.stream import decode_stream
from potash_device.vta.timing.parameters import PYNQ, Parameters
from potash_firmware.vta_runtime import Runtime
from potash_firmware.vta_runtime.schedules import Conv2d, Convolution, Step, conv2d, layouts

STEPS = (Step(AluOpcode.SHR, SHIFT), Step(AluOpcode.MAX, 0), Step(AluOpcode.MIN, 127))


def plan(
    shape: Conv2d, config: Config, parameters: Parameters = PYNQ, threads: int | None = None
) -> Convolution:
    return conv2d(shape, config, STEPS, parameters=parameters, threads=threads)


def scheduled(shape: Conv2d, config: Config | None = None) -> Stream:
    """A layer's stream for a core, by default the platform's."""
    config = config or Config.default()
    made = plan(shape, config)
    random = np.random.default_rng(shape.products)
    size = (shape.images, shape.in_channels, shape.height, shape.width)
    images = random.integers(-8, 8, size, np.int8)
    weights = random.integers(
        -8, 8, (shape.out_channels, shape.in_channels, *shape.kernel), np.int8
    )
    left, right = layouts.pack_nchw(images, config), layouts.pack_oihw(weights, config)
    output_bytes = made.output_bytes
    core = Core.create(config, left.nbytes + right.nbytes + output_bytes + (1 << 21))
    runtime = Runtime(core)
    buffers = [runtime.alloc(size) for size in (left.nbytes, right.nbytes, output_bytes)]
    for buffer, values in zip(buffers, (left, right), strict=False):
        buffer.view[:] = values.tobytes()
    made.emit(runtime, *buffers)
    code = runtime.take()
    start = buffers[2].physical - core.base
    place = slice(start, start + output_bytes)
    return Stream(
        code, bytes(core.dram), shape.products, place, _expected(images, weights, shape, config)
    )


def _expected(
    images: layouts.Array, weights: layouts.Array, shape: Conv2d, config: Config
) -> bytes:
    """What numpy says, packed. The sums are small enough for exact floating point."""
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


SHAPES: Mapping[str, Conv2d] = {name: layer.shape for name, layer in LAYERS.items()}
"""All layers, by the paper's names."""

SCHEDULED: Mapping[str, Callable[[], Stream]] = {
    f"{name}-scheduled" if name in CONVOLUTIONS else name: partial(scheduled, shape)
    for name, shape in SHAPES.items()
}
"""What the scheduler makes of them; `streams` has four of them with tiles that are given."""
BOUND = {
    name: shape
    for name, shape in SHAPES.items()
    if shape.kernel == (1, 1) or shape.in_channels < 16
}
"""Those that GEMM alone does not bound: few products for each value, or blocks mostly empty."""


def without(stream: Stream, *kinds: type[Gemm | Alu]) -> bytes:
    """The stream with instructions of these kinds doing nothing but passing tokens on."""
    config = Config.default()
    found = [
        replace(one, uop_end=one.uop_bgn) if isinstance(one, kinds) else one
        for one in decode_stream(stream.code, config)
    ]
    return encode_stream(found, config)


def of_use(stream: Stream) -> float:
    """How many of the products that a stream makes the layer needs: empty channels of a block are
    multiplied too."""
    config = Config.default()
    gemms = (one for one in decode_stream(stream.code, config) if isinstance(one, Gemm))
    steps = sum(one.steps for one in gemms if not one.reset)
    return stream.products / (steps * config.batch * config.block_in * config.block_out)
