"""Checking the elements that micro-ops name before anything executes, as `simulator` does."""

from typing import Any

import numpy as np

from potash_device.vta.encoding import MICRO_OP_BITS
from potash_device.vta.fast.compiling import Number, compiled
from potash_device.vta.fast.indices import stays
from potash_device.vta.fast.layout import (
    ALU,
    DRAM_BASE,
    GEMM,
    LOAD,
    MEMORY_TYPE,
    OPCODE,
    SRAM_BASE,
    STORE,
    UOP,
    X_PAD_0,
    X_PAD_1,
    X_SIZE,
    X_STRIDE,
    Y_PAD_0,
    Y_PAD_1,
    Y_SIZE,
    Geometry,
)
from potash_device.vta.fast.transfer import copy

MICRO_OP_BYTES = MICRO_OP_BITS // 8

SURE, UNSURE = -1, -2
"""Nothing leads out of a buffer; nothing does unless the stream writes such micro-ops itself."""


@compiled
def foresee(rows: Any, order: Any, geometry: Geometry, dram: Any, uop: Any) -> Number:
    """The index of the first instruction whose micro-ops lead out of a buffer, SURE, or UNSURE:
    what a STORE before them may have written is not checked. `uop` is a copy of the buffer, which
    holds that instruction's micro-ops afterwards."""
    first, end = np.int64(dram.size), np.int64(0)
    for place in range(order.size):
        index = order[place]
        row = rows[index]
        opcode = row[OPCODE]
        if opcode == GEMM or opcode == ALU:
            if not stays(row, uop, geometry):
                return index
        elif row[X_SIZE] and (opcode == STORE or (opcode == LOAD and row[MEMORY_TYPE] == UOP)):
            size = geometry.sizes[row[MEMORY_TYPE]]
            low = row[DRAM_BASE] * size - geometry.base
            high = low + ((row[Y_SIZE] - 1) * row[X_STRIDE] + row[X_SIZE]) * size
            if opcode == LOAD:
                if low < end and high > first and row[Y_SIZE]:
                    return UNSURE
                load(row, low, dram, uop)
            elif row[Y_SIZE]:
                first, end = min(first, low), max(end, high)
    return SURE


@compiled
def gather(rows: Any, loads: Any, geometry: Geometry, dram: Any, words: Any) -> None:
    """The micro-ops that some LOADs load, as they are in DRAM now, contiguous."""
    at = 0
    for place in range(loads.size):
        row = rows[loads[place]]
        source = row[DRAM_BASE] * MICRO_OP_BYTES - geometry.base
        size = row[X_SIZE] * MICRO_OP_BYTES
        for _ in range(row[Y_SIZE]):
            copy(words[at : at + row[X_SIZE]].view(np.uint8), dram[source : source + size])
            at += row[X_SIZE]
            source += row[X_STRIDE] * MICRO_OP_BYTES


@compiled
def load(row: Any, source: Number, dram: Any, uop: Any) -> None:
    """Load micro-ops from byte `source` of DRAM on."""
    width = row[X_PAD_0] + row[X_SIZE] + row[X_PAD_1]
    at = row[SRAM_BASE]
    uop[at : at + (row[Y_PAD_0] + row[Y_SIZE] + row[Y_PAD_1]) * width] = 0
    at += row[Y_PAD_0] * width + row[X_PAD_0]
    for _ in range(row[Y_SIZE]):
        size = row[X_SIZE] * MICRO_OP_BYTES
        copy(uop[at : at + row[X_SIZE]].view(np.uint8), dram[source : source + size])
        at += width
        source += row[X_STRIDE] * MICRO_OP_BYTES
