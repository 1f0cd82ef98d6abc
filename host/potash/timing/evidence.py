"""Closed forms of numbers that measurements of a drive show, with which a fit begins."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from potash.timing.fio import Latencies, Measurement
from potash.timing.parameters import MIB, programming, with_program_time
from potash.timing.traces import TimingError
from potash_device.flash.profile import PAGE, Profile, Rate

FEW = 64
"""Pages for which any write buffer has room."""


class Evidence:
    """Measurements by kind. Raises TimingError if idle reads are missing."""

    def __init__(self, measured: Sequence[Measurement], base: Profile) -> None:
        self.base = base
        self.all = measured
        self.plain = [measurement for measurement in measured if not measurement.job.steady]
        self.steady = [measurement for measurement in measured if measurement.job.steady]
        self.reads = [measurement for measurement in self.plain if measurement.job.reads == 1]
        self.writes = [measurement for measurement in self.plain if measurement.job.reads < 1]
        self.small = [
            measurement
            for measurement in self.reads
            if measurement.job.random and measurement.job.pages == 1 and not measurement.job.empty
        ]
        """Random reads of one page."""
        self.deep = any(measurement.job.depth > 1 for measurement in self.small)
        idle = [
            measurement.reads
            for measurement in self.small
            if measurement.job.depth == 1 and not measurement.job.pause_ns
        ]
        if not idle or not idle[0]:
            raise TimingError(
                "no job has random reads of 4 KiB with one in flight, with which a fit begins; "
                "`potash drive fit --jobs DIRECTORY` writes one"
            )
        kinds, percentiles = len(base.read_ns), idle[0].percentiles
        middles = [(kind + 0.5) * 100 / kinds for kind in range(kinds)]
        levels = np.interp(middles, list(percentiles), list(percentiles.values()))
        # Percentiles are of classes, in which a latency may be wrong by 1 %; means are exact.
        self.idle = levels * idle[0].mean / levels.mean()
        """Latencies of idle reads by type of page, of which there are as many of each."""
        self.fastest = max(
            measurement.job.depth * measurement.job.pages * PAGE / found.mean
            for measurement, found in self._read()
            if not measurement.job.pause_ns
        )
        """Bytes in a nanosecond of the fastest reads."""
        self.few = [
            measurement
            for measurement in self.writes
            if measurement.job.pause_ns and measurement.job.burst * measurement.job.pages <= FEW
        ]
        """Few writes at a time, if there is a write buffer: without one, they show tPROG."""
        means = [measurement.writes.mean for measurement in self.few if measurement.writes]
        if min(means, default=0.0) > 2 * idle[0].mean:
            self.few = []
        self.firmware = [measurement for measurement in self.reads if measurement.job.empty]
        self.firmware += self.few
        """Requests that take no flash."""

    def _read(self) -> Iterator[tuple[Measurement, Latencies]]:
        return ((measurement, measurement.reads) for measurement in self.reads if measurement.reads)

    def _written(self, some: Sequence[Measurement]) -> Iterator[tuple[Measurement, Latencies]]:
        return ((measurement, measurement.writes) for measurement in some if measurement.writes)

    def start(self) -> Profile:
        """The base with the link of the fastest reads, the bus of idle reads of several pages, and
        firmware and tR of idle reads; of a size that says nothing."""
        base, idle = self.base, float(self.idle.mean())
        bus = base.bus.ns * PAGE / base.bus.bytes
        for measurement, found in self._read():
            job = measurement.job
            if job.random and job.depth == 1 and not job.empty and 1 < job.pages <= base.row_pages:
                each = (found.mean - idle) / (job.pages - 1)
                bus = max(each - PAGE / self.fastest, each / 10)
        part = round(idle / 20)
        start = replace(
            base,
            capacity=PAGE,
            blocks=64,
            width=0,
            zone_superblocks=0,
            zone_pages=0,
            slc=0,
            rber=(),
            mapping_cache=0,
            short_read_ns=(),
            short_read_command_ns=-1,
            submission_ns=min(base.submission_ns, part),
            completion_ns=part,
            read_command_ns=min(base.read_command_ns, part),
            link=Rate(MIB, max(1, round(MIB / self.fastest))),
            bus=Rate(MIB, max(1, round(MIB / PAGE * bus))),
        )
        return self.with_firmware(start, base.cores)

    def with_read_times(self, profile: Profile) -> Profile:
        """The tR with which idle reads take as long as was measured."""
        others = profile.submission_ns + profile.completion_ns + profile.bus_command_ns
        others += profile.read_command_ns + profile.read_page_ns
        others += sum(-(-PAGE * rate.ns // rate.bytes) for rate in (profile.bus, profile.link))
        return replace(
            profile, read_ns=tuple(max(1, round(latency - others)) for latency in self.idle)
        )

    def with_firmware(self, profile: Profile, cores: int) -> Profile:
        """Times of commands with so many cores: these limit the rate of reads without flash, and
        the rest of idle ones is before and after; and what is left of idle writes."""
        profile = replace(profile, cores=cores)
        page = PAGE * profile.link.ns / profile.link.bytes
        empty = {measurement.job.depth: found.mean for measurement, found in self._read()
                 if measurement.job.empty and measurement.job.pages == 1
                 and not measurement.job.pause_ns}  # fmt: skip
        if 1 in empty and (depth := max(empty)) > 1:
            whole = empty[1] - page - profile.submission_ns - profile.read_page_ns
            command = empty[depth] / depth * max(1, cores) - profile.read_page_ns
            command = max(0.0, min(command, 0.9 * whole))
            after = max(0, round(whole - command))
            profile = replace(profile, read_command_ns=round(command), completion_ns=after)
        others = profile.submission_ns + profile.completion_ns
        idle = {
            measurement.job.pages: found.mean - others - measurement.job.pages * page
            for measurement, found in self._written(self.few)
            if measurement.job.depth == measurement.job.burst == 1
        }
        if len(idle) > 1:
            few, many = min(idle), max(idle)
            each = max(0.0, (idle[many] - idle[few]) / (many - few))
            command = max(0.0, idle[few] - few * each)
            profile = replace(profile, write_page_ns=round(each), write_command_ns=round(command))
        return self.with_read_times(profile)

    def with_program_time(self, profile: Profile, part: float) -> Profile:
        """A part of the tPROG with which the drive programs as fast as the fastest writes are."""
        rates = [
            measurement.job.depth * measurement.job.pages * PAGE / found.mean
            for measurement, found in self._written(self.writes)
            if not measurement.job.reads and not measurement.job.pause_ns
        ]
        if not rates:
            return profile
        return with_program_time(profile, part * programming(profile) / max(rates))
