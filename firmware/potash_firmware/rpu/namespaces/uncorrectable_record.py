"""The drive's record of uncorrectable blocks, in the sidecar: they outlive a power cycle.

Source: NVM Command Set Specification 1.0, section 3.2.7 (Write Uncorrectable).
"""

from collections.abc import Callable, Iterable

from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.sidecar import Sidecar
from potash_device.saved import Section
from potash_firmware.rpu.command import Steps
from potash_firmware.rpu.media_work import BlocksInFlight, MediaWork
from potash_firmware.rpu.namespaces.inventory import Inventory
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.uncorrectable import MOST_RANGES, SavedRanges
from potash_firmware.rpu.part import Part

SECTION: Section[dict[str, SavedRanges]] = Section("uncorrectable", dict[str, SavedRanges])
"""The sidecar's section of the uncorrectable ranges of each namespace that has any.

A name consists of the namespace's identifier and the number of its formats, so a device that is
killed between the two records of a format does not mistake old ranges for new ones.
"""


class UncorrectableRecord(Part):
    """The record of one drive."""

    def __init__(self, sidecar: Sidecar, namespaces: Inventory) -> None:
        self._sidecar = sidecar
        self._namespaces = namespaces
        self._changes = 0
        self._saved = 0

    def restore(self, *, clean: bool | None = None) -> None:
        """Read the record after a power cycle."""
        section = self._sidecar.get(SECTION) or {}
        for namespace in self._namespaces.blocks.values():
            namespace.uncorrectable.restore(section.get(_name(namespace), []), namespace.blocks)

    @property
    def is_full(self) -> bool:
        """No further range of uncorrectable blocks can be recorded."""
        ranges = sum(len(ns.uncorrectable) for ns in self._namespaces.blocks.values())
        return ranges >= MOST_RANGES

    @property
    def is_saved(self) -> bool:
        """True where a power cycle would change nothing: the ranges on record are the current
        ones."""
        return self._saved == self._changes

    def save(
        self,
        media_work: MediaWork,
        in_flight: BlocksInFlight | None = None,
        ranges: Iterable[tuple[int, int]] = (),
    ) -> Steps:
        """Have the uncorrectable blocks, as they are now, outlive a power cycle.

        Until then, nothing reads what has changed, the `ranges` of a namespace, and a controller
        whose `media_work` does this is not ready again after a reset.
        """
        write, change = self._changed()
        try:
            if in_flight is None:
                yield media_work.submit(write)
            else:
                yield media_work.on_blocks(in_flight, ranges, write, writes=True)
        except MediaError as error:
            # It is so for now, and saved as soon as a flush finds the sidecar writable again.
            raise NvmeError(Status.WRITE_FAULT, dnr=False, detail=str(error.strerror)) from None
        self._saved = max(self._saved, change)
        return None

    def saving(self) -> Steps:
        """The same as `save`, within a long operation. Raises MediaError."""
        write, change = self._changed()
        yield write
        self._saved = max(self._saved, change)
        return None

    def _changed(self) -> tuple[Callable[[], None], int]:
        """A function to be called, where it may wait, to save this change, and the change's
        number."""
        self._changes += 1
        self._sidecar.put(
            SECTION,
            {
                _name(namespace): namespace.uncorrectable.ranges()
                for namespace in self._namespaces.blocks.values()
                if namespace.uncorrectable
            },
        )
        return self._sidecar.save, self._changes


def _name(namespace: Namespace) -> str:
    return f"{namespace.nsid}/{namespace.shape.formats}"
