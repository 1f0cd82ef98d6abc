"""The page of doorbells as memory that a host maps, and stores values in instead of sending them.

Nobody is woken by a store, so the page is polled for as long as there is a host. What has changed
is treated as a write of that register. The first page of the file stands for the registers before
the doorbells, which cannot be mapped.

Source: NVM Express Base Specification 2.0, section 3.1.3.24 and 3.1.3.25 (doorbells)."""

from nvme_spec.registers import DOORBELL_BASE, DOORBELL_WIDTH
from potash_device.pcie.bar_memory import BarMemory
from pyvfio_user.device import Region
from pyvfio_user.payloads import Area

PAGE_SIZE = 4096

IDLE_POLL = 1e-3
"""Seconds between two polls of a page in which nothing has changed for a while."""


class DoorbellPage(BarMemory):
    """The doorbells of all queues, in a BAR of `bar_size` bytes."""

    def __init__(self, bar_size: int) -> None:
        super().__init__(DOORBELL_BASE + PAGE_SIZE)
        self._bar_size = bar_size
        self._follow()

    @property
    def region(self) -> Region:
        areas = (Area(DOORBELL_BASE, PAGE_SIZE),)
        return Region(self._bar_size, fd=self.memory.fd, areas=areas)

    def renew(self) -> None:
        super().renew()
        self._follow()

    def clear(self) -> None:
        super().clear()
        self._follow()

    def _follow(self) -> None:
        """All values are zero, and no queue is polled yet."""
        self._words = self.memory.bytes[DOORBELL_BASE:].cast("I")
        self._polled = self._words[:0]
        self._seen: list[int] = []

    def adopt(self, qid: int, value: int, *, completion: bool) -> None:
        """Poll a queue's doorbell, which has a value that takes no effect."""
        index = 2 * qid + completion
        if index >= len(self._seen):
            self._seen += [0] * (2 * qid + 2 - len(self._seen))
            self._polled = self._words[: len(self._seen)]
        self._words[index] = self._seen[index] = value

    def has_changed(self) -> bool:
        """True if the host has stored any doorbell since the last call of `changes`."""
        return self._polled.tolist() != self._seen

    def changes(self) -> list[tuple[int, int]]:
        """Register offset and value of each doorbell that has changed since the last call."""
        values = self._polled.tolist()
        before, self._seen = self._seen, values
        if values == before:
            return []
        return [
            (DOORBELL_BASE + index * DOORBELL_WIDTH, value)
            for index, (value, old) in enumerate(zip(values, before, strict=True))
            if value != old
        ]
