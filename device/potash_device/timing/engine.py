"""The model of a drive's time over arrays: the results of `reference`, for millions of requests.

All compiled code is in this one file, because numba recompiles what it kept when the file of the
function has changed. Policies stay in Python: compiled code returns where it needs a victim, and
goes on from there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from potash_device.timing.profile import ENTRIES, PAGE, Profile
from potash_device.timing.reference import MOST_GAPS
from potash_device.timing.requests import WORN, Counters, Op
from potash_device.vta.fast.compiling import Flag, Number, compiled

SETTINGS = (
    *("channels", "dies", "total_dies", "blocks", "program_pages", "row_pages", "unit_pages"),
    *("superblock_pages", "logical_pages", "frontiers", "least_blocks", "erase_ns", "suspend_ns"),
    *("bus_command_ns", "submission_ns", "completion_ns", "cores", "read_command_ns"),
    *("short_read_command_ns", "read_page_ns", "write_command_ns", "write_page_ns"),
    *("other_command_ns", "buffer_bytes", "protected", "mapping_cache", "streams", "reserve"),
    *("background", "background_pages", "cycles"),
)
"""What compiled code knows of a profile, in the order of its array; then the rates."""
(CHANNELS, DIES, TOTAL_DIES, BLOCKS, PROGRAM_PAGES, ROW_PAGES, UNIT_PAGES) = range(7)
(SUPERBLOCK, LOGICAL, FRONTIERS, LEAST_BLOCKS, ERASE_NS, SUSPEND_NS) = range(7, 13)
(BUS_COMMAND, SUBMISSION, COMPLETION, CORES, READ_COMMAND) = range(13, 18)
(SHORT_READ_COMMAND, READ_PAGE, WRITE_COMMAND, WRITE_PAGE) = range(18, 22)
(OTHER_COMMAND, BUFFER, PROTECTED, MAPPING_CACHE, STREAMS, RESERVE) = range(22, 28)
(BACKGROUND, BACKGROUND_PAGES, CYCLES) = range(28, 31)
(BUS_BYTES, BUS_NS, LINK_BYTES, LINK_NS) = range(31, 35)

HOST, RELOCATED, TRANSLATION, PADDING, SENSES, PROGRAMS, ERASED, HITS, MISSES = range(9)
SUSPENSIONS, DIE_BUSY, BUS_BUSY, LINK_BUSY = range(9, len(Counters._fields))

REGISTERS = 22
(FREE, CLOSED, GOOD, WORN_OUT, VICTIM, CURSOR, FILLED, WRITTEN, BUFFERED, QUEUED) = range(10)
(CACHED, HAND, NOW) = range(10, 13)
(BEGUN, STEP, READY, END, PROGRAMMED, GROUP, GROUP_LAST, GROUP_READY) = range(13, 21)
ADMITTED = 21
"""Counts of superblocks, the victim and where relocation is, superblocks that were closed, when the
host's programs are done, pages in the write buffer, programs in the heap, pages in the cache of the
mapping, CLOCK's hand; how far the request has come; when the write buffer last had room."""

IS_FREE, IS_OPEN, IS_CLOSED, IS_RETIRED = range(4)
NEVER = np.iinfo(np.int64).max
READ, WRITE, TRIM, FLUSH, FORMAT = map(int, Op)


class State(NamedTuple):
    """A drive, but for its policies: arrays of int64; pages' numbers have int32."""

    settings: Any
    read_ns: Any
    short_read_ns: Any
    program_ns: Any
    order: Any
    places: Any
    """Where each page is: superblock times its size plus the place in it; -1 where it is not."""
    owners: Any
    """The page in each place; -1 where there is no valid one."""
    programmed: Any
    """When each program unit is done."""
    valid: Any
    erases: Any
    closed_at: Any
    status: Any
    open: Any
    filled: Any
    """Pages of each open superblock."""
    ready: Any
    erased: Any
    """When each superblock is."""
    last: Any
    """When all that each die has to do is done."""
    reads_done: Any
    begins: Any
    """Of the busy intervals of each bus, of the link into the drive and out of it, of each die."""
    ends: Any
    intervals: Any
    cores: Any
    programs: Any
    cached: Any
    """Columns of the cache: translation page, when it was loaded, dirty, used."""
    cached_at: Any
    """Where in the cache each translation page is, or -1."""
    registers: Any
    counters: Any


