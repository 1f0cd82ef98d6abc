"""Cores that are built otherwise: the same computation through runtime, encoding and engine,
against numpy's 64-bit integers."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.engines import DEFAULT_ENGINE, ENGINES
from potash_device.vta.isa import AluOpcode, MicroOp, Stage
from potash_firmware.vta_runtime import AluKernel, Buffer, GemmKernel, Loop, Runtime
from support.vta import CONFIGS

DRAM_BYTES = 1 << 21


class Tiles(NamedTuple):
    """Elements of a product: rows of INP, columns of WGT, and what is summed over."""

    rows: int
    columns: int
    depth: int

    @classmethod
    def fitting(cls, config: Config) -> "Tiles":
        """As large as the buffers and a little patience allow."""
        inp, wgt, acc = (
            min(config.depth(memory), 24) for memory in (MemoryId.INP, MemoryId.WGT, MemoryId.ACC)
        )
        depth = max(1, min(3, inp, wgt))
        columns = max(1, min(wgt // depth, acc, 3))
        return cls(max(1, min(inp // depth, acc // columns)), columns, depth)


def integers(random: np.random.Generator, bits: int, *shape: int) -> NDArray[np.int64]:
    return random.integers(-(1 << bits - 1), 1 << bits - 1, shape)


def put(vta: Runtime, values: NDArray[np.int64], bits: int) -> Buffer:
    data = np.ascontiguousarray(values).astype(f"<i{bits // 8}").tobytes()
    buffer = vta.alloc(len(data))
    buffer.view[:] = data
    return buffer


def loop(extent: int, **factors: int) -> Loop:
    """A loop that turns once needs no factors, and the smallest buffers have no bits for them."""
    return Loop(extent, **{"dst": 0} | factors) if extent > 1 else Loop(1)


def multiply(
    vta: Runtime, left: NDArray[np.int64], right: NDArray[np.int64], tiles: Tiles
) -> NDArray[np.int64]:
    """(left @ right.T + 5) >> 2, as OUT elements keep it; `left` and `right` are in elements."""
    config = vta.config
    rows, columns, depth = tiles
    a = put(vta, left, config.value_bits(MemoryId.INP))
    b = put(vta, right, config.value_bits(MemoryId.WGT))
    out = vta.alloc(rows * columns * config.element_bytes(MemoryId.OUT))
    vta.load_2d(a, MemoryId.INP, sram=0, offset=0, x_size=rows * depth)
    vta.load_2d(b, MemoryId.WGT, sram=0, offset=0, x_size=columns * depth)
    vta.dep_push(Stage.LOAD, Stage.COMPUTE)
    vta.dep_pop(Stage.LOAD, Stage.COMPUTE)
    every = (loop(rows, dst=columns), loop(columns, dst=1))
    vta.push_gemm(GemmKernel((MicroOp(0),), every, reset=True))
    for row in range(rows):
        kernel = (MicroOp(row * columns, row * depth),)
        loops = (loop(columns, dst=1, wgt=depth), loop(depth, src=1, wgt=1))
        vta.push_gemm(GemmKernel(kernel, loops))
    vta.push_alu(AluKernel(AluOpcode.ADD, (MicroOp(0),), every, immediate=5))
    vta.push_alu(AluKernel(AluOpcode.SHR, (MicroOp(0),), every, immediate=2))
    vta.dep_push(Stage.COMPUTE, Stage.STORE)
    vta.dep_pop(Stage.COMPUTE, Stage.STORE)
    vta.store_2d(out, sram=0, offset=0, x_size=rows * columns)
    vta.synchronize()
    stored = np.frombuffer(out.view, f"<i{config.value_bits(MemoryId.OUT) // 8}")
    for buffer in (a, b, out):
        buffer.free()
    return stored.reshape(rows, columns, config.batch, config.block_out).astype(np.int64)


def check(config: Config, engine: str, seed: int) -> None:
    tiles = Tiles.fitting(config)
    rows, columns, depth = tiles
    random = np.random.default_rng(seed)
    m, n, k = rows * config.batch, columns * config.block_out, depth * config.block_in
    left = integers(random, config.value_bits(MemoryId.INP), m, k)
    right = integers(random, config.value_bits(MemoryId.WGT), n, k)
    inp = left.reshape(rows, config.batch, depth, config.block_in).swapaxes(1, 2)
    wgt = right.reshape(columns, config.block_out, depth, config.block_in).swapaxes(1, 2)
    with Runtime(Core.create(config, DRAM_BYTES, engine=engine)) as vta:
        stored = multiply(vta, inp, wgt, tiles)
    sums = (left @ right.T + 5).astype(np.int32) >> 2  # modulo 2^32, as the accumulators are
    expected = sums.astype(f"i{config.value_bits(MemoryId.OUT) // 8}")
    product = stored.swapaxes(1, 2).reshape(m, n)
    np.testing.assert_array_equal(product, expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("config", CONFIGS, ids=["default", "tiny", "half", "wide", "one", "large"])
def test_a_product(config: Config, engine: str) -> None:
    check(config, engine, seed=0)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Any shapes and widths, and buffers of a few elements."""
    batch, block_in, block_out = (draw(st.integers(0, top)) for top in (3, 6, 6))
    inp, wgt, out = (draw(st.sampled_from([3, 4, 5])) for _ in range(3))
    return Config(
        log_inp_width=inp,
        log_wgt_width=wgt,
        log_out_width=out,
        log_batch=batch,
        log_block_in=block_in,
        log_block_out=block_out,
        log_uop_buff_size=2 + draw(st.integers(0, 8)),
        log_inp_buff_size=batch + block_in + inp - 3 + draw(st.integers(0, 6)),
        log_wgt_buff_size=block_out + block_in + wgt - 3 + draw(st.integers(0, 5)),
        log_acc_buff_size=batch + block_out + 2 + draw(st.integers(0, 6)),
    )


@settings(max_examples=30, deadline=None)
@given(configs(), st.integers(0, 2**32 - 1))
def test_a_product_of_any_core(config: Config, seed: int) -> None:
    check(config, DEFAULT_ENGINE, seed)


@given(configs())
def test_what_is_derived_agrees(config: Config) -> None:
    """Sizes by multiplication, where the configuration adds logarithms."""
    for memory in MemoryId:
        values = math.prod(config.element_shape(memory))
        assert config.element_bytes(memory) * 8 == values * config.value_bits(memory)
    depths = {memory: config.depth(memory) for memory in MemoryId}
    assert depths[MemoryId.OUT] == depths[MemoryId.ACC_8BIT] == depths[MemoryId.ACC]
    sizes = {
        MemoryId.UOP: 1 << config.log_uop_buff_size,
        MemoryId.INP: 1 << config.log_inp_buff_size,
        MemoryId.WGT: 1 << config.log_wgt_buff_size,
        MemoryId.ACC: 1 << config.log_acc_buff_size,
    }
    for memory, size in sizes.items():
        assert depths[memory] * config.element_bytes(memory) == size
    assert Config.from_mapping(config.to_mapping()) == config
    gemm, micro_op = config.layouts.gemm.by_name, config.layouts.micro_op.by_name
    for name, memory in (("dst", MemoryId.ACC), ("src", MemoryId.INP), ("wgt", MemoryId.WGT)):
        assert 1 << micro_op[name].width == depths[memory]
        assert gemm[f"{name}_factor_in"].maximum == depths[memory] - 1
    assert gemm["uop_end"].maximum >= depths[MemoryId.UOP]
    assert gemm["dst_factor_out"].low == 64
