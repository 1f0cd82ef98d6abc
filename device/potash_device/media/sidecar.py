"""The sidecar: a small file for everything but blocks, such as counters, settings and tables.

A section is JSON of the kind that its owner declares. Two pages are written alternately, each with
a number and a checksum, so a crash during a write leaves the previous record. An unreadable sidecar
is treated as empty, with a line in the log."""

import errno
import json
import logging
import struct
import threading
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from potash_device.saved import LARGEST_NUMBER, Section, read_json, typed

log = logging.getLogger(__name__)

PAGE_SIZE = 64 << 10
"""Bytes of a page, of which a record uses what it needs: a page of zeroes costs a file nothing."""

SIDECAR_SIZE = 2 * PAGE_SIZE

VERSION = 1
"""Version of a page's format; a page of a later version is refused."""

_HEADER = struct.Struct("<8sIIQ")
"""Magic, version, length of the record in bytes, number of the record."""
_MAGIC = b"PTSHSIDE"
_CHECKSUM = struct.Struct("<I")
_LONGEST = PAGE_SIZE - _HEADER.size - _CHECKSUM.size

Sections = Mapping[str, Any]

T = TypeVar("T")


class Sidecar:
    """Sections by name on `media`, of at least `SIDECAR_SIZE` bytes; `load` before use.

    `put` and `get` never wait. `save` does, and may be called by several threads.
    """

    def __init__(self, media: Media) -> None:
        self.media = media
        media.self_checking = True
        self._sections: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._saving = threading.Lock()
        self._failing = False

    def load(self) -> None:
        """Read the newest whole record; without one, begin with an empty one."""
        pages = bytearray(SIDECAR_SIZE)
        try:
            self.media.read_into([memoryview(pages)], 0)
        except MediaError as error:  # a file that was cut may still have a whole page
            log.error("the sidecar cannot be read: %s", error.strerror)
        found = [
            record
            for start in (0, PAGE_SIZE)
            if (record := _decode(pages[start : start + PAGE_SIZE])) is not None
        ]
        if not found and pages != bytes(SIDECAR_SIZE):
            log.warning("the sidecar is damaged, so counters and saved features start anew")
        self._number, sections = max(found, key=lambda record: record[0], default=(0, {}))
        with self._lock:
            self._sections = sections

    @property
    def number(self) -> int:
        """The number of the newest record, which grows with each."""
        return self._number

    def get(self, section: Section[T]) -> T | None:
        """A section, as far as it makes sense; None when there is none."""
        with self._lock:
            found = self._sections.get(section)
        if found is None:
            return None
        try:
            value: T = typed(section.kind, found)
        except ValueError as error:
            log.warning("%s in the sidecar is left out: %s", section, error)
            return None
        return value

    def put(self, name: str, section: Any) -> None:
        """Replace a section, which reaches the media with the next `save`."""
        with self._lock:
            self._sections[name] = section

    def clear(self) -> None:
        """Have no sections, as a new sidecar."""
        with self._lock:
            self._sections = {}

    def save(self) -> None:
        """Put every section on stable storage. Raises MediaError; the last record is then kept."""
        with self._saving:
            with self._lock:
                record = json.dumps(self._sections, separators=(",", ":")).encode()
            try:
                self._write(record)
            except MediaError as error:
                if not self._failing:  # one line, however often it is tried
                    log.error("the sidecar cannot be written: %s", error.strerror)
                self._failing = True
                raise
            self._failing = False

    def check(self) -> None:
        """Read the pages again. Raises MediaError where none of them is whole."""
        pages = bytearray(SIDECAR_SIZE)
        with self._saving:
            self.media.read_into([memoryview(pages)], 0)
        if not any(_decode(pages[start : start + PAGE_SIZE]) for start in (0, PAGE_SIZE)):
            raise MediaError(errno.EIO, "no page of the sidecar is whole")

    def _write(self, record: bytes) -> None:
        if len(record) > _LONGEST:
            raise MediaError(errno.EFBIG, f"a record of {len(record)} bytes does not fit in a page")
        number = self._number + 1
        if number > LARGEST_NUMBER:  # only a forged one can have come so far
            number = 1
            self.media.write_from([memoryview(bytes(_HEADER.size))], 0)
        protected = _HEADER.pack(_MAGIC, VERSION, len(record), number) + record
        page = protected + _CHECKSUM.pack(zlib.crc32(protected))
        self.media.write_from([memoryview(page)], number % 2 * PAGE_SIZE)
        self.media.flush()
        self._number = number


def _decode(page: bytearray) -> tuple[int, dict[str, Any]] | None:
    """Number and sections of a page; None for one that was never written, or is damaged."""
    magic, version, length, number = _HEADER.unpack_from(page)
    if magic != _MAGIC or version != VERSION or length > _LONGEST or number > LARGEST_NUMBER:
        return None
    end = _HEADER.size + length
    (checksum,) = _CHECKSUM.unpack_from(page, end)
    if checksum != zlib.crc32(page[:end]):
        return None
    try:
        sections = read_json(page[_HEADER.size : end], _LONGEST)
    except ValueError:
        return None
    return (number, sections) if isinstance(sections, dict) else None
