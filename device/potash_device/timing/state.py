"""The arrays of a modelled drive, and the numbers by which compiled code finds its way in them."""

from typing import Any, NamedTuple

import numpy as np

from potash_device.timing.profile import PAGE, Profile
from potash_device.timing.requests import Counters, Op

SETTINGS = (
    *("channels", "dies", "total_dies", "superblocks", "program_pages", "row_pages"),
    *("unit_pages", "superblock_pages", "logical_pages", "frontiers", "least_superblocks"),
    *("erase_ns", "suspend_ns", "bus_command_ns", "submission_ns", "completion_ns", "cores"),
    *("read_command_ns", "short_read_command_ns", "read_page_ns", "write_command_ns"),
    *("write_page_ns", "other_command_ns", "buffer_bytes", "protected", "mapping_cache"),
    *("streams", "reserve", "background", "background_pages", "background_invalid", "cycles"),
    *("group_dies", "groups"),
)
"""Properties of a profile that compiled code uses, in the order of their array; then the rates."""
(CHANNELS, DIES, TOTAL_DIES, SUPERBLOCKS, PROGRAM_PAGES, ROW_PAGES, UNIT_PAGES) = range(7)
(SUPERBLOCK, LOGICAL, FRONTIERS, LEAST_SUPERBLOCKS, ERASE_NS, SUSPEND_NS) = range(7, 13)
(BUS_COMMAND, SUBMISSION, COMPLETION, CORES, READ_COMMAND) = range(13, 18)
(SHORT_READ_COMMAND, READ_PAGE, WRITE_COMMAND, WRITE_PAGE) = range(18, 22)
(OTHER_COMMAND, BUFFER, PROTECTED, MAPPING_CACHE, STREAMS, RESERVE) = range(22, 28)
(BACKGROUND, BACKGROUND_PAGES, BACKGROUND_INVALID, CYCLES) = range(28, 32)
(GROUP_DIES, GROUPS, BUS_BYTES, BUS_NS, LINK_BYTES, LINK_NS) = range(32, 38)

MOST_GAPS = 64
"""Busy intervals that a calendar remembers; beyond it the earliest gap is given up."""

HOST, RELOCATED, TRANSLATION, PADDING, SENSES, PROGRAMS, ERASED, HITS, MISSES = range(9)
SUSPENSIONS, DIE_BUSY, BUS_BUSY, LINK_BUSY, CORE_BUSY = range(9, len(Counters._fields))

REGISTERS = 22
(FREE, CLOSED, GOOD, WORN_OUT, VICTIM, CURSOR, FILLED, WRITTEN, BUFFERED, QUEUED) = range(10)
(CACHED, HAND, NOW) = range(10, 13)
(BEGUN, STEP, READY, END, PROGRAMMED, GROUP, GROUP_LAST, GROUP_READY) = range(13, 21)
ADMITTED = 21
"""Counts of superblocks, the victim and where relocation is, superblocks that were closed, when the
host's programs are done, pages in the write buffer, programs in the heap, pages in the cache of the
mapping, CLOCK's hand; how far the request has come; when the write buffer last had room."""

IS_FREE, IS_OPEN, IS_CLOSED, IS_RETIRED, IS_ZONED = range(5)
"""The states of superblocks; IS_ZONED is a full one of a zone, which is erased by a reset alone."""
NEVER = np.iinfo(np.int64).max
READ, WRITE, TRIM, FLUSH, FORMAT, CLOSE, RESET, FINISH = map(int, Op)


class DriveState(NamedTuple):
    """The state of a drive except for its policies: arrays of int64; those of pages' numbers are of
    int32."""

    settings: Any
    read_ns: Any
    short_read_ns: Any
    program_ns: Any
    order: Any
    places: Any
    """The place of each page: superblock times its size plus the place in it; -1 for a page without
    one."""
    owners: Any
    """The page in each place; -1 where there is no valid one."""
    programmed: Any
    """The time at which each program unit is done."""
    valid: Any
    erases: Any
    closed_at: Any
    status: Any
    zone: Any
    """The frontier of the zone that has a superblock, or -1."""
    open: Any
    """The open superblock of each frontier, or -1: of streams, of translation pages and of
    relocations, and then of zones, as many as superblocks."""
    filled: Any
    """Pages of each open superblock."""
    ready: Any
    erased: Any
    """The time at which each superblock is erased."""
    last: Any
    """The time at which each die has done everything."""
    reads_done: Any
    begins: Any
    """Beginnings of the busy intervals of each bus, of the link into the drive and out of it, of
    each die."""
    ends: Any
    intervals: Any
    cores: Any
    programs: Any
    cached: Any
    """Columns of the cache: translation page, when it was loaded, dirty, used."""
    cached_at: Any
    """The index in the cache of each translation page, or -1."""
    registers: Any
    counters: Any


def new_state(profile: Profile, order: list[int]) -> DriveState:
    """An empty drive."""

    def array(*shape: int, value: int = 0, kind: type = np.int64) -> Any:
        return np.full(shape, value, kind)

    p = profile
    frontiers = p.frontiers + p.superblocks
    numbers = [int(getattr(p, name)) for name in SETTINGS]
    units = p.superblock_pages // p.unit_pages
    heap = p.buffer_bytes // PAGE // p.unit_pages + frontiers + 2 if p.buffer_bytes else 1
    cache = min(max(1, p.mapping_cache // PAGE), p.translation_pages) if p.mapping_cache else 1
    registers = array(REGISTERS)
    registers[[FREE, GOOD]] = p.superblocks
    registers[VICTIM] = -1
    return DriveState(
        settings=np.array([*numbers, *p.bus, *p.link], np.int64),
        read_ns=np.array(p.read_ns, np.int64),
        short_read_ns=np.array(p.short_read_ns or p.read_ns, np.int64),
        program_ns=np.array(p.program_ns, np.int64),
        order=np.array(order, np.int64),
        places=array(p.mapped_pages, value=-1, kind=np.int32),
        owners=array(p.superblocks * p.superblock_pages, value=-1, kind=np.int32),
        programmed=array(p.superblocks * units, value=NEVER),
        valid=array(p.superblocks),
        erases=array(p.superblocks),
        closed_at=array(p.superblocks),
        status=array(p.superblocks, value=IS_FREE),
        zone=array(p.superblocks, value=-1),
        open=array(frontiers, value=-1),
        filled=array(frontiers),
        ready=array(frontiers),
        erased=array(p.superblocks),
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
