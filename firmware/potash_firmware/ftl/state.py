"""The arrays of a modelled drive, and the numbers by which compiled code finds its way in them."""

from typing import Any, NamedTuple

import numpy as np

from potash_device.flash.profile import PAGE, Profile
from potash_device.flash.state import FlashState, new_flash
from potash_firmware.ftl.requests import Op

SETTINGS = (
    *("logical_pages", "frontiers", "least_superblocks", "submission_ns", "completion_ns", "cores"),
    *("read_command_ns", "short_read_command_ns", "read_page_ns", "write_command_ns"),
    *("write_page_ns", "other_command_ns", "buffer_bytes", "protected", "mapping_cache"),
    *("streams", "reserve", "background", "background_pages", "background_invalid", "trim_page_ns"),
    *("slc_superblocks", "slc_idle_ns", "zone_units", "refresh_ns", "reclaim_senses"),
    *("isolated", "reclaim_groups", "relocations", "cached_pages", "read_cache_page_ns"),
    *("copy_back", "zone_slc_superblocks"),
)
"""Properties of a profile that the page-mapped FTL uses, in the order of their array."""
(LOGICAL, FRONTIERS, LEAST_SUPERBLOCKS, SUBMISSION, COMPLETION, CORES) = range(6)
(READ_COMMAND, SHORT_READ_COMMAND, READ_PAGE, WRITE_COMMAND) = range(6, 10)
(WRITE_PAGE, OTHER_COMMAND, BUFFER, PROTECTED, MAPPING_CACHE) = range(10, 15)
(STREAMS, RESERVE, BACKGROUND, BACKGROUND_PAGES, BACKGROUND_INVALID, TRIM_PAGE) = range(15, 21)
(SLC_SUPERBLOCKS, SLC_IDLE, ZONE_UNITS, REFRESH, RECLAIM) = range(21, 26)
(ISOLATED, RECLAIM_GROUPS, RELOCATIONS, READ_CACHE, READ_CACHE_PAGE) = range(26, 31)
COPY_BACK, ZONE_SLC = 31, 32

COUNTERS = (
    *("host", "relocated", "translation", "padding", "hits", "misses", "core_ns", "folded"),
    *("refreshed", "lost", "read_hits", "read_misses", "copied"),
    *("area_writes", "commits"),
)
HOST, RELOCATED, TRANSLATION, PADDING, HITS, MISSES, CORE_BUSY, FOLDED = range(8)
REFRESHED, LOST_PAGES, READ_HITS, READ_MISSES, COPIED, AREA_WRITES, COMMITS = range(8, 15)

WRITTEN_BY_HOST, MOVED_BY_DRIVE, PADDED = range(3)
"""Columns of the counters of streams."""

REGISTERS = 35
(FREE, CLOSED, GOOD, WORN_OUT, VICTIM, CURSOR, FILLED, WRITTEN, BUFFERED, QUEUED) = range(10)
(CACHED, HAND, BEGUN, STEP, READY, END, PROGRAMMED) = range(10, 17)
(GROUP, GROUP_LAST, GROUP_READY, ADMITTED) = range(17, 21)
(SLC_USED, SLC_FULL, MOVED, MOVE_CURSOR, CHECK, UNREADABLE, TARGET) = range(21, 28)
READ_CACHED, READ_HAND, FAILED, FAILING, STAYED, ZONE_VICTIM, ZONE_CURSOR = range(28, 35)
"""Counts of superblocks, the victim and where relocation is, superblocks that were closed, when the
host's programs are done, pages in the write buffer, programs in the heap, pages in the cache of the
mapping, CLOCK's hand; how far the request has come; until when pages waited for the write buffer;
superblocks of the SLC cache, those of them that are full, the superblock that is folded or
refreshed, and where that is; when a superblock may have to be refreshed; a page that the last
request could not read, or -1; the reclaim group that is written to; pages in the read cache, and
its hand; superblocks that have grown bad and are not retired yet; programs that are to fail next;
pages of the unit of relocated ones that have stayed on their die; the superblock of the SLC buffer
of zones that is reclaimed, and where that is."""

ENTRY, LOADED, DIRTY, USED = range(4)
"""Columns of a cache: the page, or -1; when it was loaded; whether it has to be written, and was
used since the hand came by."""

