"""The flash that firmware images are kept in.

A directory in the first page, then one region for each writable slot. An image is written and
flushed before the directory names it, so that a slot holds the old image or the new one, whole.
What an image contains is of no interest here but for its revision: an optional header states it,
otherwise it is the beginning of the image's digest.

Source: Alkali CSD platform documentation, section 8.1 (flashing over NVMe); NVM Express Base
Specification 2.0, section 3.11 (firmware update process).
"""

import hashlib
import logging
import struct
import zlib
from typing import NamedTuple

from potash_device.media.store import Media

log = logging.getLogger(__name__)

IMAGE_LIMIT = 128 << 20
"""Bytes of the largest image."""

FIRST_WRITABLE_SLOT = 2
"""Slot 1 holds what the device came with; it is not in the flash."""
LAST_SLOT = 3

DIRECTORY_SIZE = 4096
FLASH_SIZE = DIRECTORY_SIZE + (LAST_SLOT - FIRST_WRITABLE_SLOT + 1) * IMAGE_LIMIT

REVISION_MAGIC = b"PTSHFW1\0"
"""Begins an image that states its revision in the eight bytes behind it."""
REVISION_SIZE = 8

_DIRECTORY = struct.Struct("<8sI")
_DIRECTORY_MAGIC = b"PTSHFLSH"
_SLOT = struct.Struct("<Q8s32s")
_CHECKSUM = struct.Struct("<I")
_PROTECTED = _DIRECTORY.size + (LAST_SLOT - FIRST_WRITABLE_SLOT + 1) * _SLOT.size


class StoredImage(NamedTuple):
    """What the directory says of a slot: length in bytes, revision, SHA-256."""

    length: int
    revision: str
    digest: bytes


class Flash:
    """Firmware slots on `media`, of at least `FLASH_SIZE` bytes; `load` before use."""

    def __init__(self, media: Media) -> None:
        self.media = media
        self.active = 1
        """The slot that is active from the next power-on."""
        self.images: dict[int, StoredImage] = {}

    def load(self) -> None:
        """Read the directory; one that was never written, or is damaged, is an empty one."""
        page = bytearray(DIRECTORY_SIZE)
        self.media.read_into([memoryview(page)], 0)
        magic, active = _DIRECTORY.unpack_from(page)
        (checksum,) = _CHECKSUM.unpack_from(page, _PROTECTED)
        self.images = {}
        self.active = 1
        if magic != _DIRECTORY_MAGIC or checksum != zlib.crc32(page[:_PROTECTED]):
            return
        for slot in range(FIRST_WRITABLE_SLOT, LAST_SLOT + 1):
            length, revision, digest = _SLOT.unpack_from(page, _slot_entry(slot))
            if length:
                self.images[slot] = StoredImage(
                    length, revision.rstrip(b"\0").decode("ascii"), digest
                )
        self.active = active if active in self.images else 1

    def store(self, slot: int, image: memoryview, *, activate: bool) -> StoredImage:
        """Put an image into a writable slot; it is on stable storage when this returns.

        Raises MediaError; the slot then holds what the directory says.
        """
        digest = hashlib.sha256(image).digest()
        stored = StoredImage(len(image), _revision(image, digest), digest)
        others = {number: one for number, one in self.images.items() if number != slot}
        if slot in self.images:
            self._write_directory(others)
        self.media.write_from([image], _region(slot))
        self.media.flush()
        if activate:
            self.active = slot
        self._write_directory({**others, slot: stored})
        log.info("%d bytes of firmware %s written to slot %d", len(image), stored.revision, slot)
        return stored

    def activate(self, slot: int) -> None:
        """Make a slot the one that is active from the next power-on. Raises MediaError."""
        self.active = slot
        self._write_directory(self.images)

    def _write_directory(self, images: dict[int, StoredImage]) -> None:
        # A new dictionary each time: others may be going through the one that was.
        self.images = images
        page = bytearray(DIRECTORY_SIZE)
        _DIRECTORY.pack_into(page, 0, _DIRECTORY_MAGIC, self.active)
        for slot, stored in images.items():
            revision = stored.revision.encode("ascii")
            _SLOT.pack_into(page, _slot_entry(slot), stored.length, revision, stored.digest)
        _CHECKSUM.pack_into(page, _PROTECTED, zlib.crc32(page[:_PROTECTED]))
        self.media.write_from([memoryview(page)], 0)
        self.media.flush()


def _slot_entry(slot: int) -> int:
    return _DIRECTORY.size + (slot - FIRST_WRITABLE_SLOT) * _SLOT.size


def _region(slot: int) -> int:
    return DIRECTORY_SIZE + (slot - FIRST_WRITABLE_SLOT) * IMAGE_LIMIT


def _revision(image: memoryview, digest: bytes) -> str:
    """Eight printable characters."""
    start = len(REVISION_MAGIC)
    stated = bytes(image[start : start + REVISION_SIZE])
    if bytes(image[:start]) == REVISION_MAGIC and len(stated) == REVISION_SIZE:
        text = stated.rstrip(b"\0 ").decode("ascii", "replace")
        if text.isascii() and text.isprintable() and text:
            return text
    return digest.hex()[:REVISION_SIZE]
