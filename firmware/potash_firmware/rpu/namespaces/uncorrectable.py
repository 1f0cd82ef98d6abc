"""The blocks of a namespace that a host has made uncorrectable, as ranges.

Most drives have none, so the most frequent question is whether there are any. The ranges are sorted
and do not touch. Their number is limited for the whole drive, as that of a hardware drive's defect
list, because they are stored in the sidecar.

Source: NVM Command Set Specification 1.0, section 3.2.7 (Write Uncorrectable).
"""

from bisect import bisect_left, bisect_right
from typing import Annotated

from potash_wire.records import Range

MOST_RANGES = 1024
"""Ranges of a drive, all namespaces together."""


SavedRanges = Annotated[list[tuple[int, int]], Range(0, MOST_RANGES)]
"""First block and number of blocks of each."""


class UncorrectableBlocks:
    """Ranges of blocks; `first` and `end` of range i are `firsts[i]` and `_ends[i]`."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self.firsts)

    def first_in(self, lba: int, count: int) -> int | None:
        """The first uncorrectable block of `count` from `lba`; None where there is none."""
        at = bisect_right(self._ends, lba)
        if at == len(self.firsts) or self.firsts[at] >= lba + count:
            return None
        return max(lba, self.firsts[at])

    def ranges(self, lba: int = 0, count: int | None = None) -> list[tuple[int, int]]:
        """First block and number of blocks of every range, cut to `count` blocks from `lba`."""
        end = max(self._ends, default=0) if count is None else lba + count
        return [
            (max(first, lba), min(last, end) - max(first, lba))
            for first, last in zip(self.firsts, self._ends, strict=True)
            if first < end and last > lba
        ]

    def add(self, lba: int, count: int) -> None:
        """`count` blocks from `lba` are uncorrectable from now on."""
        low, high = bisect_left(self._ends, lba), bisect_right(self.firsts, lba + count)
        first, end = lba, lba + count
        if low < high:
            first, end = min(first, self.firsts[low]), max(end, self._ends[high - 1])
        self._replace(low, high, [(first, end)])

    def remove(self, lba: int, count: int) -> None:
        """`count` blocks from `lba` are as good as any."""
        low, high = bisect_right(self._ends, lba), bisect_left(self.firsts, lba + count)
        if low < high:
            left, right = (self.firsts[low], lba), (lba + count, self._ends[high - 1])
            self._replace(low, high, [part for part in (left, right) if part[0] < part[1]])

    def splits(self, lba: int, count: int) -> bool:
        """Return True if `remove` would split a range."""
        at = bisect_right(self._ends, lba)
        return at < len(self.firsts) and self.firsts[at] < lba and self._ends[at] > lba + count

    def touches(self, lba: int, count: int) -> bool:
        """Return True if `add` would only extend a range."""
        at = bisect_left(self._ends, lba)
        return at < len(self.firsts) and self.firsts[at] <= lba + count

    def restore(self, saved: SavedRanges, blocks: int) -> None:
        """Take `ranges` as they were saved, without what makes no sense in `blocks` blocks."""
        for lba, count in saved:
            if count and lba + count <= blocks:
                self.add(lba, count)

    def _replace(self, low: int, high: int, ranges: list[tuple[int, int]]) -> None:
        self.firsts[low:high] = [first for first, _ in ranges]
        self._ends[low:high] = [end for _, end in ranges]
