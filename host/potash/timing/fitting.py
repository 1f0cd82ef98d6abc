"""A drive's profile from measurements of it: the one whose modelled latencies agree.

Stage by stage, more of the numbers are fitted to more of the jobs: first the firmware, by requests
that take no flash; then channels, dies and tR, by reads; then tPROG and the write buffer, by
writes; then all of them; and on a drive that was overwritten, the spare flash. Each stage tries out
what has no gradient, such as the number of cores, from closed forms on; SciPy's least squares find
the other numbers. What no measurement shows stays as it is in the base profile.
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
    ALL,
    BUFFER,
    BUS,
    FIRMWARE,
    READS,
    WRITES,
    Number,
    least_buffer,
    program_time,
    with_buffer,
    with_program_time,
)
from potash_device.flash.profile import MOST_PAGES, Profile

CHANNELS = (1, 2, 4, 8, 16, 32)
DIES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Dies of a channel."""
MOST_DIES = 256
CORES = (1, 2, 4, 8, 16)
BUFFERS = (0, *(round(2 ** (shift / 2)) for shift in range(40, 55)))
"""Sizes of write buffers with which the search begins."""
NEAR_VALUES = 9
"""Number of near sizes, rates and tPROG that are tried."""
PROGRAMS = (1.0, 0.5)
"""Parts of the longest possible tPROG with which the search begins."""
SUSPENSIONS = (-1, *(1000 << shift for shift in range(7)))
"""Times of suspension that are tried; the search begins with the first one and with 8 µs."""
SPARES = 1.02, 2.0
"""Limits of the spare flash, as `potash.timing.jobs.spare` has it."""

SAMPLES = 8000
"""Requests of a job that are counted while a profile is searched; three times as many at the end
of the search."""
MANY = 400_000
"""Requests of a job for the result."""
NEAR = 3
"""Variants that are kept by a stage; twice as many are fitted a little."""
ROUNDS = 10
"""Steps of least squares at most; 2 where numbers are fitted a little."""
SMALL = 100.0
"""Numbers much above are fitted by their logarithms."""
STEP = 0.1
"""Change of a number, as a part of it, by which its effect is seen."""
MEAN_ERROR, CLASS_ERROR = 0.003, 0.01
"""Errors of means, and of percentiles by fio's classes, beside the chance of short jobs."""
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
    requests are counted, by default 8000. Raises TimingError if random
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


def _cost(found: _Differences, errors: NDArray[np.float64]) -> float:
    """The sum of squared differences, large ones linear, as SciPy's `soft_l1` has it."""
    return float((np.sqrt(1 + (found.values / errors) ** 2) - 1).sum())


def _had(profile: Profile, numbers: Iterable[Number]) -> list[Number]:
    """The numbers without those that a drive does not have, such as of suspension."""
    return [number for number in numbers if number.get(profile) >= number.low]


def _with_fields(profiles: Iterable[Profile], other: Profile, *names: str) -> list[Profile]:
    """The profiles with some fields of another one."""
    fields: dict[str, Any] = {name: getattr(other, name) for name in names}
    return [replace(profile, **fields) for profile in profiles]


