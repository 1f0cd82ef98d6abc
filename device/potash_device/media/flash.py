"""The flash that firmware images are kept in: one region for each writable slot.

An image is written and flushed before the sidecar names it, with its digest, so that a slot holds
the old image or the new one, whole, or counts as empty. An optional header states an image's
revision, which otherwise is the beginning of its digest.

Source: Alkali CSD platform documentation, section 8.1 (flashing over NVMe); NVMe Base 2.0, section
3.11."""

import errno
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple, TypedDict

from potash_device.media.errors import MediaError
from potash_device.media.sidecar import Sidecar
from potash_device.media.store import Media
from potash_device.saved import Section
from potash_wire.records import Range

log = logging.getLogger(__name__)

IMAGE_LIMIT = 128 << 20
"""Bytes of the largest image."""

FIRST_WRITABLE_SLOT = 2
"""Slot 1 holds what the device came with; it is not in the flash."""
LAST_SLOT = 3

FLASH_SIZE = (LAST_SLOT - FIRST_WRITABLE_SLOT + 1) * IMAGE_LIMIT


REVISION_MAGIC = b"PTSHFW1\0"
"""Begins an image that states its revision in the eight bytes behind it."""
REVISION_SIZE = 8

_PIECE = 1 << 20


ImageLength = Annotated[int, Range(1, IMAGE_LIMIT)]
Revision = Annotated[str, Range(0, REVISION_SIZE)]


class SavedSlots(TypedDict, total=False):
    """The active slot, and for each slot with an image its length, revision, digest."""

    active: int
    slots: dict[str, tuple[ImageLength, Revision, str]]


SECTION: Section[SavedSlots] = Section("firmware", SavedSlots)
"""The sidecar's section with the firmware slots."""


class StoredImage(NamedTuple):
    """The table's entry of a slot: length in bytes, revision, SHA-256."""

    length: int
    revision: str
    digest: bytes


class Flash:
    """Firmware slots on `media`, of at least `FLASH_SIZE` bytes; `load` before use."""

    def __init__(self, media: Media, sidecar: Sidecar) -> None:
        self.media = media
        media.self_checking = True
        self.sidecar = sidecar
        self.active = 1
        """The slot that is active from the next power-on."""
        self.images: dict[int, StoredImage] = {}

    def load(self) -> None:
        """Read the table; a slot that does not hold what the table says is an empty one."""
        table = self.sidecar.get(SECTION) or {}
        self.images = {}
        for slot, image in self.listed.items():
            if self._holds(slot, image):
                self.images[slot] = image
            else:
                log.warning("firmware slot %d is damaged, so it is empty", slot)
        active = table.get("active", 1)
        self.active = active if active in self.images else 1

    @property
    def listed(self) -> dict[int, StoredImage]:
        """The images of the table, whatever the slots hold."""
        return _images(self.sidecar.get(SECTION) or {})

    def store(self, slot: int, image: memoryview, *, activate: bool) -> StoredImage:
        """Put an image into a writable slot; it is on stable storage when this returns. Raises
        MediaError; the slot then holds what the table says."""
        import hashlib  # OpenSSL's, whose library takes 3 ms and 4 MiB

        digest = hashlib.sha256(image).digest()
        stored = StoredImage(len(image), _revision(image, digest), digest)
        others = {number: one for number, one in self.images.items() if number != slot}
        if slot in self.images:
            self._write_table(others, self.active)
        self.media.write_from([image], _region(slot))
        self.media.flush()
        self._write_table({**others, slot: stored}, slot if activate else self.active)
        log.info("%d bytes of firmware %s written to slot %d", len(image), stored.revision, slot)
        return stored

    def activate(self, slot: int) -> None:
        """Make a slot the one that is active from the next power-on. Raises MediaError."""
        self._write_table(self.images, slot)

    def check(self, slot: int) -> None:
        """Read an image again. Raises MediaError where it is not the one in the table."""
        image = self.images.get(slot)
        if image is not None and not self._holds(slot, image) and self.images.get(slot) is image:
            raise MediaError(errno.EIO, f"the image in firmware slot {slot} is damaged")

    def _write_table(self, images: Mapping[int, StoredImage], active: int) -> None:
        """Have the table kept. Raises MediaError; it is then the one before, now and later.

        The sidecar is written again for others' sake, who must not bring a failed commit into
        force.
        """
        before = self.sidecar.get(SECTION)
        slots = {
            str(slot): [image.length, image.revision, image.digest.hex()]
            for slot, image in images.items()
        }
        self.sidecar.put(SECTION, {"active": active, "slots": slots})
        try:
            self.sidecar.save()
        except MediaError:
            self.sidecar.put(SECTION, before)
            raise
        # A new dictionary each time: others may be going through the one that was.
        self.images, self.active = dict(images), active

    def _holds(self, slot: int, image: StoredImage) -> bool:
        import hashlib

        digest = hashlib.sha256()
        buffer = memoryview(bytearray(_PIECE))
        try:
            for at in range(0, image.length, _PIECE):
                piece = buffer[: min(_PIECE, image.length - at)]
                self.media.read_into([piece], _region(slot) + at)
                digest.update(piece)
        except MediaError as error:
            log.error("firmware slot %d cannot be read: %s", slot, error.strerror)
            return False
        return digest.digest() == image.digest


def _images(table: SavedSlots) -> dict[int, StoredImage]:
    """The slots of the sidecar's section, without what makes no sense in it."""
    slots, images = table.get("slots", {}), {}
    for slot in range(FIRST_WRITABLE_SLOT, LAST_SLOT + 1):
        length, revision, digest = slots.get(str(slot), (0, "", ""))
        if length and revision.isascii():
            with suppress(ValueError):
                images[slot] = StoredImage(length, revision, bytes.fromhex(digest))
    return images


def _region(slot: int) -> int:
    return (slot - FIRST_WRITABLE_SLOT) * IMAGE_LIMIT


def _revision(image: memoryview, digest: bytes) -> str:
    """Eight printable characters."""
    start = len(REVISION_MAGIC)
    stated = bytes(image[start : start + REVISION_SIZE])
    if bytes(image[:start]) == REVISION_MAGIC and len(stated) == REVISION_SIZE:
        text = stated.rstrip(b"\0 ").decode("ascii", "replace")
        if text.isascii() and text.isprintable() and text:
            return text
    return digest.hex()[:REVISION_SIZE]
