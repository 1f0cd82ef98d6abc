"""The page-mapped flash translation layer over arrays, for millions of requests.

Policies stay in Python: compiled code returns where it needs a victim, and goes on from there.
"""

from typing import Any

from potash_device.flash import state as flash
from potash_device.flash.array import in_memory, sense
from potash_device.flash.calendars import send
from potash_device.vta.fast import compiling
from potash_device.vta.fast.compiling import Flag, Number, inlined, outlined
from potash_firmware.ftl import native, reclaim, state
from potash_firmware.ftl.buffer import admit, admit_zone, sift
from potash_firmware.ftl.caches import found, keep_row, translate
from potash_firmware.ftl.frontiers import close, erase, invalidate, pad, place
from potash_firmware.ftl.relocation import collect
from potash_firmware.ftl.requests import WORN
from potash_firmware.ftl.state import DriveState
from potash_firmware.ftl.zones import buffer_of_zones, finish, reset, stage


def object_file() -> tuple[str, bytes]:
    """`run` as an object file, and its symbol there."""
    return compiling.object_of(run, 3)


def run(state_at: Number, batch_at: Number, index: Number) -> Number:
    """Serve requests from `index` on; how many are done, fewer than all where a victim is needed.

    A state and a batch are at addresses of `words.Words`. If `flying` is not empty, it is a heap
    of completion times: a request arrives at the first, which its own completion replaces.
    """
    s = native.state(state_at)
    batch = native.batch(batch_at)
    requests, completions, flying = batch.requests, batch.completions, batch.flying
    r = s.registers
    while index < requests.shape[0]:
        request = requests[index]
        if not r[state.BEGUN]:
            if flying.size:
                request[0] = flying[0]
            begin(s, request[0], request[1], request[3])
        if not serve(s, request):
            break
        r[state.BEGUN] = 0
        worn = r[state.END] == WORN
        completions[index] = WORN if worn else r[state.END] + s.settings[state.COMPLETION]
        if flying.size:
            sift(flying, flying.size, max(completions[index], request[0]))
        index += 1
    return index


@inlined
def begin(s: DriveState, time: Number, op: Number, count: Number) -> None:
    r, settings = s.registers, s.settings
    if r[state.SLC_FULL]:
        fold_idle(s, time)
    if settings[state.REFRESH] or settings[state.RECLAIM] or r[state.FAILED]:
        refresh(s, time)
    if op == state.READ:
        cost = settings[state.READ_COMMAND] + count * settings[state.READ_PAGE]
        if count == 1 and settings[state.SHORT_READ_COMMAND] >= 0:
            cost = settings[state.SHORT_READ_COMMAND] + settings[state.READ_PAGE]
    elif op == state.WRITE or op == state.WRITE_AREA:
        cost = settings[state.WRITE_COMMAND] + count * settings[state.WRITE_PAGE]
    else:
        cost = settings[state.OTHER_COMMAND]
        if op == state.TRIM:
            cost += count * settings[state.TRIM_PAGE]
    s.counters[state.CORE_BUSY] += cost
    ready = time + settings[state.SUBMISSION] + cost
    if settings[state.CORES]:
        core = s.cores.argmin()
        ready = max(time + settings[state.SUBMISSION], s.cores[core]) + cost
        s.cores[core] = ready
    s.flash.now[0] = time
    r[state.READY] = r[state.END] = r[state.PROGRAMMED] = ready
    r[state.STEP] = r[state.GROUP] = 0
    r[state.UNREADABLE] = -1
    r[state.BEGUN] = 1


