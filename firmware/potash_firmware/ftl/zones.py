"""Zones, which have superblocks of their own, and their SLC buffer.

With `zone_slc`, writes of a zone that do not fill a program unit go to superblocks in SLC mode that
all zones share. When the unit can be filled, its pages are read there, and programmed in the zone's
own superblock with the new ones. Source: ConZone (DATE 2025), where it is the secondary write
buffer of consumers' zoned drives.
"""

from potash_device.flash import state as flash
from potash_device.flash.array import in_memory, sense
from potash_device.vta.fast.compiling import Flag, Number, inlined, outlined
from potash_firmware.ftl import state
from potash_firmware.ftl.frontiers import erase, invalidate, open_superblock, place, program
from potash_firmware.ftl.relocation import collect
from potash_firmware.ftl.state import DriveState


@outlined
def reset(s: DriveState, zone: Number, ready: Number) -> None:
    """Erase the superblocks of a zone."""
    r, size = s.registers, s.flash.settings[flash.SUPERBLOCK]
    if s.settings[state.ZONE_SLC]:
        drop(s, zone, ready)
    if s.settings[state.BUFFER] and not s.settings[state.ZONE_UNITS]:
        r[state.BUFFERED] -= s.filled[zone] % s.flash.settings[flash.UNIT_PAGES]
    s.open[zone] = s.before[zone] = -1
    s.filled[zone] = s.ready[zone] = 0
    for block in range(s.flash.settings[flash.SUPERBLOCKS]):
        if s.zone[block] == zone:
            for where in range(block * size, (block + 1) * size):
                if s.owners[where] >= 0:
                    s.places[s.owners[where]] = s.owners[where] = -1
            s.valid[block] = 0
            erase(s, block, ready)
            r[state.END] = max(r[state.END], s.flash.erased[block])


@outlined
def finish(s: DriveState, zone: Number, ready: Number) -> None:
    """Program the rest of the superblock that a zone has open, without data."""
    r, size = s.registers, s.flash.settings[flash.UNIT_PAGES]
    if s.settings[state.ZONE_SLC]:
        gather(s, zone, ready)
    while s.open[zone] >= 0:
        padding = size - s.filled[zone] % size
        partial = padding < size
        s.filled[zone] += padding
        s.ready[zone] = max(s.ready[zone], ready)
        s.counters[state.PADDING] += padding
        if s.settings[state.BUFFER] and partial and not s.settings[state.ZONE_UNITS]:
            r[state.BUFFERED] += padding
        r[state.END] = max(r[state.END], program(s, zone, partial))


@inlined
def buffer_of_zones(s: DriveState) -> Number:
    """The frontier of the SLC buffer."""
    return s.settings[state.FRONTIERS] + s.flash.settings[flash.SUPERBLOCKS]


@outlined
def stage(s: DriveState, zone: Number, page: Number, left: Number, ready: Number) -> Number:
    """The frontier for a page of a zone, with which a request has so many `left`: the SLC buffer,
    unless they fill the zone's program unit, which then gets what is in the buffer of it.

    Where the SLC buffer has no room, the unit is filled in memory, as it is without one.
    """
    unit, at = s.flash.settings[flash.UNIT_PAGES], zone - s.settings[state.FRONTIERS]
    if s.open[zone] < 0:
        open_superblock(s, zone)
    count = s.staged_count[at]
    if s.filled[zone] % unit == 0 and count + left < unit and has_room(s, ready):
        s.staged[at, count] = page
        s.staged_count[at] += 1
        return buffer_of_zones(s)
    gather(s, zone, ready)
    return zone


@outlined
def has_room(s: DriveState, ready: Number) -> Flag:
    """Reclaim the superblock of the SLC buffer that has the fewest valid pages, if there is no
    other room in it, by copying them; False if that frees less than half of it."""
    r, shape, frontier = s.registers, s.flash.settings, buffer_of_zones(s)
    if s.open[frontier] >= 0:
        return True
    used, least = 0, -1
    for block in range(shape[flash.SUPERBLOCKS]):
        if s.zone[block] == frontier:
            used += 1 - s.flash.bad[block]
            if least < 0 or s.valid[block] < s.valid[least]:
                least = block
    if used < s.settings[state.ZONE_SLC]:
        return True
    if least < 0 or 2 * s.valid[least] > shape[flash.SLC_PAGES]:
        return False
    r[state.ZONE_VICTIM], r[state.ZONE_CURSOR] = least, 0
    r[state.BUFFERED] += s.valid[least]
    collect(s, state.ZONE_VICTIM, max(ready, r[state.ADMITTED]), shape[flash.SUPERBLOCK])
    return True


@outlined
def gather(s: DriveState, zone: Number, ready: Number) -> None:
    """Move the pages that a zone has in the SLC buffer to its own superblock."""
    r, shape, at = s.registers, s.flash.settings, zone - s.settings[state.FRONTIERS]
    count, pages, last, there = s.staged_count[at], 0, -1, ready
    for index in range(count):
        where = s.places[s.staged[at, index]]
        if where < 0 or in_memory(s.flash, where, ready):
            continue
        if pages and where // shape[flash.ROW_PAGES] != last // shape[flash.ROW_PAGES]:
            there, pages = max(there, sense(s.flash, last, pages, ready, False)), 0
        last, pages = where, pages + 1
    if pages:
        there = max(there, sense(s.flash, last, pages, ready, False))
    if s.settings[state.BUFFER] and not s.settings[state.ZONE_UNITS]:
        r[state.BUFFERED] += count
    for index in range(count):
        where = s.places[s.staged[at, index]]
        place(s, zone, s.staged[at, index], there)
        free(s, where, ready)
    s.counters[state.RELOCATED] += count
    s.counters[state.FOLDED] += count
    clear(s, at)


@outlined
def drop(s: DriveState, zone: Number, ready: Number) -> None:
    """Forget the pages that a zone has in the SLC buffer."""
    at = zone - s.settings[state.FRONTIERS]
    for index in range(s.staged_count[at]):
        where = s.places[s.staged[at, index]]
        invalidate(s, s.staged[at, index])
        free(s, where, ready)
    clear(s, at)


@inlined
def clear(s: DriveState, at: Number) -> None:
    """Have no page of a zone, by its number, in the SLC buffer."""
    s.staged[at, :] = -1
    s.staged_count[at] = 0


@outlined
def free(s: DriveState, where: Number, ready: Number) -> None:
    """Erase the full superblock of the SLC buffer that has a place, if no valid page is in it."""
    block = where // s.flash.settings[flash.SUPERBLOCK]
    full = s.zone[block] == buffer_of_zones(s) and s.status[block] == state.IS_ZONED
    if where >= 0 and full and not s.valid[block]:
        erase(s, block, ready)
