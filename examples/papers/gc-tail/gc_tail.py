"""Latencies of reads beside writes, by the way in which garbage is collected."""

from typing import Any

import numpy as np

from potash import timing
from potash.experiment import Point

READS, WRITES = 30.0, 25.0
"""Requests of 4 KiB in a millisecond, of random pages at random times."""
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
COLLECTION: dict[str, dict[str, Any]] = {
    "none": {"over_provisioning": "400%"},
    "whole": {"background": 0},
    "partial": {"background": 8, "background_pages": 4},
}
"""There is nothing to collect; a superblock at once, when few are free; four pages with each write,
while eight superblocks are free or less."""
SUSPENSION = {"no": -1, "yes": 5000}
"""Time to suspend a program or an erase, and to resume it; -1 if reads wait."""


def simulated(point: Point) -> list[dict[str, float]]:
    """Percentiles of the latencies of reads, and their mean, in microseconds."""
    collection = str(point["collection"])
    suspend_ns, keys = SUSPENSION[str(point["suspension"])], COLLECTION[collection]
    drive = point.model(capacity=point["capacity"], suspend_ns=suspend_ns, **keys)
    timing.precondition(drive, overwrites=0.0 if collection == "none" else 3.0)
    random = np.random.default_rng(point.seed)
    count = int((READS + WRITES) * 1000 * float(point["seconds"]))
    times = np.cumsum(random.exponential(1e6 / (READS + WRITES), count)).astype(np.int64)
    reads = random.random(count) < READS / (READS + WRITES)
    pages = random.integers(0, drive.profile.logical_pages, count)
    ops = np.where(reads, timing.Op.READ, timing.Op.WRITE)
    found = drive.run(timing.requests(ops, pages, time=times)) - times
    us = found[reads] / 1000
    mean = float(us.mean())
    return [
        {"percentile": percentile, "us": float(np.percentile(us, percentile)), "mean_us": mean}
        for percentile in PERCENTILES
    ]
