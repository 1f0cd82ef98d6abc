"""The log of a key value namespace on modelled flash: the pages that have the parts of its values.

A value has a part for each whole page of it, and one for the rest, so that it is read with as few
pages as possible. Rests of several values share a page: the open one, which is in the memory of the
drive until it is full, or flushed. Pages are written in the order of the log, segment after
segment. A segment without a live part is written again. To have more of them, the log is cleaned:
the live parts of a segment are moved to the end of the log, in their order, in which they need no
more pages there than they have.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from potash_device.media.shapes import FLASH_PAGE, NamespaceShape

_SPARE_SEGMENTS = 4
"""Segments, at least, that the spare pages have."""


@dataclass(eq=False)
class PlacedValue:
    """A value, and the page of each of its parts."""

    key: bytes
    size: int
    pages: list[int]

    def part(self, index: int) -> int:
        """Bytes of a part."""
        return min(FLASH_PAGE, self.size - index * FLASH_PAGE)


class Cleaned(NamedTuple):
    """Parts that were moved from a segment: the keys of their values, the pages that they were on,
    and the number of their bytes."""

    keys: set[bytes]
    pages: list[int]
    size: int


class ValueLog:
    """The log of one namespace, which has `pages` of flash: those of the index, then segments of at
    most `superblock` pages."""

    def __init__(self, shape: NamespaceShape, pages: int, superblock: int) -> None:
        _, self.index, spare = shape.value_pages
        """Pages of the index, from page 0 on."""
        self.placed: dict[bytes, PlacedValue] = {}
        """The value of each key."""
        self.segment = max(1, min(superblock, spare // _SPARE_SEGMENTS))
        """Pages of a segment."""
        count = (pages - self.index) // self.segment
        self._free = deque(range(count))
        self._live = [0] * count
        """Bytes of live parts of each segment."""
        self._parts: dict[int, dict[PlacedValue, int]] = {}
        """The live parts on each page that has any."""
        self._rest: deque[int] = deque()
        """The pages of the current segment that are not used yet."""
        self._current = -1
        self._open = -1
        """The page that parts are put on; -1 for none."""
        self._filled = 0
        """Bytes of it that parts have, or had."""
        self._changed = False
        """It has parts that no write of it has had."""
        self._full: list[int] = []

    @property
    def _room(self) -> int:
        """Pages that can be taken."""
        return len(self._free) * self.segment + len(self._rest)

    def has_room(self, size: int) -> bool:
        """True if a value of so many bytes can be put, which leaves a segment to move parts to."""
        return self._room > size // FLASH_PAGE + self.segment

    def put(self, key: bytes, size: int) -> PlacedValue:
        """Append a value, for which there is room; `placed` does not have it yet."""
        value = PlacedValue(key, size, [])
        for index in range(-(-size // FLASH_PAGE)):
            value.pages.append(self._put(value, index))
        return value

    def release(self, value: PlacedValue) -> list[int]:
        """A value is dead. The result is the pages on which no part is live any more."""
        dead = []
        for index, page in enumerate(value.pages):
            del self._parts[page][value]
            if not self._parts[page]:
                del self._parts[page]
                dead.append(page)
            segment = self._of(page)
            self._live[segment] -= value.part(index)
            self._reuse(segment)
        return dead

    def clean(self) -> Cleaned | None:
        """Move the live parts of a segment to the end of the log: of the one with the fewest bytes
        of them, or on the fewest pages. None if neither gains a page."""
        used = (self._current, self._of(self._open))
        segments = [at for at, live in enumerate(self._live) if live and at not in used]
        for cost in (self._live.__getitem__, lambda segment: len(self._live_pages(segment))):
            segment = min(segments, key=cost, default=-1)
            if segment >= 0 and self._needed(pages := self._live_pages(segment)) < self.segment:
                return self._move(segment, pages)
        return None

    def _live_pages(self, segment: int) -> list[int]:
        first = self.index + segment * self.segment
        return [page for page in range(first, first + self.segment) if page in self._parts]

    def _needed(self, pages: list[int]) -> int:
        """Pages, at most, that the parts on these pages need elsewhere."""
        needed, filled = 0, FLASH_PAGE
        for value, index in (part for page in pages for part in self._parts[page].items()):
            size = value.part(index)
            if size == FLASH_PAGE:
                needed += 1
            elif filled + size > FLASH_PAGE:
                needed, filled = needed + 1, size
            else:
                filled += size
        return needed

    def _move(self, segment: int, pages: list[int]) -> Cleaned:
        keys = set()
        for page in pages:
            for value, index in self._parts.pop(page).items():
                value.pages[index] = self._put(value, index)
                keys.add(value.key)
        moved, self._live[segment] = self._live[segment], 0
        self._reuse(segment)
        return Cleaned(keys, pages, moved)

    def take_full(self) -> list[int]:
        """The pages that have become full, which are to be written."""
        full, self._full = self._full, []
        return full

    def flush(self) -> list[int]:
        """The open page, if it is to be written; it stays open."""
        changed, self._changed = self._changed, False
        return [self._open] if changed and self._open in self._parts else []

    def is_open(self, page: int) -> bool:
        """True for the page that is in the drive's memory."""
        return page == self._open

    def _put(self, value: PlacedValue, index: int) -> int:
        """The page that a part is put on."""
        size = value.part(index)
        if size == FLASH_PAGE:
            page = self._next()
            self._full.append(page)
        else:
            if self._open < 0 or self._filled + size > FLASH_PAGE:
                self._close()
                self._open = self._next()
            page, self._changed = self._open, True
            self._filled += size
        self._parts.setdefault(page, {})[value] = index
        self._live[self._of(page)] += size
        if self._filled == FLASH_PAGE:
            self._close()
        return page

    def _close(self) -> None:
        """Have no open page."""
        self._full += self.flush()
        closed, self._open, self._filled = self._open, -1, 0
        self._reuse(self._of(closed))

    def _next(self) -> int:
        """The next page of the log."""
        if not self._rest:
            left, self._current = self._current, self._free.popleft()
            first = self.index + self._current * self.segment
            self._rest.extend(range(first, first + self.segment))
            self._reuse(left)
        return self._rest.popleft()

    def _of(self, page: int) -> int:
        """The segment of a page; less than 0 for none."""
        return (page - self.index) // self.segment

    def _reuse(self, segment: int) -> None:
        """Write a segment again if nothing in it is live, or will be."""
        if segment < 0 or self._live[segment] or segment in (self._current, self._of(self._open)):
            return
        self._free.append(segment)
