"""The model of a drive's time as one reads it: the translation layer in plain Python, and what the
compiled one can do besides.

`potash_firmware.ftl.page` is the same for millions of requests, and is compared with this one.
Sources: docs/time.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from potash_device.flash.profile import ENTRIES, PAGE, Profile
from potash_firmware.ftl.base import HookError
from potash_firmware.ftl.hooks import Block, Hint, Page
from potash_firmware.ftl.plain import Frontier, PageMapped
from potash_firmware.ftl.policies import Policies, Superblocks
from potash_firmware.ftl.requests import WORN, Op


@dataclass
class CachedPage:
    """A translation page in memory."""

    number: int
    loaded: int
    dirty: bool
    used: bool = True


class Reference(PageMapped):
    """A drive, empty at first: with policies, background collection, a cache of the mapping, and
    zones that have superblocks of their own. Raises FtlError where a policy fails."""

    zones = True
    targets = 1

    def __init__(self, profile: Profile, policies: Policies | None = None) -> None:
        self.policies = policies or Policies()
        self.frontiers = profile.frontiers
        super().__init__(profile)
        self.buffer = Frontier(profile.frontiers + profile.superblocks)
        """The SLC buffer of zones."""
        zones = range(profile.frontiers, self.buffer.number)
        self.open += [*map(Frontier, zones), self.buffer]
        self.staged: defaultdict[int, list[int]] = defaultdict(list)
        """The pages of each zone in it."""
        self.units: defaultdict[int, list[int]] = defaultdict(list)
        """The times at which units of zones are programmed."""
        self.zone = [-1] * profile.superblocks
        """The stream of the zone that has a superblock, or -1."""
        self.asked = 0
        """Victims for a page of a request."""
        self.op, self.maps, self.stream, self.target = Op.READ, False, 0, 0
        """The request that is served, whether its pages are translated, the stream that is written,
        and the reclaim group that is to have room."""
        self.handles: dict[int, int] = {}
        """The stream that wrote each page."""
        self.by_stream = [[0, 0, 0] for _ in range(profile.streams)]
        """Pages of each that the host wrote and the drive moved, and padding."""
        self.cache: list[CachedPage] = []
        self.hand = 0

    def order(self) -> list[int]:
        return self.policies.dies(self.profile.channels, self.profile.dies)

    @property
    def mapped(self) -> int:
        return sum(place >= 0 for place in self.places[: self.profile.logical_pages])

    def serve(self, ready: int, op: Op, pages: range, stream: int, fua: bool, hint: Hint) -> int:
        zoned = stream >= self.profile.frontiers
        self.op, self.maps = op, bool(self.profile.mapping_cache) and not zoned
        self.stream = stream
        if op in (Op.RESET, Op.FINISH):
            return (self._reset if op == Op.RESET else self._finish)(ready, stream)
        if op == Op.WRITE_AREA:
            self.counts["area_writes"] += len(pages)
            self.counts["host"] += len(pages)
            return self.flash.send(self.flash.link_in, ready, len(pages))
        if op in (Op.WRITE, Op.COMMIT) and zoned:
            return self._write_zone(ready, pages, stream, fua, op)
        return super().serve(ready, op, pages, stream, fua, hint)

    def format(self, ready: int) -> int:
        self.zone = [-1] * len(self.zone)
        self.cache, self.hand = [], 0
        self.units.clear()
        self.staged.clear()
        end = super().format(ready)
        for frontier in self.open:
            frontier.clear()
        return end

    def read(self, ready: int, pages: range) -> int:
        """Pages of a row are read before a superblock may be erased for the translation of others."""
        if not self.maps:
            return super().read(ready, pages)
        end, group, latest = ready, list[int](), ready
        for page in pages:
            few = len(self.free) <= max(self.reserve, self.profile.background)
            if group and few:
                end = max(end, self.read_row(group[0], len(group), latest))
                group, latest = [], ready
            known = self.translate(page, ready, False)
            place = self.places[page]
            on_flash = place >= 0 and not self.flash.in_memory(place, known)
            if group and not (on_flash and place == group[-1] + 1 and place % self.row):
                end = max(end, self.read_row(group[0], len(group), latest))
                group, latest = [], ready
            if on_flash:
                group, latest = [*group, place], max(latest, known)
            else:
                end = max(end, self.flash.send(self.flash.link_out, known, 1))
        return max(end, self.read_row(group[0], len(group), latest)) if group else end

    # Zones.

    def _write_zone(self, ready: int, pages: range, zone: int, fua: bool, op: Op) -> int:
        """Without translation and padding; a page may come in parts, as blocks can be smaller."""
        end = latest = ready
        for page in pages:
            self.make_room(ready)
            if self.worn:
                return WORN
            if self.places[page] >= 0:
                end = max(end, self.flash.send(self.flash.link_in, ready, 1))
                continue
            number = self._stage(zone, page, pages.stop - page, ready)
            own = self.profile.zone_units and number == zone
            admitted = self._admit_zone(zone, ready) if own else self.admit(ready)
            arrived = admitted
            if op == Op.WRITE:
                arrived = self.flash.send(self.flash.link_in, admitted, 1)
            programmed = self.place(number, page, arrived, not own)
            if own and programmed:
                self.units[zone].append(programmed)
                self.written = max(self.written, programmed)
            latest = max(latest, programmed)
            end = max(end, arrived, 0 if own or self.room else programmed)
            self.counts["host" if op == Op.WRITE else "commits"] += 1
        if fua and self.profile.zone_slc_superblocks and not self.profile.protected:
            end = max(end, latest)
            if self.staged[zone]:
                end = max(end, self.pad(self.buffer, end))
        return end

    # The SLC buffer of zones.

    def _stage(self, zone: int, page: int, left: int, ready: int) -> int:
        """The frontier of a page: the buffer's, where the rest of a write does not fill a unit."""
        frontier, staged = self.open[zone], self.staged[zone]
        if not self.profile.zone_slc_superblocks:
            return zone
        if frontier.block < 0:
            self.open_superblock(frontier)
        few = len(staged) + left < self.unit
        if not frontier.filled % self.unit and few and self._has_room(ready):
            staged.append(page)
            return self.buffer.number
        self._gather(zone, ready)
        return zone

    def _buffers(self) -> list[int]:
        """The superblocks of the buffer."""
        return [block for block, whose in enumerate(self.zone) if whose == self.buffer.number]

    def _has_room(self, ready: int) -> bool:
        """Copy what is valid in a superblock of which at least half is invalid, if all are full."""
        blocks = self._buffers()
        if self.buffer.block >= 0 or len(blocks) < self.profile.zone_slc_superblocks:
            return True
        least = min(blocks, key=lambda block: self.valid[block])
        if 2 * self.valid[least] > self.profile.slc_pages:
            return False
        at = max(ready, self.admitted)
        places = [place for place in self._places(least) if self.owners[place] >= 0]
        self.buffered += len(places)
        step = self.unit * self.profile.group_dies
        while places:
            # Whole rows, until there are enough for all dies.
            rows = sorted({place // self.row for place in places})
            batch: list[int] = []
            for row in rows:
                if len(batch) < step:
                    batch += [place for place in places if place // self.row == row]
            there = self._sensed(batch, at, by_row=True)
            for place in batch:
                self.place(self.buffer.number, self.owners[place], there, True)
            places = places[len(batch) :]
            self.counts["relocated"] += len(batch)
        self._erase_zoned(least, at)
        return True

    def _places(self, block: int) -> range:
        return range(block * self.size, (block + 1) * self.size)

    def _sensed(self, places: list[int], ready: int, by_row: bool = False) -> int:
        """The time at which pages are read that follow one another in rows."""
        on_flash = [place for place in places if not self.flash.in_memory(place, ready)]
        groups = [list(group) for _, group in groupby(on_flash, lambda place: place // self.row)]
        ends = [self.flash.sense(group[-1], len(group), ready, False) for group in groups]
        return max(ends, default=ready)

    def _gather(self, zone: int, ready: int) -> int:
        """Move pages from the buffer to the zone's own superblock."""
        pages = self.staged.pop(zone, [])
        places = [self.places[page] for page in pages]
        there = self._sensed(places, ready)
        own = bool(self.profile.zone_units)
        self.buffered += 0 if own else len(pages)
        for page, place in zip(pages, places, strict=True):
            self.place(zone, page, there, not own)
            self._free(place, ready)
        self.counts["relocated"] += len(pages)
        self.counts["folded"] += len(pages)
        return there

    def _free(self, place: int, ready: int) -> None:
        block = place // self.size
        if not self.valid[block] and block != self.buffer.block:
            self._erase_zoned(block, ready)

    def _erase_zoned(self, block: int, ready: int) -> None:
        self.zone[block] = -1
        self.erase(block, ready)

    def flush(self, ready: int) -> int:
        if self.profile.zone_slc_superblocks and not self.profile.protected:
            end = super().flush(ready)
            self.pad(self.buffer, ready)
            return max(end, self.written)
        return super().flush(ready)

    def _admit_zone(self, zone: int, ready: int) -> int:
        """The zone's own buffer: as many units as it holds may be filled and not programmed."""
        units, own = self.units[zone], self.profile.zone_units
        return max(ready, units[-own]) if len(units) >= own else ready

    def _reset(self, ready: int, zone: int) -> int:
        frontier, end = self.open[zone], ready
        self.units[zone].clear()
        for page in self.staged.pop(zone, []):
            place = self.places[page]
            self.invalidate(page)
            self._free(place, ready)
        if self.room and not self.profile.zone_units:
            self.buffered -= frontier.filled % self.unit
        frontier.clear()
        for block, stream in enumerate(self.zone):
            if stream == zone:
                for page in self.owners[block * self.size : (block + 1) * self.size]:
                    if page >= 0:
                        self.invalidate(page)
                self._erase_zoned(block, ready)
                end = max(end, self.flash.erased[block])
        return end

    def _finish(self, ready: int, zone: int) -> int:
        """Program the rest of the superblock that a zone has open, without data."""
        frontier, end = self.open[zone], ready
        self._gather(zone, ready)
        while frontier.block >= 0:
            partial = frontier.filled % self.unit
            if partial and not self.profile.zone_units:
                done = self.pad(frontier, ready)
            else:
                frontier.filled += self.unit - partial
                frontier.ready = max(frontier.ready, ready)
                self.counts["padding"] += self.unit - partial
                done = self.program(frontier)
            self.written, end = max(self.written, done), max(end, done)
        return end

    def open_superblock(self, frontier: Frontier) -> None:
        """A zone has its superblocks on the dies of one group, while that has some that are free;
        other frontiers have them in their reclaim group."""
        number, streams = frontier.number, self.profile.streams
        if number <= self.cold:
            group = self.target if number < streams else (number - streams - 1)
            erases, sign = self.flash.erases, -1 if number > streams else 1
            block = min(self._of(group, self.free), key=lambda one: (sign * erases[one], one))
            self.free.remove(block)
            self.state[block], self.filled_by[block] = "open", number
            frontier.clear()
            frontier.block = block
            return
        if frontier is self.buffer:
            super().open_superblock(frontier)
            self.zone[frontier.block] = frontier.number
            self.flash.set_slc(frontier.block)
            return
        groups, free = self.profile.groups, self.free
        group = (frontier.number - self.profile.frontiers) % groups
        self.free = {block for block in free if block % groups == group} or set(free)
        super().open_superblock(frontier)
        self.free = free - {frontier.block}
        self.zone[frontier.block] = frontier.number

    def close(self, frontier: Frontier) -> None:
        if frontier.block >= 0 and self.zone[frontier.block] >= 0:
            self.state[frontier.block] = "zoned"
            frontier.clear()
        else:
            super().close(frontier)

    # Streams and reclaim groups.

    def _of(self, group: int, blocks: Collection[int]) -> list[int]:
        """Those of superblocks that are in a reclaim group."""
        groups = self.profile.reclaim_groups
        return [block for block in blocks if block % groups == group % groups]

    @property
    def _closed(self) -> list[int]:
        """Those of the group that is to have room."""
        closed = [number for number, state in enumerate(self.state) if state == "closed"]
        return self._of(self.target, closed)

    def _can_take(self, group: int) -> bool:
        """True for a group with free superblocks, or with one's worth of invalid pages."""
        self.target = group
        invalid = sum(self.size - self.valid[block] for block in self._closed)
        return len(self._of(group, self.free)) > self.reserve or invalid >= self.size

    def _find_room(self) -> bool:
        """Choose the group of the stream, or the next one that can take more; False where it needs
        none, as it has a superblock open in a group that cannot."""
        groups, block = self.profile.reclaim_groups, self.open[self.stream].block
        if groups == 1:
            return True
        if block >= 0:
            return self._can_take(block % groups)
        self.worn |= not any(self._can_take((self.stream + n) % groups) for n in range(groups))
        return True

    def frontier(self, page: Page, hint: Hint) -> int:
        self.handles[page.number] = hint.stream
        self.by_stream[hint.stream][0] += 1
        return super().frontier(page, hint)

    def relocate(self, page: Page, source: Block) -> int:
        profile, stream = self.profile, self.handles.get(page.number)
        if stream is not None:
            self.by_stream[stream][1] += 1
        if profile.relocations == 1:
            return self.cold
        if stream is None:  # a translation page
            return profile.streams
        groups = profile.reclaim_groups
        first = profile.streams + 1 + (stream * groups if profile.isolated else 0)
        return first + source.number % groups

    def pad(self, frontier: Frontier, ready: int) -> int:
        before = self.counts["padding"]
        done = super().pad(frontier, ready)
        if frontier.number < self.profile.streams:
            self.by_stream[frontier.number][2] += self.counts["padding"] - before
        return done

    # Garbage collection by policies, and in the background.

    def make_room(self, ready: int) -> None:
        self.asked = 0
        at = max(ready, self.admitted)
        while room := self._find_room():
            free = self._of(self.target, self.free)
            if self.worn or len(free) > self.reserve:
                break
            if not free:  # so many have retired that nothing can be relocated
                self.worn = True
                return
            self.collect(at, self.size)
            if self.asked > 2 * len(self.state):
                raise HookError("victim", "frees nothing")
        if len(self.free) > self.profile.background or self.worn:
            return
        closed = self._closed if room else []
        if self.source is None and any(map(self._is_worth, closed)):
            self.source = self.choose()
        if self.source and (self.cursor or self._is_worth(self.source.number)):
            self.collect(max(ready, self.admitted), self.profile.background_pages)
        else:
            self.source = None

    def _is_worth(self, number: int) -> bool:
        """True if enough of a superblock is invalid for the background."""
        invalid = self.size - self.valid[number]
        return invalid * 1000 >= self.profile.background_invalid * self.size

    def choose(self) -> Block:
        """Wear levelling is asked once for a page of a request, so that it cannot relocate valid
        pages for ever."""
        closed = self._closed
        view = Superblocks(
            np.array(self.valid),
            np.array(self.flash.erases),
            np.array(self.closed_at),
            np.array(closed),
            self.size,
        )
        number = self.policies.victim(view, not self.asked)
        self.asked += 1
        self.cursor = 0
        return self.block(number)

    # The mapping, where it is on flash.

    def translate(self, page: int, ready: int, dirty: bool) -> int:
        """The time at which a page's translation page is in memory; replacement is CLOCK."""
        profile, number = self.profile, page // ENTRIES
        if not self.maps:
            return ready
        if self.op != Op.WRITE:
            self.make_room(ready)
        for one in self.cache:
            if one.number == number:
                self.counts["hits"] += 1
                one.used = True
                one.dirty |= dirty
                return max(ready, one.loaded)
        self.counts["misses"] += 1
        place = self.places[profile.logical_pages + number]
        loaded = ready
        if place >= 0 and not self.flash.in_memory(place, ready):
            loaded = self.flash.sense(place, 1, ready, True)
        new = CachedPage(number, loaded, dirty)
        if len(self.cache) < max(1, profile.mapping_cache // PAGE):
            self.cache.append(new)
            return loaded
        while self.cache[self.hand].used:
            self.cache[self.hand].used = False
            self.hand = (self.hand + 1) % len(self.cache)
        old, self.cache[self.hand] = self.cache[self.hand], new
        self.hand = (self.hand + 1) % len(self.cache)
        if old.dirty and not self.worn:
            self.place(profile.streams, profile.logical_pages + old.number, ready, False)
            self.counts["translation"] += 1
        return loaded
