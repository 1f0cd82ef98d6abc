"""Double reads of a mapping that is partly in memory, and their latencies."""

import numpy as np

from potash import timing
from potash.experiment import Point

READS = 20_000


def simulated(point: Point) -> dict[str, float]:
    """Reads of a drive that was filled in order, and overwritten at random for a while."""
    drive = point.model()
    took = timing.precondition(drive, overwrites=float(point["overwrites"]), seed=point.seed)
    pages, random = drive.profile.logical_pages, np.random.default_rng(point.seed)
    first = random.integers(0, pages, READS)
    if point["pattern"] == "sequential":
        first = (first[0] + np.arange(READS)) % pages
    requests = timing.requests(timing.Op.READ, first)
    latencies = timing.closed_loop(drive, requests, 16) - requests["time"]
    return {
        "double_reads": drive.counters.misses / READS,
        "p99_us": float(np.percentile(latencies, 99)) / 1000,
        "amplification": took.write_amplification,
    }
