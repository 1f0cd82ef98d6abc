"""Flash in plain Python: dies, buses and the link as objects, each with a calendar.

It does what the arrays of `state`, `calendars` and `array` do for compiled code, at the same times,
for a translation layer in Python. An operation reserves its parts when it is asked for, so its end
is known at once. A place is the number of a superblock times its pages, plus the page in it.
"""

from array import array
from bisect import bisect_right

from potash_device.flash.profile import PAGE, Profile, Rate
from potash_device.flash.state import COUNTERS, MOST_GAPS, NEVER


class FlashError(RuntimeError):
    """An operation that flash does not have; a sentence."""


class Calendar:
    """Busy intervals of a die, a bus or a direction of the link, which does one thing at a time.

    An operation takes the first gap that is long enough, so that it never waits for one that itself
    waits elsewhere.
    """

    __slots__ = ("begins", "ends", "last")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.last = 0
        """The time at which everything is done."""

    def first(self, earliest: int, duration: int) -> int:
        """The start of the first gap that is long enough."""
        begins, ends = self.begins, self.ends
        for at in range(bisect_right(ends, earliest), len(ends)):
            if earliest + duration <= begins[at]:
                break
            earliest = ends[at]
        return earliest

    def reserve(self, now: int, earliest: int, duration: int) -> int:
        """The end of an operation that starts at `earliest` or later; what ended by `now` is
        forgotten."""
        begins, ends = self.begins, self.ends
        if ends and ends[0] <= now:
            past = bisect_right(ends, now)
            del begins[:past], ends[:past]
        if not ends or earliest >= ends[-1]:
            end = earliest + duration
            self.last = max(self.last, end)
            if not duration:
                return end
            if ends and ends[-1] == earliest:
                ends[-1] = end
                return end
            begins.append(earliest)
            ends.append(end)
        else:
            start = self.first(earliest, duration)
            end = start + duration
            self.last = max(self.last, end)
            if not duration:
                return end
            self._insert(start, end)
        if len(ends) > MOST_GAPS:  # the earliest gap is given up
            del begins[1], ends[0]
        return end

    def _insert(self, start: int, end: int) -> None:
        begins, ends = self.begins, self.ends
        at = bisect_right(ends, start)
        after = at > 0 and ends[at - 1] == start
        before = at < len(begins) and begins[at] == end
        if after and before:
            del ends[at - 1], begins[at]
        elif after:
            ends[at - 1] = end
        elif before:
            begins[at] = start
        else:
            begins.insert(at, start)
            ends.insert(at, end)

    def interrupt(self, now: int, start: int, duration: int, pause: int) -> tuple[int, bool]:
        """Do something at `start`, and the rest of everything else later; the time at which it is
        done. True if an operation was under way, which takes `pause` to suspend and to resume."""
        begins, ends = self.begins, self.ends
        at = bisect_right(ends, start)
        busy = begins[at] < start
        wait = pause if busy else 0
        delay = duration + 2 * wait
        begins[at + busy :] = [begin + delay for begin in begins[at + busy :]]
        ends[at:] = [end + delay for end in ends[at:]]
        self.last = max(self.last, ends[-1])
        if not busy:
            self.reserve(now, start, delay)
        return start + wait + duration, busy


class Die(Calendar):
    """A die, all planes of which work together."""

    __slots__ = ("bus", "reads_done")

    def __init__(self, bus: Calendar) -> None:
        super().__init__()
        self.bus = bus
        self.reads_done = 0
        """The time at which the host's reads are done."""


