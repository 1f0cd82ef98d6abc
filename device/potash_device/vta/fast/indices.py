"""Range checks of the elements that micro-ops name."""

from typing import Any

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import Flag, Number, compiled, most


@compiled
def stays(row: Any, uop: Any, geometry: layout.Geometry) -> Flag:
    """True for a GEMM or ALU instruction that stays in its buffers."""
    words = uop[row[layout.UOP_BGN] : row[layout.UOP_END]]
    if words.size * row[layout.ITER_OUT] * row[layout.ITER_IN] == 0:
        return True
    src_low = geometry.dst_bits
    wgt_low = src_low + geometry.src_bits
    if (
        reaches(row, greatest(words, 0, geometry.dst_bits), layout.DST_OUT, layout.DST_IN)
        >= geometry.depths[layout.ACC]
    ):
        return False
    if (
        row[layout.OPCODE] == layout.GEMM
        and row[layout.RESET]
        or row[layout.OPCODE] == layout.ALU
        and row[layout.USE_IMM]
    ):
        return True
    source = layout.INP if row[layout.OPCODE] == layout.GEMM else layout.ACC
    src = greatest(words, src_low, geometry.src_bits)
    if reaches(row, src, layout.SRC_OUT, layout.SRC_IN) >= geometry.depths[source]:
        return False
    if row[layout.OPCODE] == layout.ALU:
        return True
    wgt = greatest(words, wgt_low, geometry.wgt_bits)
    return reaches(row, wgt, layout.WGT_OUT, layout.WGT_IN) < geometry.depths[layout.WGT]


@compiled
def greatest(words: Any, shift: Number, bits: Number) -> Number:
    """The greatest value of a field of the micro-ops."""
    mask = np.uint32((1 << bits) - 1)
    low = np.uint32(shift)
    found = np.uint32(0)
    for number in range(words.size):
        found = most(found, np.uint32((words[number] >> low) & mask))
    return np.int64(found)


@compiled
def reaches(row: Any, base: Number, out: Number, inner: Number) -> Number:
    """The greatest index that the loops reach from `base`."""
    return base + (row[layout.ITER_OUT] - 1) * row[out] + (row[layout.ITER_IN] - 1) * row[inner]
