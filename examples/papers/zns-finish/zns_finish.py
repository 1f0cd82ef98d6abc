"""Zones that are finished early: what is programmed, how long that takes, and who waits for it."""

import numpy as np

from potash.experiment import Point
from potash.ftl import Op

ZONES, ZONE = 16, 12_288
"""Zones, the first of which is read, and the pages of each: a superblock of all dies, or several
narrower ones."""
PIECE, EVERY = 48, 50_000
"""Pages of a write, and nanoseconds from read to read."""
SILENT = 0.14
"""The write amplification of SilentZNS at an occupancy of 10 % is 86 % less than that of zones with
fixed blocks, which is 10 (Bagashvili et al., arXiv 2511.04687v1, 2025, abstract)."""


def simulated(point: Point) -> dict[str, float]:
    """Write a share of each zone, and finish it, while another zone is read at random."""
    width, occupancy = int(point["width"]), float(point["occupancy"])
    drive = point.model(
        width=width % 16,
        capacity=(1 + ZONES * ZONE) * 4096,
        zone_superblocks=ZONES * 16 // width,
        zone_pages=ZONES * ZONE,
    )
    first_stream, random = drive.profile.frontiers, np.random.default_rng(point.seed)
    now = 0
    for at in range(0, ZONE, PIECE):
        now = drive.submit(now, Op.WRITE, 1 + at, PIECE, first_stream)
    drive.rest()
    now = next_read = 0
    finishes: list[int] = []
    waits: list[int] = []

    def read(until: int) -> list[int]:
        """The latencies of the reads up to a time."""
        nonlocal next_read
        times = range(next_read, until + 1, EVERY)
        next_read += len(times) * EVERY
        pages = random.integers(1, 1 + ZONE, len(times)).tolist()
        return [
            drive.submit(time, Op.READ, page, 1) - time
            for time, page in zip(times, pages, strict=True)
        ]

    for zone in range(1, ZONES):
        stream = first_stream + zone
        for at in range(0, round(occupancy * ZONE / PIECE) * PIECE, PIECE):
            read(now)
            now = drive.submit(now, Op.WRITE, 1 + zone * ZONE + at, PIECE, stream)
        read(now)
        begun, now = now, drive.submit(now, Op.FINISH, 0, 0, stream)
        finishes.append(now - begun)
        waits += read(now)
    found = {
        "amplification": drive.counters.write_amplification,
        "finish_ms": float(np.mean(finishes)) / 1e6,
    }
    return {**found, "read_ms": float(np.mean(waits)) / 1e6} if len(waits) > ZONES else found


def published(point: Point) -> dict[str, float] | None:
    """A zone of fixed blocks is programmed to its end; SilentZNS takes as many as it needs."""
    occupancy = float(point["occupancy"])
    if point["width"] == 16:
        return {"amplification": 1 / occupancy}
    if point["width"] == 1 and occupancy == 0.1:
        return {"amplification": SILENT / occupancy}
    return None
