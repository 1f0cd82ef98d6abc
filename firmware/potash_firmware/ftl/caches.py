"""Caches in a drive's memory: of translation pages, and of the host's pages that were read.

Both replace entries by CLOCK: the hand passes entries that were used since it came by last, and
replaces the first other one.
"""

from typing import Any

from potash_device.flash.array import in_memory, sense
from potash_device.flash.profile import ENTRIES
from potash_device.vta.fast.compiling import Flag, Number, outlined
from potash_firmware.ftl import state
from potash_firmware.ftl.frontiers import place
from potash_firmware.ftl.state import DriveState


@outlined
def entry(cache: Any, registers: Any, count: Number) -> Number:
    """The index of an entry of a cache that is free, or else to be replaced.

    The register `count` has the number of those in use, and the next one the hand.
    """
    hand, size = count + 1, cache.shape[0]
    if registers[count] < size:
        registers[count] += 1
        return registers[count] - 1
    while cache[registers[hand], state.USED]:
        cache[registers[hand], state.USED] = 0
        registers[hand] = (registers[hand] + 1) % size
    at = registers[hand]
    registers[hand] = (at + 1) % size
    return at


@outlined
def translate(s: DriveState, page: Number, ready: Number, dirty: Flag) -> Number:
    """The time at which a page's translation page is in memory."""
    r, settings, cached = s.registers, s.settings, s.cached
    number = page // ENTRIES
    at = s.cached_at[number]
    if at >= 0:
        s.counters[state.HITS] += 1
        cached[at, state.DIRTY] |= dirty
        cached[at, state.USED] = 1
        return max(ready, cached[at, state.LOADED])
    s.counters[state.MISSES] += 1
    where, loaded = s.places[settings[state.LOGICAL] + number], ready
    if where >= 0 and not in_memory(s.flash, where, ready):
        loaded = sense(s.flash, where, 1, ready, True)
    at = entry(cached, r, state.CACHED)
    old, writes = cached[at, state.ENTRY], cached[at, state.DIRTY] and not r[state.WORN_OUT]
    if old >= 0:
        s.cached_at[old] = -1
    s.cached_at[number] = at
    cached[at, state.ENTRY], cached[at, state.LOADED] = number, loaded
    cached[at, state.DIRTY], cached[at, state.USED] = dirty, 1
    if old >= 0 and writes:
        place(s, settings[state.STREAMS], settings[state.LOGICAL] + old, ready)
        s.counters[state.TRANSLATION] += 1
    return loaded


@outlined
def found(s: DriveState, page: Number, ready: Number) -> Number:
    """The time at which a page is read from the read cache; -1 if it is not there."""
    at = s.read_cached_at[page]
    s.counters[state.READ_MISSES if at < 0 else state.READ_HITS] += 1
    if at < 0:
        return -1
    s.read_cached[at, state.USED] = 1
    return max(ready, s.read_cached[at, state.LOADED]) + s.settings[state.READ_CACHE_PAGE]


@outlined
def keep_row(s: DriveState, first: Number, count: Number, loaded: Number) -> None:
    """Have the read cache hold the pages of a row, which is read at `loaded`."""
    cache = s.read_cached
    for page in s.owners[first : first + count]:
        at = entry(cache, s.registers, state.READ_CACHED)
        if cache[at, state.ENTRY] >= 0:
            s.read_cached_at[cache[at, state.ENTRY]] = -1
        s.read_cached_at[page] = at
        cache[at, state.ENTRY], cache[at, state.LOADED], cache[at, state.USED] = page, loaded, 1