def new_state(profile: Profile, order: list[int]) -> State:
    """An empty drive."""

    def array(*shape: int, value: int = 0, kind: type = np.int64) -> Any:
        return np.full(shape, value, kind)

    p = profile
    numbers = [int(getattr(p, name)) for name in SETTINGS]
    units = p.superblock_pages // p.unit_pages
    heap = p.buffer_bytes // PAGE // p.unit_pages + p.frontiers + 2 if p.buffer_bytes else 1
    cache = min(max(1, p.mapping_cache // PAGE), p.translation_pages) if p.mapping_cache else 1
    registers = array(REGISTERS)
    registers[[FREE, GOOD]] = p.blocks
    registers[VICTIM] = -1
    return State(
        settings=np.array([*numbers, *p.bus, *p.link], np.int64),
        read_ns=np.array(p.read_ns, np.int64),
        short_read_ns=np.array(p.short_read_ns or p.read_ns, np.int64),
        program_ns=np.array(p.program_ns, np.int64),
        order=np.array(order, np.int64),
        places=array(p.mapped_pages, value=-1, kind=np.int32),
        owners=array(p.blocks * p.superblock_pages, value=-1, kind=np.int32),
        programmed=array(p.blocks * units, value=NEVER),
        valid=array(p.blocks),
        erases=array(p.blocks),
        closed_at=array(p.blocks),
        status=array(p.blocks, value=IS_FREE),
        open=array(p.frontiers, value=-1),
        filled=array(p.frontiers),
        ready=array(p.frontiers),
        erased=array(p.blocks),
        last=array(p.total_dies),
        reads_done=array(p.total_dies),
        begins=array(p.channels + 2 + p.total_dies, MOST_GAPS + 1),
        ends=array(p.channels + 2 + p.total_dies, MOST_GAPS + 1),
        intervals=array(p.channels + 2 + p.total_dies),
        cores=array(max(1, p.cores)),
        programs=array(heap),
        cached=array(cache, 4),
        cached_at=array(max(1, p.translation_pages), value=-1),
        registers=registers,
        counters=array(len(Counters._fields)),
    )


@compiled
def run(s: State, requests: Any, completions: Any, index: Number) -> Number:
    """Serve requests from `index` on; how many are done, fewer than all where a victim is needed.

    `requests` has the columns of `REQUEST`.
    """
    r = s.registers
    while index < requests.shape[0]:
        request = requests[index]
        if not r[BEGUN]:
            begin(s, request[0], request[1], request[3])
        if not serve(s, request):
            break
        r[BEGUN] = 0
        worn = r[END] == WORN
        completions[index] = WORN if worn else r[END] + s.settings[COMPLETION]
        index += 1
    return index


@compiled
def begin(s: State, time: Number, op: Number, count: Number) -> None:
    r, settings = s.registers, s.settings
    if op == READ:
        cost = settings[READ_COMMAND] + count * settings[READ_PAGE]
        if count == 1 and settings[SHORT_READ_COMMAND] >= 0:
            cost = settings[SHORT_READ_COMMAND] + settings[READ_PAGE]
    elif op == WRITE:
        cost = settings[WRITE_COMMAND] + count * settings[WRITE_PAGE]
    else:
        cost = settings[OTHER_COMMAND]
    ready = time + settings[SUBMISSION] + cost
    if settings[CORES]:
        core = s.cores.argmin()
        ready = max(time + settings[SUBMISSION], s.cores[core]) + cost
        s.cores[core] = ready
    r[NOW] = time
    r[READY] = r[END] = r[PROGRAMMED] = ready
    r[STEP] = r[GROUP] = 0
    r[BEGUN] = 1


@compiled
def serve(s: State, request: Any) -> Flag:
    """The rest of a request; False where a victim is needed first."""
    r, settings = s.registers, s.settings
    op, first, count, stream = request[1], request[2], request[3], request[4]
    if op == FLUSH:
        if not settings[PROTECTED]:
            for one in range(settings[STREAMS]):
                pad(s, one, r[READY])
            r[END] = max(r[END], r[WRITTEN])
        return True
    if op == FORMAT:
        format_drive(s)
        return True
    ready = r[READY]
    while r[STEP] < count:
        page = first + r[STEP]
        if (op == WRITE or settings[MAPPING_CACHE]) and not make_room(s, ready):
            return False
        if op == WRITE and r[WORN_OUT]:
            r[END] = WORN
            return True
        known = ready
        if settings[MAPPING_CACHE]:
            known = translate(s, page, ready, op != READ)
        if op == READ:
            read(s, s.places[page], known)
        elif op == WRITE:
            arrived = send(s, 0, admit(s, known), 1)
            r[END] = max(r[END], arrived)
            r[PROGRAMMED] = max(r[PROGRAMMED], place(s, stream, page, arrived))
            s.counters[HOST] += 1
        else:
            r[END] = max(r[END], known)
            invalidate(s, page)
        r[STEP] += 1
    if op == READ:
        read_row(s)
    elif op == WRITE and (not settings[BUFFER] or (request[5] and not settings[PROTECTED])):
        r[END] = max(r[END], r[PROGRAMMED], pad(s, stream, r[END]))
    return True


@compiled
def format_drive(s: State) -> None:
    r = s.registers
    s.places[:] = -1
    for block in range(s.settings[BLOCKS]):
        if s.status[block] == IS_OPEN or s.status[block] == IS_CLOSED:
            first = block * s.settings[SUPERBLOCK]
            s.owners[first : first + s.settings[SUPERBLOCK]] = -1
            s.valid[block] = 0
            erase(s, block, r[READY])
    s.open[:] = -1
    s.filled[:] = 0
    s.ready[:] = 0
    s.cached_at[:] = -1
    r[VICTIM] = -1
    r[BUFFERED] = r[QUEUED] = r[CACHED] = r[HAND] = 0
    for die in range(s.settings[TOTAL_DIES]):
        r[END] = max(r[END], s.last[die])


@compiled
def send(s: State, out: Number, ready: Number, pages: Number) -> Number:
    """The end of a transfer on the link, into the drive (0) or out of it (1)."""
    settings = s.settings
    size = settings[LINK_BYTES]
    duration = (pages * PAGE * settings[LINK_NS] + size - 1) // size
    s.counters[LINK_BUSY] += duration
    return reserve(s, settings[CHANNELS] + out, ready, duration)


@compiled
def transfer(s: State, die: Number, ready: Number, pages: Number) -> Number:
    """The end of a transfer between a die and the drive's memory."""
    settings = s.settings
    size = settings[BUS_BYTES]
    duration = settings[BUS_COMMAND] + (pages * PAGE * settings[BUS_NS] + size - 1) // size
    s.counters[BUS_BUSY] += duration
    return reserve(s, die // settings[DIES], ready, duration)


@compiled
def occupy(s: State, die: Number, ready: Number, duration: Number) -> Number:
    s.counters[DIE_BUSY] += duration
    end = reserve(s, s.settings[CHANNELS] + 2 + die, ready, duration)
    s.last[die] = max(s.last[die], end)
    return end


@compiled
def gap(s: State, which: Number, earliest: Number, duration: Number) -> Number:
    """The busy interval before which the first long enough gap is."""
    begins, ends, at = s.begins[which], s.ends[which], 0
    while at < s.intervals[which] and earliest + duration > begins[at]:
        earliest = max(earliest, ends[at])
        at += 1
    return at


@compiled
def reserve(s: State, which: Number, earliest: Number, duration: Number) -> Number:
    """The end of an operation in the first gap of a calendar."""
    begins, ends, count, past = s.begins[which], s.ends[which], s.intervals[which], 0
    while past < count and ends[past] <= s.registers[NOW]:
        past += 1
    at = gap(s, which, earliest, duration)
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
    s.intervals[which] = to
    return stop


@compiled
def interrupt(s: State, die: Number, start: Number, duration: Number) -> Number:
    """Read from `start` on, before all else that is to be done then; when that is sensed."""
    which, wait = s.settings[CHANNELS] + 2 + die, 0
    begins, ends, count = s.begins[which], s.ends[which], s.intervals[which]
    at = 0
    while ends[at] <= start:
        at += 1
    busy = begins[at] < start
    if busy:
        wait = s.settings[SUSPEND_NS]
        s.counters[SUSPENSIONS] += 1
    delay = duration + 2 * wait
    for one in range(at, count):
        begins[one] += 0 if busy and one == at else delay
        ends[one] += delay
    s.last[die] += delay
    s.counters[DIE_BUSY] += delay
    if not busy:
        reserve(s, which, start, delay)
    return start + wait + duration


@compiled
def sense(s: State, where: Number, pages: Number, ready: Number, host: Flag) -> Number:
    """When pages of a row are in the drive's memory."""
    settings = s.settings
    index = where % settings[SUPERBLOCK]
    unit, inside = index // settings[UNIT_PAGES], index % settings[UNIT_PAGES]
    die = s.order[unit % settings[TOTAL_DIES]]
    row = unit // settings[TOTAL_DIES] * settings[PROGRAM_PAGES] + inside // settings[ROW_PAGES]
    times = s.short_read_ns if pages == 1 else s.read_ns
    duration, suspend = times[row % times.size], settings[SUSPEND_NS]
    s.counters[SENSES] += 1
    if host and suspend >= 0:
        start = max(ready, s.reads_done[die])
        which = settings[CHANNELS] + 2 + die
        at = gap(s, which, start, duration)
        if at and s.ends[which, at - 1] > start:
            sensed = interrupt(s, die, start, duration)
        else:
            sensed = occupy(s, die, start, duration)
        s.reads_done[die] = sensed
    else:
        sensed = occupy(s, die, ready, duration)
    return transfer(s, die, sensed, pages)


@compiled
def in_memory(s: State, where: Number, time: Number) -> Flag:
    return s.programmed[where // s.settings[UNIT_PAGES]] > time


@compiled
def read(s: State, where: Number, known: Number) -> None:
    """Add a page to the group that is read together, or begin a new group."""
    r, settings = s.registers, s.settings
    on_flash = where >= 0 and not in_memory(s, where, known)
    if r[GROUP] and not (on_flash and where == r[GROUP_LAST] + 1 and where % settings[ROW_PAGES]):
        read_row(s)
    if not on_flash:
        r[END] = max(r[END], send(s, 1, known, 1))
        return
    r[GROUP_READY] = max(r[GROUP_READY], known) if r[GROUP] else known
    r[GROUP] += 1
    r[GROUP_LAST] = where


@compiled
def read_row(s: State) -> None:
    """Flash, bus and link for the group, if there is one."""
    r = s.registers
    count = r[GROUP]
    if count:
        there = sense(s, r[GROUP_LAST] - count + 1, count, r[GROUP_READY], True)
        sent = send(s, 1, there, count)
        r[END] = max(r[END], sent)
        r[GROUP] = 0


@compiled
def admit(s: State, ready: Number) -> Number:
    """When the write buffer has room for a page."""
    r, size = s.registers, s.settings[BUFFER]
    if not size:
        return ready
    while r[QUEUED] and (s.programs[0] <= ready or r[BUFFERED] >= size // PAGE):
        ready = max(ready, pop(s))
        r[BUFFERED] -= s.settings[UNIT_PAGES]
    r[BUFFERED] += 1
    r[ADMITTED] = max(r[ADMITTED], ready)
    return ready


@compiled
def pop(s: State) -> Number:
    """The least of the heap."""
    heap = s.programs
    least = heap[0]
    s.registers[QUEUED] -= 1
    count = s.registers[QUEUED]
    last, at = heap[count], 0
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    return least


@compiled
def push(s: State, time: Number) -> None:
    heap, at = s.programs, s.registers[QUEUED]
    s.registers[QUEUED] += 1
    while at and heap[(at - 1) // 2] > time:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = time


@compiled
def place(s: State, frontier: Number, page: Number, ready: Number) -> Number:
    """Give a page its place; when the unit is programmed that it fills, else 0."""
    settings = s.settings
    if s.open[frontier] < 0:
        open_superblock(s, frontier)
    block = s.open[frontier]
    invalidate(s, page)
    where = block * settings[SUPERBLOCK] + s.filled[frontier]
    s.places[page] = where
    s.owners[where] = page
    s.valid[block] += 1
    s.filled[frontier] += 1
    s.ready[frontier] = max(s.ready[frontier], ready)
    return 0 if s.filled[frontier] % settings[UNIT_PAGES] else program(s, frontier)


@compiled
def open_superblock(s: State, frontier: Number) -> None:
    """The least erased free one; for relocated pages the most erased."""
    cold, chosen = frontier == s.settings[FRONTIERS] - 1, -1
    for block in range(s.settings[BLOCKS]):
        if s.status[block] != IS_FREE:
            continue
        more = chosen < 0
        if not more:
            difference = s.erases[block] - s.erases[chosen]
            more = difference > 0 if cold else difference < 0
        if more:
            chosen = block
    s.status[chosen] = IS_OPEN
    s.registers[FREE] -= 1
    s.open[frontier] = chosen
    s.filled[frontier] = s.ready[frontier] = 0


@compiled
def program(s: State, frontier: Number) -> Number:
    """Program the last unit of those filled; when it is done."""
    r, settings = s.registers, s.settings
    block = s.open[frontier]
    unit = s.filled[frontier] // settings[UNIT_PAGES] - 1
    die = s.order[unit % settings[TOTAL_DIES]]
    there = transfer(s, die, s.ready[frontier], settings[UNIT_PAGES])
    duration = s.program_ns[unit // settings[TOTAL_DIES] % s.program_ns.size]
    index = block * (settings[SUPERBLOCK] // settings[UNIT_PAGES]) + unit
    above = unit - settings[TOTAL_DIES]
    before = s.erased[block] if above < 0 else s.programmed[index - settings[TOTAL_DIES]]
    done = occupy(s, die, max(there, before), duration)
    s.programmed[index] = done
    s.ready[frontier] = 0
    s.counters[PROGRAMS] += 1
    if frontier < settings[STREAMS]:
        r[WRITTEN] = max(r[WRITTEN], done)
        if settings[BUFFER]:
            push(s, done)
    if s.filled[frontier] == settings[SUPERBLOCK]:
        s.status[block] = IS_CLOSED
        s.closed_at[block] = r[FILLED]
        r[FILLED] += 1
        r[CLOSED] += 1
        s.open[frontier] = -1
    return done


@compiled
def pad(s: State, stream: Number, ready: Number) -> Number:
    """Program a stream's unit that is not full; when that is done, 0 if there is none."""
    size = s.settings[UNIT_PAGES]
    padding = (size - s.filled[stream] % size) % size
    if s.open[stream] < 0 or not padding:
        return 0
    s.filled[stream] += padding
    s.ready[stream] = max(s.ready[stream], ready)
    s.counters[PADDING] += padding
    if s.settings[BUFFER]:
        s.registers[BUFFERED] += padding
    return program(s, stream)


@compiled
def invalidate(s: State, page: Number) -> None:
    where = s.places[page]
    if where >= 0:
        s.places[page] = s.owners[where] = -1
        s.valid[where // s.settings[SUPERBLOCK]] -= 1


@compiled
def make_room(s: State, ready: Number) -> Flag:
    """Collect down to the reserve, then in the background; False where a victim is needed."""
    r, settings = s.registers, s.settings
    ready = max(ready, r[ADMITTED])
    while not r[WORN_OUT] and r[FREE] <= settings[RESERVE]:
        if r[VICTIM] < 0:
            return False
        collect(s, ready, settings[SUPERBLOCK])
    if not r[WORN_OUT] and r[FREE] <= settings[BACKGROUND] and r[CLOSED]:
        if r[VICTIM] < 0:
            return False
        collect(s, ready, settings[BACKGROUND_PAGES])
    return True


@compiled
def collect(s: State, ready: Number, pages: Number) -> None:
    """Relocate at least `pages` of the victim, or to its end, a unit of each die at once."""
    r, settings = s.registers, s.settings
    size, base, moved = settings[ROW_PAGES], r[VICTIM] * settings[SUPERBLOCK], 0
    while moved < pages and r[CURSOR] < settings[SUPERBLOCK]:
        batch = min(pages, moved + settings[UNIT_PAGES] * settings[TOTAL_DIES])
        first, there = base + r[CURSOR], ready
        while moved < batch and r[CURSOR] < settings[SUPERBLOCK]:
            row, valid = base + r[CURSOR], 0
            for where in range(row, row + size):
                valid += s.owners[where] >= 0
            if valid and not in_memory(s, row, ready):
                there = max(there, sense(s, row, valid, ready, False))
            moved += valid
            r[CURSOR] += size
        for where in range(first, base + r[CURSOR]):
            if s.owners[where] >= 0:
                place(s, settings[FRONTIERS] - 1, s.owners[where], there)
    s.counters[RELOCATED] += moved
    if r[CURSOR] == settings[SUPERBLOCK]:
        erase(s, r[VICTIM], ready)
        r[VICTIM] = -1


@compiled
def erase(s: State, block: Number, ready: Number) -> None:
    r, settings = s.registers, s.settings
    for die in range(settings[TOTAL_DIES]):
        end = occupy(s, die, max(ready, s.last[die]), settings[ERASE_NS])
        s.erased[block] = max(s.erased[block], end)
    units = settings[SUPERBLOCK] // settings[UNIT_PAGES]
    s.programmed[block * units : (block + 1) * units] = NEVER
    r[CLOSED] -= s.status[block] == IS_CLOSED
    s.erases[block] += 1
    s.counters[ERASED] += 1
    if settings[CYCLES] and s.erases[block] >= settings[CYCLES]:
        s.status[block] = IS_RETIRED
        r[GOOD] -= 1
        r[WORN_OUT] = r[GOOD] < settings[LEAST_BLOCKS]
    else:
        s.status[block] = IS_FREE
        r[FREE] += 1


@compiled
def translate(s: State, page: Number, ready: Number, dirty: Flag) -> Number:
    """When a page's translation page is in memory; replacement is CLOCK."""
    r, settings, cached = s.registers, s.settings, s.cached
    number = page // ENTRIES
    at = s.cached_at[number]
    if at >= 0:
        s.counters[HITS] += 1
        cached[at, 2] |= dirty
        cached[at, 3] = 1
        return max(ready, cached[at, 1])
    s.counters[MISSES] += 1
    where, loaded = s.places[settings[LOGICAL] + number], ready
    if where >= 0 and not in_memory(s, where, ready):
        loaded = sense(s, where, 1, ready, True)
    old = -1
    if r[CACHED] < cached.shape[0]:
        at = r[CACHED]
        r[CACHED] += 1
    else:
        while cached[r[HAND], 3]:
            cached[r[HAND], 3] = 0
            r[HAND] = (r[HAND] + 1) % cached.shape[0]
        at = r[HAND]
        r[HAND] = (r[HAND] + 1) % cached.shape[0]
        s.cached_at[cached[at, 0]] = -1
        old = cached[at, 0] if cached[at, 2] and not r[WORN_OUT] else -1
    s.cached_at[number] = at
    cached[at, 0], cached[at, 1], cached[at, 2], cached[at, 3] = number, loaded, dirty, 1
    if old >= 0:
        place(s, settings[STREAMS], settings[LOGICAL] + old, ready)
        s.counters[TRANSLATION] += 1
    return loaded