@inlined
def serve(s: DriveState, request: Any) -> Flag:
    """The rest of a request; False where a victim is needed first."""
    r, settings = s.registers, s.settings
    op, first, count, stream = request[1], request[2], request[3], request[4]
    if op == state.FLUSH:
        if not settings[state.PROTECTED]:
            for each in range(settings[state.STREAMS]):
                pad(s, each, r[state.READY])
            if settings[state.ZONE_SLC]:
                pad(s, buffer_of_zones(s), r[state.READY])
            r[state.END] = max(r[state.END], r[state.WRITTEN])
        return True
    if op == state.FORMAT:
        format_drive(s)
        return True
    if op == state.CLOSE:
        r[state.END] = max(r[state.END], pad(s, stream, r[state.READY]))
        close(s, stream)
        return True
    if op == state.RESET:
        reset(s, stream, r[state.READY])
        return True
    if op == state.FINISH:
        finish(s, stream, r[state.READY])
        return True
    ready, zoned = r[state.READY], stream >= settings[state.FRONTIERS]
    if op == state.WRITE_AREA:
        r[state.END] = max(r[state.END], send(s.flash, 0, ready, count))
        s.counters[state.HOST] += count
        s.counters[state.AREA_WRITES] += count
        return True
    commits = op == state.COMMIT
    if commits:
        op = state.WRITE
    maps = settings[state.MAPPING_CACHE] and not zoned
    while r[state.STEP] < count:
        page = first + r[state.STEP]
        if maps and r[state.GROUP] and reclaim.may_collect(s):
            read_row(s)  # before it may be erased
        if (op == state.WRITE or maps) and not make_room(s, ready, stream):
            return False
        if op == state.WRITE and r[state.WORN_OUT]:
            r[state.END] = WORN
            return True
        if op == state.WRITE and settings[state.SLC_SUPERBLOCKS] and not zoned:
            fold(s, stream, ready)
        mapped = ready
        if maps:
            mapped = translate(s, page, ready, op != state.READ)
        if op == state.READ:
            read(s, page, s.places[page], mapped)
        elif op == state.WRITE and zoned and s.places[page] >= 0:
            # The rest of a page whose first blocks were written before.
            r[state.END] = max(r[state.END], send(s.flash, 0, mapped, 1))
        elif op == state.WRITE:
            frontier = stream
            if zoned and settings[state.ZONE_SLC]:
                frontier = stage(s, stream, page, count - r[state.STEP], ready)
            own = zoned and settings[state.ZONE_UNITS] and frontier == stream
            mapped = admit_zone(s, stream, mapped) if own else admit(s, mapped)
            arrived = mapped if commits else send(s.flash, 0, mapped, 1)
            r[state.END] = max(r[state.END], arrived)
            r[state.PROGRAMMED] = max(r[state.PROGRAMMED], place(s, frontier, page, arrived))
            s.counters[state.COMMITS if commits else state.HOST] += 1
            if not zoned:
                reclaim.count_written(s, stream, page)
        else:
            r[state.END] = max(r[state.END], mapped)
            invalidate(s, page)
        r[state.STEP] += 1
    if op == state.READ:
        read_row(s)
    elif op == state.WRITE and zoned:
        # What is left of a unit stays in the zone's buffer: padded, it could not be filled later.
        if settings[state.ZONE_SLC] and request[5] and not settings[state.PROTECTED]:
            r[state.END] = max(r[state.END], r[state.PROGRAMMED])
            if s.staged_count[stream - settings[state.FRONTIERS]]:
                padded = pad(s, buffer_of_zones(s), r[state.END])
                r[state.END] = max(r[state.END], padded)
        elif not settings[state.BUFFER] and not settings[state.ZONE_UNITS]:
            r[state.END] = max(r[state.END], r[state.PROGRAMMED])
    elif op == state.WRITE and (
        not settings[state.BUFFER] or (request[5] and not settings[state.PROTECTED])
    ):
        r[state.END] = max(r[state.END], r[state.PROGRAMMED], pad(s, stream, r[state.END]))
    return True


