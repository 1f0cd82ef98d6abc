"""The files on a drive of a fleet: a directory in the drive's first pages, and files behind it.

A file system needs a host with a block device. A drive that a worker serves has none, only blocks.
The directory has two copies, of which the valid one with the higher generation counts: a write that
is interrupted leaves the other one. A file is a run of pages, so that a job can have it as input.
Directories are read from media that may come from anywhere: all of it is checked.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

from csd_spec.opcodes import PAGE_SIZE
from potash.sdk.errors import PotashError
from potash.sdk.namespace import Namespace
from potash.sdk.targets import Range, pages_of
from potash_wire.records import U32, U64, Record, Stored

MAGIC = b"PTSHDIR1"
HEADER = Record(tuple[Annotated[bytes, Stored("8s")], U64, U32, U32])
"""Magic, generation, length of the text behind it, CRC-32 of generation and text."""
COPY_PAGES = 128
FIRST_PAGE = 2 * COPY_PAGES
"""The page behind both copies, where files may begin."""
LARGEST_TEXT = COPY_PAGES * PAGE_SIZE - HEADER.size
MOST_SHARDS = 1 << 20
_LETTER = r"[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]"
_NAME = re.compile(rf"(?!\.{{1,2}}/){_LETTER}{{1,100}}/(?!\.{{1,2}}$){_LETTER}{{1,100}}")


class File(NamedTuple):
    """A file on a drive, one of the `of` shards of a data set, from 0 on.

    One without bytes is at FIRST_PAGE, so that it is in no other.
    """

    name: str
    page: int
    size: int
    shard: int
    of: int

    @property
    def dataset(self) -> str:
        """The data set's name, which the file's name begins with."""
        return self.name.partition("/")[0]

    @property
    def range(self) -> Range:
        """Its pages."""
        return Range(self.page, pages_of(self.size))


class Directory:
    """The directory of the drive's namespace."""

    def __init__(self, namespace: Namespace) -> None:
        """Read it; a drive that is all zeroes there has no files yet. Raises PotashError for a
        drive that is too small, or has something else there."""
        self._namespace = namespace
        self._block = namespace.block_size
        self.pages = namespace.capacity // PAGE_SIZE
        if self.pages <= FIRST_PAGE:
            least = FIRST_PAGE * PAGE_SIZE >> 20
            raise PotashError(f"a drive of a fleet has more than {least} MiB; make it larger")
        copies = [self._read(Range(at * COPY_PAGES, COPY_PAGES)) for at in range(2)]
        found = [one for copy in copies if (one := _decoded(copy, self.pages)) is not None]
        if not found and any(any(copy) for copy in copies):
            raise PotashError(
                "the drive has something else in its first blocks, such as a file system; use a new"
                " drive"
            )
        self._generation, self.files = max(found, key=lambda one: one[0], default=(0, {}))

    @property
    def room(self) -> int:
        """Bytes of the longest run of free pages."""
        return max((pages for _, pages in self._free()), default=0) * PAGE_SIZE

    def reserve(self, size: int) -> Range:
        """Pages for a file, until `add` makes it one. Raises PotashError where there is no room."""
        wanted = pages_of(size)
        for page, pages in self._free():
            if pages >= wanted:
                return Range(page, wanted)
        raise PotashError(
            f"the drive has no room for {size} bytes in one piece; remove a data set or use a"
            " larger drive"
        )

    def write(self, pages: Range, data: bytes) -> None:
        """Write data to pages, the last one with zeroes behind it."""
        padded = data.ljust(pages.pages * PAGE_SIZE, b"\0")
        self._namespace.write(pages.page * PAGE_SIZE // self._block, padded)

    def read(self, file: File) -> bytes:
        """The bytes of a file."""
        return self._read(file.range)[: file.size]

    def add(self, file: File) -> None:
        """Add a file whose data has been written, in place of one with the same name. Raises
        PotashError where the directory is full, or for what is no name."""
        require_name(file.name)
        self._save({**self.files, file.name: file})

    def remove(self, dataset: str) -> int:
        """Remove all files of a data set; how many they were."""
        left = {name: file for name, file in self.files.items() if file.dataset != dataset}
        removed = len(self.files) - len(left)
        if removed:
            self._save(left)
        return removed

    def _read(self, pages: Range) -> bytes:
        per_page = PAGE_SIZE // self._block
        return self._namespace.read(pages.page * per_page, pages.pages * per_page)

    def _free(self) -> Iterable[Range]:
        at = FIRST_PAGE
        for page, pages in sorted(file.range for file in self.files.values()):
            if page > at:
                yield Range(at, page - at)
            at = page + pages
        if self.pages > at:
            yield Range(at, self.pages - at)

    def _save(self, files: dict[str, File]) -> None:
        """Data first, then the copy that is not the newest."""
        generation = self._generation + 1
        text = json.dumps([list(file) for file in files.values()]).encode()
        if len(text) > LARGEST_TEXT:
            raise PotashError("the drive has too many files; use fewer, or more drives")
        check = zlib.crc32(text, zlib.crc32(generation.to_bytes(8, "little")))
        copy = HEADER.encode((MAGIC, generation, len(text), check)) + text
        self._namespace.flush()
        self.write(Range(generation % 2 * COPY_PAGES, pages_of(len(copy))), copy)
        self._namespace.flush()
        self._generation, self.files = generation, files


def require_name(name: str) -> None:
    """Raises PotashError for what is not a name of a file: DATASET/FILE."""
    if not _NAME.fullmatch(name):
        raise PotashError(
            f"{name!r} is not a valid file name; names of data sets and files have at most"
            " 100 characters in UTF-8, without / and control characters"
        )


def _decoded(copy: bytes, pages: int) -> tuple[int, dict[str, File]] | None:
    """The generation and the files of a copy; None where it is not valid."""
    magic, generation, length, check = HEADER.decode_from(copy)
    text = copy[HEADER.size : HEADER.size + length]
    if magic != MAGIC or length > LARGEST_TEXT or generation >= 1 << 63:
        return None
    if zlib.crc32(text, zlib.crc32(generation.to_bytes(8, "little"))) != check:
        return None
    try:
        files = [_file(*one, pages=pages) for one in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        return None
    named: Mapping[str, File] = {file.name: file for file in files}
    end = FIRST_PAGE
    for page, count in sorted(file.range for file in files):
        if page < end:
            return None
        end = page + count
    return (generation, dict(named)) if len(named) == len(files) and end <= pages else None


def _file(name: object, *numbers: object, pages: int) -> File:
    """Raises ValueError or TypeError for what is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("no name")
    if not all(type(one) is int and 0 <= one < 1 << 63 for one in numbers):
        raise ValueError("no numbers")
    file = File(name, *numbers)  # type: ignore[arg-type]  # whole numbers, as was just checked
    if not 0 <= file.size <= pages * PAGE_SIZE or not file.shard < file.of <= MOST_SHARDS:
        raise ValueError("no file")
    return file
