"""A flash translation layer in plain Python: page mapping, greedy garbage collection, wear.

With the default policies, and the whole mapping in memory, the compiled one (`page`) takes the same
times and counts the same. A subclass changes what it is for: one of the hooks `frontier`, `victim`,
`relocate` and `idle`, or any other method.

A logical page has a place on flash: the number of its superblock times the pages of a superblock,
plus its index there. A write fills the open superblock of a frontier, unit after unit, and makes
the page's old place invalid. When few superblocks are free, garbage collection moves what is valid
in a victim, and erases it.
"""

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from operator import attrgetter

from potash_device.flash.plain import FlashError
from potash_device.flash.profile import PAGE, Profile, ProfileError
from potash_firmware.ftl.base import HookError
from potash_firmware.ftl.hooks import NO_HINT, Block, Hint, Page
from potash_firmware.ftl.plain_state import KeptFtl
from potash_firmware.ftl.requests import WORN, Op


class Frontier:
    """A superblock that is being filled, if one is open."""

    __slots__ = ("block", "filled", "number", "ready", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.clear()

    def clear(self) -> None:
        """Have no superblock open."""
        self.block = -1
        self.filled = 0
        """Pages that have been filled."""
        self.ready = 0
        """The time at which the data of the unit that is being filled are there."""
        self.waiting = 0
        """Pages of that unit that are in the write buffer."""


class PageMapped(KeptFtl):
    """A drive, empty at first. Raises ProfileError for one that is too small for it."""

    frontiers = 0
    """Superblocks that are open at once; 0 for one of each stream of the host, and one for
    relocated pages, which has the last number (`cold`)."""

    targets = 0
    """Frontiers to which the pages of one victim may go, each of which may open a superblock; 0 for
    all where there is a `relocate`, and else one."""

    # The hooks: decisions that a subclass may take in another way.

    def frontier(self, page: Page, hint: Hint) -> int:
        """The frontier that takes a page which the host writes."""
        return hint.stream % self.cold

    def victim(self, blocks: Sequence[Block]) -> int:
        """The number of the superblock, of those that are closed, to relocate and erase next."""
        return min(blocks, key=attrgetter("valid")).number

    def relocate(self, page: Page, source: Block) -> int:
        """The frontier that takes a valid page of a victim."""
        return self.cold

    def idle(self, until: int) -> None:
        """Work in the background: the drive has nothing to do up to a time, by which everything
        that this does has to end. `clean` is made for it."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        p = profile
        self.size, self.unit, self.row = p.superblock_pages, p.unit_pages, p.row_pages
        self.cold = (self.frontiers or p.streams + 1) - 1
        self.open: list[Frontier] = [Frontier(number) for number in range(self.cold + 1)]
        relocates = type(self).relocate is not PageMapped.relocate
        self.targets = self.targets or (len(self.open) if relocates else 1)
        self.reserve = max(p.reserve, 2 * self.targets)
        """Free superblocks at which a write waits for garbage collection."""
        more = max(0, len(self.open) - p.frontiers) + self.reserve - p.reserve
        self.least = p.least_superblocks + more
        """Superblocks that the drive takes; with fewer it refuses writes."""
        if self.cold < 1 or p.superblocks < self.least:
            raise ProfileError(
                f"{type(self).__name__} has {len(self.open)} frontiers, for which a drive takes 2 "
                f"at least, and {self.least} superblocks; this one has {p.superblocks}"
            )
        if p.mapping_cache and type(self).translate is PageMapped.translate:
            raise ProfileError(
                f"mapping_cache is for the FTL page, and {type(self).__name__} has the whole "
                "mapping in memory; set it to 0 in a profile"
            )
        self.places = array("i", [-1]) * p.mapped_pages
        """The place of each logical page; -1 for one without data."""
        self.owners = array("i", [-1]) * (p.superblocks * self.size)
        """The logical page in each place; -1 where none is valid."""
        self.valid = [0] * p.superblocks
        self.state = ["free"] * p.superblocks
        """free, open, closed or retired."""
        self.free = set(range(p.superblocks))
        self.filled_by, self.closed_at = [0] * p.superblocks, [0] * p.superblocks
        self.closings = 0
        """Superblocks that were closed."""
        self.source: Block | None = None
        """The victim that is being relocated."""
        self.cursor = 0
        """The index that relocation has come to in it."""
        self.room = p.buffer_bytes // PAGE
        """Pages that the write buffer holds; 0 if there is none."""
        self.buffered = 0
        self.programs: list[tuple[int, int]] = []
        """A heap: the times at which programs end, and the pages of the buffer that they free."""
        self.admitted = 0
        """The time up to which pages waited for room in the write buffer."""
        self.written = 0
        """The time at which all programs of the host's data are done."""

    # Requests.

    def serve(self, ready: int, op: Op, pages: range, stream: int, fua: bool, hint: Hint) -> int:
        """The time at which a request is done that the firmware has read at `ready`, or WORN."""
        if op == Op.READ:
            return self.read(ready, pages)
        if op == Op.WRITE:
            return self.write(ready, pages, Hint(stream) if hint is NO_HINT else hint, fua)
        if op == Op.TRIM:
            return self.trim(ready, pages)
        if op == Op.FLUSH:
            return self.flush(ready)
        if op == Op.FORMAT:
            return self.format(ready)
        return self.close_stream(ready, stream)

    def read(self, ready: int, pages: range) -> int:
        """Read pages; those that follow one another in a row are read together."""
        end, count, last, latest = ready, 0, -1, ready
        for page in pages:
            mapped = self.translate(page, ready, False)
            place = self.places[page]
            on_flash = place >= 0 and not self.flash.in_memory(place, mapped)
            if count and not (on_flash and place == last + 1 and place % self.row):
                end = max(end, self.read_row(last - count + 1, count, latest))
                count, latest = 0, ready
            if on_flash:
                count, last, latest = count + 1, place, max(latest, mapped)
            else:
                end = max(end, self.flash.send(self.flash.link_out, mapped, 1))
        return max(end, self.read_row(last - count + 1, count, latest)) if count else end

    def read_row(self, place: int, count: int, ready: int) -> int:
        """The time at which the host has pages of a row."""
        sensed = self.flash.sense(place, count, ready, True)
        return self.flash.send(self.flash.link_out, sensed, count)

    def write(self, ready: int, pages: range, hint: Hint, fua: bool) -> int:
        """Write pages, which is done when they are in the write buffer, or programmed."""
        end = programmed = ready
        used = set()
        for page in pages:
            self.make_room(ready)
            if self.worn:
                return WORN
            number = self.frontier(Page(page, self.block_of(page)), hint)
            number = self.checked("frontier", number)
            mapped = self.translate(page, ready, True)
            arrived = self.flash.send(self.flash.link_in, self.admit(mapped), 1)
            end = max(end, arrived)
            programmed = max(programmed, self.place(number, page, arrived, True))
            self.counts["host"] += 1
            used.add(number)
        if not self.room or (fua and not self.profile.protected):
            padded = [self.pad(self.open[number], end) for number in used]
            end = max(end, programmed, *padded)
        return end

    def trim(self, ready: int, pages: range) -> int:
        """Forget the data of pages."""
        end = ready
        for page in pages:
            end = max(end, self.translate(page, ready, True))
            self.invalidate(page)
        return end

    def flush(self, ready: int) -> int:
        """Program what is in the write buffer, unless that outlives a loss of power."""
        if self.profile.protected:
            return ready
        for frontier in self.open[: self.cold + 1]:
            if frontier.waiting:
                self.pad(frontier, ready)
        return max(ready, self.written)

    def format(self, ready: int) -> int:
        """Erase everything."""
        self.places = array("i", [-1]) * len(self.places)
        self.owners = array("i", [-1]) * len(self.owners)
        self.valid = [0] * len(self.valid)
        for block, state in enumerate(self.state):
            if state not in ("free", "retired"):
                self.erase(block, ready)
        for frontier in self.open:
            frontier.clear()
        self.source, self.programs, self.buffered, self.admitted = None, [], 0, 0
        return max(ready, *(die.last for die in self.flash.dies))

    def close_stream(self, ready: int, stream: int) -> int:
        """Have a stream begin another superblock."""
        frontier = self.open[stream % self.cold]
        end = max(ready, self.pad(frontier, ready))
        self.close(frontier)
        return end

    # Where pages go.

    def translate(self, page: int, ready: int, changes: bool) -> int:
        """The time at which the mapping of a page is in memory: the whole mapping always is."""
        return ready

    def place(self, number: int, page: int, ready: int, host: bool) -> int:
        """Give a page the next place of a frontier; the time at which the unit is programmed that
        it fills, otherwise 0."""
        frontier = self.open[number]
        if frontier.block < 0:
            self.open_superblock(frontier)
        self.invalidate(page)
        place = frontier.block * self.size + frontier.filled
        self.places[page], self.owners[place] = place, page
        self.valid[frontier.block] += 1
        frontier.filled += 1
        frontier.waiting += host
        frontier.ready = max(frontier.ready, ready)
        return 0 if frontier.filled % self.unit else self.program(frontier)

    def open_superblock(self, frontier: Frontier) -> None:
        """Open the least erased superblock that is free; for relocated pages the most erased."""
        sign = -1 if frontier.number == self.cold else 1
        erases = self.flash.erases
        block = min(self.free, key=lambda number: (sign * erases[number], number))
        self.free.remove(block)
        self.state[block], self.filled_by[block] = "open", frontier.number
        frontier.clear()
        frontier.block = block

    def program(self, frontier: Frontier) -> int:
        """Program the unit that has been filled; the time at which it is done."""
        unit, waiting = frontier.filled // self.unit - 1, frontier.waiting
        done = self.flash.program(frontier.block, unit, frontier.ready)
        frontier.ready = frontier.waiting = 0
        if waiting:
            self.written = max(self.written, done)
            if self.room:
                heappush(self.programs, (done, waiting))
        if frontier.filled == self.flash.pages(frontier.block):
            self.close(frontier)
        return done

    def pad(self, frontier: Frontier, ready: int) -> int:
        """Program a unit that is not full; the time at which it is done, 0 if there is none."""
        padding = -frontier.filled % self.unit
        if not padding:
            return 0
        frontier.filled += padding
        frontier.ready = max(frontier.ready, ready)
        self.counts["padding"] += padding
        if self.room:
            self.buffered += padding
        frontier.waiting += padding
        return self.program(frontier)

    def close(self, frontier: Frontier) -> None:
        """Fill no more of a superblock; the places that are left stay empty."""
        block = frontier.block
        if block >= 0:
            self.state[block], self.closed_at[block] = "closed", self.closings
            self.closings += 1
            frontier.clear()

    def invalidate(self, page: int) -> None:
        """Forget where a page is."""
        place = self.places[page]
        if place >= 0:
            self.places[page] = self.owners[place] = -1
            self.valid[place // self.size] -= 1

    def admit(self, ready: int) -> int:
        """The time at which the write buffer has room for a page, first come, first served."""
        if not self.room:
            return ready
        ready = max(ready, self.admitted)
        while self.programs and (self.programs[0][0] <= ready or self.buffered >= self.room):
            done, pages = heappop(self.programs)
            if done > ready:
                ready = self.admitted = done
            self.buffered -= pages
        self.buffered += 1
        return ready

    # Garbage collection.

    def make_room(self, ready: int) -> None:
        """Collect until more superblocks are free than the reserve has."""
        victims = 0
        while len(self.free) <= self.reserve and not self.worn:
            if len(self.free) < self.targets:  # so many have retired that nothing can be relocated
                self.worn = True
                return
            # A host that is ahead of the buffer is not ahead of what the drive does.
            victims += self.collect(max(ready, self.admitted), self.size)
            if victims > 2 * len(self.state):
                raise HookError("victim", "frees nothing")

    def collect(self, ready: int, pages: int) -> bool:
        """Relocate so many pages of the victim or a few more, or up to its end, where it is erased;
        True if this chose a victim. Pages for a unit of each die are sensed at once."""
        chose = self.source is None
        source = self.source = self.source or self.choose()
        first, moved = source.number * self.size, 0
        while moved < pages and self.cursor < self.size:
            most = min(pages - moved, self.unit * self.profile.group_dies)
            batch: list[tuple[int, int]] = []
            there, cursor = ready, self.cursor
            while len(batch) < most and cursor < self.size:
                row = first + cursor
                valid = [page for page in self.owners[row : row + self.row] if page >= 0]
                if valid and not self.flash.in_memory(row, ready):
                    there = max(there, self.flash.sense(row, len(valid), ready, False))
                for page in valid:
                    number = self.relocate(Page(page, source.number), source)
                    batch.append((self.checked("relocate", number), page))
                cursor += self.row
            for number, page in batch:
                self.place(number, page, there, False)
            moved, self.cursor = moved + len(batch), cursor
        self.counts["relocated"] += moved
        if self.cursor == self.size:
            self.source = None
            self.erase(source.number, ready)
        return chose

    def choose(self) -> Block:
        """The next victim."""
        closed = [number for number, state in enumerate(self.state) if state == "closed"]
        number = self.answer(
            "victim", self.victim([*map(self.block, closed)]), closed, "no closed superblock"
        )
        self.cursor = 0
        return self.block(number)

    def erase(self, block: int, ready: int) -> None:
        """Erase a superblock, in which nothing is valid, and retire it if it is worn."""
        if block < 0 or self.valid[block]:
            raise FlashError(f"superblock {block} is to be erased, of which pages are valid")
        self.flash.erase(block, ready)
        cycles = self.profile.cycles
        if cycles and self.flash.erases[block] >= cycles:
            self.state[block] = "retired"
            self.good -= 1
        else:
            self.state[block] = "free"
            self.free.add(block)
        # Where nothing was left free, a format may have changed that.
        self.worn = self.good < self.least

    def clean(self, until: int) -> bool:
        """Relocate a unit of a victim, for `idle`: False if that might end after a time, or if
        there is nothing to gain."""
        p, flash = self.profile, self.flash
        rows, programs = self.unit + self.row, 1 + len(self.open)
        took = rows * (max(p.read_ns + p.short_read_ns) + flash.transfer_ns(self.row))
        took += programs * (max(p.program_ns) + flash.transfer_ns(self.unit)) + p.erase_ns
        ready = max(flash.now, flash.busy)
        enough = len(self.free) >= self.targets and "closed" in self.state
        if self.worn or not enough or ready + took > until:
            return False
        if self.source is None:
            chosen = self.choose()
            if chosen.valid == self.size:
                return False
            self.source = chosen
        self.collect(ready, self.unit)
        return True

    # What hooks are given, and what they answer.

    def block_of(self, page: int) -> int:
        """The superblock that has a page; -1 if none has."""
        return self.places[page] // self.size  # -1 // size is -1

    def block(self, number: int) -> Block:
        """A closed superblock, for hooks."""
        age = self.closings - 1 - self.closed_at[number]
        erases = self.flash.erases[number]
        return Block(number, self.valid[number], erases, age, self.filled_by[number])

    def checked(self, hook: str, number: int) -> int:
        """The number of a frontier that a hook answered. Raises HookError."""
        if type(number) is int and 0 <= number <= self.cold:
            return number
        frontiers = range(self.cold + 1)
        return self.answer(hook, number, frontiers, f"none of the {len(frontiers)} frontiers")

    # What others are told.

    @property
    def mapped(self) -> int:
        """The host's pages that have data."""
        return sum(self.valid)

    @property
    def free_superblocks(self) -> int:
        """Superblocks that are erased and not open."""
        return len(self.free)

    def filled(self, stream: int) -> int:
        """Pages in the superblock that a stream fills; 0 where it has none open."""
        return self.open[stream % self.cold].filled

    def rest(self) -> None:
        """Let the drive become idle, and set its clock and counters to 0."""
        super().rest()
        self.programs = [(0, pages) for _, pages in self.programs]
        self.admitted = self.written = 0
        for frontier in self.open:
            frontier.ready = 0
