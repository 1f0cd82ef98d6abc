"""Jobs of fio on a modelled drive, which is as small as their latencies allow."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from potash.timing.fio import Job, Latencies, Measurement
from potash_device.flash.profile import PAGE, Profile
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import REQUEST, Op

REGION = 1 << 14
"""Pages that jobs read and write, rounded up to superblocks."""
PAUSES = 8
"""Greatest number of bursts of a job with pauses, as they are alike."""
BATCHES = 8
"""Parts of a job by which the errors of its latencies are estimated."""
SETTLING = 40
"""Requests at the beginning of a job that are not counted, for each in flight: they all came at
once."""
MOST_WARM = 1 << 14
"""Requests that are not counted at the beginning of a job."""
STEADY_SUPERBLOCKS = 96
"""Superblocks of data of a drive that is overwritten, and of its spare flash."""
STEADY_PAGES = 768
"""Least pages of each."""
COMPARED = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0)
"""Percentiles."""


def spare(profile: Profile) -> float:
    """Flash for data and garbage as a multiple of the capacity, without what is kept free."""
    usable = profile.superblocks - profile.frontiers - profile.kept_free
    return usable * profile.superblock_pages / profile.mapped_pages


def capacity(profile: Profile, spare: float) -> int:
    """The capacity in bytes with which a drive of these blocks has that spare flash."""
    usable = profile.superblocks - profile.frontiers - profile.kept_free
    return int(usable * profile.superblock_pages / spare) * PAGE


class Model:
    """A modelled drive on which jobs run one after the other.

    Raises ProfileError for a profile that no drive can have.
    """

    def __init__(self, profile: Profile, jobs: Sequence[Job], samples: int) -> None:
        """`jobs` are those that will run: there is flash for them without garbage collection.

        Of each, `samples` requests are counted, or a quarter of them if they are larger than a
        page.
        """
        self._samples = samples
        rows = profile.total_dies * profile.row_pages
        period = _period(profile)
        pages = period * max(1, REGION // (4 * rows * period))
        superblock = rows * pages
        whole = -(-REGION // superblock)
        written = sum(self._count(profile, job) * (1 - job.reads) * job.pages for job in jobs)
        written += len(jobs) * profile.buffer_bytes // PAGE
        blocks = whole + int(1.1 * written / superblock) + profile.kept_free + profile.frontiers + 8
        size = whole * superblock
        # As many pages are not written.
        self._drive = Drive(
            replace(profile, pages=pages, blocks=blocks + whole, capacity=2 * size * PAGE)
        )
        self._region = size
        self._fill(size)

    @classmethod
    def overwritten(cls, profile: Profile, spare: float, samples: int) -> "Model":
        """A drive with that spare flash, all of it written on, as `potash.timing.jobs.spare` has
        it."""
        rows, period = profile.total_dies * profile.row_pages, _period(profile)
        pages = period * -(-STEADY_PAGES // (rows * period))
        blocks = STEADY_SUPERBLOCKS + profile.frontiers + profile.kept_free
        small = replace(
            profile,
            pages=pages,
            blocks=blocks,
            capacity=PAGE,
            erase_ns=profile.erase_ns * pages // profile.pages,
        )
        self = cls.__new__(cls)
        self._samples = samples
        self._drive = Drive(replace(small, capacity=capacity(small, spare)))
        self._region = self._drive.profile.logical_pages
        self._fill(self._region)
        job = Job("overwrite", True, 0.0, 1, 32)
        self._drive.closed_loop(
            self._requests(job, 3 * self._region), np.zeros(job.depth, np.int64)
        )
        return self

    def _fill(self, pages: int) -> None:
        """Write so many pages in order, from the first on, and again if they are more."""
        step = 1 << 10
        whole = self._region if pages <= self._region else self._region // step * step
        fill = np.zeros(-(-pages // step), REQUEST)
        start = np.arange(len(fill)) * step
        fill["op"], fill["first"] = Op.WRITE, start % whole
        fill["count"] = np.minimum(step, pages - start)
        self._drive.run(fill)

    def _count(self, profile: Profile, job: Job) -> int:
        """All requests of a job."""
        if job.pause_ns:
            return job.burst * max(2, min(PAUSES, self._samples // job.burst))
        counted = max(self._samples if job.pages == 1 else self._samples // 4, 8 * job.depth)
        return _warm(profile, job) + counted

    def measure(self, job: Job) -> Measurement:
        """The latencies of a job."""
        drive = self._drive
        drive.rest()
        count = self._count(drive.profile, job)
        requests = self._requests(job, count)
        if job.reads < 1 and not job.pause_ns:
            self._fill(drive.profile.buffer_bytes // PAGE)
        if job.pause_ns:
            first = 0
            for start in range(0, count, job.burst):
                part = requests[start : start + job.burst]
                ends = drive.closed_loop(part, np.full(job.depth, first))
                part["time"] = ends - part["time"]
                first = int(ends.max()) + job.pause_ns
        else:
            ends = drive.closed_loop(requests, np.zeros(job.depth, np.int64))
            requests["time"] = ends - requests["time"]
        found = requests[_warm(drive.profile, job) :]
        return Measurement(
            job,
            _summary(found, Op.READ) if job.reads else None,
            _summary(found, Op.WRITE) if job.reads < 1 else None,
        )

    def _requests(self, job: Job, count: int) -> NDArray[np.void]:
        """The same ones for every profile, so that latencies are comparable."""
        random = np.random.default_rng(zlib.crc32(job.name.encode()))
        requests, places = np.zeros(count, REQUEST), self._region // job.pages
        requests["op"] = np.where(random.random(count) < job.reads, Op.READ, Op.WRITE)
        where = random.random(count) * places if job.random else np.arange(count) % places
        requests["first"] = where.astype(np.int64) * job.pages
        requests["count"] = job.pages
        requests["first"] += self._region if job.empty else 0
        return requests


def _period(profile: Profile) -> int:
    """Pages of a block after which types of pages repeat."""
    return math.lcm(len(profile.read_ns), profile.program_pages * len(profile.program_ns))


def _warm(profile: Profile, job: Job) -> int:
    """Requests until the write buffer is as full as it will be, which are not counted."""
    if job.pause_ns:
        return 0
    if job.reads == 1 or not profile.buffer_bytes:
        return SETTLING * job.depth
    size = job.pages * PAGE
    units = profile.buffer_bytes / (profile.total_dies * profile.unit_pages * PAGE)
    emptied = units * max(profile.program_ns) / (1 + job.reads * min(profile.read_ns))
    most = min(profile.buffer_bytes / size / (1 - job.reads), job.depth * emptied, MOST_WARM)
    # A power of two, so that drives that differ a little have the same requests.
    return SETTLING * job.depth + (1 << int(2 * most).bit_length())


def _summary(requests: NDArray[np.void], op: Op) -> Latencies:
    latencies = requests["time"][requests["op"] == op]
    figures = _figures(latencies)
    parts = [part for part in np.array_split(latencies, BATCHES) if len(part)]
    errors = np.std([_figures(part) for part in parts], axis=0) / math.sqrt(len(parts)) / figures
    return Latencies(
        float(figures[0]), dict(zip(COMPARED, figures[1:].tolist(), strict=True)), errors.tolist()
    )


def _figures(latencies: NDArray[np.int64]) -> NDArray[np.float64]:
    percentiles = np.percentile(latencies, COMPARED, method="inverted_cdf")
    return np.array([latencies.mean(), *percentiles])
