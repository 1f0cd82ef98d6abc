"""GEMM: zeroing, and the paths that multiply."""

from typing import Any

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import compiled, implements
from potash_device.vta.fast.paths import Loops
from potash_device.vta.fast.positions import in_tiles


@compiled
def gemm(row: Any, uop: Any, geometry: layout.Geometry, buffers: Any, acc: Any, table: Any) -> None:
    """Execute a GEMM instruction that stays in its buffers."""
    words = uop[row[layout.UOP_BGN] : row[layout.UOP_END]]
    if words.size * row[layout.ITER_OUT] * row[layout.ITER_IN] == 0:
        return
    if row[layout.RESET]:
        zero(row, words, geometry, acc)
    else:
        multiply(buffers, row, words, geometry, acc, table)


@compiled
def zero(row: Any, words: Any, geometry: layout.Geometry, acc: Any) -> None:
    """Zero the accumulators that the micro-ops lead to, in whichever order."""
    mask = np.uint32((1 << geometry.dst_bits) - 1)
    inner, length = row[layout.ITER_IN], geometry.lanes
    if row[layout.DST_IN] == 1:
        inner, length = 1, length * inner
    for outer in range(row[layout.ITER_OUT]):
        for step in range(inner):
            offset = outer * row[layout.DST_OUT] + step * row[layout.DST_IN]
            for number in range(words.size):
                at = (np.int64(words[number] & mask) + offset) * geometry.lanes
                acc[at : at + length] = 0


def multiply(
    buffers: Any, row: Any, words: Any, geometry: layout.Geometry, acc: Any, table: Any
) -> None:
    """Multiply and accumulate, for micro-ops that stay in their buffers."""
    raise NotImplementedError("compiled code only")


@implements(multiply)
def _multiply(buffers: Any, row: Any, words: Any, geometry: Any, acc: Any, table: Any) -> Any:
    return in_loops if buffers.instance_class is Loops else in_tiles


def in_loops(
    buffers: Any, row: Any, words: Any, geometry: layout.Geometry, acc: Any, table: Any
) -> None:
    dst_mask = (1 << geometry.dst_bits) - 1
    src_mask = (1 << geometry.src_bits) - 1
    src_low = geometry.dst_bits
    wgt_low = src_low + geometry.src_bits
    wgt_mask = (1 << geometry.wgt_bits) - 1
    depth, height = buffers.block_in, buffers.block_out
    for outer in range(row[layout.ITER_OUT]):
        for inner in range(row[layout.ITER_IN]):
            for number in range(words.size):
                word = np.int64(words[number])
                dst = (word & dst_mask) + outer * row[layout.DST_OUT] + inner * row[layout.DST_IN]
                src = (
                    (word >> src_low & src_mask)
                    + outer * row[layout.SRC_OUT]
                    + inner * row[layout.SRC_IN]
                )
                wgt = (
                    (word >> wgt_low & wgt_mask)
                    + outer * row[layout.WGT_OUT]
                    + inner * row[layout.WGT_IN]
                )
                for line in range(buffers.batch):
                    at = (src * buffers.batch + line) * depth
                    inputs = buffers.inp[at : at + depth]
                    for output in range(height):
                        at = (wgt * height + output) * depth
                        weights = buffers.wgt[at : at + depth]
                        total = np.int32(0)
                        for value in range(depth):
                            total = np.int32(
                                total + np.int32(inputs[value]) * np.int32(weights[value])
                            )
                        acc[(dst * buffers.batch + line) * height + output] += total