IS_FREE, IS_OPEN, IS_CLOSED, IS_RETIRED, IS_ZONED, IS_CACHED = range(6)
"""The states of superblocks; IS_ZONED is a full one of a zone, which is erased by a reset alone,
or of the SLC buffer of zones; IS_CACHED is a full one of the SLC cache, which is erased when it has
been folded."""
LOST = -2
FULL = (IS_CLOSED, IS_ZONED, IS_CACHED)
READ, WRITE, TRIM, FLUSH, FORMAT, CLOSE, RESET, FINISH, WRITE_AREA, COMMIT = map(int, Op)


class DriveState(NamedTuple):
    """The state of a drive except for its policies: its flash, and arrays of int64; those of pages'
    numbers are of int32."""

    flash: FlashState
    settings: Any
    places: Any
    """The place of each page: superblock times its size plus the place in it; -1 for a page without
    one, LOST for one whose data could not be read when they were to be relocated."""
    owners: Any
    """The page in each place; -1 where there is no valid one."""
    handles: Any
    """The stream that wrote each page, if there are several."""
    valid: Any
    free: Any
    """Free superblocks of each reclaim group."""
    closed_at: Any
    status: Any
    zone: Any
    """The frontier of the zone, or of the SLC buffer of zones, that has a superblock, or -1."""
    open: Any
    """The open superblock of each frontier, or -1: of streams, of translation pages and of
    relocations, then of zones, as many as superblocks, and of their SLC buffer, if there is one."""
    filled: Any
    """Pages of each open superblock."""
    before: Any
    """The superblock that each frontier filled before the open one; -1 for none."""
    ready: Any
    staged: Any
    """The pages of each zone that are in the SLC buffer of zones, in their order, then -1."""
    staged_count: Any
    cores: Any
    programs: Any
    cached: Any
    """The cache of translation pages."""
    cached_at: Any
    """The index in the cache of each translation page, or -1."""
    read_cached: Any
    """The cache of the host's pages, and the index in it of each."""
    read_cached_at: Any
    registers: Any
    counters: Any
    stream_counters: Any
    """Pages of each stream: written by the host, relocated, and padding."""


def new_cache(profile: Profile, size: int) -> Any:
    """An empty cache of the mapping of so many bytes; one entry, if the mapping is in memory."""
    entries = min(max(1, size // PAGE), max(1, profile.translation_pages))
    return np.full((entries, 4), -1, np.int64)


def new_state(profile: Profile, order: list[int]) -> DriveState:
    """An empty drive."""

    def array(*shape: int, value: int = 0, kind: type = np.int64) -> Any:
        return np.full(shape, value, kind)

    p = profile
    slc = p.zone_slc_superblocks > 0
    frontiers = p.frontiers + p.superblocks + slc
    numbers = [int(getattr(p, name)) for name in SETTINGS]
    heap = p.buffer_bytes // PAGE // p.unit_pages + frontiers + 2 if p.buffer_bytes else 1
    heap += p.superblock_pages // p.unit_pages * slc
    registers = array(REGISTERS)
    registers[[FREE, GOOD]] = p.superblocks
    registers[[VICTIM, MOVED, UNREADABLE]] = -1
    return DriveState(
        flash=new_flash(p, order),
        settings=np.array(numbers, np.int64),
        places=array(p.mapped_pages, value=-1, kind=np.int32),
        owners=array(p.superblocks * p.superblock_pages, value=-1, kind=np.int32),
        handles=array(p.logical_pages if p.streams > 1 else 1, kind=np.int8),
        valid=array(p.superblocks),
        free=array(p.reclaim_groups, value=p.superblocks // p.reclaim_groups),
        closed_at=array(p.superblocks),
        status=array(p.superblocks, value=IS_FREE),
        zone=array(p.superblocks, value=-1),
        open=array(frontiers, value=-1),
        filled=array(frontiers),
        before=array(frontiers, value=-1),
        ready=array(frontiers),
        staged=array(*(p.superblocks, p.unit_pages) if slc else (1, 1), value=-1, kind=np.int32),
        staged_count=array(p.superblocks if slc else 1),
        cores=array(max(1, p.cores)),
        programs=array(heap),
        cached=new_cache(p, p.mapping_cache),
        cached_at=array(max(1, p.translation_pages), value=-1),
        read_cached=array(max(1, p.cached_pages), 4, value=-1),
        read_cached_at=array(p.logical_pages if p.cached_pages else 1, value=-1),
        registers=registers,
        counters=array(len(COUNTERS)),
        stream_counters=array(p.streams, 3),
    )
