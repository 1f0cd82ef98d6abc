"""Streams to measure the tensor accelerator with, and what has to come out of them.

What comes out is compared with numpy's own result. `scheduled` has the streams of the firmware's
schedules.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.isa import MicroOp, Stage
from potash_firmware.vta_runtime import Buffer, GemmKernel, Loop, Runtime

BLOCK = 16
INP, WGT = 2048, 1024
"""Elements on the chip."""
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


def irregular(turns: int = 64) -> Stream:
    """Micro-ops without any order, again and again: nothing to make tiles of."""
    random = np.random.default_rng(turns)
    inputs = random.integers(-8, 8, (INP, BLOCK), np.int8)
    weights = random.integers(-8, 8, (WGT, BLOCK, BLOCK), np.int8)
    places = random.integers(0, (256, INP, WGT), (1024, 3))
    vta = Runtime(Core.create(Config.default(), DRAM))
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
