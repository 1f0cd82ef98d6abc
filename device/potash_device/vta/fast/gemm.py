"""Lowering of GEMM instructions to steps: zeroing, and products."""

from typing import Any

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import compiled
from potash_device.vta.fast.positions import lower_products


@compiled
def lower_gemm(row: Any, words: Any, geometry: layout.Geometry, sink: s.Sink) -> None:
    """The steps of a GEMM instruction that stays in its buffers."""
    if row[layout.RESET]:
        reset(row, words, geometry, sink)
    else:
        lower_products(row, words, geometry, sink)


@compiled
def reset(row: Any, words: Any, geometry: layout.Geometry, sink: s.Sink) -> None:
    """Mark the accumulators that the micro-ops name as waiting to be zeroed. Often the next
    products are the first to use them, and then need not read them."""
    mask = np.uint32((1 << geometry.dst_bits) - 1)
    for outer in range(row[layout.ITER_OUT]):
        for inner in range(row[layout.ITER_IN]):
            offset = outer * row[layout.DST_OUT] + inner * row[layout.DST_IN]
            for number in range(words.size):
                at = np.int64(words[number] & mask) + offset
                if not sink.zeroed[at]:
                    sink.zeroed[at] = s.WAITING
                    sink.filled[s.ZEROED] += 1
