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


@outlined
def gap(begins: Any, ends: Any, count: Number, earliest: Number, duration: Number) -> Number:
    """The busy interval of a calendar before which the first long enough gap is."""
    at = 0
    while at < count and earliest + duration > begins[at]:
        earliest = max(earliest, ends[at])
        at += 1
    return at


@inlined
def reserve(f: FlashState, which: Number, earliest: Number, duration: Number) -> Number:
    """The end of an operation in the first gap of a calendar."""
    now = f.now[0]
    return insert(f.begins[which], f.ends[which], f.intervals, which, now, earliest, duration)


@outlined
def insert(
    begins: Any,
    ends: Any,
    intervals: Any,
    which: Number,
    now: Number,
    earliest: Number,
    duration: Number,
) -> Number:
    count, past = intervals[which], 0
    while past < count and ends[past] <= now:
        past += 1
    at = gap(begins, ends, count, earliest, duration)
    start = max(earliest, ends[at - 1]) if at else earliest
    stop = start + duration
    if not duration:
        return stop
    # Intervals from `past` on stay, in whose order the new one is before `at`; the first place of
    # all arrays but a full one is free for it, as those that are past go.
    at = max(at, past)
    after = at > past and ends[at - 1] == start
    before = at < count and begins[at] == stop
    if after:
        ends[at - 1] = ends[at] if before else stop
    elif before:
        begins[at] = start
    elif past:
        past -= 1
        for one in range(past, at - 1):
            begins[one], ends[one] = begins[one + 1], ends[one + 1]
        begins[at - 1], ends[at - 1] = start, stop
    else:
        for one in range(count, at, -1):
            begins[one], ends[one] = begins[one - 1], ends[one - 1]
        begins[at], ends[at] = start, stop
        count += 1
    removed = at if after and before else count
    if count - past - (after and before) > MOST_GAPS:
        begins[past + 1] = begins[past]
        past += 1
    to = 0
    for one in range(past, count):
        if one != removed:
            begins[to], ends[to] = begins[one], ends[one]
            to += 1
    intervals[which] = to
    return stop


@outlined
def interrupt(f: FlashState, die: Number, start: Number, duration: Number) -> Number:
    """Read from `start` on, before all else that is to be done then; when that is sensed."""
    which, wait = f.settings[state.CHANNELS] + 2 + die, 0
    begins, ends, count = f.begins[which], f.ends[which], f.intervals[which]
    at = 0
    while ends[at] <= start:
        at += 1
    busy = begins[at] < start
    if busy:
        wait = f.settings[state.SUSPEND_NS]
        f.counters[state.SUSPENSIONS] += 1
    delay = duration + 2 * wait
    for one in range(at, count):
        begins[one] += 0 if busy and one == at else delay
        ends[one] += delay
    f.last[die] = max(f.last[die], ends[count - 1])
    f.counters[state.DIE_BUSY] += delay
    if not busy:
        reserve(f, which, start, delay)
    return start + wait + duration
