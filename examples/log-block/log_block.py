"""BAST: a flash translation layer with log blocks (Kim et al. 2002, "A Space-Efficient Flash
Translation Layer for CompactFlash Systems", IEEE Transactions on Consumer Electronics 48:2).

Data are mapped by whole superblocks, so that the mapping takes little memory: each page of a data
block has the index in it that it has in its logical block. What the host writes goes to a log
block, which belongs to one logical block and is filled in the order of writes. A log block that is
full, or whose place another logical block needs, is merged with the data block.

Run as a program, this compares the merges and the write amplification of three workloads.
"""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from potash import timing
from potash.extend import ftl
from potash.ftl import PAGE, Frontier, Hint, Op, Page, PageMapped, Profile


@ftl
class LogBlock(PageMapped):
    """Log blocks are the frontiers but for the last one (`cold`), to which full merges copy."""

    frontiers = 5

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.data_blocks: dict[int, int] = {}
        """The data block of each logical block that has one."""
        self.log_blocks: dict[int, tuple[int, int]] = {}
        """The frontier and the log block of logical blocks, the oldest first."""
        self.merges: Counter[str] = Counter()
        """Merges of each kind."""
        self.ready = 0

    def make_room(self, ready: int) -> None:
        """A merge makes room, when a page has no log block."""
        self.ready = max(ready, self.admitted)

    def frontier(self, page: Page, hint: Hint) -> int:
        """The log block of the page's logical block."""
        logical = page.number // self.size
        if logical in self.log_blocks and self.filled_of(logical) == self.size:
            self.merge(logical)
        if logical not in self.log_blocks:
            if len(self.log_blocks) == self.cold:
                self.merge(next(iter(self.log_blocks)))
            number = min(set(range(self.cold)) - {number for number, _ in self.log_blocks.values()})
            self.open_superblock(self.open[number])
            self.log_blocks[logical] = number, self.open[number].block
        return self.log_blocks[logical][0]

    def filled_of(self, logical: int) -> int:
        """Pages that were written to the log block of a logical block."""
        number, log = self.log_blocks[logical]
        return self.open[number].filled if self.open[number].block == log else self.size

    def merge(self, logical: int) -> None:
        """Have one block of data instead of a data block and its log block."""
        filled, first = self.filled_of(logical), logical * self.size
        number, log = self.log_blocks.pop(logical)
        old, end = (
            self.data_blocks.pop(logical, -1),
            min(first + self.size, self.profile.logical_pages),
        )
        in_order = all(
            self.owners[log * self.size + index] == first + index for index in range(filled)
        )
        rest = [page for page in range(first + filled, end) if self.places[page] >= 0]
        if in_order:
            # The log block has the first pages where a data block has them, so it becomes one.
            self.merges["partial" if rest else "switch"] += 1
            self.data_blocks[logical] = log
            self.copy(rest, self.open[number])
        else:
            self.merges["full"] += 1
            self.pad(self.open[number], self.ready)
            self.close(self.open[number])
            every = [page for page in range(first, end) if self.places[page] >= 0]
            if every:
                self.open_superblock(self.open[self.cold])
                self.data_blocks[logical] = self.open[self.cold].block
                self.copy(every, self.open[self.cold])
            self.erase(log, self.ready)
        if old >= 0:
            self.erase(old, self.ready)

    def copy(self, pages: list[int], frontier: Frontier) -> None:
        """Copy pages to a superblock, each to its own index, and close it."""
        for page in pages:
            while frontier.filled < page % self.size:  # a page without data
                frontier.filled += 1
                self.counts["padding"] += 1
                if frontier.filled % self.unit == 0:
                    self.program(frontier)
            place, there = self.places[page], self.ready
            if not self.flash.in_memory(place, self.ready):
                there = self.flash.sense(place, 1, self.ready, False)
            self.place(frontier.number, page, there, False)
        self.counts["relocated"] += len(pages)
        self.pad(frontier, self.ready)
        self.close(frontier)

    def format(self, ready: int) -> int:
        """Erase everything."""
        self.data_blocks, self.log_blocks = {}, {}
        return super().format(ready)

    def rest(self) -> None:
        """Set the clock and all counters to 0."""
        super().rest()
        self.merges.clear()

    def close_stream(self, ready: int, stream: int) -> int:
        """Streams have no superblocks of their own."""
        return ready

    def filled(self, stream: int) -> int:
        """The same for reports: nothing is filled."""
        return 0


def amplification(drive: PageMapped, pages: Iterable[int]) -> float:
    """The write amplification of a workload on a drive that was written once."""
    for page in range(drive.profile.logical_pages):
        drive.submit(drive.now, Op.WRITE, page, 1)
    drive.rest()
    for page in pages:
        drive.submit(drive.now, Op.WRITE, page, 1)
    return drive.counters.write_amplification


def main() -> None:
    """Print merges and write amplification on a small drive: 32 logical blocks of 256 pages."""
    profile = replace(timing.profile("femu"), blocks=52, pages=4, capacity=32 * 256 * PAGE)
    every, size = range(profile.logical_pages), profile.superblock_pages
    workloads = {
        "in order": list(every),
        "half of each block": [page for page in every if page % size < size // 2],
        "random": random.Random(1).choices(every, k=250),
    }
    print(f"{'':20}  switch partial  full  amplification  with page mapping")
    for name, pages in workloads.items():
        drive = LogBlock(profile)
        written = amplification(drive, pages)
        switch, partial, full = (drive.merges[kind] for kind in ("switch", "partial", "full"))
        merges = f"{name:20} {switch:7} {partial:7} {full:5}"
        print(f"{merges} {written:14.2f} {amplification(PageMapped(profile), pages):18.2f}")


if __name__ == "__main__":
    main()
