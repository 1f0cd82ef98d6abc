"""The bandwidth of sequential writes to an empty drive with an SLC cache, until it is full."""

import numpy as np

from potash import timing
from potash.experiment import Point

PAGES = 32
"""Pages of a write: 128 KiB."""
WINDOWS, DEPTH = 50, 32
REVIEW = {0.1: 4.5, 0.2: 4.5, 0.34: 2.0, 0.4: 2.0, 0.6: 0.5, 0.8: 0.5, 0.9: 0.5}
"""GB/s by the share of the drive that is written: over 4.5 up to 280 GB, roughly 2 up to almost
500 GB, then 0.5, of an ADATA XPG Atom 50 of 1 TB
(https://techpowerup.com/review/adata-xpg-atom-50-1-tb/6.html)."""


def simulated(point: Point) -> list[dict[str, float]]:
    """Bandwidth by the share that is written."""
    drive = point.model()
    requests = drive.profile.logical_pages // PAGES
    flying, rows, before = np.full(DEPTH, drive.now), [], drive.now
    for number in range(WINDOWS):
        first, end = (requests * part // WINDOWS for part in (number, number + 1))
        written = timing.requests(timing.Op.WRITE, np.arange(first, end) * PAGES, PAGES)
        now = int(drive.closed_loop(written, flying).max())
        rate = (end - first) * PAGES * 4096 / (now - before)
        rows.append({"written": round((number + 1) / WINDOWS, 2), "bandwidth": rate})
        before = now
    return rows


def published(point: Point) -> list[dict[str, float]] | None:
    """What a review measured on a drive that goes around its cache."""
    if point["ftl"] != "Direct":
        return None
    return [{"written": written, "bandwidth": rate} for written, rate in REVIEW.items()]
