"""Where micro-ops lead."""

from typing import Any

import numpy as np

from potash_device.vta.fast.compiling import Flag, Number, compiled
from potash_device.vta.fast.layout import (
    ACC,
    ALU,
    DST_IN,
    DST_OUT,
    GEMM,
    INP,
    ITER_IN,
    ITER_OUT,
    OPCODE,
    RESET,
    SRC_IN,
    SRC_OUT,
    UOP_BGN,
    UOP_END,
    USE_IMM,
    WGT,
    WGT_IN,
    WGT_OUT,
    Geometry,
)


@compiled
def stays(row: Any, uop: Any, geometry: Geometry) -> Flag:
    """Whether a GEMM or ALU instruction stays in its buffers."""
    words = uop[row[UOP_BGN] : row[UOP_END]]
    if words.size * row[ITER_OUT] * row[ITER_IN] == 0:
        return True
    src_low = geometry.dst_bits
    wgt_low = src_low + geometry.src_bits
    if reaches(row, greatest(words, 0, geometry.dst_bits), DST_OUT, DST_IN) >= geometry.depths[ACC]:
        return False
    if row[OPCODE] == GEMM and row[RESET] or row[OPCODE] == ALU and row[USE_IMM]:
        return True
    source = INP if row[OPCODE] == GEMM else ACC
    src = greatest(words, src_low, geometry.src_bits)
    if reaches(row, src, SRC_OUT, SRC_IN) >= geometry.depths[source]:
        return False
    if row[OPCODE] == ALU:
        return True
    wgt = greatest(words, wgt_low, geometry.wgt_bits)
    return reaches(row, wgt, WGT_OUT, WGT_IN) < geometry.depths[WGT]


@compiled
def greatest(words: Any, shift: Number, bits: Number) -> Number:
    """The greatest value of a field of the micro-ops."""
    mask = np.uint32((1 << bits) - 1)
    low = np.uint32(shift)
    found = np.uint32(0)
    for number in range(words.size):
        found = max(found, np.uint32((words[number] >> low) & mask))
    return np.int64(found)


@compiled
def reaches(row: Any, base: Number, out: Number, inner: Number) -> Number:
    """The greatest index that the loops lead to from `base`."""
    return base + (row[ITER_OUT] - 1) * row[out] + (row[ITER_IN] - 1) * row[inner]
