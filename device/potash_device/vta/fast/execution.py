"""Executing steps."""

import platform
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numpy.typing import NDArray

from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Flag, Number, compiled, entry, inlined, intrinsic
from potash_device.vta.fast.cutting import accumulate, release
from potash_device.vta.fast.pieces import elementwise
from potash_device.vta.fast.transfer import load, store

LINE = 16
"""Numbers of 64 bits from one thread's progress to the next one's: two cache lines."""
PATIENCE = 4000
"""Looks at another thread's progress before Python gets to know that there is none."""


class Part(NamedTuple):
    """The steps that one of several threads executes; without any waits, it is all of them."""

    steps: NDArray[np.int32]
    waits: NDArray[np.int32]
    """The last step of each thread that has to be done before; of shape (steps, threads)."""


WHOLE = Part(np.empty(0, np.int32), np.empty((0, 0), np.int32))


@entry
def execute(
    sink: s.Sink,
    rows: Any,
    geometry: layout.Geometry,
    dram: Any,
    buffers: Any,
    acc: Any,
    part: Part,
    place: Number,
    thread: Number,
    progress: Any,
) -> Number:
    """Execute steps of a stream, whose instructions are `rows`, from a place of `part` on.

    Gives the next place, and a greater one than the last when all is done; the first thread waits
    for all others before. Until then, others have not come far enough for a while. `progress` has
    the step before which each thread has done all of its own, at every `LINE`th number.
    """
    configured = np.int64(0)
    alone = part.waits.shape[1] == 0
    own = progress.ctypes.data + thread * LINE * progress.itemsize
    end = sink.filled[s.STEPS] if alone else np.int64(part.steps.size)
    # There is one call of `execute_step`, as each is a copy of it: calls with all that it is given
    # take longer than many steps do.
    while place < end:
        step = np.int64(place)
        if not alone:
            step = np.int64(part.steps[place])
            publish(own, step)
            if not may_begin(part.waits[place], progress):
                release(buffers, configured)
                return place
        following, configured = execute_step(
            sink, step, rows, geometry, dram, buffers, acc, configured
        )
        place = following if alone else place + 1
    if alone:
        release(buffers, configured)
        return place
    release(buffers, configured)
    publish(own, np.int64(sink.filled[s.STEPS]))
    if thread == 0:
        # The others are no longer here then: `progress` is for the next stream.
        for other in range(1, part.waits.shape[1]):
            if not is_past(progress, other, np.int64(sink.filled[s.STEPS]) - 1):
                return place
    return place + 1


@compiled
def may_begin(waits: Any, progress: Any) -> Flag:
    """Whether all that a step waits for is done; waits for it a while."""
    for other in range(waits.size):
        needed = np.int64(waits[other])
        if needed >= 0 and not is_past(progress, other, needed):
            return False
    return True


@compiled
def is_past(progress: Any, thread: Number, step: Number) -> Flag:
    """Whether a thread has done a step; waits for it a while."""
    address = progress.ctypes.data + thread * LINE * progress.itemsize
    for _ in range(PATIENCE):
        if observe(address) > step:
            return True
        pause()
    return False


@inlined
def execute_step(
    sink: s.Sink,
    at: Number,
    rows: Any,
    geometry: layout.Geometry,
    dram: Any,
    buffers: Any,
    acc: Any,
    configured: Number,
) -> Any:
    """Execute the step `at`, with those that are executed together with it. Gives the next one, and
    how `accumulate` has configured the processor."""
    step = sink.steps[at]
    kind = step[s.KIND]
    following = np.int64(at) + 1
    if kind == s.PRODUCTS:
        configured = accumulate(buffers, step, sink.pairs, geometry.lanes, acc, configured)
    elif kind == s.ELEMENTWISE:
        elementwise(buffers, sink.steps[at : at + step[s.MEMBERS]], acc)
        following = np.int64(at) + np.int64(step[s.MEMBERS])
    elif kind == s.ZERO:
        begin = np.int64(step[s.TARGET]) * geometry.lanes
        acc[begin : begin + step[s.COUNT] * geometry.lanes] = 0
    else:
        row = rows[step[s.TARGET]]
        if row[layout.OPCODE] == layout.LOAD:
            load(row, geometry, dram, buffers, acc)
        else:
            store(row, geometry, dram, acc)
    return following, configured


@intrinsic
def publish(typing: Any, address: Any, value: Any) -> Any:
    """Write a number, after everything that this thread has read and written before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def observe(typing: Any, address: Any) -> Any:
    """Read a number, before everything that this thread reads and writes from now on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def pause(typing: Any) -> Any:
    """Leave the core to its other thread for a moment, if it has one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        text = "pause" if platform.machine() == "x86_64" else ""
        builder.asm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), generate
