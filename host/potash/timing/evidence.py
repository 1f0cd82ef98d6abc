"""Closed forms of numbers that measurements of a drive show, with which a fit begins."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from potash.timing.fio import Latencies, Measurement
from potash.timing.parameters import MIB, program_time, with_program_time
from potash.timing.traces import TimingError
from potash_device.flash.profile import PAGE, Profile, Rate


class Evidence:
    """Measurements by kind. Raises TimingError if idle reads are missing."""

    def __init__(self, measured: Sequence[Measurement], base: Profile) -> None:
        self.base = base
        self.all = measured
        self.plain = [one for one in measured if not one.job.steady]
        self.steady = [one for one in measured if one.job.steady]
        self.reads = [one for one in self.plain if one.job.reads == 1]
        self.writes = [one for one in self.plain if one.job.reads < 1]
        self.small = [
            one for one in self.reads if one.job.random and one.job.pages == 1 and not one.job.empty
        ]
        """Random reads of one page."""
        self.deep = any(one.job.depth > 1 for one in self.small)
        idle = [one.reads for one in self.small if one.job.depth == 1 and not one.job.pause_ns]
        if not idle or not idle[0]:
            raise TimingError(
                "no job has random reads of 4 KiB with one in flight, with which a fit begins; "
                "`potash drive fit --jobs DIRECTORY` writes one"
            )
        kinds, known = len(base.read_ns), idle[0].percentiles
        middles = [(kind + 0.5) * 100 / kinds for kind in range(kinds)]
        levels = np.interp(middles, list(known), list(known.values()))
        # Percentiles are of classes, in which a latency may be wrong by 1 %; means are exact.
        self.idle = levels * idle[0].mean / levels.mean()
        """Latencies of idle reads by type of page, of which there are as many of each."""
        self.fastest = max(
            one.job.depth * one.job.pages * PAGE / found.mean for one, found in self._read()
        )
        """Bytes in a nanosecond of the fastest reads."""

    def _read(self) -> Iterator[tuple[Measurement, Latencies]]:
        return ((one, one.reads) for one in self.reads if one.reads)

    def _written(self) -> Iterator[tuple[Measurement, Latencies]]:
        return ((one, one.writes) for one in self.writes if one.writes)

    def start(self) -> Profile:
        """The base with the link of the fastest reads, the bus of idle reads of several pages, and
        firmware and tR of idle reads; of a size that says nothing."""
        base, idle = self.base, float(self.idle.mean())
        bus = base.bus.ns * PAGE / base.bus.bytes
        for one, found in self._read():
            job = one.job
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
        return replace(profile, read_ns=tuple(max(1, round(one - others)) for one in self.idle))

    def with_firmware(self, profile: Profile, cores: int) -> Profile:
        """Times of commands with so many cores: these limit the rate of reads without flash, and
        the rest of idle ones is before and after; and what is left of idle writes."""
        profile = replace(profile, cores=cores)
        page = PAGE * profile.link.ns / profile.link.bytes
        empty = {one.job.depth: found.mean for one, found in self._read()
                 if one.job.empty and one.job.pages == 1}  # fmt: skip
        if 1 in empty and (depth := max(empty)) > 1:
            whole = empty[1] - page - profile.submission_ns - profile.read_page_ns
            command = empty[depth] / depth * max(1, cores) - profile.read_page_ns
            command = max(0.0, min(command, 0.9 * whole))
            after = max(0, round(whole - command))
            profile = replace(profile, read_command_ns=round(command), completion_ns=after)
        others = profile.submission_ns + profile.completion_ns
        idle = {
            one.job.pages: found.mean - others - one.job.pages * page
            for one, found in self._written()
            if one.job.pause_ns and one.job.depth == one.job.burst == 1
        }
        if len(idle) > 1:
            few, many = min(idle), max(idle)
            each = max(0.0, (idle[many] - idle[few]) / (many - few))
            command = max(0.0, idle[few] - few * each)
            # Without a buffer, they show tPROG.
            if command < program_time(profile):
                profile = replace(
                    profile, write_page_ns=round(each), write_command_ns=round(command)
                )
        return self.with_read_times(profile)

    def with_program_time(self, profile: Profile) -> Profile:
        """The tPROG with which all dies program as fast as the fastest writes are."""
        rates = [
            one.job.depth * one.job.pages * PAGE / found.mean
            for one, found in self._written()
            if not one.job.reads and not one.job.pause_ns
        ]
        unit = profile.total_dies * profile.unit_pages * PAGE
        return with_program_time(profile, unit / max(rates)) if rates else profile
