"""What is lost when power fails at any operation of the flash, for three translation layers.

Trend published: M. Zheng, J. Tucek, F. Qin and M. Lillibridge, "Understanding the Robustness of
SSDs under Power Fault", FAST 2013: 13 of 15 drives lose data that they should not.
"""

from typing import NamedTuple

from potash.experiment import Point
from potash.ftl import Frontier, Hint, Op, PageMapped, Profile


class Event(NamedTuple):
    """A unit of flash is `1 programmed`, a superblock `2 erased`; the host is told of a `3 write`,
    or of a `4 flush`; at one time in this order. Pages have their versions."""

    at: int
    kind: str
    pages: list[tuple[int, int]]


class Buffered(PageMapped):
    """Writes are acknowledged when they are in the buffer."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.versions: dict[int, int] = {}
        self.contents: dict[int, dict[int, tuple[int, int]]] = {}
        """For each superblock since its last erase, what is in each of its places."""
        self.events: list[Event] = []

    def place(self, number: int, page: int, ready: int, host: bool) -> int:
        self.versions[page] = self.versions.get(page, 0) + host
        block, index = self.open[number].block, self.open[number].filled
        if block < 0:
            self.open_superblock(self.open[number])
            block, index = self.open[number].block, 0
        self.contents.setdefault(block, {})[index] = page, self.versions[page]
        return super().place(number, page, ready, host)

    def program(self, frontier: Frontier) -> int:
        block, end = frontier.block, frontier.filled
        done = super().program(frontier)
        contents = self.contents.get(block, {})
        unit = [contents[index] for index in range(end - self.unit, end) if index in contents]
        self.events.append(Event(done, "1 programmed", unit))
        return done

    def erase(self, block: int, ready: int) -> None:
        super().erase(block, ready)
        begun = self.flash.erased[block] - self.profile.erase_ns
        contents = self.contents.pop(block, {})
        self.events.append(Event(begun, "2 erased", list(contents.values())))


class MovedFirst(Buffered):
    """A victim is erased when what was moved from it is on flash."""

    moved = 0

    def program(self, frontier: Frontier) -> int:
        done = super().program(frontier)
        if frontier.number == self.cold:
            self.moved = max(self.moved, done)
        return done

    def erase(self, block: int, ready: int) -> None:
        self.pad(self.open[self.cold], ready)
        super().erase(block, max(ready, self.moved))


class Ordered(MovedFirst):
    """A victim is erased when newer versions of what is in it are on flash, too."""

    def erase(self, block: int, ready: int) -> None:
        super().erase(block, self.flush(ready))


class Through(Ordered):
    """Writes are acknowledged when they are on flash."""

    def write(self, ready: int, pages: range, hint: Hint, fua: bool) -> int:
        return super().write(ready, pages, hint, True)


def measured(point: Point) -> dict[str, float]:
    """Write random pages, flush now and then, and lose power at each operation of the flash."""
    drive = globals()[str(point["ftl_class"])](point.model().profile)
    time, told = 0, []
    for count in range(int(point["writes"])):
        page = point.random.randrange(drive.profile.logical_pages)
        time = drive.submit(time, Op.WRITE, page, 1)
        told.append(Event(time, "3 write", [(page, drive.versions[page])]))
        if count % int(point["flush_every"]) == 0:
            time = drive.submit(time, Op.FLUSH, 0, 0)
            told.append(Event(time, "4 flush", []))
    acknowledged, flushed = losses(sorted([*drive.events, *told]))
    return {
        "acknowledged_lost": sum(map(bool, acknowledged)) / len(acknowledged),
        "flushed_lost": sum(map(bool, flushed)) / len(flushed),
        "most_acknowledged": max(acknowledged),
        "most_flushed": max(flushed),
        "amplification": drive.counters.write_amplification,
        "microseconds": time / int(point["writes"]) / 1000,
    }


def losses(events: list[Event]) -> tuple[list[int], list[int]]:
    """Pages of which the acknowledged version, and the flushed one, are lost with power just before
    and just after each operation of the flash."""
    on_flash: dict[int, list[int]] = {}
    told: tuple[dict[int, int], dict[int, int]] = {}, {}
    lost: tuple[set[int], set[int]] = set(), set()
    counts: tuple[list[int], list[int]] = [], []
    for _, kind, pages in events:
        flash = kind in ("1 programmed", "2 erased")
        if flash:
            counts[0].append(len(lost[0]))
            counts[1].append(len(lost[1]))
        for page, version in told[0].items() if kind == "4 flush" else pages:
            versions = on_flash.setdefault(page, [0])
            if kind == "1 programmed":
                versions.append(version)
            elif kind == "2 erased":
                versions.remove(version)
            else:
                told[kind == "4 flush"][page] = version
            for expected, missing in zip(told, lost, strict=True):
                kept = max(versions) >= expected.get(page, 0)
                (missing.discard if kept else missing.add)(page)
        if flash:
            counts[0].append(len(lost[0]))
            counts[1].append(len(lost[1]))
    return counts
