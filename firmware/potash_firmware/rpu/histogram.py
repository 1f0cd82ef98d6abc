"""Times in buckets: how long commands took, and how late they were in modelled time."""

from bisect import bisect_left

BOUNDS: tuple[int, ...] = tuple(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5))
"""Upper bounds of the buckets in nanoseconds: 1 µs to 500 ms."""


class Histogram:
    """A histogram of nanoseconds."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        """Times that were at most each of `BOUNDS`, but above the one before; the last ones were
        above all."""
        self.total = 0
        self.largest: int = 0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, time: int, count: int = 1) -> None:
        """`count` times of as many nanoseconds."""
        self.buckets[bisect_left(BOUNDS, time)] += count
        self.total += time * count
        self.largest = max(self.largest, time)

    def percentile(self, share: float) -> int:
        """Nanoseconds that this share of times, 0 to 1, is not above, as an upper bound; 0 where
        there are none."""
        wanted, found = share * self.count, 0
        for bound, count in zip(BOUNDS, self.buckets, strict=False):
            found += count
            if found >= wanted:
                return min(bound, self.largest)
        return self.largest
