"""Superblocks that are filled, by frontiers: by streams, relocations, and zones; and erased."""

from potash_device.flash import array
from potash_device.flash import state as flash
from potash_device.vta.fast.compiling import Flag, Number, inlined, outlined
from potash_firmware.ftl import reclaim, state
from potash_firmware.ftl.buffer import push
from potash_firmware.ftl.state import DriveState


@inlined
def place(s: DriveState, frontier: Number, page: Number, ready: Number) -> Number:
    """Give a page its place; when the unit is programmed that it fills, else 0."""
    shape = s.flash.settings
    if s.open[frontier] < 0:
        open_superblock(s, frontier)
    block = s.open[frontier]
    invalidate(s, page)
    where = block * shape[flash.SUPERBLOCK] + s.filled[frontier]
    s.places[page] = where
    s.owners[where] = page
    s.valid[block] += 1
    s.filled[frontier] += 1
    s.ready[frontier] = max(s.ready[frontier], ready)
    return 0 if s.filled[frontier] % shape[flash.UNIT_PAGES] else program(s, frontier, True)


@outlined
def open_superblock(s: DriveState, frontier: Number) -> None:
    """The least erased free one; for relocated pages the most erased.

    That of a zone is on the dies of its group, while there is such a one. That of a stream is in
    SLC mode, while the cache has room, and that of the SLC buffer of zones always is.
    """
    r, settings, shape = s.registers, s.settings, s.flash.settings
    zone, chosen, best = frontier - settings[state.FRONTIERS], -1, False
    cold = zone < 0 and frontier > settings[state.STREAMS]
    groups = settings[state.RECLAIM_GROUPS]
    group = reclaim.group_to_open(s, frontier) if groups > 1 else 0
    for block in range(shape[flash.SUPERBLOCKS]):
        if s.status[block] != state.IS_FREE or block % groups != group:
            continue
        better = 0 <= zone < shape[flash.SUPERBLOCKS] and (block - zone) % shape[flash.GROUPS] == 0
        more = chosen < 0 or (better and not best)
        if not more and better == best:
            difference = s.flash.erases[block] - s.flash.erases[chosen]
            more = difference > 0 if cold else difference < 0
        if more:
            chosen, best = block, better
    if zone >= 0:
        s.zone[chosen] = frontier
    if zone == shape[flash.SUPERBLOCKS]:
        s.flash.mode[chosen] = flash.SLC
    slc = r[state.SLC_USED] < settings[state.SLC_SUPERBLOCKS]
    if slc and frontier < settings[state.STREAMS]:
        s.flash.mode[chosen] = flash.SLC
        r[state.SLC_USED] += 1
    s.status[chosen] = state.IS_OPEN
    r[state.FREE] -= 1
    s.free[group] -= 1
    s.open[frontier] = chosen
    s.filled[frontier] = s.ready[frontier] = 0


@outlined
def program(s: DriveState, frontier: Number, buffered: Flag) -> Number:
    """Program the last unit of those filled, which the host's data wait for in the write buffer, if
    `buffered`; when it is done."""
    r, settings, shape = s.registers, s.settings, s.flash.settings
    pages, zone = shape[flash.UNIT_PAGES], frontier - settings[state.FRONTIERS]
    if frontier == settings[state.FRONTIERS] - 1:
        pages -= r[state.STAYED]
        r[state.STAYED] = 0
    while True:
        block, unit = s.open[frontier], s.filled[frontier] // shape[flash.UNIT_PAGES] - 1
        done = array.program(s.flash, block, unit, s.ready[frontier], pages)
        pages = shape[flash.UNIT_PAGES]
        if not fails(s, block, unit) or not rewrite(s, frontier, done):
            break
    s.ready[frontier] = 0
    if frontier < settings[state.STREAMS] or zone >= 0:
        r[state.WRITTEN] = max(r[state.WRITTEN], done)
        own = settings[state.ZONE_UNITS] and 0 <= zone < shape[flash.SUPERBLOCKS]
        if settings[state.BUFFER] and buffered and not own:
            push(s, done)
    slc = s.flash.mode[block] == flash.SLC
    if (
        s.open[frontier] >= 0
        and s.filled[frontier] == shape[flash.SLC_PAGES if slc else flash.SUPERBLOCK]
    ):
        close(s, frontier)
    return done


