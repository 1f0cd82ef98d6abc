"""Mappings that are partly in memory: the main ideas of DFTL (Gupta et al., ASPLOS 2009), TPFTL
(Zhou et al., EuroSys 2015) and LearnedFTL (Wang et al., HPCA 2024)."""

from collections import OrderedDict
from itertools import chain

from potash.extend import ftl
from potash.ftl import Hint, Page, PageMapped, Profile

ENTRIES, AHEAD, LINES, PARTS = 1024, 64, 8, 16
"""Entries of a translation page, those that are prefetched, lines of such a page, and parts of the
drive that are collected as a whole."""


@ftl
class Cached(PageMapped):
    """DFTL: the latest entries are in memory, and each other one is a further read of flash."""

    ahead = 1

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.cached: OrderedDict[int, bool] = OrderedDict()
        """Pages whose entries are in memory, the latest at the end; True for one that changed."""
        self.right = bytearray(profile.mapped_pages)
        """1 for a page whose place is predicted."""

    def translate(self, page: int, ready: int, changes: bool) -> int:
        """The time at which the place of a page is known."""
        if page in self.cached or (self.right[page] and not changes):
            self.counts["hits"] += 1
        else:
            place = self.places[self.profile.logical_pages + page // ENTRIES]
            if place >= 0 and not self.flash.in_memory(place, ready):
                ready = self.flash.sense(place, 1, ready, True)
                self.counts["misses"] += 1
            ahead = self.ahead if page - 1 in self.cached else 1
            for other in range(page, min(page + ahead, (page // ENTRIES + 1) * ENTRIES)):
                self.cached.setdefault(other, False)
        if page in self.cached:
            self.cached.move_to_end(page)
            self.cached[page] |= changes
        while len(self.cached) > self.profile.mapping_cache // 8:  # bytes of an entry
            self.evict(ready)
        return ready

    def evict(self, ready: int) -> None:
        """Forget the oldest entry; if it has changed, write all of its translation page."""
        page, changed = self.cached.popitem(last=False)
        if changed:
            first = page // ENTRIES * ENTRIES
            entries = set(range(first, first + ENTRIES)) & self.cached.keys()
            self.cached.update(dict.fromkeys(entries, False))
            self.make_room(ready)
            self.place(self.cold, self.profile.logical_pages + page // ENTRIES, ready, False)
            self.counts["translation"] += 1


@ftl
class Prefetch(Cached):
    """TPFTL: where pages are used in order, the entries of those behind are kept, too."""

    ahead = AHEAD


@ftl
class Learned(Prefetch):
    """LearnedFTL: a few straight lines predict places, and a bit for each page says whether they
    are right. A part of the pages is collected as a whole and in order, so that lines are long."""

    frontiers = PARTS + 1

    def frontier(self, page: Page, hint: Hint) -> int:
        return page.number // (self.profile.logical_pages // PARTS)

    def place(self, number: int, page: int, ready: int, host: bool) -> int:
        self.right[page] = 0
        done = super().place(number, page, ready, host)
        if host and page % ENTRIES == ENTRIES - 1:  # a translation page was written in order
            self.learn(range(page - ENTRIES + 1, page + 1))
        return done

    def make_room(self, ready: int) -> None:
        """Collect the part of the pages that has the most invalid ones: move it in order."""
        size = self.profile.logical_pages // PARTS  # translation pages are the last part
        while len(self.free) <= self.reserve + size // self.size:
            blocks: list[list[int]] = [[] for _ in self.open]
            for block, state in enumerate(self.state):
                if state == "closed":
                    blocks[self.filled_by[block]].append(block)
            invalid = [sum(self.size - self.valid[block] for block in part) for part in blocks]
            part, ready = invalid.index(max(invalid)), max(ready, self.admitted)
            if self.open[part].block >= 0:
                blocks[part].append(self.open[part].block)
                self.close(self.open[part])
            every = range(part * size, min((part + 1) * size, self.profile.mapped_pages))
            pages = [page for page in every if self.places[page] // self.size in blocks[part]]
            senses = [self.flash.sense(self.places[page], 1, ready, False) for page in pages]
            for page in pages:
                self.place(part, page, max(senses), False)
            self.counts["relocated"] += len(pages)
            for block in blocks[part]:
                self.erase(block, ready)
            for first in range(every.start, every.stop, ENTRIES):
                self.learn(range(first, min(first + ENTRIES, every.stop)))

    def learn(self, pages: range) -> None:
        """Set the bits of pages on the longest lines, on which places follow one another."""
        lines: dict[int, list[int]] = {}
        for page in pages:
            if self.places[page] >= 0:
                lines.setdefault(self.places[page] - page, []).append(page)
        for page in chain(*sorted(lines.values(), key=len)[-LINES:]):
            self.right[page] = 1
