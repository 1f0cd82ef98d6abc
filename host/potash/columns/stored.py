"""An Arrow file on a drive: in a file system, or in blocks of a namespace.

Its metadata is read by the host; the pages with its columns are only named.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from csd_spec.opcodes import PAGE_SIZE
from potash.columns.arrow import Store
from potash.columns.errors import InvalidFile
from potash.sdk.commands import Commands
from potash.sdk.errors import InvalidRequest
from potash.sdk.files import FileInPlace
from potash.sdk.namespace import Namespace
from potash.sdk.targets import Range


class Stored(Store, Protocol):
    """A file on a drive."""

    @property
    def moved(self) -> int:
        """Bytes that went from the drive to the host."""

    def locate(self, pages: Range) -> list[Range]:
        """Pages of the file as pages of the namespace."""

    def confirm(self) -> None:
        """Raises PotashError if the file has changed."""

    def close(self) -> None: ...


class StoredFile:
    """A file of a file system on the drive. Raises InvalidRequest for one that is elsewhere."""

    def __init__(self, path: str | os.PathLike[str], device: Commands) -> None:
        self._file = FileInPlace(Path(path), device)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._starts = [0]
        for one in self._file.ranges:
            self._starts.append(self._starts[-1] + one.pages)
        self._pages_read: set[int] = set()

    @property
    def size(self) -> int:
        return self._file.size

    @property
    def ranges(self) -> Sequence[Range]:
        return self._file.ranges

    @property
    def moved(self) -> int:
        return len(self._pages_read) * PAGE_SIZE

    def read(self, offset: int, length: int) -> bytes:
        self._pages_read |= set(_pages(offset, length))
        return os.pread(self._fd, length, offset)

    def locate(self, pages: Range) -> list[Range]:
        return _slice(self._file.ranges, self._starts, pages)

    def confirm(self) -> None:
        self._file.confirm()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._file.close()


class StoredBlocks:
    """A file of `size` bytes in blocks of a namespace, from `lba` on, which begins a page."""

    def __init__(self, namespace: Namespace, lba: int, size: int) -> None:
        self._namespace = namespace
        self._size = size
        block = namespace.block_size
        page, rest = divmod(lba * block, PAGE_SIZE)
        if rest or lba < 0:
            raise InvalidRequest(
                f"block {lba} does not start on a page of {PAGE_SIZE} bytes; choose a multiple of"
                f" {max(1, PAGE_SIZE // block)}"
            )
        self._start = page
        if size < 0 or (page + _pages(0, size).stop) * PAGE_SIZE > namespace.capacity:
            raise InvalidRequest(f"{size} bytes from block {lba} on are not all on the drive")
        self._cache: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        return self._size

    @property
    def ranges(self) -> Sequence[Range]:
        return [Range(self._start, _pages(0, self._size).stop)]

    @property
    def moved(self) -> int:
        return len(self._cache) * PAGE_SIZE

    def read(self, offset: int, length: int) -> bytes:
        if not length:
            return b""
        pages = _pages(offset, length)
        missing = [page for page in pages if page not in self._cache]
        if missing:
            first, count = missing[0], missing[-1] - missing[0] + 1
            per_page = PAGE_SIZE // self._namespace.block_size
            data = self._namespace.read((self._start + first) * per_page, count * per_page)
            for at in range(count):
                self._cache[first + at] = data[at * PAGE_SIZE : (at + 1) * PAGE_SIZE]
        found = b"".join(self._cache[page] for page in pages)
        begin = offset - pages.start * PAGE_SIZE
        return found[begin : begin + length]

    def locate(self, pages: Range) -> list[Range]:
        return [Range(self._start + pages.page, pages.pages)]

    def confirm(self) -> None:
        pass

    def close(self) -> None:
        self._cache.clear()


def _pages(offset: int, length: int) -> range:
    return range(offset // PAGE_SIZE, -(-(offset + length) // PAGE_SIZE))


def _slice(ranges: Sequence[Range], starts: Sequence[int], wanted: Range) -> list[Range]:
    """Some pages of a file whose pages are these ranges."""
    found = []
    end = wanted.page + wanted.pages
    for one, start in zip(ranges, starts, strict=False):
        first, last = max(wanted.page, start), min(end, start + one.pages)
        if first < last:
            found.append(Range(one.page + first - start, last - first))
    if sum(one.pages for one in found) != wanted.pages:
        raise InvalidFile("it has become shorter")
    return found