@inlined
def fails(s: DriveState, block: Number, unit: Number) -> Flag:
    """True where the program of a unit fails. It does not where another superblock for its data is
    kept for collection; a later one does then."""
    r = s.registers
    if r[state.FAILING] <= 0 and not array.has_failed(s.flash, block, unit):
        return False
    if r[state.FREE] <= s.settings[state.RESERVE]:
        return False
    r[state.FAILING] -= r[state.FAILING] > 0
    return True


@outlined
def rewrite(s: DriveState, frontier: Number, ready: Number) -> Flag:
    """Fill no more of a superblock whose program failed at `ready`, and have its last unit be the
    first of another, which is to be programmed; False where it has no data."""
    r, shape, old = s.registers, s.flash.settings, s.open[frontier]
    size, moved = shape[flash.UNIT_PAGES], 0
    first = old * shape[flash.SUPERBLOCK] + s.filled[frontier] - size
    s.flash.bad[old] = 1
    r[state.FAILED] += 1
    r[state.CHECK] = 0
    close(s, frontier)
    s.before[frontier] = -1
    for where in range(first, first + size):
        moved += s.owners[where] >= 0
    if not moved:
        return False
    open_superblock(s, frontier)
    to = s.open[frontier] * shape[flash.SUPERBLOCK]
    for index in range(size):
        page = s.owners[first + index]
        if page >= 0:
            s.places[page], s.owners[to + index] = to + index, page
            s.owners[first + index] = -1
    s.valid[old] -= moved
    s.valid[s.open[frontier]] = moved
    s.filled[frontier], s.ready[frontier] = size, ready
    s.counters[state.RELOCATED] += moved
    s.counters[state.PADDING] += size - moved
    return True


@inlined
def close(s: DriveState, frontier: Number) -> None:
    """Fill no more of a superblock; the places that are left stay empty."""
    r, block = s.registers, s.open[frontier]
    if block >= 0:
        s.open[frontier], s.before[frontier] = -1, block
        if s.zone[block] >= 0:
            s.status[block] = state.IS_ZONED
            return
        slc = s.flash.mode[block] == flash.SLC
        s.status[block] = state.IS_CACHED if slc else state.IS_CLOSED
        s.closed_at[block] = r[state.FILLED]
        r[state.FILLED] += 1
        r[state.SLC_FULL if slc else state.CLOSED] += 1


@outlined
def pad(s: DriveState, stream: Number, ready: Number) -> Number:
    """Program the unit of a stream, or of the SLC buffer of zones, that is not full; when that is
    done, 0 if there is none."""
    size = s.flash.settings[flash.UNIT_PAGES]
    padding = (size - s.filled[stream] % size) % size
    if s.open[stream] < 0 or not padding:
        return 0
    s.filled[stream] += padding
    s.ready[stream] = max(s.ready[stream], ready)
    s.counters[state.PADDING] += padding
    if stream < s.settings[state.STREAMS]:
        s.stream_counters[stream, state.PADDED] += padding
    if s.settings[state.BUFFER]:
        s.registers[state.BUFFERED] += padding
    return program(s, stream, True)


@inlined
def invalidate(s: DriveState, page: Number) -> None:
    where = s.places[page]
    if where >= 0:
        s.places[page] = s.owners[where] = -1
        s.valid[where // s.flash.settings[flash.SUPERBLOCK]] -= 1
    elif where == state.LOST:
        s.places[page] = -1


@outlined
def erase(s: DriveState, block: Number, ready: Number) -> None:
    r, settings = s.registers, s.settings
    r[state.SLC_USED] -= s.flash.mode[block] == flash.SLC and s.zone[block] < 0
    s.zone[block] = -1
    array.erase(s.flash, block, ready)
    r[state.CLOSED] -= s.status[block] == state.IS_CLOSED
    r[state.SLC_FULL] -= s.status[block] == state.IS_CACHED
    r[state.FAILED] -= s.flash.bad[block]
    if s.flash.bad[block] or s.flash.erases[block] >= s.flash.endurance[block]:
        s.status[block] = state.IS_RETIRED
        r[state.GOOD] -= 1
    else:
        s.status[block] = state.IS_FREE
        r[state.FREE] += 1
        s.free[reclaim.group_of(s, block)] += 1
    # Where nothing was left free, a reset or a format may have changed that.
    r[state.WORN_OUT] = r[state.GOOD] < settings[state.LEAST_SUPERBLOCKS]
