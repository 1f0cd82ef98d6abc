"""The loop over a stream's instructions."""

from typing import Any

from potash_device.vta.fast import layout
from potash_device.vta.fast.alu import alu
from potash_device.vta.fast.compiling import Flag, Number, compiled
from potash_device.vta.fast.gemm import gemm
from potash_device.vta.fast.indices import stays
from potash_device.vta.fast.runs import look_ahead
from potash_device.vta.fast.transfer import load, store


@compiled
def execute(
    rows: Any,
    order: Any,
    geometry: layout.Geometry,
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
        opcode = row[layout.OPCODE]
        if opcode == layout.GEMM or opcode == layout.ALU:
            if not sure and not stays(row, uop, geometry):
                return index
            if opcode == layout.GEMM:
                gemm(row, uop, geometry, buffers, acc, table)
            else:
                alu(row, uop, ahead, geometry, acc, scratch)
        elif opcode == layout.LOAD and row[layout.X_SIZE]:
            load(row, geometry, dram, uop, buffers, acc)
            if row[layout.MEMORY_TYPE] == layout.UOP:
                begin = row[layout.SRAM_BASE]
                width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
                end = (
                    begin + (row[layout.Y_PAD_0] + row[layout.Y_SIZE] + row[layout.Y_PAD_1]) * width
                )
                look_ahead(uop, geometry, begin, end, ahead)
        elif opcode == layout.STORE and row[layout.X_SIZE]:
            store(row, geometry, dram, acc)
    return -1
