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
from potash_firmware.ftl.state import BUFFERED

REGION = 1 << 14
"""Pages that jobs read and write, rounded up so that each half has whole superblocks."""
BURSTS = 4
"""Least number of bursts of a job with pauses."""
MOST_BURSTS = 100
"""Greatest number of them, as they are alike."""
BATCHES = 8
"""Parts of a job by which the errors of its latencies are estimated."""
SETTLING = 40
"""Requests at the beginning of a job that are not counted, for each in flight: they all came at
once."""
CHUNK = 1 << 14
"""Pages that a job writes before its write buffer is looked at again."""
MOST_CHUNKS = 10
"""Number of times that this is done at most."""
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
    """A modelled drive on which jobs run one after the other. Raises ProfileError for a profile
    that no drive can have."""

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
        whole = 2 * -(-REGION // (2 * superblock))
        written = sum(
            (self._count(job) + SETTLING * job.depth) * job.pages + MOST_CHUNKS * CHUNK
            for job in jobs
            if job.reads < 1
        )
        blocks = whole + written // superblock + profile.kept_free + profile.frontiers + 8
        size = whole * superblock
        # As many pages are not written.
        self._drive = Drive(
            replace(profile, pages=pages, blocks=blocks + whole, capacity=2 * size * PAGE)
        )
        self._region = size
        self._fill()

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
        self._fill()
        job = Job("overwrite", True, 0.0, 1, 32)
        self._drive.closed_loop(
            self._requests(job, 3 * self._region), np.zeros(job.depth, np.int64)
        )
        return self

    def _fill(self) -> None:
        """Write the region in order."""
        step = 1 << 10
        fill = np.zeros(-(-self._region // step), REQUEST)
        fill["op"], fill["first"] = Op.WRITE, np.arange(len(fill)) * step
        fill["count"] = np.minimum(step, self._region - fill["first"])
        self._drive.run(fill)

    def _count(self, job: Job) -> int:
        """The requests of a job that are counted."""
        counted = self._samples if job.pages == 1 else self._samples // 4
        if job.pause_ns:
            return job.burst * max(BURSTS, min(counted // job.burst, MOST_BURSTS))
        return max(counted, 64 * job.depth)

    def measure(self, job: Job) -> Measurement:
        """The latencies of a job that begins with the drive idle, as fio runs it."""
        drive = self._drive
        drive.rest()
        requests = self._requests(job, self._count(job))
        flying = np.zeros(job.depth, np.int64)
        if job.pause_ns:
            for start in range(0, len(requests), job.burst):
                part = requests[start : start + job.burst]
                ends = drive.closed_loop(part, flying)
                part["time"] = ends - part["time"]
                flying[:] = ends.max() + job.pause_ns
        else:
            self._settle(job, flying)
            ends = drive.closed_loop(requests, flying)
            requests["time"] = ends - requests["time"]
        # Of a burst, the first requests are faster than the last ones.
        parts = min(BATCHES, len(requests) // job.burst) if job.pause_ns else BATCHES
        return Measurement(
            job,
            _summary(requests, Op.READ, parts) if job.reads else None,
            _summary(requests, Op.WRITE, parts) if job.reads < 1 else None,
        )

    def _settle(self, job: Job, flying: NDArray[np.int64]) -> None:
        """Run a job until requests have spread in time, and the write buffer is full or does not
        become so. How it became full decides which dies are programmed at which times from then on:
        a buffer that is filled otherwise, such as in order, gives other latencies for good."""
        drive, before = self._drive, 0
        drive.closed_loop(self._requests(job, SETTLING * job.depth), flying)
        size = drive.profile.buffer_bytes // PAGE
        if job.reads == 1 or not size:
            return
        requests = self._requests(job, CHUNK // job.pages)
        for _ in range(MOST_CHUNKS):
            drive.closed_loop(requests, flying)
            filled = int(drive.state.registers[BUFFERED])
            if filled - before < size / MOST_CHUNKS:
                return
            before = filled

    def _requests(self, job: Job, count: int) -> NDArray[np.void]:
        """The same ones for every profile, so that latencies are comparable.

        On a drive that is not overwritten, writes among reads are to pages of their own: a real
        drive's region is so large that hardly a read finds what is still in the write buffer.
        """
        random = np.random.default_rng(zlib.crc32(job.name.encode()))
        parts = 1 if job.steady or job.reads in (0, 1) else 2
        requests, places = np.zeros(count, REQUEST), self._region // parts // job.pages
        writes = random.random(count) >= job.reads
        requests["op"] = np.where(writes, Op.WRITE, Op.READ)
        where = random.random(count) * places if job.random else np.arange(count) % places
        requests["first"] = where.astype(np.int64) * job.pages
        requests["count"] = job.pages
        requests["first"] += self._region * job.empty + self._region // 2 * writes * (parts - 1)
        return requests


def _period(profile: Profile) -> int:
    """Pages of a block after which types of pages repeat."""
    return math.lcm(len(profile.read_ns), profile.program_pages * len(profile.program_ns))


def _summary(requests: NDArray[np.void], op: Op, count: int) -> Latencies:
    figures = _figures(requests["time"][requests["op"] == op])
    parts = [part["time"][part["op"] == op] for part in np.array_split(requests, count)]
    each = [_figures(part) for part in parts if len(part)]
    errors = np.std(each, axis=0) / math.sqrt(len(each)) / figures
    return Latencies(
        float(figures[0]), dict(zip(COMPARED, figures[1:].tolist(), strict=True)), errors.tolist()
    )


def _figures(latencies: NDArray[np.int64]) -> NDArray[np.float64]:
    percentiles = np.percentile(latencies, COMPARED, method="inverted_cdf")
    return np.array([latencies.mean(), *percentiles])