class _Fit:
    def __init__(self, evidence: Evidence, progress: Progress, samples: int) -> None:
        try:
            self._optimize = importlib.import_module("scipy.optimize")
        except ImportError:
            raise PotashError(
                "this needs the package scipy, which is not installed: pip install 'potash[fit]'"
            ) from None
        self._evidence, self._progress, self._samples = evidence, progress, samples

    def result(self) -> Fitted:
        """The fit, stage by stage."""
        evidence = self._evidence
        numbers: Sequence[Number] = ALL if evidence.writes else READS
        found = self._with_geometry(self._with_firmware(evidence.start()))
        if evidence.writes:
            found = self._with_writes(found)
        found = self._stage("all numbers", found, numbers, evidence.plain)
        found = [self._with_near(profile, 1 / 16) for profile in found]
        # More requests tell drives that differ little.
        profile = self._ranked(found, evidence.plain, 3)[0]
        errors = self._modelled(profile, evidence.plain, 3).errors
        _, profile = self._least(profile, numbers, evidence.plain, errors, ROUNDS, 3)
        profile = self._with_near(profile, 1 / 16)
        numbers = _had(profile, (*numbers, BUFFER) if evidence.writes else numbers)
        profile, kept = self._with_what_shows(profile, numbers)
        profile = self._sized(profile)
        if evidence.steady:
            profile = self._with_spare(profile)
        shown = [number.name for number in numbers if number.name not in kept]
        shown = ["read_ns", *(("channels", "dies") if evidence.deep else ()), *shown]
        shown += ["cores"] if evidence.firmware and evidence.base.cores else []
        shown += ["capacity"] if evidence.steady else []
        return Fitted(profile, shown, kept, compare(profile, evidence.all, MANY))

    def _with_firmware(self, start: Profile) -> list[Profile]:
        """Drives with cores and times of commands that requests show which take no flash."""
        evidence = self._evidence
        if not evidence.firmware:
            return [start]
        counts = sorted({*CORES, start.cores}) if start.cores else (0,)
        variants = [evidence.with_firmware(start, cores) for cores in counts]
        return self._stage("firmware", variants, FIRMWARE, evidence.firmware)

    def _with_geometry(self, profiles: Sequence[Profile]) -> list[Profile]:
        """Drives with channels and dies that reads allow; the others have those of the best."""
        evidence, first = self._evidence, profiles[0]
        pairs = {(first.channels, first.dies)}
        if evidence.deep:
            pairs |= {
                (channels, dies)
                for channels in CHANNELS
                for dies in DIES
                if channels * dies <= MOST_DIES
            }
        variants = [replace(first, channels=pair[0], dies=pair[1]) for pair in sorted(pairs)]
        numbers = (BUS,) if evidence.firmware else READS
        found = self._stage("channels and dies", variants, numbers, evidence.reads)
        return found + _with_fields(profiles[1:], found[0], "channels", "dies")

    def _with_writes(self, profiles: Sequence[Profile]) -> list[Profile]:
        """Drives with tPROG, a write buffer, and with or without suspension; likewise."""
        evidence, first = self._evidence, profiles[0]
        variants = [
            evidence.with_program_time(
                replace(first, buffer_bytes=size, suspend_ns=suspension), part
            )
            for size in BUFFERS
            if not size or size >= least_buffer(first)
            for suspension in (SUSPENSIONS[0], 8000)
            for part in PROGRAMS
        ]
        found = self._stage("writes", variants, WRITES, evidence.writes)
        found = [self._with_near(profile, 1 / 2) for profile in found]
        same = "program_ns", "buffer_bytes", "suspend_ns"
        return found + _with_fields(profiles[1:], found[0], *same)

    def _with_near(self, profile: Profile, octaves: float) -> Profile:
        """The drive with the best of near rates of channels, sizes of the buffer, times of
        suspension, and tPROG, one after the other. Least squares stop at them: latencies of large
        reads and full buffers jump, depend weakly on suspension, and have an edge at the longest
        tPROG with which programming is fast enough."""
        evidence, writes = self._evidence, self._evidence.writes
        factors = 2.0 ** np.linspace(-octaves, octaves, NEAR_VALUES)
        variants = [BUS.set(profile, BUS.get(profile) * factor) for factor in factors]
        variants = [profile, *map(evidence.with_read_times, variants)]
        profile = self._ranked(variants, evidence.reads)[0]
        if not writes:
            return profile
        if size := profile.buffer_bytes:
            variants = [with_buffer(profile, size * factor) for factor in factors]
            profile = self._ranked([profile, *variants], writes)[0]
        variants = [replace(profile, suspend_ns=suspension) for suspension in SUSPENSIONS]
        profile = self._ranked([profile, *variants], writes)[0]
        mean = program_time(profile)
        variants = [with_program_time(profile, mean * factor) for factor in factors]
        return self._ranked([profile, *variants], writes)[0]

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
        steady = self._evidence.steady
        errors = self._modelled(profile, steady).errors

        def at(part: float) -> Profile:
            return replace(profile, capacity=capacity(profile, part))

        def cost(part: float) -> float:
            self._progress("fitting the spare flash", None)
            return _cost(self._modelled(at(part), steady), errors)

        options = {"xatol": 0.003, "maxiter": 16}
        found = self._optimize.minimize_scalar(
            cost, bounds=SPARES, method="bounded", options=options
        )
        return at(found.x)

    def _stage(
        self,
        name: str,
        variants: Sequence[Profile],
        numbers: Sequence[Number],
        measured: Sequence[Measurement],
    ) -> list[Profile]:
        """The variants that agree best once their numbers are fitted, and others nearly as well:
        more of them a little, then these to the end."""
        found = self._ranked(variants, measured)[: 2 * NEAR]
        errors = self._modelled(found[0], measured).errors
        for left, factor in ((2, 3.0), (ROUNDS, 1.5)):
            fitted = list[tuple[float, Profile]]()
            for at, profile in enumerate(found):
                self._progress(f"fitting {name}", at / len(found))
                fitted.append(self._least(profile, numbers, measured, errors, left))
            fitted.sort(key=lambda pair: pair[0])
            most = factor * fitted[0][0] + 5
            found = [profile for cost, profile in fitted[:NEAR] if cost <= most]
        return found

    def _ranked(
        self, variants: Sequence[Profile], measured: Sequence[Measurement], effort: int = 1
    ) -> list[Profile]:
        """The variants, from the one that agrees best on."""
        found = [self._modelled(profile, measured, effort) for profile in variants]
        costs = [_cost(each, found[0].errors) for each in found]
        pairs = sorted(zip(costs, variants, strict=True), key=lambda pair: pair[0])
        return [profile for _, profile in pairs]

    def _least(
        self,
        profile: Profile,
        numbers: Sequence[Number],
        measured: Sequence[Measurement],
        errors: NDArray[np.float64],
        rounds: int,
        effort: int = 1,
    ) -> tuple[float, Profile]:
        """Least squares from a profile on: the sum that is left, and the profile."""
        numbers = _had(profile, numbers)
        start = np.log([number.get(profile) + SMALL for number in numbers])

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

    def _modelled(
        self, profile: Profile, measured: Sequence[Measurement], effort: int = 1
    ) -> _Differences:
        return _differences(compare(profile, measured, effort * self._samples))
