"""A drive's profile from measurements of it: the one whose modelled latencies agree.

Reads are fitted first, which show dies, tR, channels, link and firmware; then writes, which show
tPROG and the write buffer; then, on a drive that was overwritten, the spare flash. SciPy's least
squares find the numbers, from closed forms on. How many channels, dies and cores there are is tried
out. What no measurement shows stays as it is in the base profile.
"""

import importlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress, silent
from potash.timing.evidence import Evidence
from potash.timing.fio import Job, Latencies, Measurement
from potash.timing.jobs import Model, capacity, spare
from potash.timing.parameters import (
    FIRMWARE_READS,
    FIRMWARE_WRITES,
    READS,
    Number,
    least_buffer,
    parameters_of_writes,
)
from potash_device.flash.profile import MOST_PAGES, Profile

CHANNELS = (1, 2, 4, 8, 16, 32)
DIES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Dies of a channel."""
MOST_DIES = 256
CORES = (1, 2, 4, 8, 16)
BUFFERS = (0, *(1 << shift for shift in range(20, 28)))
"""Sizes of write buffers with which the search begins."""
SUSPENSIONS = (-1, 10_000)
"""Times of suspension, likewise."""
SPARES = 1.02, 2.0
"""Limits of the spare flash, as `potash.timing.jobs.spare` has it."""

SAMPLES = 3000
"""Requests of a job that are counted while a profile is searched; up to three times as many at the
end of the search."""
MANY = 400_000
"""Requests of a job for the result."""
NEAR = 3
"""Variants that are kept."""
SMALL = 100.0
"""Numbers much above are fitted by their logarithms."""
STEP = 0.1
"""Change of a number, as a part of it, by which its effect is seen."""
MEAN_ERROR, CLASS_ERROR, TYPICAL_ERROR = 0.003, 0.01, 0.03
"""Errors of means, of percentiles by fio's classes, and of these with the chance of short jobs."""
SHOWN = 0.01
"""Latencies show a number if one changes by this part when the number changes by a fifth."""


class Compared(NamedTuple):
    """Latencies of the reads, or of the writes, of a job."""

    job: Job
    kind: str
    measured: Latencies
    modelled: Latencies


class Fitted(NamedTuple):
    """The profile that agrees best."""

    profile: Profile
    shown: Sequence[str]
    """Names of its fields that measurements show."""
    kept: Sequence[str]
    """Names of those that they could show and do not, which are as in the base."""
    compared: Sequence[Compared]


def fit(
    measured: Sequence[Measurement],
    base: Profile,
    progress: Progress = silent,
    samples: int | None = None,
) -> Fitted:
    """The profile with which the latencies of `potash.timing.measurements` are modelled.

    `base` has the geometry of a die, and what no measurement shows. Of each modelled job, `samples`
    requests are counted, by default 3000. Raises TimingError if random
    reads of 4 KiB with one in flight are missing, and PotashError without SciPy.
    """
    return _Fit(Evidence(measured, base), progress, samples or SAMPLES).result()


def compare(
    profile: Profile, measured: Sequence[Measurement], samples: int = MANY
) -> list[Compared]:
    """The measurements beside what is modelled for their jobs."""
    found = list[Compared]()
    for steady in (False, True):
        some = [measurement for measurement in measured if measurement.job.steady == steady]
        if not some:
            continue
        if steady:
            model = Model.overwritten(profile, spare(profile), samples)
        else:
            model = Model(profile, [measurement.job for measurement in some], samples)
        for measurement in some:
            other = model.measure(measurement.job)
            if measurement.reads and other.reads:
                found.append(Compared(measurement.job, "read", measurement.reads, other.reads))
            if measurement.writes and other.writes:
                found.append(Compared(measurement.job, "write", measurement.writes, other.writes))
    return found


class _Differences(NamedTuple):
    """Logarithms of the ratios of modelled to measured latencies."""

    values: NDArray[np.float64]
    errors: NDArray[np.float64]
    """Their standard errors."""


def _differences(compared: Iterable[Compared]) -> _Differences:
    values, errors = list[float](), list[float]()
    for pair in compared:
        mean, *others = pair.modelled.errors
        values.append(math.log(pair.modelled.mean / pair.measured.mean))
        errors.append(mean + MEAN_ERROR)
        if not pair.job.random and pair.job.depth > 1 and not pair.job.pause_ns:
            continue  # Sequential requests drift into convoys, which differ from drive to drive.
        percentiles = pair.modelled.percentiles.items()
        for (percentile, latency), error in zip(percentiles, others, strict=True):
            if percentile in pair.measured.percentiles:
                values.append(math.log(latency / pair.measured.percentiles[percentile]))
                errors.append(error + CLASS_ERROR)
    return _Differences(np.array(values), np.array(errors))


_Found = list[tuple[float, Profile]]
"""Profiles, and what is left of the differences with each; the best first."""


