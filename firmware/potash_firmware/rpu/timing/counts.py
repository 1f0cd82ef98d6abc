"""How much later than its deadline a command was completed: what the host adds to modelled time."""

from bisect import bisect_left

BOUNDS: tuple[int, ...] = tuple(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5))
"""Upper bounds of the buckets in nanoseconds: 1 µs to 500 ms."""


class Lateness:
    """A histogram of nanoseconds."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        """Commands that were at most as late as each of `BOUNDS`, but later than the one before;
        the last ones were later than all."""
        self.total = 0
        self.largest: int = 0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, late: int) -> None:
        self.buckets[bisect_left(BOUNDS, late)] += 1
        self.total += late
        self.largest = max(self.largest, late)

    def percentile(self, share: float) -> int:
        """Nanoseconds that this share of commands, 0 to 1, was not later than, as an upper bound;
        0 where there are none."""
        wanted, found = share * self.count, 0
        for bound, count in zip(BOUNDS, self.buckets, strict=False):
            found += count
            if found >= wanted:
                return min(bound, self.largest)
        return self.largest