@outlined
def format_drive(s: DriveState) -> None:
    r = s.registers
    s.places[:] = -1
    for block in range(s.flash.settings[flash.SUPERBLOCKS]):
        if s.status[block] != state.IS_FREE and s.status[block] != state.IS_RETIRED:
            first = block * s.flash.settings[flash.SUPERBLOCK]
            s.owners[first : first + s.flash.settings[flash.SUPERBLOCK]] = -1
            s.valid[block] = 0
            erase(s, block, r[state.READY])
    s.zone[:] = s.open[:] = s.before[:] = s.staged[:] = -1
    s.staged_count[:] = 0
    s.filled[:] = 0
    s.ready[:] = 0
    s.cached[:] = s.cached_at[:] = s.read_cached[:] = s.read_cached_at[:] = -1
    r[state.READ_CACHED] = r[state.READ_HAND] = r[state.STAYED] = 0
    r[state.VICTIM] = r[state.MOVED] = -1
    r[state.BUFFERED] = r[state.QUEUED] = r[state.ADMITTED] = r[state.CACHED] = r[state.HAND] = 0
    for die in range(s.flash.settings[flash.TOTAL_DIES]):
        r[state.END] = max(r[state.END], s.flash.last[die])


@inlined
def read(s: DriveState, page: Number, where: Number, mapped: Number) -> None:
    """Add a page to the group that is read together, or begin a new group."""
    r, shape = s.registers, s.flash.settings
    on_flash, there = where >= 0 and not in_memory(s.flash, where, mapped), mapped
    if on_flash and s.settings[state.READ_CACHE]:
        there = found(s, page, mapped)
        on_flash = there < 0
    if r[state.GROUP] and not (
        on_flash and where == r[state.GROUP_LAST] + 1 and where % shape[flash.ROW_PAGES]
    ):
        read_row(s)
    if not on_flash:
        if where == state.LOST and r[state.UNREADABLE] < 0:
            r[state.UNREADABLE] = page
        r[state.END] = max(r[state.END], send(s.flash, 1, there, 1))
        return
    r[state.GROUP_READY] = max(r[state.GROUP_READY], mapped) if r[state.GROUP] else mapped
    r[state.GROUP] += 1
    r[state.GROUP_LAST] = where


