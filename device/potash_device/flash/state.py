"""The arrays of a drive's flash, and the numbers by which compiled code finds its way in them."""

from typing import Any, NamedTuple

import numpy as np

from potash_device.flash.blocks import endurance, failures
from potash_device.flash.profile import Profile

SETTINGS = (
    *("channels", "dies", "total_dies", "superblocks", "program_pages", "row_pages"),
    *("unit_pages", "superblock_pages", "group_dies", "groups"),
    *("erase_ns", "suspend_ns", "bus_command_ns"),
    *("slc_pages", "slc_read_ns", "slc_unit_ns", "slc_erasure_ns"),
)
"""Properties of a profile that the flash has, in the order of their array; then the rates."""
(CHANNELS, DIES, TOTAL_DIES, SUPERBLOCKS, PROGRAM_PAGES, ROW_PAGES) = range(6)
(UNIT_PAGES, SUPERBLOCK, GROUP_DIES, GROUPS, ERASE_NS, SUSPEND_NS, BUS_COMMAND) = range(6, 13)
(SLC_PAGES, SLC_READ, SLC_PROGRAM, SLC_ERASE) = range(13, 17)
(BUS_BYTES, BUS_NS, LINK_BYTES, LINK_NS) = range(17, 21)

NATIVE, SLC = range(2)
"""Modes of cells: all their bits, or one."""

MOST_GAPS = 1024
"""Busy intervals that a calendar remembers; beyond it the earliest gap is given up."""
_PLACES = MOST_GAPS + MOST_GAPS // 4
"""Places for them, so that intervals seldom have to move when others are forgotten."""
NEVER = np.iinfo(np.int64).max

COUNTERS = (
    *("senses", "programs", "erased", "suspensions", "die_ns", "bus_ns", "link_ns"),
    *("retries", "uncorrectable", "slc_programs"),
)
(SENSES, PROGRAMS, ERASED, SUSPENSIONS, DIE_BUSY, BUS_BUSY, LINK_BUSY) = range(7)
RETRIES, UNCORRECTABLE, SLC_PROGRAMS = range(7, 10)


class FlashState(NamedTuple):
    """The state of a drive's flash: arrays of int64. A superblock is the blocks of one number on
    all dies of a group; a place is the number of a superblock times its pages, plus the place in
    it."""

    settings: Any
    read_ns: Any
    short_read_ns: Any
    program_ns: Any
    order: Any
    """The dies, in the order in which consecutive program units go to them."""
    mode: Any
    """The mode of each superblock's cells, since it was erased."""
    rber: Any
    retry_rber: Any
    retry_ns: Any
    born: Any
    """The time at which the oldest data of each superblock were programmed, which may be before 0;
    NEVER if it has none."""
    reads: Any
    """Reads of rows of each superblock since its erase."""
    programmed: Any
    """The time at which each program unit is done; NEVER for one that is not programmed."""
    erases: Any
    endurance: Any
    """The erases with which each superblock is worn out."""
    failing: Any
    """The programs in the life of each superblock before one fails."""
    bad: Any
    """1 for superblocks of which a program has failed."""
    erased: Any
    """The time at which each superblock is erased."""
    last: Any
    """The time at which each die has done everything."""
    reads_done: Any
    """The time at which the host's reads of each die are done."""
    begins: Any
    """Beginnings of the busy intervals of each bus, of the link into the drive and out of it, of
    each die."""
    ends: Any
    intervals: Any
    """The first of them that is remembered, and the end of the last one."""
    now: Any
    """One number: the arrival of the request that is served."""
    counters: Any


def new_flash(profile: Profile, order: list[int]) -> FlashState:
    """Empty flash that was never used."""
    p = profile
    calendars = p.channels + 2 + p.total_dies

    def array(*shape: int, value: int = 0) -> Any:
        return np.full(shape, value, np.int64)

    numbers = [int(getattr(p, name)) for name in SETTINGS]
    spread = p.cycles_spread if p.cycles else 0
    worn_at = endurance(p.superblocks, p.cycles or NEVER, spread, p.seed)
    return FlashState(
        settings=np.array([*numbers, *p.bus, *p.link], np.int64),
        read_ns=np.array(p.read_ns, np.int64),
        short_read_ns=np.array(p.short_read_ns or p.read_ns, np.int64),
        program_ns=np.array(p.program_ns, np.int64),
        order=np.array(order, np.int64),
        mode=array(p.superblocks),
        rber=np.array(p.rber, np.float64),
        retry_rber=np.array(p.retry_rber, np.float64),
        retry_ns=np.array(p.retry_ns, np.int64),
        born=array(p.superblocks, value=NEVER),
        reads=array(p.superblocks),
        programmed=array(p.superblocks * (p.superblock_pages // p.unit_pages), value=NEVER),
        erases=array(p.superblocks),
        endurance=np.array(worn_at, np.int64),
        failing=np.minimum(failures(p.superblocks, p.program_failures, p.seed), 1 << 62).astype(
            np.int64
        ),
        bad=array(p.superblocks),
        erased=array(p.superblocks),
        last=array(p.total_dies),
        reads_done=array(p.total_dies),
        # Unlike `np.full`, this takes memory when it is used.
        begins=np.zeros((calendars, _PLACES), np.int64),
        ends=np.zeros((calendars, _PLACES), np.int64),
        intervals=array(calendars, 2),
        now=array(1),
        counters=array(len(COUNTERS)),
    )


def ages(flash: FlashState) -> Any:
    """The times at which data were programmed, as they are when the clock is set to 0."""
    return np.where(flash.born == NEVER, NEVER, np.minimum(flash.born - flash.now[0], 0))


def rest(flash: FlashState) -> None:
    """Let all that is under way be done, and set the clock and counters to 0."""
    flash.born[:] = ages(flash)
    for times in (flash.erased, flash.last, flash.reads_done, flash.intervals, flash.counters):
        times[:] = 0
    flash.programmed[flash.programmed != NEVER] = 0
    flash.now[:] = 0