class _Fit:
    def __init__(self, evidence: Evidence, progress: Progress, samples: int) -> None:
        try:
            self._optimize = importlib.import_module("scipy.optimize")
        except ImportError:
            raise PotashError(
                "this needs the package scipy, which is not installed: pip install 'potash[fit]'"
            ) from None
        self._evidence, self._progress, self._samples = evidence, progress, samples
        self._read: tuple[Any, _Differences | None] = None, None
        """The latest reads, and what they depend on."""

    def result(self) -> Fitted:
        """The fit, stage by stage."""
        evidence = self._evidence
        variants = self._geometries()
        if evidence.writes:
            variants = self._written(variants)
        numbers = [*READS, *(parameters_of_writes(variants[0]) if evidence.writes else ())]
        found = self._each(variants, numbers, evidence.plain, "all numbers", 6, 2)
        # Many requests tell channels that differ little.
        profile = min(self._near(found), key=lambda each: self._cost(each, evidence.plain, 10))
        profile = self._with_near_buffer(profile)
        _, profile = self._least(profile, numbers, evidence.plain, 8, 3)
        profile, kept = self._with_what_shows(profile, numbers)
        profile = self._sized(profile)
        if evidence.steady:
            profile = self._with_spare(profile)
        shown = [number.name for number in numbers if number.name not in kept]
        shown = ["read_ns", *(("channels", "dies") if evidence.deep else ()), *shown]
        if evidence.writes and evidence.base.cores:
            shown.append("cores")
        shown += ["capacity"] if evidence.steady else []
        return Fitted(profile, shown, kept, compare(profile, evidence.all, MANY))

    def _geometries(self) -> list[Profile]:
        """Drives with channels and dies that reads allow."""
        evidence, base = self._evidence, self._evidence.base
        start = evidence.start()
        pairs = {(base.channels, base.dies): None} | {
            (channels, dies): None
            for channels in CHANNELS
            for dies in DIES
            if channels * dies <= MOST_DIES
        }
        if not evidence.deep:
            pairs = {(base.channels, base.dies): None}
        variants = [replace(start, channels=channels, dies=dies) for channels, dies in pairs]
        variants.sort(key=lambda variant: self._cost(variant, evidence.reads))
        found = self._each(variants[: 2 * NEAR], READS, evidence.reads, "channels and dies", 8)
        return self._near(found)

    def _written(self, profiles: Sequence[Profile]) -> list[Profile]:
        """The drives with what writes show: times of commands and cores, which reads alone do not
        tell apart, tPROG and the buffer. All is fitted to the first, and the others have the same.
        """
        evidence = self._evidence
        first, *others = map(evidence.with_program_time, profiles)
        measured = [each for each in evidence.reads if each.job.empty or each in evidence.small]
        measured += [each for each in evidence.writes if each.job.pause_ns and each.job.burst == 1]
        counts = CORES if first.cores else (0,)
        variants = [evidence.with_firmware(first, cores) for cores in counts]
        numbers = [*FIRMWARE_READS, *FIRMWARE_WRITES]
        found = self._near(self._each(variants, numbers, measured, "firmware", 4))
        found = [self._buffered(variant) for variant in found]
        numbers += parameters_of_writes(found[0])[len(FIRMWARE_WRITES) :]
        best = self._each(found, numbers, evidence.plain, "cores", 4, 2)[0][1]
        same = {number.name: getattr(best, number.name) for number in numbers}
        same |= {name: getattr(best, name) for name in ("cores", "buffer_bytes", "suspend_ns")}
        return [best, *(evidence.with_read_times(replace(variant, **same)) for variant in others)]

    def _buffered(self, profile: Profile) -> Profile:
        """The drive with tPROG, a write buffer, and with or without suspension."""
        writes, least = self._evidence.writes, least_buffer(profile)
        sizes = [size for size in BUFFERS if not size or size >= least]
        found: _Found = []
        for suspend in SUSPENSIONS:
            self._progress("fitting the write buffer", len(found) / len(SUSPENSIONS))
            some = [replace(profile, buffer_bytes=size, suspend_ns=suspend) for size in sizes]
            variant = self._with_near_buffer(
                min(some, key=lambda variant: self._cost(variant, writes))
            )
            found.append(self._least(variant, parameters_of_writes(variant), writes, 6))
        return self._with_near_buffer(min(found, key=lambda variant: variant[0])[1])

    def _with_near_buffer(self, profile: Profile) -> Profile:
        """The drive with the best buffer of half to twice its size: latencies jump where one more
        program unit fits in, which stops least squares."""
        if not profile.buffer_bytes or not self._evidence.writes:
            return profile
        sizes = profile.buffer_bytes * 2.0 ** np.linspace(-1, 1, 17)
        least = least_buffer(profile)
        some = [replace(profile, buffer_bytes=max(least, round(size))) for size in sizes]
        return min(some, key=lambda variant: self._cost(variant, self._evidence.writes))

    def _with_what_shows(
        self, profile: Profile, numbers: Sequence[Number]
    ) -> tuple[Profile, list[str]]:
        """The profile with numbers of the base where no latency shows them, and their names."""
        evidence, kept = self._evidence, list[str]()
        here = self._modelled(profile, evidence.plain, 3).values
        for number in numbers:
            other = number.set(profile, (number.get(profile) + SMALL) * 1.2)
            there = self._modelled(evidence.with_read_times(other), evidence.plain, 3).values
            if np.abs(there - here).max() <= SHOWN:
                kept.append(number.name)
                profile = number.set(profile, max(number.low, number.get(evidence.base)))
        return evidence.with_read_times(profile), kept

    def _sized(self, profile: Profile) -> Profile:
        """The drive with as many blocks and as much spare flash as the base has."""
        base = self._evidence.base
        pages, rows = base.pages, profile.total_dies * profile.row_pages
        while base.blocks * rows * pages >= MOST_PAGES and pages >= 2 * base.program_pages:
            pages = pages // 2 // base.program_pages * base.program_pages
        sized = replace(profile, blocks=base.blocks, pages=pages)
        return replace(sized, capacity=capacity(sized, spare(base)))

    def _with_spare(self, profile: Profile) -> Profile:
        def at(part: float) -> Profile:
            return replace(profile, capacity=capacity(profile, part))

        def cost(part: float) -> float:
            self._progress("fitting the spare flash", None)
            return self._cost(at(part), self._evidence.steady)

        options = {"xatol": 0.003, "maxiter": 16}
        found = self._optimize.minimize_scalar(
            cost, bounds=SPARES, method="bounded", options=options
        )
        return at(found.x)

    def _near(self, found: _Found) -> list[Profile]:
        """The profiles that agree nearly as well as the best."""
        return [profile for cost, profile in found if cost <= 1.5 * found[0][0] + 5]

    def _each(
        self,
        variants: Sequence[Profile],
        numbers: Sequence[Number],
        measured: Sequence[Measurement],
        name: str,
        rounds: int,
        effort: int = 1,
    ) -> _Found:
        """The best of the variants once their numbers are fitted: all of them a little, then these
        to the end."""
        errors = self._modelled(variants[0], measured, effort).errors
        found = [(0.0, profile) for profile in variants]
        for left in (2, rounds):
            for at, (_, profile) in enumerate(found):
                self._progress(f"fitting the {name}", at / len(found))
                found[at] = self._least(profile, numbers, measured, left, effort, errors)
            found = sorted(found, key=lambda pair: pair[0])[:NEAR]
        return found

    def _least(
        self,
        profile: Profile,
        numbers: Sequence[Number],
        measured: Sequence[Measurement],
        rounds: int,
        effort: int = 1,
        errors: NDArray[np.float64] | None = None,
    ) -> tuple[float, Profile]:
        """Least squares from a profile on: the sum that is left, and the profile."""
        if errors is None:
            errors = self._modelled(profile, measured, effort).errors
        start = np.log([max(number.get(profile), number.low) + SMALL for number in numbers])

        def at(changes: Iterable[float]) -> Profile:
            found = profile
            for number, begin, change in zip(numbers, start, changes, strict=True):
                value = math.exp(begin + change - 1) - SMALL
                found = number.set(found, min(max(value, number.low), number.high))
            return self._evidence.with_read_times(found)

        # Around 1, as the optimiser's steps are parts of a value.
        lows = np.log([number.low + SMALL for number in numbers]) - start + 1
        highs = np.log([number.high + SMALL for number in numbers]) - start + 1
        found = self._optimize.least_squares(
            lambda changes: self._modelled(at(changes), measured, effort).values / errors,
            np.clip(np.ones(len(start)), lows + 1e-6, highs - 1e-6),
            bounds=(lows, highs),
            diff_step=STEP / effort,
            loss="soft_l1",
            max_nfev=rounds,
            xtol=1e-3,
            ftol=1e-3,
        )
        return float(found.cost), at(found.x)

    def _cost(self, profile: Profile, measured: Sequence[Measurement], effort: int = 1) -> float:
        """The sum of squared differences, large ones linear, as `_least` has it."""
        values = self._modelled(profile, measured, effort).values
        return float((np.sqrt(1 + (values / TYPICAL_ERROR) ** 2) - 1).sum())

    def _modelled(
        self, profile: Profile, measured: Sequence[Measurement], effort: int
    ) -> _Differences:
        """Differences of reads, then of writes: those of reads stay while only writes change."""
        reads = [each for each in measured if each.job.reads == 1]
        writes = [each for each in measured if each.job.reads < 1]
        unwritten = replace(
            profile,
            write_command_ns=0,
            write_page_ns=0,
            program_ns=(1,),
            buffer_bytes=0,
            suspend_ns=-1,
        )
        key = unwritten, effort, [each.job for each in reads]
        before, read = self._read
        if read is None or before != key:
            read = _differences(compare(profile, reads, effort * self._samples))
            self._read = key, read
        written = _differences(compare(profile, writes, effort * self._samples))
        return _Differences(*map(np.concatenate, zip(read, written, strict=True)))
