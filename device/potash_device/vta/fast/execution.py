"""The loop over a stream's instructions."""

from typing import Any

from potash_device.vta.fast.alu import alu
from potash_device.vta.fast.compiling import Number, compiled
from potash_device.vta.fast.gemm import gemm
from potash_device.vta.fast.indices import stays
from potash_device.vta.fast.layout import ALU, GEMM, LOAD, OPCODE, STORE, X_SIZE, Geometry
from potash_device.vta.fast.transfer import load, store


@compiled
def execute(
    rows: Any,
    order: Any,
    geometry: Geometry,
    dram: Any,
    uop: Any,
    buffers: Any,
    acc: Any,
    table: Any,
    room: Any,
) -> Number:
    """Execute a stream that was admitted. Gives the index of an instruction whose micro-ops lead
    out of a buffer, which is then the first that was not executed, or -1. `table` and `room` are
    for GEMM and ALU to work in."""
    for place in range(order.size):
        index = order[place]
        row = rows[index]
        opcode = row[OPCODE]
        if opcode == GEMM or opcode == ALU:
            if not stays(row, uop, geometry):
                return index
            if opcode == GEMM:
                gemm(row, uop, geometry, buffers, acc, table)
            else:
                alu(row, uop, geometry, acc, room)
        elif opcode == LOAD and row[X_SIZE]:
            load(row, geometry, dram, uop, buffers, acc)
        elif opcode == STORE and row[X_SIZE]:
            store(row, geometry, dram, acc)
    return -1
