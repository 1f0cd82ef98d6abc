"""The firmware slots, and the image that a host is downloading.

An image arrives in pieces of any size at any offset, of which no two may overlap; only a second one
at offset 0 is the beginning of another image, as a host sends that gave up the first. The slot whose revision Identify shows changes with a controller reset, or at once when
the host asks for that.

Source: NVM Express Base Specification 2.0, section 3.11 (firmware update process), 5.12 and 5.13.
"""

import mmap

from nvme_spec.status import NvmeError, Status
from potash_device.media.flash import IMAGE_LIMIT, LAST_SLOT, Flash

BUILT_IN_SLOT = 1


class Download:
    """The pieces of one image, in memory that is only used where a piece was put."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._pieces: list[tuple[int, int]] = []

    def put(self, offset: int, views: list[memoryview]) -> None:
        """Take a piece. Raises NvmeError past the limit, and where some of it has come before."""
        end = offset + sum(map(len, views))
        if end > IMAGE_LIMIT:
            raise NvmeError(
                Status.INVALID_FIELD, detail=f"an image has at most {IMAGE_LIMIT} bytes"
            )
        if any(start < end and offset < stop for start, stop in self._pieces):
            if offset:
                raise NvmeError(
                    Status.OVERLAPPING_RANGE,
                    detail=f"some of the {end - offset} bytes at {offset} have been downloaded",
                )
            self.clear()
        if self._memory is None:
            self._memory = mmap.mmap(-1, IMAGE_LIMIT)
        self._pieces = _joined([*self._pieces, (offset, end)])
        for view in views:
            self._memory[offset : offset + len(view)] = view
            offset += len(view)

    def take(self) -> memoryview:
        """The whole image, and begin anew. Raises NvmeError when there is none, or one with gaps."""
        memory, pieces = self._memory, self._pieces
        self.clear()
        if memory is None or len(pieces) != 1 or pieces[0][0] != 0:
            raise NvmeError(
                Status.INVALID_FIRMWARE_IMAGE, detail="no image without gaps was downloaded"
            )
        return memoryview(memory)[: pieces[0][1]]

    def clear(self) -> None:
        """Forget what was downloaded."""
        self._memory = None
        self._pieces = []


class FirmwareSlots:
    """Which images there are, which is active, and which will be."""

    def __init__(self, flash: Flash, built_in_revision: str) -> None:
        self.flash = flash
        self.download = Download()
        self.busy = False
        """A commit is being written."""
        self._built_in_revision = built_in_revision
        self.active = flash.active
        self.next: int | None = None
        """The slot that the next controller reset activates."""

    def reset(self) -> None:
        """A controller reset: forget the download, and activate what waits for that."""
        self.download.clear()
        if self.next is not None:
            self.active, self.next = self.next, None

    @property
    def revision(self) -> str:
        """The active firmware's revision."""
        return self.revisions.get(self.active, self._built_in_revision)

    @property
    def revisions(self) -> dict[int, str]:
        """The revision in each slot that holds an image."""
        stored = {slot: image.revision for slot, image in self.flash.images.items()}
        return {BUILT_IN_SLOT: self._built_in_revision, **stored}

    def choose_writable(self) -> int:
        """The slot that a host means by 0: an empty one, or else one that is not active."""
        writable = range(BUILT_IN_SLOT + 1, LAST_SLOT + 1)
        free = [slot for slot in writable if slot not in self.flash.images]
        return (free or [slot for slot in writable if slot != self.active])[0]


def _joined(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges from start to end, those that touch made one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(pieces):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
