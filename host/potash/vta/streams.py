"""Streams to measure the tensor accelerator with, and what has to come out of them.

Convolutions as "VTA: An Open Hardware-Software Stack for Deep Learning" has them: two virtual
threads, each with its half of every buffer, so that one loads while the other computes. The layers
are those of ResNet-18 under the paper's names. `scheduled` has those that the scheduler cuts. What
comes out is compared with numpy's own result.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash.models import resnet
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.isa import AluOpcode, MicroOp, Stage
from potash_firmware.vta_runtime import AluKernel, Buffer, GemmKernel, Loop, Runtime

PLATFORM = Config.default()
BLOCK = 16
THREADS = 2
INP, WGT, ACC = 2048, 1024, 2048
"""Elements on the chip."""
SHIFT = 5
CLAMP = ((AluOpcode.SHR, SHIFT), (AluOpcode.MAX, 0), (AluOpcode.MIN, 127))
"""Operations on sums: they are shifted and clamped."""
DRAM = 32 << 20
LOAD, COMPUTE, STORE = Stage


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


def convolution(
    size: int,
    inputs: int,
    outputs: int,
    *,
    rows: int,
    out_blocks: int,
    in_blocks: int,
    threads: int = THREADS,
    config: Config = PLATFORM,
) -> Stream:
    """A 3x3 convolution of a square image with as much padding as keeps its size, and ReLU.

    A tile is `rows` of the image by `out_blocks` blocks of 16 outputs; each step of it adds up
    `in_blocks` blocks of 16 inputs. With one thread the same tiles follow one another.
    `config` may differ from the platform's in the size of the micro-op buffer.
    """
    kernel, edge = 3, 1
    padded, taps = size + 2 * edge, kernel * kernel
    ins, outs = inputs // BLOCK, outputs // BLOCK
    random = np.random.default_rng(size)
    image = random.integers(-8, 8, (ins, size, size, BLOCK), np.int8)
    weights = random.integers(-8, 8, (outs, ins, kernel, kernel, BLOCK, BLOCK), np.int8)
    vta = Runtime(Core.create(config, DRAM))
    source, factors = put(vta, image), put(vta, weights)
    output = vta.alloc(outs * size * size * BLOCK)
    plane = (rows + kernel - 1) * padded

    def compute(thread: int, block: int) -> GemmKernel:
        acc, inp = thread * ACC // threads, thread * INP // threads + block * plane
        wgt = thread * WGT // threads + block * taps
        micro_ops = tuple(
            MicroOp(acc + x, inp + y_tap * padded + x + x_tap, wgt + y_tap * kernel + x_tap)
            for y_tap in range(kernel)
            for x_tap in range(kernel)
            for x in range(size)
        )
        loops = (
            Loop(out_blocks, dst=rows * size, wgt=in_blocks * taps),
            Loop(rows, dst=size, src=padded),
        )
        return GemmKernel(micro_ops, loops)

    for _ in range(threads):
        vta.dep_push(COMPUTE, LOAD)
        vta.dep_push(STORE, COMPUTE)
    tiles = [(y, out) for out in range(0, outs, out_blocks) for y in range(0, size, rows)]
    for first in range(0, len(tiles), threads):
        group = list(enumerate(tiles[first : first + threads]))
        lines = {
            thread: tuple(MicroOp(thread * ACC // threads + x) for x in range(size))
            for thread, _ in group
        }
        loops = (Loop(out_blocks, dst=rows * size), Loop(rows, dst=size))
        for thread, _ in group:
            vta.dep_pop(STORE, COMPUTE)
            vta.push_gemm(GemmKernel(lines[thread], loops, reset=True))
        for block in range(0, ins, in_blocks):
            for thread, (y, out) in group:
                vta.dep_pop(COMPUTE, LOAD)
                above, below = max(edge - y, 0), max(y + rows + edge - size, 0)
                for number in range(in_blocks):
                    vta.load_2d(
                        source,
                        MemoryId.INP,
                        sram=thread * INP // threads + number * plane,
                        offset=((block + number) * size + max(y - edge, 0)) * size,
                        x_size=size,
                        y_size=rows + kernel - 1 - above - below,
                        x_pad=(edge, edge),
                        y_pad=(above, below),
                    )
                vta.load_2d(
                    factors,
                    MemoryId.WGT,
                    sram=thread * WGT // threads,
                    offset=(out * ins + block) * taps,
                    x_size=in_blocks * taps,
                    y_size=out_blocks,
                    x_stride=ins * taps,
                )
                vta.dep_push(LOAD, COMPUTE)
                vta.dep_pop(LOAD, COMPUTE)
                for number in range(in_blocks):
                    vta.push_gemm(compute(thread, number))
                vta.dep_push(COMPUTE, LOAD)
        for thread, (y, out) in group:
            for opcode, value in CLAMP:
                vta.push_alu(AluKernel(opcode, lines[thread], loops, value))
            vta.dep_push(COMPUTE, STORE)
            vta.dep_pop(COMPUTE, STORE)
            for number in range(out_blocks):
                vta.store_2d(
                    output,
                    sram=thread * ACC // threads + number * rows * size,
                    offset=((out + number) * size + y) * size,
                    x_size=rows * size,
                )
            vta.dep_push(STORE, COMPUTE)
    for _ in range(threads):
        vta.dep_pop(COMPUTE, LOAD)
        vta.dep_pop(STORE, COMPUTE)

    wide = np.zeros((ins, padded, padded, BLOCK), np.float64)
    wide[:, edge:-edge, edge:-edge] = image
    sums = np.zeros((outputs, size * size))
    for y_tap in range(kernel):
        for x_tap in range(kernel):
            part = wide[:, y_tap : y_tap + size, x_tap : x_tap + size]
            tap = weights[:, :, y_tap, x_tap].transpose(0, 2, 1, 3).reshape(outputs, inputs)
            sums += tap.astype(np.float64) @ part.transpose(0, 3, 1, 2).reshape(inputs, -1)
    clamped = np.clip(sums.astype(np.int64) >> SHIFT, 0, 127).astype(np.int8)
    expected = clamped.reshape(outs, BLOCK, -1).transpose(0, 2, 1)
    return recorded(vta, output, expected.tobytes(), size * size * inputs * outputs * taps)


def irregular(turns: int = 64) -> Stream:
    """Micro-ops without any order, again and again: nothing to make tiles of."""
    random = np.random.default_rng(turns)
    inputs = random.integers(-8, 8, (INP, BLOCK), np.int8)
    weights = random.integers(-8, 8, (WGT, BLOCK, BLOCK), np.int8)
    places = random.integers(0, (256, INP, WGT), (1024, 3))
    vta = Runtime(Core.create(PLATFORM, DRAM))
    vta.load_2d(put(vta, inputs), MemoryId.INP, sram=0, offset=0, x_size=INP)
    vta.load_2d(put(vta, weights), MemoryId.WGT, sram=0, offset=0, x_size=WGT)
    output = vta.alloc(256 * BLOCK)
    vta.dep_push(LOAD, COMPUTE)
    vta.dep_pop(LOAD, COMPUTE)
    vta.push_gemm(GemmKernel((MicroOp(0),), (Loop(256, dst=1),), reset=True))
    micro_ops = tuple(MicroOp(*map(int, place)) for place in places)
    for _ in range(turns):
        vta.push_gemm(GemmKernel(micro_ops))
    vta.dep_push(COMPUTE, STORE)
    vta.dep_pop(COMPUTE, STORE)
    vta.store_2d(output, sram=0, offset=0, x_size=256)
    sums = np.zeros((256, BLOCK), np.int64)
    for dst, src, wgt in places:
        sums[dst] += weights[wgt].astype(np.int64) @ inputs[src]
    expected = (sums * turns).astype(np.int8)
    return recorded(vta, output, expected.tobytes(), turns * len(places) * BLOCK * BLOCK)


def _layer(name: str, rows: int, out_blocks: int, in_blocks: int) -> Callable[..., Stream]:
    its = resnet.LAYERS[name]
    return partial(
        convolution, its.size, its.channels, its.outputs,
        rows=rows, out_blocks=out_blocks, in_blocks=in_blocks,
    )  # fmt: skip


CONVOLUTIONS: Mapping[str, Callable[..., Stream]] = {
    "C2": _layer("C2", rows=14, out_blocks=1, in_blocks=1),
    "C6": _layer("C6", rows=14, out_blocks=2, in_blocks=1),
    "C9": _layer("C9", rows=14, out_blocks=4, in_blocks=2),
    "C12": _layer("C12", rows=7, out_blocks=16, in_blocks=1),
}
"""The layers under the paper's names; `threads` and `config` may be given."""
