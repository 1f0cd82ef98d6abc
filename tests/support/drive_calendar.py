"""When the parts of a modelled drive are busy: what `drive_reference` reserves its times in."""

from dataclasses import dataclass, field

from potash_device.flash.state import MOST_GAPS


@dataclass
class Calendar:
    """When a die, a bus or a direction of the link is busy, from the present on."""

    busy: list[tuple[int, int]] = field(default_factory=list)
    total: int = 0
    last: int = 0
    """When all is done."""

    def first(self, earliest: int, duration: int) -> int:
        """The start of the first gap that is long enough."""
        for begin, end in self.busy:
            if earliest + duration <= begin:
                break
            earliest = max(earliest, end)
        return earliest

    def reserve(self, now: int, earliest: int, duration: int) -> int:
        """The end of an operation in the first gap from `earliest` on."""
        self.busy = [(begin, end) for begin, end in self.busy if end > now]
        start = self.first(earliest, duration)
        self.last = max(self.last, start + duration)
        if duration:
            self.total += duration
            self._add([*self.busy, (start, start + duration)])
        return start + duration

    def interrupt(self, now: int, start: int, duration: int) -> int:
        """Do something from `start` on, and the rest of all else later."""
        self.total += duration
        changed = []
        for begin, end in self.busy:
            if end <= now:
                continue
            if begin < start < end:
                changed += [(begin, start), (start + duration, end + duration)]
            else:
                late = duration if begin >= start else 0
                changed.append((begin + late, end + late))
        self._add([*changed, (start, start + duration)])
        return start + duration

    def _add(self, busy: list[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for begin, end in sorted(busy):
            if merged and merged[-1][1] == begin:
                begin = merged.pop()[0]
            merged.append((begin, end))
        if len(merged) > MOST_GAPS:
            merged[:2] = [(merged[0][0], merged[1][1])]
        self.busy = merged
        self.last = max(self.last, merged[-1][1])


@dataclass
class Die(Calendar):
    """One die, all planes of which work together."""

    reads_done: int = 0
    """When the reads for the host are done."""
