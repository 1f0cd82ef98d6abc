"""The firmware slots, and the image that a host is downloading.

Pieces have any size and offset, and may not overlap. Only a second piece at offset 0 is accepted:
it begins another image, of a host that has given up the first one.

Source: NVM Express Base Specification 2.0, section 3.11 (firmware update process), 5.12 and 5.13.
"""

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from nvme_spec.status import NvmeError, Status
from potash_device.media.flash import IMAGE_LIMIT, LAST_SLOT, Flash
from potash_firmware.rpu.part import Part

BUILT_IN_SLOT = 1

RANGE_LIMIT = 1 << 16
"""Separate ranges of a download; pages in random order are half as many at most."""


class Download(Part):
    """The pieces of one image, in memory that is only used where a piece was put."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._bounds: list[int] = []
        """Start and end of each range that has come, in order; ranges that meet are one."""

    def put(self, offset: int, views: list[memoryview]) -> None:
        """Take a piece, of one byte at least.

        Raises NvmeError past the limit, where some of it has come before, and for too many gaps.
        """
        end = offset + sum(map(len, views))
        if end > IMAGE_LIMIT:
            raise NvmeError(Status.INVALID_FIELD, f"an image has at most {IMAGE_LIMIT} bytes")
        at = bisect_right(self._bounds, offset)
        if at % 2 or at != bisect_left(self._bounds, end):
            if offset:
                raise NvmeError(
                    Status.OVERLAPPING_RANGE,
                    f"some of the {end - offset} bytes at {offset} have been downloaded",
                )
            self.clear()
            at = 0
        joined = [offset] == self._bounds[at - 1 : at], [end] == self._bounds[at : at + 1]
        if len(self._bounds) >= 2 * RANGE_LIMIT and not any(joined):
            raise NvmeError(Status.INVALID_FIELD, "the pieces leave too many gaps")
        if self._memory is None:
            self._memory = mmap.mmap(-1, IMAGE_LIMIT)
        before, behind = joined
        self._bounds[at - before : at + behind] = [offset][before:] + [end][behind:]
        for view in views:
            self._memory[offset : offset + len(view)] = view
            offset += len(view)

    def take(self) -> memoryview:
        """The whole image, and begin anew. Raises NvmeError when there is none, or one with
        gaps."""
        memory, bounds = self._memory, self._bounds
        self.clear()
        if memory is None or len(bounds) != 2 or bounds[0] != 0:
            raise NvmeError(Status.INVALID_FIRMWARE_IMAGE, "no image without gaps was downloaded")
        return memoryview(memory)[: bounds[1]]

    def clear(self) -> None:
        self._memory = None
        self._bounds = []

    def reset(self, *, next_host: bool = False) -> None:
        self.clear()

    def save(self) -> tuple[tuple[int, bytes], ...]:
        """Offset and bytes of each range that has come."""
        memory, bounds = self._memory, self._bounds
        if memory is None:
            return ()
        pairs = zip(bounds[::2], bounds[1::2], strict=True)
        return tuple((start, memory[start:end]) for start, end in pairs)

    def load(self, saved: Iterable[tuple[int, bytes]]) -> None:
        """Take the ranges that were saved. Raises NvmeError."""
        for offset, piece in saved:
            self.put(offset, [memoryview(piece)])


class FirmwareSlots:
    """The stored images, the active one, and the one that becomes active next."""

    def __init__(self, flash: Flash, built_in_revision: str) -> None:
        self.flash = flash
        self.busy = False
        """A commit is being written."""
        self._built_in_revision = built_in_revision
        self.active = flash.active
        self.next: int | None = None
        """The slot that the next controller reset activates."""

    def reset(self) -> None:
        """A controller reset activates what waits for that."""
        if self.next is not None:
            self.active, self.next = self.next, None

    @property
    def revision(self) -> str:
        return self.revisions.get(self.active, self._built_in_revision)

    @property
    def revisions(self) -> dict[int, str]:
        stored = {slot: image.revision for slot, image in self.flash.images.items()}
        return {BUILT_IN_SLOT: self._built_in_revision, **stored}

    def choose_writable(self) -> int:
        """The slot that a host means by 0: an empty one, or else one that is not active."""
        writable = range(BUILT_IN_SLOT + 1, LAST_SLOT + 1)
        free = [slot for slot in writable if slot not in self.flash.images]
        return (free or [slot for slot in writable if slot != self.active])[0]
