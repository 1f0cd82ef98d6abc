"""How compiled code sees instructions and the core: tables and plain numbers.

An instruction is a row with a column for each of its fields.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.encoding import WORD_BITS
from potash_device.vta.isa import Opcode

HEAD = ("opcode", "dependencies")
MEMORY_FIELDS = (
    *HEAD,
    *("memory_type", "sram_base", "dram_base", "y_size", "x_size", "x_stride"),
    *("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1"),
)
LOOP_FIELDS = (
    *HEAD,
    *("uop_bgn", "uop_end", "iter_out", "iter_in"),
    *("dst_factor_out", "dst_factor_in", "src_factor_out", "src_factor_in"),
)
GEMM_FIELDS = (*LOOP_FIELDS, "reset", "wgt_factor_out", "wgt_factor_in")
ALU_FIELDS = (*LOOP_FIELDS, "alu_opcode", "use_imm", "imm")

COLUMNS = max(map(len, (MEMORY_FIELDS, GEMM_FIELDS, ALU_FIELDS)))
OPCODE, DEPENDENCIES = range(2)
MEMORY_TYPE, SRAM_BASE, DRAM_BASE, Y_SIZE, X_SIZE, X_STRIDE = range(2, 8)
Y_PAD_0, Y_PAD_1, X_PAD_0, X_PAD_1 = range(8, 12)
UOP_BGN, UOP_END, ITER_OUT, ITER_IN = range(2, 6)
DST_OUT, DST_IN, SRC_OUT, SRC_IN = range(6, 10)
RESET, WGT_OUT, WGT_IN = range(10, 13)
ALU_OPCODE, USE_IMM, IMM = range(10, 13)

LOAD, STORE, GEMM, FINISH, ALU = (int(opcode) for opcode in Opcode)
UOP, WGT, INP, ACC, OUT, ACC_8BIT = (int(memory) for memory in MemoryId)


class Fields(NamedTuple):
    """The fields of an instruction, by opcode and column."""

    number: NDArray[np.int64]
    """How many an opcode has."""
    word: NDArray[np.int64]
    low: NDArray[np.uint64]
    mask: NDArray[np.uint64]
    sign: NDArray[np.int64]
    """The sign bit's value; 0 in a field without one."""
    defined: NDArray[np.uint64]
    """The bits that may be set, by opcode and word."""


class Geometry(NamedTuple):
    """What compiled code has to know of a core."""

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
    """The encoding of `config`, as tables that nobody writes to."""
    layouts = config.layouts
    kinds = {
        Opcode.LOAD: (MEMORY_FIELDS, layouts.memory),
        Opcode.STORE: (MEMORY_FIELDS, layouts.memory),
        Opcode.GEMM: (GEMM_FIELDS, layouts.gemm),
        Opcode.FINISH: (HEAD, layouts.finish),
        Opcode.ALU: (ALU_FIELDS, layouts.alu),
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
    for opcode, (names, layout) in kinds.items():
        assert set(names) == set(layout.by_name), layout.kind
        result.number[opcode] = len(names)
        for column, name in enumerate(names):
            field = layout.by_name[name]
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
