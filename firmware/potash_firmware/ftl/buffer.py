"""A drive's write buffer: when it has room, by a heap of the times at which programs end."""

from typing import Any

from potash_device.flash import state as flash
from potash_device.flash.profile import PAGE
from potash_device.vta.fast.compiling import Number, inlined, outlined
from potash_firmware.ftl import state
from potash_firmware.ftl.state import DriveState


@outlined
def admit_zone(s: DriveState, zone: Number, ready: Number) -> Number:
    """The time at which the write buffer of a zone has room for its next page: when a unit has been
    programmed that is as many units before as the buffer holds."""
    pages, units = s.flash.settings[flash.UNIT_PAGES], s.settings[state.ZONE_UNITS]
    size, block = s.flash.settings[flash.SUPERBLOCK] // pages, s.open[zone]
    unit = s.filled[zone] // pages - units if block >= 0 else -units
    if unit < 0:
        block, unit = s.before[zone], unit + size
    return (
        max(ready, s.flash.programmed[block * size + unit]) if block >= 0 and unit >= 0 else ready
    )


@inlined
def admit(s: DriveState, ready: Number) -> Number:
    """The time at which the write buffer has room for a page, first come, first served."""
    r, size = s.registers, s.settings[state.BUFFER]
    if not size:
        return ready
    ready = max(ready, r[state.ADMITTED])
    while r[state.QUEUED] and (s.programs[0] <= ready or r[state.BUFFERED] >= size // PAGE):
        done = pop(s)
        if done > ready:
            ready = r[state.ADMITTED] = done
        r[state.BUFFERED] -= s.flash.settings[flash.UNIT_PAGES]
    r[state.BUFFERED] += 1
    return ready


@inlined
def pop(s: DriveState) -> Number:
    """The least of the heap."""
    heap = s.programs
    least = heap[0]
    s.registers[state.QUEUED] -= 1
    sift(heap, s.registers[state.QUEUED], heap[s.registers[state.QUEUED]])
    return least


@outlined
def sift(heap: Any, count: Number, time: Number) -> None:
    """Put a time in the place of the least of a heap."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= time:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = time


@inlined
def push(s: DriveState, time: Number) -> None:
    heap, at = s.programs, s.registers[state.QUEUED]
    s.registers[state.QUEUED] += 1
    while at and heap[(at - 1) // 2] > time:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = time
