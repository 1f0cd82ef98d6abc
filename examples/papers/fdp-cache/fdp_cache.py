"""A cache of small and large objects on a drive with placement handles.

Small objects are in buckets of 4 KiB, which are overwritten at random. Large objects are written in
order to the rest of the drive, over and over. Half of the writes are of each.
"""

import math

import numpy as np
from numpy.typing import NDArray

from potash import timing
from potash.experiment import Point

PAGES, SPARE = 64, 0.125
"""Pages of a superblock, as in the file of the experiment; spare flash by capacity."""
LARGE, SMALL = 0, 1
"""The handles of large and small objects."""
MISTAKES = 0.1
"""The share of the small objects that are taken for large ones, if some are."""


def drive_of(point: Point) -> timing.Drive:
    """An empty drive that is all cache."""
    blocks = int(point["superblocks"])
    capacity = int(blocks * PAGES / (1 + SPARE)) * 4096
    isolated = str(point["handles"]).endswith("isolated")
    drive = point.model(blocks=blocks, capacity=capacity, isolated=isolated)
    assert isinstance(drive, timing.Drive)  # the compiled one
    return drive


def simulated(point: Point) -> dict[str, float]:
    """Fill the cache, use it until its write amplification is steady, and go on."""
    drive, random = drive_of(point), np.random.default_rng(point.seed)
    pages = drive.profile.logical_pages
    buckets, written = int(pages * float(point["small"])), 0
    drive.run(writes(point, random, np.arange(pages), buckets))
    for _ in range(4):
        small = random.random(6 * pages) < 0.5
        large = np.cumsum(~small) + written
        first = np.where(
            small, random.integers(0, buckets, len(small)), buckets + large % (pages - buckets)
        )
        written = int(large[-1])
        drive.rest()
        drive.run(writes(point, random, first, buckets))
    found = {"amplification": drive.counters.write_amplification}
    if point["handles"] != "one":
        found["of_large"], found["of_small"] = (one.write_amplification for one in drive.streams)
    return found


def writes(
    point: Point, random: np.random.Generator, first: NDArray[np.int64], buckets: int
) -> NDArray[np.void]:
    """Writes of pages, with the handles of the point."""
    small = first < buckets
    if point["handles"] == "two, misclassified":
        small &= random.random(len(first)) >= MISTAKES
    stream = np.where(small & (point["handles"] != "one"), SMALL, LARGE)
    return timing.requests(timing.Op.WRITE, first, stream=stream)


def published(point: Point) -> dict[str, float] | None:
    """Where the drive keeps small objects apart, they have all of the spare."""
    if not str(point["handles"]).endswith("isolated"):
        return None
    profile = drive_of(point).profile
    buckets = int(profile.logical_pages * float(point["small"]))
    # Superblocks that are kept free, one of which is about to be opened, and half of the four that
    # are open, are no spare.
    kept = profile.reserve + 0.5 + 4 * 0.5
    spare = (profile.superblocks - kept) * PAGES - profile.logical_pages
    return {"amplification": 0.5 + 0.5 * greedy((buckets + spare) / buckets, PAGES)}


def greedy(alpha: float, size: int) -> float:
    """Desnoyers, SYSTOR 2012, for superblocks of `size` pages, and `alpha` physical pages for each
    logical one."""
    k = 1 + 1 / (2 * size)
    x, w = -k * alpha * math.exp(-k * alpha), -0.5
    for _ in range(100):  # the principal branch of W, where W(x) e^W(x) = x, by Newton's method
        w -= (w * math.exp(w) - x) / (math.exp(w) * (w + 1))
    return size / (size - (0.5 - size / alpha * w - 1))
