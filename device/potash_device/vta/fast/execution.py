"""Execution of a stream's steps, in one thread or in several."""

import platform
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numpy.typing import NDArray

from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.binding import arguments_at
from potash_device.vta.fast.compiling import Flag, Number, compiled, emits, entry, inlined
from potash_device.vta.fast.cutting import accumulate, release
from potash_device.vta.fast.foresight import loads_the_same
from potash_device.vta.fast.narrowing import new_narrow
from potash_device.vta.fast.paths import Path
from potash_device.vta.fast.pieces import elementwise
from potash_device.vta.fast.transfer import load, store, store_narrow

LINE = 16
"""Numbers of 64 bits from one thread's progress to the next one's: two cache lines."""
PATIENCE = 4000
"""Reads of another thread's progress before the wait returns to Python, which sleeps."""


class Part(NamedTuple):
    """The steps that one of several threads executes; without any waits, it is all of them."""

    steps: NDArray[np.int32]
    waits: NDArray[np.int32]
    """The last step of each thread that has to be done before; of shape (steps, threads)."""


WHOLE = Part(np.empty(0, np.int32), np.empty((0, 0), np.int32))


class Planned(NamedTuple):
    """Values that a stream's steps depend on: the rows of its loads of micro-ops, the bytes that
    these load, and the micro-op buffer before the stream, empty where it does not matter; and the
    buffer afterwards, for the bits that are `written`."""

    loads: NDArray[np.int64]
    loaded: NDArray[np.uint8]
    held: NDArray[np.uint32]
    after: NDArray[np.uint32]
    written: NDArray[np.uint32]


NOTHING = Planned(
    np.empty((0, layout.COLUMNS), np.int64), np.empty(0, np.uint8), *[np.empty(0, np.uint32)] * 3
)
"""Steps that are executed in any case."""


class Work(NamedTuple):
    """Arguments of `run`: steps of a stream, and a core."""

    sink: s.Sink
    geometry: layout.Geometry
    dram: NDArray[np.uint8]
    uop: NDArray[np.uint32]
    buffers: Path
    acc: NDArray[np.int32]
    part: Part
    progress: NDArray[np.int64]
    planned: Planned


CHANGED = -1
"""The steps are not those of the micro-ops that there are now."""


@entry
def run(address: Any, place: Number, thread: Number) -> Number:
    """Execute the `Work` at an address as `execute` does, or return CHANGED, having done
    nothing."""
    work = arguments_at(address)
    if not is_current(work):
        return CHANGED
    place = execute(
        work.sink,
        work.geometry,
        work.dram,
        work.buffers,
        work.acc,
        work.part,
        place,
        thread,
        work.progress,
    )
    planned = work.planned
    uop, after, written = work.uop, planned.after, planned.written
    for number in range(written.size):
        uop[number] = uop[number] & ~written[number] | after[number] & written[number]
    return place


@compiled
def is_current(work: Work) -> Flag:
    """True where the steps are those of the micro-ops that are in DRAM, and in the buffer."""
    planned = work.planned
    if not loads_the_same(planned.loads, planned.loaded, work.geometry, work.dram):
        return False
    held, uop = planned.held, work.uop
    different = np.uint32(0)
    for number in range(held.size):
        different |= held[number] ^ uop[number]
    return different == 0


@compiled
def execute(
    sink: s.Sink,
    geometry: layout.Geometry,
    dram: Any,
    buffers: Any,
    acc: Any,
    part: Part,
    place: Number,
    thread: Number,
    progress: Any,
) -> Number:
    """Execute steps of a stream from number `place` of `part` on.

    Returns the next place: the caller sleeps and continues there, as other threads are not far
    enough yet. When all is done, and for the first thread all others are done, it is greater than
    the last place. `progress` has, at every `LINE`th number, the step before which that thread has
    executed all of its own.
    """
    configured = np.int64(0)
    narrow = new_narrow()
    alone = part.waits.shape[1] == 0
    own = progress.ctypes.data + thread * LINE * progress.itemsize
    end = sink.filled[s.STEPS] if alone else np.int64(part.steps.size)
    # `execute_step` is called once here, as it is inlined: a call with that many arguments takes
    # longer than many steps do.
    while place < end:
        step = np.int64(place)
        if not alone:
            step = np.int64(part.steps[place])
            publish(own, step)
            if not may_begin(part.waits[place], progress):
                release(buffers, configured)
                return place
        following, configured = execute_step(
            sink, step, geometry, dram, buffers, acc, narrow, configured
        )
        place = following if alone else place + 1
    if alone:
        release(buffers, configured)
        return place
    release(buffers, configured)
    publish(own, np.int64(sink.filled[s.STEPS]))
    if thread == 0:
        # All others must have left this function, as the next stream resets `progress`.
        for other in range(1, part.waits.shape[1]):
            if not is_past(progress, other, np.int64(sink.filled[s.STEPS]) - 1):
                return place
    return place + 1


@compiled
def may_begin(waits: Any, progress: Any) -> Flag:
    """Wait for a while for the steps that a step depends on. True when all of them are done."""
    for other in range(waits.size):
        needed = np.int64(waits[other])
        if needed >= 0 and not is_past(progress, other, needed):
            return False
    return True


@compiled
def is_past(progress: Any, thread: Number, step: Number) -> Flag:
    """Wait for a while for a step of another thread. True when it is done."""
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
    geometry: layout.Geometry,
    dram: Any,
    buffers: Any,
    acc: Any,
    narrow: Number,
    configured: Number,
) -> Any:
    """Execute the step `at`, with those that are executed together with it. Returns the next step,
    and how `accumulate` has configured the processor."""
    step = sink.steps[at]
    kind = step[s.KIND]
    following = np.int64(at) + 1
    if kind == s.PRODUCTS:
        configured = accumulate(buffers, step, sink.pairs, geometry.lanes, acc, configured)
    elif kind == s.ELEMENTWISE:
        elementwise(buffers, sink.steps[at : at + step[s.MEMBERS]], acc, narrow)
        following = np.int64(at) + np.int64(step[s.MEMBERS])
    elif kind == s.ZERO:
        begin = np.int64(step[s.TARGET]) * geometry.lanes
        acc[begin : begin + step[s.COUNT] * geometry.lanes] = 0
    else:
        row = step[s.ROW :]
        if row[layout.OPCODE] == layout.LOAD:
            load(row, geometry, dram, buffers, acc)
        elif step[s.NARROW]:
            store_narrow(row, geometry, dram, narrow)
        else:
            store(row, geometry, dram, acc)
    return following, configured


@emits()
def publish(builder: Any, address: Any, value: Any) -> None:
    """Write a number, ordered after all earlier reads and writes of this thread."""
    pointer = builder.inttoptr(address, ir.IntType(64).as_pointer())
    builder.store_atomic(value, pointer, "release", 8)


@emits(types.int64)
def observe(builder: Any, address: Any) -> Any:
    """Read a number, ordered before all later reads and writes of this thread."""
    pointer = builder.inttoptr(address, ir.IntType(64).as_pointer())
    return builder.load_atomic(pointer, "acquire", 8)


@emits()
def pause(builder: Any) -> None:
    """Leave the core to its other thread for a moment, if it has one."""
    text = "pause" if platform.machine() == "x86_64" else ""
    builder.asm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", [], side_effect=True)