class Flash:
    """A drive's flash, empty and never used.

    `order` has all dies in the order in which consecutive program units go to them; die d of
    channel c has number c * dies + d. Raises FlashError for an order that is none.
    """

    def __init__(self, profile: Profile, order: list[int]) -> None:
        if sorted(order) != list(range(profile.total_dies)):
            raise FlashError(
                f"the order of dies has not each of the {profile.total_dies} dies once"
            )
        p = self.profile = profile
        buses = [Calendar() for _ in range(p.channels)]
        self.dies = [Die(buses[number // p.dies]) for number in range(p.total_dies)]
        in_order = [self.dies[number] for number in order]
        width = p.group_dies
        self._groups = [in_order[first : first + width] for first in range(0, len(order), width)]
        self.link_in, self.link_out = Calendar(), Calendar()
        self._calendars: list[Calendar] = [*buses, self.link_in, self.link_out, *self.dies]
        self.units = p.superblock_pages // p.unit_pages
        """Program units of a superblock."""
        self.slc = set[int]()
        """Superblocks in SLC mode; `set_slc` changes it, and an erase."""
        self._pages = p.superblock_pages, p.slc_pages
        self._slc_times = p.slc_read_ns, p.slc_unit_ns, p.slc_erasure_ns
        self.erases = [0] * p.superblocks
        self.erased = [0] * p.superblocks
        """The time at which each superblock is erased."""
        self.written = [0] * p.superblocks
        """Units of each superblock that were programmed: its write pointer."""
        self._programmed = array("q", [NEVER]) * (p.superblocks * self.units)
        """The time at which each unit is done."""
        self.now = 0
        """Arrival of the request that is served."""
        self.busy = 0
        """The time at which all dies and buses are done."""
        self.senses = self.programs = self.erasures = self.suspensions = self.slc_programs = 0
        self.die_ns = self.bus_ns = self.link_ns = 0
        self._bus = [p.bus_command_ns + _duration(p.bus, n) for n in range(p.unit_pages + 1)]
        self._link = [_duration(p.link, n) for n in range(p.row_pages + 1)]
        self._short_read_ns = p.short_read_ns or p.read_ns

    def send(self, link: Calendar, ready: int, pages: int) -> int:
        """The end of a transfer of up to a row on a direction of the link."""
        duration = self._link[pages]
        self.link_ns += duration
        return link.reserve(self.now, ready, duration)

    def free_link(self) -> None:
        """Forget the reservations of both directions of the link."""
        for link in (self.link_in, self.link_out):
            link.begins.clear()
            link.ends.clear()

    def transfer_ns(self, pages: int) -> int:
        """The duration of a transfer between a die and the drive's memory."""
        return self._bus[pages]

    def in_memory(self, place: int, time: int) -> bool:
        """True for a page that is still in the drive's memory, as its unit is not programmed."""
        return self._programmed[place // self.profile.unit_pages] > time

    def sense(self, place: int, pages: int, ready: int, host: bool) -> int:
        """The time at which so many pages of a row are in the drive's memory. A read of the host
        suspends a program or an erase, where the drive can. Raises FlashError."""
        p = self.profile
        block, index = divmod(place, p.superblock_pages)
        unit, inside = divmod(index, p.unit_pages)
        if unit >= self.written[block]:
            raise FlashError(f"unit {unit} of superblock {block} is sensed and not programmed")
        group = self._groups[block % len(self._groups)]
        die = group[unit % len(group)]
        row = unit // len(group) * p.program_pages + inside // p.row_pages
        times = self._short_read_ns if pages == 1 else p.read_ns
        duration = self._slc_times[0] if block in self.slc else times[row % len(times)]
        self.senses += 1
        if not host or p.suspend_ns < 0:
            sensed = self._occupy(die, ready, duration)
        else:
            start = max(ready, die.reads_done)
            if die.first(start, duration) == start:
                sensed = self._occupy(die, start, duration)
            else:
                sensed, suspended = die.interrupt(self.now, start, duration, p.suspend_ns)
                self.suspensions += suspended
                self.die_ns += duration + 2 * p.suspend_ns * suspended
                self.busy = max(self.busy, die.last)
            die.reads_done = sensed
        return self._transfer(die, sensed, pages)

    def pages(self, block: int) -> int:
        """Pages of a superblock in its mode."""
        return self._pages[block in self.slc]

    def set_slc(self, block: int) -> None:
        """Have an erased superblock be in SLC mode, or that of `slc_bits`, until its next erase.
        Raises FlashError."""
        if self.written[block]:
            raise FlashError(f"superblock {block} is to be in SLC mode, and is not erased")
        if not self._pages[1] or self.profile.bits <= self.profile.slc_bits:
            raise FlashError("the flash has no SLC mode: its cells or blocks are too small")
        self.slc.add(block)

    def program(self, block: int, unit: int, ready: int) -> int:
        """Program the next unit of a superblock, whose data are there at `ready`; the time at which
        it is done. Raises FlashError."""
        slc = block in self.slc
        units = self._pages[1] // self.profile.unit_pages if slc else self.units
        if unit != self.written[block] or unit >= units:
            raise FlashError(
                f"unit {unit} of superblock {block} is programmed, but the next is "
                f"{self.written[block]} of {units}"
            )
        group, times = self._groups[block % len(self._groups)], self.profile.program_ns
        row, number = divmod(unit, len(group))
        die, index = group[number], block * self.units + unit
        there = self._transfer(die, ready, self.profile.unit_pages)
        before = self._programmed[index - len(group)] if row else self.erased[block]
        duration = self._slc_times[1] if slc else times[row % len(times)]
        done = self._occupy(die, max(there, before), duration)
        self._programmed[index] = done
        self.written[block] = unit + 1
        self.programs += 1
        self.slc_programs += slc
        return done

    def erase(self, block: int, ready: int) -> int:
        """Erase a superblock, after everything else that its dies do; the time at which it is
        done. It is in the native mode then."""
        duration = self._slc_times[2] if block in self.slc else self.profile.erase_ns
        self.slc.discard(block)
        for die in self._groups[block % len(self._groups)]:
            end = self._occupy(die, max(ready, die.last), duration)
            self.erased[block] = max(self.erased[block], end)
        first = block * self.units
        self._programmed[first : first + self.units] = array("q", [NEVER]) * self.units
        self.written[block] = 0
        self.erases[block] += 1
        self.erasures += 1
        return self.erased[block]

    @property
    def counters(self) -> dict[str, int]:
        """Counters since the drive was at rest, by their names in `state.COUNTERS`."""
        own = ("senses", "programs", "suspensions", "die_ns", "bus_ns", "link_ns", "slc_programs")
        counts = {name: getattr(self, name) for name in own} | {"erased": self.erasures}
        return dict.fromkeys(COUNTERS, 0) | counts

    def rest(self) -> None:
        """Let everything that is under way be done, and set the clock and counters to 0."""
        for calendar in self._calendars:
            calendar.begins, calendar.ends, calendar.last = [], [], 0
        for die in self.dies:
            die.reads_done = 0
        self.erased = [0] * len(self.erased)
        for block, units in enumerate(self.written):
            first = block * self.units
            self._programmed[first : first + units] = array("q", [0]) * units
        self.now = self.busy = 0
        self.senses = self.programs = self.erasures = self.suspensions = self.slc_programs = 0
        self.die_ns = self.bus_ns = self.link_ns = 0

    def _occupy(self, die: Die, ready: int, duration: int) -> int:
        self.die_ns += duration
        end = die.reserve(self.now, ready, duration)
        self.busy = max(self.busy, end)
        return end

    def _transfer(self, die: Die, ready: int, pages: int) -> int:
        """The end of a transfer between a die and the drive's memory."""
        duration = self._bus[pages]
        self.bus_ns += duration
        end = die.bus.reserve(self.now, ready, duration)
        self.busy = max(self.busy, end)
        return end


def _duration(rate: Rate, pages: int) -> int:
    return -(-pages * PAGE * rate.ns // rate.bytes)
