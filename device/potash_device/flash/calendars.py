"""Calendars of a drive's parts: reservations, and the gaps between them that others may take."""

from typing import Any

from potash_device.flash import state
from potash_device.flash.profile import PAGE
from potash_device.flash.state import MOST_GAPS, FlashState
from potash_device.vta.fast.compiling import Number, inlined, outlined


@inlined
def send(f: FlashState, out: Number, ready: Number, pages: Number) -> Number:
    """The end of a transfer on the link, into the drive (0) or out of it (1)."""
    settings = f.settings
    size = settings[state.LINK_BYTES]
    duration = (pages * PAGE * settings[state.LINK_NS] + size - 1) // size
    f.counters[state.LINK_BUSY] += duration
    return reserve(f, settings[state.CHANNELS] + out, ready, duration)


@inlined
def transfer(f: FlashState, die: Number, ready: Number, pages: Number) -> Number:
    """The end of a transfer between a die and the drive's memory."""
    settings = f.settings
    size = settings[state.BUS_BYTES]
    duration = (
        settings[state.BUS_COMMAND] + (pages * PAGE * settings[state.BUS_NS] + size - 1) // size
    )
    f.counters[state.BUS_BUSY] += duration
    return reserve(f, die // settings[state.DIES], ready, duration)


@inlined
def occupy(f: FlashState, die: Number, ready: Number, duration: Number) -> Number:
    f.counters[state.DIE_BUSY] += duration
    end = reserve(f, f.settings[state.CHANNELS] + 2 + die, ready, duration)
    f.last[die] = max(f.last[die], end)
    return end


@inlined
def after(ends: Any, first: Number, last: Number, time: Number) -> Number:
    """The first busy interval of a calendar that ends after a time."""
    while first < last:
        middle = (first + last) // 2
        if ends[middle] <= time:
            first = middle + 1
        else:
            last = middle
    return first


@outlined
def gap(
    begins: Any, ends: Any, first: Number, last: Number, earliest: Number, duration: Number
) -> Number:
    """The busy interval of a calendar before which the first long enough gap is."""
    at = after(ends, first, last, earliest)
    while at < last and earliest + duration > begins[at]:
        earliest = ends[at]
        at += 1
    return at


@inlined
def reserve(f: FlashState, which: Number, earliest: Number, duration: Number) -> Number:
    """The end of an operation in the first gap of a calendar."""
    now = f.now[0]
    return insert(f.begins[which], f.ends[which], f.intervals[which], now, earliest, duration)


@outlined
def insert(
    begins: Any, ends: Any, bounds: Any, now: Number, earliest: Number, duration: Number
) -> Number:
    first, last = bounds[0], bounds[1]
    while first < last and ends[first] <= now:
        first += 1
    if first == last:
        first = last = 0
    at = last
    if first < last and earliest < ends[last - 1]:
        at = gap(begins, ends, first, last, earliest, duration)
    start = max(earliest, ends[at - 1]) if at > first else earliest
    stop = start + duration
    if duration:
        follows = at > first and ends[at - 1] == start
        precedes = at < last and begins[at] == stop
        if follows and precedes:
            begins[at] = begins[at - 1]
            for each in range(at - 1, first, -1):
                begins[each], ends[each] = begins[each - 1], ends[each - 1]
            first += 1
        elif follows:
            ends[at - 1] = stop
        elif precedes:
            begins[at] = start
        else:
            if last == ends.size:
                for each in range(first, last):
                    begins[each - first], ends[each - first] = begins[each], ends[each]
                at, first, last = at - first, 0, last - first
            if first and at - first < last - at:
                first, at = first - 1, at - 1
                for each in range(first, at):
                    begins[each], ends[each] = begins[each + 1], ends[each + 1]
            else:
                for each in range(last, at, -1):
                    begins[each], ends[each] = begins[each - 1], ends[each - 1]
                last += 1
            begins[at], ends[at] = start, stop
            if last - first > MOST_GAPS:
                begins[first + 1] = begins[first]
                first += 1
    bounds[0], bounds[1] = first, last
    return stop


@outlined
def interrupt(f: FlashState, die: Number, start: Number, duration: Number) -> Number:
    """Read from `start` on, before all else that is to be done then; when that is sensed."""
    which, wait = f.settings[state.CHANNELS] + 2 + die, 0
    begins, ends, last = f.begins[which], f.ends[which], f.intervals[which, 1]
    at = after(ends, f.intervals[which, 0], last, start)
    busy = begins[at] < start
    if busy:
        wait = f.settings[state.SUSPEND_NS]
        f.counters[state.SUSPENSIONS] += 1
    delay = duration + 2 * wait
    for each in range(at, last):
        begins[each] += 0 if busy and each == at else delay
        ends[each] += delay
    f.last[die] = max(f.last[die], ends[last - 1])
    f.counters[state.DIE_BUSY] += delay
    if not busy:
        reserve(f, which, start, delay)
    return start + wait + duration
