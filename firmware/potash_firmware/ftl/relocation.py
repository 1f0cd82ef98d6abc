"""Relocation of the valid pages of a superblock, which is erased then."""

from potash_device.flash import state as flash
from potash_device.flash.array import in_memory, sense
from potash_device.vta.fast.compiling import Number, outlined
from potash_firmware.ftl import reclaim, state
from potash_firmware.ftl.frontiers import erase, invalidate, place
from potash_firmware.ftl.state import DriveState


@outlined
def collect(s: DriveState, which: Number, ready: Number, pages: Number) -> None:
    """Relocate at least `pages` of a superblock, or to its end, a unit of each die at once.

    The register `which` has the superblock, and the next one where relocation is.
    """
    r, shape, at = s.registers, s.flash.settings, which + 1
    size, base, moved = shape[flash.ROW_PAGES], r[which] * shape[flash.SUPERBLOCK], 0
    copies = s.settings[state.COPY_BACK]
    while moved < pages and r[at] < shape[flash.SUPERBLOCK]:
        batch = min(pages, moved + shape[flash.UNIT_PAGES] * shape[flash.GROUP_DIES])
        first, there, before = base + r[at], ready, moved
        while moved < batch and r[at] < shape[flash.SUPERBLOCK]:
            row, valid, away = base + r[at], 0, 0
            for where in range(row, row + size):
                if s.owners[where] >= 0:
                    away += not copies or not reclaim.stays(s, where, moved - before + valid)
                    valid += 1
            if valid and not in_memory(s.flash, row, ready):
                failed = s.flash.counters[flash.UNCORRECTABLE]
                there = max(there, sense(s.flash, row, away, ready, False))
                if s.flash.counters[flash.UNCORRECTABLE] > failed:
                    valid -= lose(s, row)
            moved += valid
            r[at] += size
        for where in range(first, base + r[at]):
            if s.owners[where] >= 0:
                if copies and not in_memory(s.flash, where, ready) and reclaim.stays(s, where, 0):
                    r[state.STAYED] += 1
                    s.counters[state.COPIED] += 1
                place(s, reclaim.home(s, s.owners[where], r[which]), s.owners[where], there)
    s.counters[state.RELOCATED] += moved
    if r[at] == shape[flash.SUPERBLOCK]:
        erase(s, r[which], ready)
        r[which] = -1


@outlined
def lose(s: DriveState, row: Number) -> Number:
    """The data of a row are lost, translation pages excepted; the number of its pages."""
    lost = 0
    for where in range(row, row + s.flash.settings[flash.ROW_PAGES]):
        page = s.owners[where]
        if 0 <= page < s.settings[state.LOGICAL]:
            invalidate(s, page)
            s.places[page] = state.LOST
            lost += 1
    s.counters[state.LOST_PAGES] += lost
    return lost
