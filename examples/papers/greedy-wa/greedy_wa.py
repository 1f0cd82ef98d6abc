"""Write amplification of garbage collection over spare space, beside published analysis of it.

Published, and computed here:
- P. Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR 2012: greedy for uniform
  writes, and LRU, which is FIFO here, for uniform writes and for hot and cold data;
- B. Van Houdt, "A Mean Field Model for a Class of Garbage Collection Algorithms in Flash-based
  Solid State Drives", SIGMETRICS 2013: d-choices for uniform writes.
"""

import math
from collections.abc import Callable

import numpy as np

from potash import timing
from potash.experiment import Point
from potash_firmware.ftl.interface import Ftl

PAGES = 64
"""Pages of a superblock, as in the file of the experiment."""
CHOICES = 10
"""Superblocks that the policy `choices` draws."""


def drive_of(point: Point) -> Ftl:
    """An empty drive with the spare of a point."""
    blocks, spare = int(point["superblocks"]), float(point["spare"])
    return point.model(blocks=blocks, capacity=int(blocks * PAGES / (1 + spare)) * 4096)


def skew_of(point: Point) -> tuple[int, int] | None:
    """A percentage of the writes and that of the pages to which they go; None for uniform ones."""
    writes, _, pages = str(point["workload"]).partition("/")
    return (int(writes), int(pages)) if pages else None


def simulated(point: Point) -> dict[str, float]:
    """Fill the drive, write random pages until its write amplification is steady, and go on."""
    drive, skew = drive_of(point), skew_of(point)
    timing.precondition(drive, overwrites=8.0 if skew is None else 16.0, skew=skew)
    random, pages = np.random.default_rng(point.seed), drive.profile.logical_pages
    written = timing.random_pages(random, pages, 8 * pages, skew)
    drive.run(timing.requests(timing.Op.WRITE, written))
    return {"amplification": drive.counters.write_amplification}


def published(point: Point) -> dict[str, float] | None:
    """What the analyses say of the same; nothing where they say nothing."""
    profile, skew = drive_of(point).profile, skew_of(point)
    # Superblocks that are kept free, one of which is about to be opened, and half of the two that
    # are open, are no spare.
    kept, size = profile.reserve + 0.5 + 2 * 0.5, profile.superblock_pages
    alpha = (profile.superblocks - kept) * size / profile.logical_pages
    policy = str(point["policy"]).removeprefix("gc=")
    if policy == "fifo":
        writes, hot = (100, 100) if skew is None else skew
        return {"amplification": fifo(alpha, writes / 100, hot / 100)}
    if skew is None and policy == "greedy":
        return {"amplification": greedy(alpha, size)}
    if skew is None and policy == "choices":
        return {"amplification": mean_field(alpha, size)}
    return None


def greedy(alpha: float, size: int) -> float:
    """Desnoyers 2012 for superblocks of `size` pages, with `alpha` physical pages for each logical
    one."""
    k = 1 + 1 / (2 * size)
    x = 0.5 - size / alpha * lambert(-k * alpha * math.exp(-k * alpha))
    return size / (size - (x - 1))


def lambert(x: float) -> float:
    """The principal branch of W, where W(x) e^W(x) = x, by Newton's method, for -1/e < x < 0."""
    w = -0.5
    for _ in range(100):
        w -= (w * math.exp(w) - x) / (math.exp(w) * (w + 1))
    return w


def fifo(alpha: float, writes: float, pages: float) -> float:
    """Desnoyers 2012 where a share of the writes goes to a share of the pages.

    A page is programmed again after `alpha / amplification` writes for each page of the drive, in
    which all superblocks are collected once, or when the host overwrites it before.
    """

    def excess(amplification: float) -> float:
        cycle = alpha / amplification
        parts = ((writes, pages), (1 - writes, 1 - pages))
        programs = (part / -math.expm1(-part / size * cycle) for part, size in parts if size)
        return sum(programs) - amplification

    return root(excess, 1.0, 1000.0)


def mean_field(alpha: float, size: int) -> float:
    """Van Houdt 2013 for many superblocks, of which the least valid of `CHOICES` is collected.

    In the steady state, as many superblocks get from `i` valid pages to `i - 1` as are collected
    with less than `i`. For a rate of overwrites, that gives the share of those with at least `i`,
    from the greatest down; the rate is the one with the right number of valid pages.
    """

    def shares(rate: float) -> float:
        found = [0.0]
        for valid in range(size, 0, -1):
            above = found[-1]

            def balance(share: float, above: float = above, flow: float = valid * rate) -> float:
                return 1 - share**CHOICES - flow * (share - above)

            found.append(root(balance, above, 1.0))
        return sum(found)

    valid = size / alpha
    rate = root(lambda rate: shares(rate) - valid, 1e-4, 10.0)
    return alpha / rate


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """The place at which a falling function is 0, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return low
