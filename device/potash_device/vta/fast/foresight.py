"""Validation of the elements that micro-ops name before anything executes, as in `simulator`."""

from typing import Any

import numpy as np

from potash_device.vta.encoding import MICRO_OP_BITS
from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import Flag, Number, compiled, entry, least, most
from potash_device.vta.fast.transfer import copy


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


MICRO_OP_BYTES = MICRO_OP_BITS // 8

SURE, UNSURE = -1, -2
"""Nothing leads out of a buffer; nothing does unless the stream writes such micro-ops itself."""


@entry
def foresee(rows: Any, order: Any, geometry: layout.Geometry, dram: Any, uop: Any) -> Number:
    """The index of the first instruction whose micro-ops lead out of a buffer, SURE, or UNSURE:
    micro-ops that an earlier STORE may have written are not checked. `uop` is a copy of the buffer,
    which holds that instruction's micro-ops afterwards."""
    first, end = np.int64(dram.size), np.int64(0)
    for place in range(order.size):
        index = order[place]
        row = rows[index]
        opcode = row[layout.OPCODE]
        if opcode == layout.GEMM or opcode == layout.ALU:
            if not stays(row, uop, geometry):
                return index
        elif row[layout.X_SIZE] and (
            opcode == layout.STORE
            or (opcode == layout.LOAD and row[layout.MEMORY_TYPE] == layout.UOP)
        ):
            size = geometry.sizes[row[layout.MEMORY_TYPE]]
            low = row[layout.DRAM_BASE] * size - geometry.base
            high = (
                low + ((row[layout.Y_SIZE] - 1) * row[layout.X_STRIDE] + row[layout.X_SIZE]) * size
            )
            if opcode == layout.LOAD:
                if low < end and high > first and row[layout.Y_SIZE]:
                    return UNSURE
                load(row, low, dram, uop)
            elif row[layout.Y_SIZE]:
                first, end = least(first, low), most(end, high)
    return SURE


@entry
def gather(rows: Any, loads: Any, geometry: layout.Geometry, dram: Any, words: Any) -> None:
    """The micro-ops that some LOADs load, as they are in DRAM now, contiguous."""
    at = 0
    for place in range(loads.size):
        row = rows[loads[place]]
        source = row[layout.DRAM_BASE] * MICRO_OP_BYTES - geometry.base
        size = row[layout.X_SIZE] * MICRO_OP_BYTES
        for _ in range(row[layout.Y_SIZE]):
            copy(words[at : at + row[layout.X_SIZE]], dram[source : source + size])
            at += row[layout.X_SIZE]
            source += row[layout.X_STRIDE] * MICRO_OP_BYTES


@compiled
def loads_the_same(rows: Any, loaded: Any, geometry: layout.Geometry, dram: Any) -> Flag:
    """True where LOADs of micro-ops would load the bytes `loaded` now."""
    at = 0
    for place in range(rows.shape[0]):
        row = rows[place]
        source = row[layout.DRAM_BASE] * MICRO_OP_BYTES - geometry.base
        size = row[layout.X_SIZE] * MICRO_OP_BYTES
        for _ in range(row[layout.Y_SIZE]):
            now, before = dram[source : source + size], loaded[at : at + size]
            different = np.uint8(0)
            for number in range(now.size):
                different |= now[number] ^ before[number]
            if different:
                return False
            at += size
            source += row[layout.X_STRIDE] * MICRO_OP_BYTES
    return True


@compiled
def load(row: Any, source: Number, dram: Any, uop: Any) -> None:
    """Load micro-ops from byte `source` of DRAM on."""
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    at = row[layout.SRAM_BASE]
    uop[at : at + (row[layout.Y_PAD_0] + row[layout.Y_SIZE] + row[layout.Y_PAD_1]) * width] = 0
    at += row[layout.Y_PAD_0] * width + row[layout.X_PAD_0]
    for _ in range(row[layout.Y_SIZE]):
        size = row[layout.X_SIZE] * MICRO_OP_BYTES
        copy(uop[at : at + row[layout.X_SIZE]], dram[source : source + size])
        at += width
        source += row[layout.X_STRIDE] * MICRO_OP_BYTES
