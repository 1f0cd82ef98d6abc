"""Two translation layers with an SLC cache, for which they use all flash that is free."""

from collections.abc import Sequence

from potash.extend import ftl
from potash.ftl import Block, Frontier, PageMapped, Profile

CACHE = 0.28
"""The share of the drive's pages that the cache holds."""


@ftl
class Fold(PageMapped):
    """All writes go to the cache. Once it is full, a superblock of it is folded, which moves its
    pages to flash in TLC mode, for each one that is filled."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.limit = int(CACHE * profile.logical_pages / profile.slc_pages)

    def make_room(self, ready: int) -> None:
        """Before a page is written: have a superblock to put it."""
        super().make_room(ready)
        while self.open[0].block < 0 and self.must_fold():
            self.collect(max(ready, self.admitted), self.size)

    def must_fold(self) -> bool:
        """True if the next superblock has to wait for one that is folded."""
        return len(self.flash.slc) >= self.limit

    def in_cache(self) -> bool:
        """True if the next superblock of the host is in SLC mode."""
        return True

    def open_superblock(self, frontier: Frontier) -> None:
        """Open a superblock, in SLC mode if it is for the host's writes to the cache."""
        super().open_superblock(frontier)
        if frontier.number != self.cold and self.in_cache():
            self.flash.set_slc(frontier.block)

    def victim(self, blocks: Sequence[Block]) -> int:
        """The superblock of the cache that was filled first; without one, the least valid."""
        cached = [block for block in blocks if block.number in self.flash.slc]
        if cached:
            return max(cached, key=lambda block: block.age).number
        return super().victim(blocks)

    def idle(self, until: int) -> None:
        """Fold while the host does nothing."""
        while self.flash.slc and self.clean(until):
            pass


@ftl
class Direct(Fold):
    """Writes go around a cache that is full, until it has been emptied in idle time. Folding makes
    room only once no other flash is left."""

    full = False

    def must_fold(self) -> bool:
        """Never: there is flash in TLC mode."""
        return False

    def in_cache(self) -> bool:
        """True until the cache is full, and again once it is empty."""
        cached = len(self.flash.slc)
        self.full = cached >= self.limit or (self.full and cached > 0)
        return not self.full
