"""The model of a drive's time as one reads it: objects, one step after the other.

A request takes its parts of all resources when it arrives, so that its completion is known at once:

* a die, a bus and a direction of the link do one thing at a time; each thing takes the first gap
  between others that is long enough, so it never waits for one that itself waits elsewhere;
* the units of a block are programmed in order, and it is erased after all else on its die;
* a zone has superblocks of its own, which only its reset erases;
* a firmware core takes the next command when it is free.

`potash_firmware.ftl.page` is the same for millions of requests, and is compared with this one.
Sources: docs/time.md.
"""

import heapq
from collections.abc import Iterable

import numpy as np

from potash_device.flash.profile import ENTRIES, PAGE, Profile, Rate
from potash_firmware.ftl.policies import Policies, PolicyError, Superblocks, name_of
from potash_firmware.ftl.requests import WORN, Counters, Op
from support.drive_calendar import Calendar, Die
from support.drive_superblocks import CachedPage, Superblock


class Reference:
    """A drive, empty at first. Raises PolicyError where a policy fails."""

    def __init__(self, profile: Profile, policies: Policies | None = None) -> None:
        self.profile = profile
        self.policies = policies or Policies()
        self.order = self.policies.dies(profile.channels, profile.dies)
        self.dies = [Die() for _ in range(profile.total_dies)]
        self.buses = [Calendar() for _ in range(profile.channels)]
        self.link_in, self.link_out = Calendar(), Calendar()
        self.cores = [0] * profile.cores
        self.superblocks = [Superblock(number) for number in range(profile.superblocks)]
        self.places: dict[int, tuple[Superblock, int]] = {}
        """Of each mapped page: its superblock and its place there."""
        self.open: list[Superblock | None] = [None] * (profile.frontiers + profile.superblocks)
        self.victim: Superblock | None = None
        self.cursor = 0
        """The place of the victim that relocation has come to."""
        self.buffered = 0
        self.admitted = 0
        """When the last page got its room in the write buffer."""
        self.programs: list[int] = []
        """A heap: when each program frees its part of the write buffer."""
        self.cache: list[CachedPage] = []
        self.hand = 0
        self.closed = 0
        self.written = 0
        """When all programs for the host are done."""
        self.worn = False
        self.now = 0
        self._counts = dict.fromkeys(Counters._fields, 0)

    @property
    def counters(self) -> Counters:
        counts = self._counts | {
            "die_ns": sum(die.total for die in self.dies),
            "bus_ns": sum(bus.total for bus in self.buses),
            "link_ns": self.link_in.total + self.link_out.total,
        }
        return Counters(**counts)

    def submit(
        self, time: int, op: Op, first: int = 0, count: int = 0, stream: int = 0, fua: bool = False
    ) -> int:
        """When a request completes that arrives at `time`; WORN for a write that is refused."""
        self.now = time
        ready = self._firmware(time + self.profile.submission_ns, op, count)
        pages = range(first, first + count)
        match op:
            case Op.READ:
                end = self._read(ready, pages, stream)
            case Op.WRITE if stream >= self.profile.frontiers:
                end = self._write_zone(ready, pages, stream)
            case Op.WRITE:
                end = self._write(ready, pages, stream, fua)
            case Op.TRIM:
                end = self._trim(ready, pages)
            case Op.FLUSH:
                end = self._flush(ready)
            case Op.FORMAT:
                end = self._format(ready)
            case Op.CLOSE:
                end = max(ready, self._pad(stream, ready))
                self._close(stream)
            case Op.RESET:
                end = self._reset(ready, stream)
            case Op.FINISH:
                end = self._finish(ready, stream)
        return end if end == WORN else end + self.profile.completion_ns

    def _firmware(self, time: int, op: Op, count: int) -> int:
        profile = self.profile
        if op is Op.READ and count == 1 and profile.short_read_command_ns >= 0:
            cost = profile.short_read_command_ns
        elif op is Op.READ:
            cost = profile.read_command_ns
        elif op is Op.WRITE:
            cost = profile.write_command_ns
        else:
            cost = profile.other_command_ns
        cost += count * {Op.READ: profile.read_page_ns, Op.WRITE: profile.write_page_ns}.get(op, 0)
        self._counts["core_ns"] += cost
        if not self.cores:
            return time + cost
        core = min(range(len(self.cores)), key=self.cores.__getitem__)
        self.cores[core] = max(time, self.cores[core]) + cost
        return self.cores[core]

    def _read(self, ready: int, pages: Iterable[int], stream: int) -> int:
        """Pages that lie one behind the other in a row are read together."""
        mapped = self.profile.mapping_cache and stream < self.profile.frontiers
        end = known = ready
        group: list[tuple[tuple[Superblock, int], int]] = []
        last: tuple[Superblock, int] | None = None
        for page in pages:
            if mapped:
                self._make_room(ready)
                known = self._translate(page, ready, False)
            place = self.places.get(page)
            if place is not None and self._in_memory(place, known):
                place = None
            joins = (
                group
                and place is not None
                and last is not None
                and place[0] is last[0]
                and place[1] == last[1] + 1
                and place[1] % self.profile.row_pages
            )
            if not joins and group:
                end = max(end, self._read_row(group))
                group = []
            if place is None:
                end = max(end, self._send(self.link_out, known, 1))
            else:
                group.append((place, known))
            last = place
        return max(end, self._read_row(group)) if group else end

    def _read_row(self, group: list[tuple[tuple[Superblock, int], int]]) -> int:
        """Flash, bus, link."""
        place = group[0][0]
        there = self._sense(place, len(group), max(ready for _, ready in group), True)
        return self._send(self.link_out, there, len(group))

    def _sense(self, place: tuple[Superblock, int], pages: int, ready: int, host: bool) -> int:
        """When `pages` of a row are in the drive's memory."""
        profile = self.profile
        number, row = self._die(*place)
        times = profile.short_read_ns if pages == 1 and profile.short_read_ns else profile.read_ns
        duration, die = times[row % len(times)], self.dies[number]
        self._counts["senses"] += 1
        if host and profile.suspend_ns >= 0:
            start = max(ready, die.reads_done)
            if die.first(start, duration) == start:
                sensed = die.reserve(self.now, start, duration)
            else:
                busy = any(begin < start < end for begin, end in die.busy)
                wait = profile.suspend_ns if busy else 0
                sensed = die.interrupt(self.now, start, duration + 2 * wait) - wait
                self._counts["suspensions"] += busy
            die.reads_done = sensed
        else:
            sensed = die.reserve(self.now, ready, duration)
        return self._transfer(number, sensed, pages)

    def _write(self, ready: int, pages: Iterable[int], stream: int, fua: bool) -> int:
        end = programmed = ready
        for page in pages:
            self._make_room(ready)
            if self.worn:
                return WORN
            known = self._translate(page, ready, True)
            arrived = self._send(self.link_in, self._admit(known), 1)
            end = max(end, arrived)
            programmed = max(programmed, self._place(stream, page, arrived))
            self._counts["host"] += 1
        if not self.profile.buffer_bytes or (fua and not self.profile.protected):
            end = max(end, programmed, self._pad(stream, end))
        return end

    def _write_zone(self, ready: int, pages: Iterable[int], zone: int) -> int:
        """Without translation and padding; a page may come in parts, as blocks can be smaller."""
        end = ready
        for page in pages:
            self._make_room(ready)
            if self.worn:
                return WORN
            if page in self.places:
                end = max(end, self._send(self.link_in, ready, 1))
                continue
            arrived = self._send(self.link_in, self._admit(ready), 1)
            programmed = self._place(zone, page, arrived)
            end = max(end, arrived, 0 if self.profile.buffer_bytes else programmed)
            self._counts["host"] += 1
        return end

    def _reset(self, ready: int, zone: int) -> int:
        open_one, end = self.open[zone], ready
        if open_one is not None and self.profile.buffer_bytes:
            self.buffered -= len(open_one.owners) % self.profile.unit_pages
        self.open[zone] = None
        for superblock in self.superblocks:
            if superblock.zone == zone:
                for page in superblock.owners:
                    self._invalidate(page)
                superblock.zone = -1
                self._erase(superblock, ready)
                end = max(end, superblock.erased)
        return end

    def _finish(self, ready: int, zone: int) -> int:
        end = ready
        while (superblock := self.open[zone]) is not None:
            end = max(end, self._fill_unit(zone, superblock, ready))
        return end

    def _trim(self, ready: int, pages: Iterable[int]) -> int:
        end = ready
        for page in pages:
            if self.profile.mapping_cache:
                self._make_room(ready)
                end = max(end, self._translate(page, ready, True))
            self._invalidate(page)
        return end

    def _flush(self, ready: int) -> int:
        if self.profile.protected:
            return ready
        for stream in range(self.profile.streams):
            self._pad(stream, ready)
        return max(ready, self.written)

    def _format(self, ready: int) -> int:
        for page in list(self.places):
            self._invalidate(page)
        for superblock in self.superblocks:
            superblock.zone = -1
            if superblock.state not in ("free", "retired"):
                self._erase(superblock, ready)
        self.open = [None] * len(self.open)
        self.victim = None
        self.cache = []
        self.hand = self.buffered = 0
        self.programs = []
        return max(ready, *(die.last for die in self.dies))

    # The write buffer.

    def _admit(self, ready: int) -> int:
        """When the buffer has room for a page."""
        profile = self.profile
        if not profile.buffer_bytes:
            return ready
        while self.programs and (
            self.programs[0] <= ready or self.buffered >= profile.buffer_bytes // PAGE
        ):
            ready = max(ready, heapq.heappop(self.programs))
            self.buffered -= profile.unit_pages
        self.buffered += 1
        self.admitted = max(self.admitted, ready)
        return ready

    def _in_memory(self, place: tuple[Superblock, int], time: int) -> bool:
        """Whether a page is still in the drive's memory, not being programmed until then."""
        superblock, index = place
        done = superblock.programmed.get(index // self.profile.unit_pages)
        return done is None or done > time

    # Where pages go.

    def _place(self, frontier: int, page: int, ready: int) -> int:
        """Give a page its place; when the unit is programmed that it fills, else 0."""
        superblock = self.open[frontier]
        if superblock is None:
            superblock = self.open[frontier] = self._opened(frontier)
        self._invalidate(page)
        self.places[page] = superblock, len(superblock.owners)
        superblock.owners.append(page)
        superblock.ready = max(superblock.ready, ready)
        full = len(superblock.owners) % self.profile.unit_pages == 0
        return self._program(frontier, superblock) if full else 0

    def _opened(self, frontier: int) -> Superblock:
        """The least erased that is free; for relocated pages, which are cold, the most erased. A
        zone has its superblocks on the dies of one group, while that has some that are free."""
        free = [one for one in self.superblocks if one.state == "free"]
        zone = frontier - self.profile.frontiers
        if zone >= 0:
            groups = self.profile.groups
            free = [one for one in free if one.number % groups == zone % groups] or free
        pick = max if zone == -1 else min
        superblock = pick(free, key=lambda one: one.erases)
        superblock.state, superblock.zone = "open", frontier if zone >= 0 else -1
        return superblock

    def _program(self, frontier: int, superblock: Superblock, buffered: bool = True) -> int:
        """Program the last unit of those filled."""
        profile = self.profile
        unit, dies = len(superblock.owners) // profile.unit_pages - 1, profile.group_dies
        number = self.order[superblock.number % profile.groups * dies + unit % dies]
        there = self._transfer(number, superblock.ready, profile.unit_pages)
        before = superblock.programmed.get(unit - dies, superblock.erased)
        duration = profile.program_ns[unit // dies % len(profile.program_ns)]
        done = self.dies[number].reserve(self.now, max(there, before), duration)
        superblock.programmed[unit] = done
        superblock.ready = 0
        self._counts["programs"] += 1
        if frontier < profile.streams or frontier >= profile.frontiers:
            self.written = max(self.written, done)
            if profile.buffer_bytes and buffered:
                heapq.heappush(self.programs, done)
        if len(superblock.owners) == profile.superblock_pages:
            self._close(frontier)
        return done

    def _close(self, frontier: int) -> None:
        """Fill no more of a superblock; the places that are left stay empty."""
        superblock = self.open[frontier]
        if superblock is not None:
            superblock.owners += [-1] * (self.profile.superblock_pages - len(superblock.owners))
            self.open[frontier] = None
            if superblock.zone >= 0:
                superblock.state = "zoned"
                return
            superblock.state, superblock.closed_at = "closed", self.closed
            self.closed += 1

    def _pad(self, stream: int, ready: int) -> int:
        """Program a stream's unit that is not full; when that is done, 0 if there is none."""
        superblock = self.open[stream]
        if superblock is None or not len(superblock.owners) % self.profile.unit_pages:
            return 0
        return self._fill_unit(stream, superblock, ready)

    def _fill_unit(self, stream: int, superblock: Superblock, ready: int) -> int:
        """Program the next unit with what is there of it, or none; when that is done."""
        padding = self.profile.unit_pages - len(superblock.owners) % self.profile.unit_pages
        partial = padding < self.profile.unit_pages
        superblock.owners += [-1] * padding
        superblock.ready = max(superblock.ready, ready)
        self._counts["padding"] += padding
        if self.profile.buffer_bytes and partial:
            self.buffered += padding
        return self._program(stream, superblock, partial)

    def _invalidate(self, page: int) -> None:
        place = self.places.pop(page, None)
        if place is not None:
            superblock, index = place
            superblock.owners[index] = -1

    # Garbage collection.

    def _make_room(self, ready: int) -> None:
        """Collect until more superblocks than the reserve are free, then in the background."""
        # A host that is ahead of the buffer is not ahead of what the drive does.
        ready, asked = max(ready, self.admitted), 0
        while not self.worn and self._free() <= self.profile.reserve:
            if not self._free():  # so many have retired that nothing can be relocated
                self.worn = True
                return
            asked += self._collect(ready, self.profile.superblock_pages, not asked)
            if asked > 2 * len(self.superblocks):
                raise PolicyError("gc", f"{name_of(self.policies.gc)} frees nothing")
        if self._free() > self.profile.background or self.worn:
            return
        if self.victim is None and any(
            one.state == "closed" and self._is_worth(one) for one in self.superblocks
        ):
            self.victim, self.cursor = self.superblocks[self._choose(not asked)], 0
        if self.victim and (self.cursor or self._is_worth(self.victim)):
            self._collect(ready, self.profile.background_pages, not asked)
        else:
            self.victim = None

    def _is_worth(self, superblock: Superblock) -> bool:
        """Whether enough of it is invalid for the background."""
        size = self.profile.superblock_pages
        return (size - superblock.valid) * 1000 >= self.profile.background_invalid * size

    def _free(self) -> int:
        return sum(one.state == "free" for one in self.superblocks)

    def _collect(self, ready: int, pages: int, wear: bool) -> bool:
        """Relocate at least `pages`, or to the victim's end, a unit of each die at once; whether a
        victim was chosen. Wear levelling is asked once for a page of a request, so that it cannot
        relocate valid pages for ever."""
        profile, chosen = self.profile, self.victim is None
        if self.victim is None:
            self.victim, self.cursor = self.superblocks[self._choose(wear)], 0
        victim, moved = self.victim, 0
        while moved < pages and self.cursor < profile.superblock_pages:
            batch: list[int] = []
            there = ready
            most = min(pages - moved, profile.unit_pages * profile.group_dies)
            while len(batch) < most and self.cursor < profile.superblock_pages:
                row = range(self.cursor, self.cursor + profile.row_pages)
                valid = [owner for index in row if (owner := victim.owners[index]) >= 0]
                if valid and not self._in_memory((victim, row[0]), ready):
                    there = max(there, self._sense((victim, row[0]), len(valid), ready, False))
                batch += valid
                self.cursor += profile.row_pages
            for page in batch:
                self._place(profile.frontiers - 1, page, there)
            moved += len(batch)
        self._counts["relocated"] += moved
        if self.cursor == profile.superblock_pages:
            self._erase(victim, ready)
            self.victim = None
        return chosen

    def _choose(self, wear: bool) -> int:
        every = self.superblocks
        closed = [number for number, one in enumerate(every) if one.state == "closed"]
        return self.policies.victim(
            Superblocks(
                np.array([one.valid for one in every]),
                np.array([one.erases for one in every]),
                np.array([one.closed_at for one in every]),
                np.array(closed),
                self.profile.superblock_pages,
            ),
            wear,
        )

    def _erase(self, superblock: Superblock, ready: int) -> None:
        first = superblock.number % self.profile.groups * self.profile.group_dies
        dies = [self.dies[n] for n in self.order[first : first + self.profile.group_dies]]
        superblock.erased = max(
            superblock.erased,
            *(die.reserve(self.now, max(ready, die.last), self.profile.erase_ns) for die in dies),
        )
        superblock.owners, superblock.programmed, superblock.ready = [], {}, 0
        superblock.erases += 1
        self._counts["erased"] += 1
        retired = self.profile.cycles and superblock.erases >= self.profile.cycles
        superblock.state = "retired" if retired else "free"
        good = sum(one.state != "retired" for one in self.superblocks)
        self.worn = good < self.profile.least_superblocks

    # The mapping, where it is on flash.

    def _translate(self, page: int, ready: int, dirty: bool) -> int:
        """When a page's translation page is in memory; replacement is CLOCK."""
        profile, number = self.profile, page // ENTRIES
        if not profile.mapping_cache:
            return ready
        for one in self.cache:
            if one.number == number:
                self._counts["hits"] += 1
                one.used = True
                one.dirty |= dirty
                return max(ready, one.loaded)
        self._counts["misses"] += 1
        place = self.places.get(profile.logical_pages + number)
        loaded = ready
        if place is not None and not self._in_memory(place, ready):
            loaded = self._sense(place, 1, ready, True)
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
            self._place(profile.streams, profile.logical_pages + old.number, ready)
            self._counts["translation"] += 1
        return loaded

    # Dies, buses and the link.

    def _die(self, superblock: Superblock, index: int) -> tuple[int, int]:
        """The die that a place of a superblock is on, and the row of its block."""
        profile, dies = self.profile, self.profile.group_dies
        unit, inside = divmod(index, profile.unit_pages)
        row = unit // dies * profile.program_pages + inside // profile.row_pages
        return self.order[superblock.number % profile.groups * dies + unit % dies], row

    def _transfer(self, die: int, ready: int, pages: int) -> int:
        """The end of a transfer between a die and the drive's memory."""
        bus, command = self.buses[die // self.profile.dies], self.profile.bus_command_ns
        return bus.reserve(self.now, ready, command + _duration(self.profile.bus, pages))

    def _send(self, link: Calendar, ready: int, pages: int) -> int:
        return link.reserve(self.now, ready, _duration(self.profile.link, pages))


def _duration(rate: Rate, pages: int) -> int:
    return -(-pages * PAGE * rate.ns // rate.bytes)
