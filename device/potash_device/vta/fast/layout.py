"""Instructions and the core's shape as compiled code sees them: tables and plain numbers.

An instruction is a row with a column for each of its fields.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.encoding import WORD_BITS
from potash_device.vta.isa import Opcode

COLUMNS = 13
OPCODE, DEPENDENCIES = range(2)
MEMORY_TYPE, SRAM_BASE, DRAM_BASE, Y_SIZE, X_SIZE, X_STRIDE = range(2, 8)
Y_PAD_0, Y_PAD_1, X_PAD_0, X_PAD_1 = range(8, 12)
UOP_BGN, UOP_END, ITER_OUT, ITER_IN = range(2, 6)
DST_OUT, DST_IN, SRC_OUT, SRC_IN = range(6, 10)
WGT_OUT, WGT_IN, RESET = range(10, 13)
ALU_OPCODE, USE_IMM, IMM = range(10, 13)
"""Columns: the order of the encoding, but for RESET, which ALU lacks."""

LOAD, STORE, GEMM, FINISH, ALU = (int(opcode) for opcode in Opcode)
UOP, WGT, INP, ACC, OUT, ACC_8BIT = (int(memory) for memory in MemoryId)


DRAM_BASE_MASK = 0xFFFF_FFFF
"""For the DRAM_BASE of a row of 32-bit numbers, which is negative where its highest bit is set."""


class Fields(NamedTuple):
    """The fields of an instruction, by opcode and column."""

    number: NDArray[np.int64]
    """Number of fields, by opcode."""
    word: NDArray[np.int64]
    low: NDArray[np.uint64]
    mask: NDArray[np.uint64]
    sign: NDArray[np.int64]
    """The sign bit's value; 0 in a field without one."""
    defined: NDArray[np.uint64]
    """The bits that may be set, by opcode and word."""


class Geometry(NamedTuple):
    """Properties of a core that compiled code uses."""

    dst_bits: int
    src_bits: int
    wgt_bits: int
    lanes: int
    """Values of an ACC element."""
    depths: NDArray[np.int64]
    """Elements on the chip, by memory."""
    sizes: NDArray[np.int64]
    """Bytes of an element in DRAM, by memory."""
    base: int
    """Physical address of DRAM's first byte."""
    step_limit: int


@functools.lru_cache(16)
def fields(config: Config) -> Fields:
    """The encoding of `config`, as tables that are never changed."""
    layouts = config.layouts
    kinds = {
        Opcode.LOAD: layouts.memory,
        Opcode.STORE: layouts.memory,
        Opcode.GEMM: layouts.gemm,
        Opcode.FINISH: layouts.finish,
        Opcode.ALU: layouts.alu,
    }
    shape = (len(Opcode), COLUMNS)
    result = Fields(
        np.zeros(len(Opcode), np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.uint64),
        np.zeros(shape, np.uint64),
        np.zeros(shape, np.int64),
        np.zeros((len(Opcode), 2), np.uint64),
    )
    for opcode, layout in kinds.items():
        result.number[opcode] = len(layout.fields)
        ordered = sorted(layout.fields, key=lambda field: field.name == "reset")
        for column, field in enumerate(ordered):
            if field.width:
                word, low = divmod(field.low, WORD_BITS)
                result.word[opcode, column] = word
                result.low[opcode, column] = low
                result.mask[opcode, column] = field.mask
                result.sign[opcode, column] = -field.minimum
                result.defined[opcode, word] |= np.uint64(field.mask << low)
    return result


def geometry(config: Config, base: int, step_limit: int) -> Geometry:
    """The core of `config` with a DRAM at `base`."""
    depths = config.log_depths
    return Geometry(
        depths.acc,
        depths.inp,
        depths.wgt,
        config.batch * config.block_out,
        np.array([config.depth(memory) for memory in MemoryId], np.int64),
        np.array([config.element_bytes(memory) for memory in MemoryId], np.int64),
        base,
        step_limit,
    )
