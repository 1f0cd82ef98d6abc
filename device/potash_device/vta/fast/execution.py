"""Executing steps."""

from typing import Any

import numpy as np

from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import entry
from potash_device.vta.fast.cutting import accumulate, release
from potash_device.vta.fast.pieces import elementwise
from potash_device.vta.fast.transfer import load, store


@entry
def execute(
    sink: s.Sink,
    rows: Any,
    geometry: layout.Geometry,
    dram: Any,
    buffers: Any,
    acc: Any,
) -> None:
    """Execute steps of a stream, whose instructions are `rows`."""
    at = 0
    configured = np.int64(0)
    while at < sink.filled[s.STEPS]:
        step = sink.steps[at]
        kind = step[s.KIND]
        if kind == s.PRODUCTS:
            configured = accumulate(buffers, step, sink.pairs, geometry.lanes, acc, configured)
        elif kind == s.ELEMENTWISE:
            elementwise(buffers, sink.steps[at : at + step[s.MEMBERS]], acc)
            at += step[s.MEMBERS] - 1
        elif kind == s.ZERO:
            begin = np.int64(step[s.TARGET]) * geometry.lanes
            acc[begin : begin + step[s.COUNT] * geometry.lanes] = 0
        else:
            row = rows[step[s.TARGET]]
            if row[layout.OPCODE] == layout.LOAD:
                load(row, geometry, dram, buffers, acc)
            else:
                store(row, geometry, dram, acc)
        at += 1
    release(buffers, configured)