@inlined
def read_row(s: DriveState) -> None:
    """Flash, bus and link for the group, if there is one."""
    r = s.registers
    count = r[state.GROUP]
    if count:
        first, failed = r[state.GROUP_LAST] - count + 1, s.flash.counters[flash.UNCORRECTABLE]
        there = sense(s.flash, first, count, r[state.GROUP_READY], True)
        if s.flash.counters[flash.UNCORRECTABLE] == failed:
            if s.settings[state.READ_CACHE]:
                keep_row(s, first, count, there)
        elif r[state.UNREADABLE] < 0:
            r[state.UNREADABLE] = s.owners[first]
        if s.flash.reads[first // s.flash.settings[flash.SUPERBLOCK]] == s.settings[state.RECLAIM]:
            r[state.CHECK] = 0
        sent = send(s.flash, 1, there, count)
        r[state.END] = max(r[state.END], sent)
        r[state.GROUP] = 0


@inlined
def make_room(s: DriveState, ready: Number, stream: Number) -> Flag:
    """Collect down to the reserve, then in the background; False where a victim is needed."""
    r, settings, shape = s.registers, s.settings, s.flash.settings
    ready = max(ready, r[state.ADMITTED])
    while True:
        if settings[state.RECLAIM_GROUPS] > 1:
            reclaim.choose_group(s, stream)
        group = r[state.TARGET]
        if r[state.WORN_OUT] or group < 0 or s.free[group] > settings[state.RESERVE]:
            break
        if not s.free[group]:  # so many have retired that nothing can be relocated
            r[state.WORN_OUT] = 1
            return True
        if r[state.VICTIM] >= 0:
            collect(s, state.VICTIM, ready, shape[flash.SUPERBLOCK])
        elif r[state.MOVED] >= 0 and s.flash.mode[r[state.MOVED]] == flash.NATIVE:
            move(s, ready, shape[flash.SUPERBLOCK])  # which is refreshed, and no candidate
        else:
            return False
    if not r[state.WORN_OUT] and r[state.FREE] <= settings[state.BACKGROUND]:
        if r[state.VICTIM] < 0:
            return not reclaim.is_any_worth(s)
        if r[state.CURSOR] or reclaim.is_worth(s, r[state.VICTIM]):
            collect(s, state.VICTIM, ready, settings[state.BACKGROUND_PAGES])
        else:
            r[state.VICTIM] = -1
    return True


@outlined
def refresh(s: DriveState, time: Number) -> None:
    """Relocate a part of a superblock whose data have become too old, or were read too often, or
    that has grown bad."""
    r, settings, f = s.registers, s.settings, s.flash
    if r[state.MOVED] < 0 and time >= r[state.CHECK]:
        age, reads = settings[state.REFRESH], settings[state.RECLAIM]
        r[state.CHECK] = time + age // 64 if age else flash.NEVER
        for block in range(f.settings[flash.SUPERBLOCKS]):
            due = (age and time - f.born[block] >= age) or (reads and f.reads[block] >= reads)
            if (
                (due or f.bad[block])
                and s.status[block] == state.IS_CLOSED
                and block != r[state.VICTIM]
            ):
                r[state.MOVED], r[state.MOVE_CURSOR], r[state.CHECK] = block, 0, 0
                break
    moved = r[state.MOVED]
    if moved >= 0 and s.flash.mode[moved] == flash.NATIVE and r[state.FREE] > 1:
        move(s, time, f.settings[flash.UNIT_PAGES])


@outlined
def fold(s: DriveState, stream: Number, ready: Number) -> None:
    """Fold as many pages of a full SLC cache as are written to it, and make room in it for a stream
    that needs a superblock."""
    r, shape = s.registers, s.flash.settings
    if not r[state.SLC_FULL] or r[state.SLC_USED] < s.settings[state.SLC_SUPERBLOCKS]:
        return
    if s.open[stream] < 0:
        move(s, max(ready, r[state.ADMITTED]), shape[flash.SUPERBLOCK])
    elif s.filled[stream] % shape[flash.UNIT_PAGES] == 0:
        move(s, max(ready, r[state.ADMITTED]), shape[flash.UNIT_PAGES])


@outlined
def fold_idle(s: DriveState, time: Number) -> None:
    """Fold what idle time until `time` was enough for."""
    r, shape, last = s.registers, s.flash.settings, s.flash.last
    ready = max(last[last.argmax()], s.flash.now[0]) + s.settings[state.SLC_IDLE]
    while r[state.SLC_FULL] and ready < time and r[state.FREE] > s.settings[state.RESERVE]:
        move(s, ready, shape[flash.UNIT_PAGES] * shape[flash.GROUP_DIES])
        ready = max(ready, last[last.argmax()])


@outlined
def move(s: DriveState, ready: Number, pages: Number) -> None:
    """Relocate pages of the superblock that is being refreshed, or else of that of the SLC cache
    which was filled first."""
    r = s.registers
    if r[state.MOVED] < 0:
        for block in range(s.flash.settings[flash.SUPERBLOCKS]):
            if s.status[block] == state.IS_CACHED and (
                r[state.MOVED] < 0 or s.closed_at[block] < s.closed_at[r[state.MOVED]]
            ):
                r[state.MOVED] = block
        r[state.MOVE_CURSOR] = 0
    slc, bad = s.flash.mode[r[state.MOVED]] == flash.SLC, s.flash.bad[r[state.MOVED]]
    before = s.counters[state.RELOCATED]
    collect(s, state.MOVED, ready, pages)
    moved = s.counters[state.RELOCATED] - before
    if slc:
        s.counters[state.FOLDED] += moved
    elif not bad:
        s.counters[state.REFRESHED] += moved
