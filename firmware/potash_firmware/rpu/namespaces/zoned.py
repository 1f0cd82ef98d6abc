"""A zoned namespace (CSI 02h): logical blocks in zones that are written in order.

The media have a record of each zone behind the blocks. It is written before the blocks that it
speaks of, so a flush covers both, and nothing that was flushed lies behind a write pointer.

Source: NVM Express Zoned Namespace Command Set Specification 1.1.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import ClassVar

from csd_spec.faults import ZONE_KINDS, Fault, FaultKind
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.zoned import ZoneAttribute
from potash_device.media.shapes import ZONE_RECORD, WriteAreas
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.zones import Zones

log = logging.getLogger(__name__)

_ADVICE = {
    FaultKind.RESET_RECOMMENDED: ZoneAttribute.RESET_RECOMMENDED,
    FaultKind.FINISH_RECOMMENDED: ZoneAttribute.FINISH_RECOMMENDED,
}


@dataclass(eq=False)
class ZonedNamespace(Namespace):
    """A namespace whose blocks are in zones."""

    csi: ClassVar[CommandSet] = CommandSet.ZONED

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clock: Callable[[], int] = lambda: 0
        """Nanoseconds of guest time."""
        self.zones = self._all_empty()
        self._storing = Lock()

    def _all_empty(self) -> Zones:
        shape = self.shape
        count = self.media.size // (shape.zone_size + ZONE_RECORD)
        size, capacity = (n // shape.block_size for n in (shape.zone_size, shape.zone_capacity))
        self.blocks = count * size
        area, granularity, most = shape.areas
        blocks = WriteAreas(area // shape.block_size, granularity // shape.block_size, most)
        return Zones(count, size, capacity, blocks, shape.limits, lambda: self.clock())

    @property
    def capacity(self) -> int:
        """Logical blocks that can be written."""
        return len(self.zones.every) * self.zones.capacity

    @property
    def fast_path(self) -> None:
        """There is none: every command has to ask its zone."""
        return None

    @property
    def _records_at(self) -> int:
        return len(self.zones.every) * self.shape.zone_size

    def require_readable(self, lba: int, count: int) -> None:
        """Raise NvmeError for blocks in offline zones (`Zones.require_readable`)."""
        self.zones.require_readable(lba, count)

    def has_area(self, lba: int) -> bool:
        """True for a block of a zone with a random write area."""
        return self.zones.of(lba).area

    def claim(self, lba: int, count: int) -> range | None:
        """Advance the write pointer over blocks (`Zones.claim`). Raises NvmeError."""
        return self.zones.claim(lba, count)

    def recommend(self, faults: Iterable[Fault]) -> None:
        """Recommend to reset or to finish the zones that `faults` name, and no others."""
        advice: dict[ZoneAttribute, set[int]] = {}
        for fault in faults:
            if fault.kind in ZONE_KINDS:
                first, length = fault.lba, fault.blocks or self.blocks
                last = min(first + length, self.blocks) - 1
                numbers = range(first // self.zones.size, last // self.zones.size + 1)
                advice.setdefault(_ADVICE[fault.kind], set()).update(numbers)
        self.zones.recommend(advice)

    def write_protected(self) -> None:
        """Have no zone open any more (`Zones.write_protected`)."""
        self.zones.write_protected()

    def lost(self) -> None:
        """Make all zones read-only (`Zones.lost`)."""
        self.zones.lost()

    def store_claims(self) -> None:
        """Store the records of zones that have changed; waits. Raises MediaError."""
        with self._storing:
            for number in sorted(self.zones.unsaved):
                self._store(number, self._write)

    def store_claims_at_once(self) -> bool:
        """Store the records without waiting; False if that is not possible. Raises MediaError."""
        if not self._storing.acquire(blocking=False):
            return False
        try:
            unsaved = sorted(self.zones.unsaved)
            return all(self._store(number, self.media.write_at_once) for number in unsaved)
        finally:
            self._storing.release()

    def _store(self, number: int, write: Callable[[list[memoryview], int], bool]) -> bool:
        """Store one record, of the zone as it is now; it may change again meanwhile."""
        zones, stored = self.zones, False
        zones.unsaved.discard(number)
        try:
            record = memoryview(zones.every[number].encode())
            stored = write([record], self._records_at + number * ZONE_RECORD)
        finally:
            if not stored:
                zones.unsaved.add(number)
        return stored

    def _write(self, views: list[memoryview], offset: int) -> bool:
        self.media.write_from(views, offset)
        return True

    def erased(self) -> None:
        """Nothing is on the media any more, with the zones' records."""
        advice, self.zones = self.zones.advice, self._all_empty()
        self.zones.recommend(advice)
        self.zones.unsaved = set(range(len(self.zones.every)))

    def load(self) -> None:
        """Remember the zones as the media have them; waits. Raises MediaError."""
        records = bytearray(len(self.zones.every) * ZONE_RECORD)
        self.media.read_into([memoryview(records)], self._records_at)
        before, self.zones = self.zones, self._all_empty()
        self.zones.changes = before.changes
        damaged = self.zones.load(bytes(records))
        self.zones.recommend(before.advice)
        if damaged:
            log.error(
                "namespace %d: the records of %d zones are damaged, which are read-only now: %s",
                self.nsid, len(damaged), _shown(damaged),
            )  # fmt: skip

    def power_cycled(self, *, clean: bool) -> None:
        """The power is back: zones are in their initial states; waits. Raises MediaError.

        Unless the drive was shut down `clean`, what was written and not flushed may be there
        without its record, and is deallocated: it lies behind its write pointer.
        """
        self.load()
        self.zones.power_cycled()
        if self.media.writable:
            self.store_claims()
            for lba, count in () if clean else self.zones.unwritten():
                self.media.punch(lba * self.block_size, count * self.block_size)


def _shown(numbers: Iterable[int]) -> str:
    found = list(numbers)
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return ", ".join(map(str, found[:8])) + more
