"""The logs of changed namespaces and of blocks that cannot be read.

Source: NVM Express Base Specification 2.0, section 5.16.1.5 (Changed Namespace List); NVM Command
Set Specification 1.0, section 4.1.4.5 (LBA Status Information).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from nvme_spec.identify.lists import encode_namespace_list
from nvme_spec.logs import (
    CHANGED_NAMESPACE_LIST_OVERFLOW,
    CHANGED_NAMESPACE_LIST_SIZE,
    LbaRangeDescriptor,
    LbaStatusElement,
    LbaStatusLog,
)
from nvme_spec.ranges import LbaStatusAction
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Section, fits
from potash_firmware.rpu.part import Part

NSID_SIZE = 4
LBA_RANGE_LIMIT = 1 << 32
Generation = Annotated[int, fits(LbaStatusLog.lsgc)]
SECTION: Section[int] = Section("lba_status", Generation)
"""The sidecar's section of the generation of the LBA Status Information log."""
LBA_ESTIMATE_LIMIT = 0xFFFF_FFFE
"""The number beyond it says that nothing is known."""


class ChangedNamespaces:
    """The namespaces that have changed, come or gone since the host has read the log page."""

    def __init__(self) -> None:
        self._nsids: set[int] = set()

    def add(self, nsid: int) -> None:
        self._nsids.add(nsid)

    def clear(self) -> None:
        self._nsids.clear()

    def save(self) -> tuple[int, ...]:
        return tuple(sorted(self._nsids))

    def load(self, nsids: Iterable[int]) -> None:
        self._nsids = set(nsids)

    def encode(self) -> bytes:
        """The log page; when the list is too short for them all, it says so, and names none."""
        overflow = len(self._nsids) > CHANGED_NAMESPACE_LIST_SIZE // NSID_SIZE
        return encode_namespace_list([CHANGED_NAMESPACE_LIST_OVERFLOW] if overflow else self._nsids)


Ranges = Sequence[tuple[int, int]]
"""First block and number of blocks of each, in ascending order."""


class LbaStatus(Part):
    """The LBA Status Information log: which blocks of which namespaces cannot be read.

    A host that reads it in pieces gets pieces of one log: a new one is made for offset 0.
    """

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self.generation = 0
        """Grows when there are blocks that the host has not read of."""
        self._known: set[tuple[int, int, int]] = set()
        self._logs: dict[int, bytes] = {}
        """The log that each controller reads in pieces."""

    def restore(self, *, clean: bool | None = None) -> None:
        self.generation = self._sidecar.get(SECTION) or self.generation

    def record(self) -> None:
        self._sidecar.put(SECTION, self.generation)

    def read(self, controller: int, bad: Mapping[int, Ranges], offset: int) -> bytes:
        """The log page for a controller, of the blocks that are `bad` in each of its namespaces."""
        if offset == 0 or controller not in self._logs:
            found = {(nsid, *blocks) for nsid, ranges in bad.items() for blocks in ranges}
            if found - self._known:
                self.generation = self.generation + 1 & 0xFFFF
            self._known = {each for each in self._known if each[0] not in bad} | found
            self._logs[controller] = self._encode(bad)
        return self._logs[controller]

    def _encode(self, bad: Mapping[int, Ranges]) -> bytes:
        elements = [_element(nsid, ranges) for nsid, ranges in sorted(bad.items()) if ranges]
        body = b"".join(elements)
        estimate = sum(count for ranges in bad.values() for _, count in ranges)
        header = LbaStatusLog(
            lslplen=LbaStatusLog.SIZE + len(body),
            nlslne=len(elements),
            estulb=min(estimate, LBA_ESTIMATE_LIMIT),
            lsgc=self.generation,
        )
        return bytes(header) + body


def _element(nsid: int, ranges: Ranges) -> bytes:
    """The bad blocks of one namespace; a range that is too long for a descriptor becomes more."""
    descriptors = [
        bytes(LbaRangeDescriptor(rslba=at, rnlb_z=min(first + count - at, LBA_RANGE_LIMIT) - 1))
        for first, count in ranges
        for at in range(first, first + count, LBA_RANGE_LIMIT)
    ]
    header = LbaStatusElement(neid=nsid, nlrd=len(descriptors), ratype=LbaStatusAction.TRACKED_ONLY)
    return bytes(header) + b"".join(descriptors)
