"""Streams in reclaim groups: where each one's superblocks are, and where its relocated pages go.

A reclaim group has the superblocks whose numbers are its own modulo the number of groups, and so
dies of its own. Stream n is of group n modulo that number. Source: NVM Express Base Specification
2.1, section 8.1.10 (Flexible Data Placement), where a stream is a placement handle in a group.
"""

from potash_device.flash import array
from potash_device.flash import state as flash
from potash_device.vta.fast.compiling import Flag, Number, inlined, outlined
from potash_firmware.ftl import state
from potash_firmware.ftl.state import DriveState


@inlined
def group_of(s: DriveState, block: Number) -> Number:
    """The reclaim group of a superblock; also that of a stream."""
    return block % s.settings[state.RECLAIM_GROUPS]


@outlined
def is_enough_invalid(s: DriveState, group: Number) -> Flag:
    """True if collection can free a superblock of a group."""
    invalid, size = 0, s.flash.settings[flash.SUPERBLOCK]
    for block in range(s.flash.settings[flash.SUPERBLOCKS]):
        if s.status[block] == state.IS_CLOSED and group_of(s, block) == group:
            invalid += size - s.valid[block]
    return invalid >= size


@outlined
def choose_group(s: DriveState, stream: Number) -> None:
    """Have the register TARGET be the group that a stream writes to: its own, unless that is full
    of valid pages; -1 if it needs no room, as it has a superblock open in such a group. If all
    groups are full, as so many superblocks have retired, the drive is worn out."""
    r, groups, opened = s.registers, s.settings[state.RECLAIM_GROUPS], s.open[stream]
    for further in range(groups):
        group = group_of(s, opened if opened >= 0 else stream + further)
        if s.free[group] > s.settings[state.RESERVE] or is_enough_invalid(s, group):
            r[state.TARGET] = group
            return
        if opened >= 0:
            r[state.TARGET] = -1
            return
    r[state.WORN_OUT] = 1


@inlined
def count_written(s: DriveState, stream: Number, page: Number) -> None:
    """Count a page that the host writes by a stream."""
    s.stream_counters[stream, state.WRITTEN_BY_HOST] += 1
    if s.settings[state.STREAMS] > 1:
        s.handles[page] = stream


@inlined
def home(s: DriveState, page: Number, block: Number) -> Number:
    """The frontier that takes a page which is relocated from a superblock; the page is counted for
    its stream, if it is of one."""
    settings, handle = s.settings, 0
    if s.zone[block] >= 0:
        return s.zone[block]
    if page < settings[state.LOGICAL]:
        if settings[state.STREAMS] > 1:
            handle = s.handles[page]
        s.stream_counters[handle, state.MOVED_BY_DRIVE] += 1
    if settings[state.RELOCATIONS] == 1:
        return settings[state.FRONTIERS] - 1
    if page >= settings[state.LOGICAL]:
        return settings[state.STREAMS]
    whose = handle if settings[state.ISOLATED] else 0
    groups = settings[state.RECLAIM_GROUPS]
    return settings[state.STREAMS] + 1 + whose * groups + group_of(s, block)


@inlined
def group_to_open(s: DriveState, frontier: Number) -> Number:
    """The reclaim group in which a frontier opens a superblock."""
    if frontier < s.settings[state.STREAMS]:
        return s.registers[state.TARGET]
    return group_of(s, frontier - s.settings[state.STREAMS] - 1)


@outlined
def stays(s: DriveState, where: Number, later: Number) -> Flag:
    """True where a page that is relocated, after so many others, stays on its die (copy back)."""
    f, shape, frontier = s.flash, s.flash.settings, s.settings[state.FRONTIERS] - 1
    to = later + (s.filled[frontier] if s.open[frontier] >= 0 else 0)
    size, unit = shape[flash.SUPERBLOCK], shape[flash.UNIT_PAGES]
    return array.die_of(f, 0, where % size // unit) == array.die_of(f, 0, to // unit)


@inlined
def may_collect(s: DriveState) -> Flag:
    """True if so few superblocks are free that some may be relocated next."""
    settings = s.settings
    return s.registers[state.FREE] <= max(settings[state.RESERVE], settings[state.BACKGROUND])


@inlined
def is_worth(s: DriveState, block: Number) -> Flag:
    """True for a superblock of which enough is invalid for background collection."""
    size = s.flash.settings[flash.SUPERBLOCK]
    return (size - s.valid[block]) * 1000 >= s.settings[state.BACKGROUND_INVALID] * size


@outlined
def is_any_worth(s: DriveState) -> Flag:
    """True if the group that is written to has such a superblock, that is not being refreshed."""
    group, moved = s.registers[state.TARGET], s.registers[state.MOVED]
    for block in range(s.flash.settings[flash.SUPERBLOCKS]):
        there = s.status[block] == state.IS_CLOSED and group_of(s, block) == group
        if there and block != moved and is_worth(s, block):
            return True
    return False
