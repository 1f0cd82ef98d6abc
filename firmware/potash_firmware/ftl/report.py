"""Reports of a modelled drive: its wear, spare and load, for SMART and for observers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from csd_spec.reporting import INLINE, Amount, Count, Form, Key
from potash_device.flash import state as flash
from potash_device.flash.profile import PAGE, Profile
from potash_firmware.ftl.requests import Counters
from potash_firmware.ftl.state import COUNTERS, DriveState

MOST_CLASSES = 16
"""Maximum number of classes of a histogram."""


class Erased(NamedTuple):
    """A class of the histogram of erases."""

    min: Annotated[Count, "Least number of erases."]
    max: Annotated[Count, "Greatest number of erases."]
    superblocks: Annotated[Count, "Number of superblocks in this class."]


class Spread(NamedTuple):
    """Statistics of the number of erases of superblocks."""

    total: Annotated[Count, "Sum over all superblocks."]
    mean: Annotated[Amount, "The mean."]
    min: Annotated[Count, "The minimum."]
    p50: Annotated[Count, "The median."]
    p90: Annotated[Count, "The 90th percentile."]
    p99: Annotated[Count, "The 99th percentile."]
    max: Annotated[Count, "The maximum."]


class Busy(NamedTuple):
    """Mean shares of time in which resources were busy; above 1 where reservations reach on."""

    dies: float
    buses: float
    link: float
    cores: float


class Wear(NamedTuple):
    """The drive's wear, as SMART reports it."""

    percentage_used: Annotated[
        Count, "Erases as a percentage of those that the profile allows, at most 255, as in SMART."
    ]
    available_spare: Annotated[
        Count, "Percentage of the spare superblocks that are not retired, as in SMART."
    ]
    worn: Annotated[bool, "True if the drive is at its end of life and refuses writes."]
    free: Annotated[Count, "Number of superblocks that are erased and not open."]
    retired: Annotated[Count, "Number of superblocks that are retired."]
    slc: Annotated[Count, "Number of superblocks that are in SLC mode."] = 0
    grown_bad: Annotated[Count, "Number of superblocks of which a program has failed."] = 0


class DriveReport(NamedTuple):
    """A drive at the arrival of its last request; its wear is what commands report."""

    time: int
    """The time of that arrival, in nanoseconds since the drive was at rest."""
    counters: Counters
    """Counters since then."""
    mapped: Annotated[Count, "The host's bytes that are mapped."]
    wear: Annotated[Wear, INLINE]
    spread: Annotated[
        Spread, Form(title="Erases"), Key("erases"), "Statistics of the superblocks' erases."
    ]
    erases: Annotated[
        Sequence[Annotated[Erased, Form(title="EraseClass")]],
        Key("histogram"),
        "Superblocks by their number of erases, in classes of equal width.",
    ]

    @property
    def cache_hits(self) -> float:
        """Share of the accesses to the mapping's cache that hit; 1 where all is in memory."""
        accesses = self.counters.hits + self.counters.misses
        return self.counters.hits / accesses if accesses else 1.0

    def busy(self, profile: Profile, before: DriveReport | None = None) -> Busy:
        """The load since an earlier report, or since the drive was at rest."""
        took = self.counters.since(before.counters) if before else self.counters
        time = max(1, self.time - (before.time if before else 0))
        return Busy(
            took.die_ns / (time * profile.total_dies),
            took.bus_ns / (time * profile.channels),
            took.link_ns / (time * 2),
            took.core_ns / (time * max(1, profile.cores)),
        )


def counters(state: DriveState) -> Counters:
    """The counts of a drive's flash and of its firmware."""
    counts = dict(zip(COUNTERS, state.counters.tolist(), strict=True))
    return Counters(
        **counts, **dict(zip(flash.COUNTERS, state.flash.counters.tolist(), strict=True))
    )


def wear(profile: Profile, erases: int, good: int, free: int, worn: bool) -> Wear:
    """The wear of a drive after so many erases, of which so many superblocks are not retired."""
    spare = profile.superblocks - profile.least_superblocks + 1
    left = max(0, good - profile.least_superblocks + 1)
    used = erases * 100 // (profile.superblocks * max(1, profile.cycles))
    return Wear(
        percentage_used=min(255, used) if profile.cycles else 0,
        available_spare=100 * left // spare,
        worn=worn,
        free=free,
        retired=profile.superblocks - good,
    )


def report(
    time: int, counts: Counters, mapped: int, worn: Wear, erases: NDArray[np.int64]
) -> DriveReport:
    """The report of a drive with so many mapped pages, and the erases of its superblocks."""
    return DriveReport(time, counts, mapped * PAGE, worn, spread(erases), _histogram(erases))


def spread(erases: NDArray[np.int64]) -> Spread:
    """Statistics of the erases of superblocks."""
    p50, p90, p99 = map(int, np.percentile(erases, (50, 90, 99), method="inverted_cdf"))
    ends = int(erases.min()), int(erases.max())
    return Spread(int(erases.sum()), float(erases.mean()), ends[0], p50, p90, p99, ends[1])


def _histogram(erases: NDArray[np.int64]) -> tuple[Erased, ...]:
    least, most = int(erases.min()), int(erases.max())
    width = -(-(most - least + 1) // MOST_CLASSES)
    counts = np.bincount((erases - least) // width).tolist()
    return tuple(
        Erased(least + place * width, least + (place + 1) * width - 1, count)
        for place, count in enumerate(counts)
    )
