"""Lab 7, solved: a log of units, and a mapping that is found again by sequence numbers."""

from typing import Any

RESERVE = 3
"""Free blocks at which a write waits for garbage collection."""


class Mine:
    """Each page on flash is (page, sequence number, data)."""

    def __init__(self, flash: Any) -> None:
        self.flash = flash
        self.places: dict[int, tuple[int, int, int]] = {}
        """The block, the unit and the index of each page's newest data."""
        self.buffer: dict[int, bytes] = {}
        self.sequence = 0
        self.free: list[int] = []
        self.block, self.unit = -1, flash.units
        for block in range(flash.blocks):
            self.find(block)

    def find(self, block: int) -> None:
        """Find what a block has. One that is not full stays as it is until it is collected."""
        found = [self.flash.read(block, unit) for unit in range(self.flash.units)]
        if all(contents is None for contents in found):
            self.free.append(block)
        for unit, contents in enumerate(found):
            if contents is None or contents is self.flash.torn:
                continue
            for index, (page, sequence, _) in enumerate(contents):
                self.sequence = max(self.sequence, sequence + 1)
                if page not in self.places or sequence > self.stored(page)[1]:
                    self.places[page] = block, unit, index

    def stored(self, page: int) -> Any:
        """What is on flash of a page."""
        block, unit, index = self.places[page]
        return self.flash.read(block, unit)[index]

    def read(self, page: int) -> bytes:
        if page in self.buffer:
            return self.buffer[page]
        data: bytes = self.stored(page)[2] if page in self.places else b""
        return data

    def write(self, page: int, data: bytes) -> None:
        self.buffer[page] = data
        if len(self.buffer) == self.flash.pages:
            self.flush()

    def flush(self) -> None:
        if self.buffer:
            while len(self.free) < RESERVE:
                self.collect()
            self.program(self.buffer)
            self.buffer = {}

    def program(self, contents: dict[int, bytes]) -> None:
        """Program a unit; what it has is valid from then on, and older data are not."""
        if self.unit == self.flash.units:
            self.block, self.unit = self.free.pop(0), 0
        pages = [
            (page, self.sequence + at, data) for at, (page, data) in enumerate(contents.items())
        ]
        self.sequence += len(pages)
        self.flash.program(self.block, self.unit, pages)
        for index, page in enumerate(contents):
            self.places[page] = self.block, self.unit, index
        self.unit += 1

    def collect(self) -> None:
        """Move what is valid in the block with the fewest valid pages, and erase it."""
        valid: dict[int, list[int]] = {block: [] for block in range(self.flash.blocks)}
        for page, (block, _, _) in self.places.items():
            valid[block].append(page)
        candidates = valid.keys() - {self.block, *self.free}
        victim = min(sorted(candidates), key=lambda block: len(valid[block]))
        moved = {page: self.stored(page)[2] for page in valid[victim]}
        for first in range(0, len(moved), self.flash.pages):
            self.program(dict(list(moved.items())[first : first + self.flash.pages]))
        self.flash.erase(victim)
        self.free.append(victim)
