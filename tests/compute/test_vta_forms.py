"""Blocks of weights that are mostly zero are multiplied in fewer steps, to the same sums."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.fast.paths import available
from potash_device.vta.isa import Gemm, Load, MicroOp
from support.vta import BASE
from support.vta_engines import Pair, finished

DEFAULT = Config.default()
PATHS = available(DEFAULT)
BLOCKS = 8
FIRST_BLOCK = -(-BASE // 256)
Block = NDArray[np.int8]


def _first(block: Block) -> None:
    block[:, 4:] = 0


def _diagonal(block: Block) -> None:
    block *= np.eye(16, dtype=np.int8)


def _zero(block: Block) -> None:
    block[:] = 0


def _full(block: Block) -> None:
    pass


FORMS: tuple[Callable[[Block], None], ...] = (_first, _diagonal, _zero, _full)
ANY_FORMS = st.lists(st.sampled_from(FORMS), min_size=BLOCKS, max_size=BLOCKS) | st.sampled_from(
    [[form] * BLOCKS for form in FORMS]
)
LOAD = Load(memory_type=MemoryId.WGT, dram_base=FIRST_BLOCK, y_size=1, x_size=BLOCKS)


def _pair(path: str, blocks: Block, seed: int, micro_ops: list[MicroOp]) -> Pair:
    """Engines with these weights in their DRAM."""
    pair = Pair(DEFAULT, path=path, seed=seed, micro_ops=micro_ops)
    at = FIRST_BLOCK * 256 - BASE
    for dram in pair.drams:
        dram[at : at + blocks.nbytes] = blocks.tobytes()
    return pair


def _blocks(forms: list[Callable[[Block], None]], seed: int) -> Block:
    random = np.random.default_rng(seed)
    blocks = random.integers(-128, 128, (BLOCKS, 16, 16), np.int8)
    blocks[:, 0, 0], blocks[:, 15, 3] = -128, 127
    for block, form in zip(blocks, forms, strict=True):
        form(block)
    return blocks


@given(
    st.sampled_from(PATHS),
    ANY_FORMS,
    st.integers(0, 99),
    st.sampled_from((1, 3, 8, 9, 14, 31)),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_forms(
    path: str,
    forms: list[Callable[[Block], None]],
    seed: int,
    positions: int,
    products: int,
    depthwise: bool,
) -> None:
    """Several positions and blocks of outputs; the blocks' inputs are the same or their own."""
    micro_ops = [MicroOp(x, 40 + x + k, k) for k in range(products) for x in range(positions)]
    gemm = Gemm(
        uop_end=len(micro_ops),
        iter_out=BLOCKS - products + 1,
        dst_factor_out=positions,
        src_factor_out=64 if depthwise else 0,
        wgt_factor_out=1,
    )
    pair = _pair(path, _blocks(forms, seed), seed, micro_ops)
    assert pair.check(finished(LOAD, gemm, gemm)).refusal is None
    # Weights that another engine has left are known as well.
    pair.fast.adopt(pair.readable)
    assert pair.check(finished(gemm)).refusal is None


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", FORMS)
def test_a_block_gives_up_its_form(path: str, form: Callable[[Block], None]) -> None:
    """Where others are loaded, with pads and without, and where only one value differs."""
    micro_ops = [MicroOp(x, x, x // 3) for x in range(24)]
    pair = _pair(path, _blocks([form] * BLOCKS, 5), 5, micro_ops)
    gemm = Gemm(uop_end=24)
    pair.check(finished(LOAD, gemm))
    for output, inputs in ((0, 4), (3, 0), (15, 14), (15, 15)):
        for dram in pair.drams:
            dram[FIRST_BLOCK * 256 - BASE + 16 * output + inputs] = 0x81
        pair.check(finished(LOAD, gemm))
    pair.check(
        finished(Load(memory_type=MemoryId.WGT, y_size=1, x_size=1, x_pad_0=2, x_pad_1=3,
                      dram_base=FIRST_BLOCK + 4), gemm)
    )  # fmt: skip
