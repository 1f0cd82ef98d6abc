"""The loop over a stream's instructions."""

from typing import Any

from potash_device.vta.fast.alu import alu
from potash_device.vta.fast.compiling import Flag, Number, compiled
from potash_device.vta.fast.gemm import gemm
from potash_device.vta.fast.indices import stays
from potash_device.vta.fast.layout import (
    ALU,
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
    Y_PAD_0,
    Y_PAD_1,
    Y_SIZE,
    Geometry,
)
from potash_device.vta.fast.runs import look_ahead
from potash_device.vta.fast.transfer import load, store


@compiled
def execute(
    rows: Any,
    order: Any,
    geometry: Geometry,
    dram: Any,
    uop: Any,
    ahead: Any,
    buffers: Any,
    acc: Any,
    table: Any,
    scratch: Any,
    sure: Flag,
) -> Number:
    """Execute a stream that was admitted. Gives the index of an instruction whose micro-ops lead
    out of a buffer, which is then the first that was not executed, or -1. `ahead` is the table of
    the micro-ops' runs; `table` and `scratch` are memory for GEMM and ALU to work in. With `sure`,
    no micro-ops lead out of a buffer, and that is not checked."""
    for place in range(order.size):
        index = order[place]
        row = rows[index]
        opcode = row[OPCODE]
        if opcode == GEMM or opcode == ALU:
            if not sure and not stays(row, uop, geometry):
                return index
            if opcode == GEMM:
                gemm(row, uop, geometry, buffers, acc, table)
            else:
                alu(row, uop, ahead, geometry, acc, scratch)
        elif opcode == LOAD and row[X_SIZE]:
            load(row, geometry, dram, uop, buffers, acc)
            if row[MEMORY_TYPE] == UOP:
                begin = row[SRAM_BASE]
                width = row[X_PAD_0] + row[X_SIZE] + row[X_PAD_1]
                end = begin + (row[Y_PAD_0] + row[Y_SIZE] + row[Y_PAD_1]) * width
                look_ahead(uop, geometry, begin, end, ahead)
        elif opcode == STORE and row[X_SIZE]:
            store(row, geometry, dram, acc)
    return -1
