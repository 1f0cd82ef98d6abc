"""The check of lab 3: the write amplification of a small drive, by a skewed and a uniform load."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potash import timing
from potash.ftl import FtlError, PageMapped

SPARE, HOT, SHARE = 0.12, 0.1, 0.9
"""The spare flash; nine of ten writes of the skewed load go to a tenth of the pages."""
MOST_SKEWED, MOST_UNIFORM = 6.0, 9.0
"""Write amplification; a greedy collector has 7.6 and 8.5."""

Numbers = NDArray[np.int64]


def small() -> timing.Profile:
    """64 superblocks of 64 pages."""
    capacity = int(64 * 64 * (1 - SPARE)) * 4096
    femu = timing.profile("femu")
    return replace(
        femu, channels=2, dies=2, blocks=64, pages=16, capacity=capacity, reserve=3, background=0
    )


def amplification(drive: PageMapped, pages: Callable[[int, int], Numbers]) -> float:
    """In the steady state, of writes to `pages(capacity, count)`."""
    capacity = drive.profile.logical_pages

    def write(numbers: Numbers) -> None:
        requests = np.zeros(len(numbers), timing.REQUEST)
        requests["time"], requests["op"], requests["count"] = drive.now, timing.Op.WRITE, 1
        requests["first"] = numbers
        drive.run(requests)

    write(np.arange(capacity))
    write(pages(capacity, 3 * capacity))
    before = drive.counters
    write(pages(capacity, 3 * capacity))
    return float(drive.counters.since(before).write_amplification)


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    random = np.random.default_rng(1)

    def uniform(capacity: int, count: int) -> Numbers:
        return random.integers(0, capacity, count)

    def skewed(capacity: int, count: int) -> Numbers:
        hot = int(capacity * HOT)
        cold = random.integers(hot, capacity, count)
        return np.where(random.random(count) < SHARE, random.integers(0, hot, count), cold)

    problems = []
    for name, load, most in (("skewed", skewed, MOST_SKEWED), ("uniform", uniform, MOST_UNIFORM)):
        try:
            found = amplification(made["Mine"](small()), load)
        except FtlError as error:
            return [str(error)]
        if found > most:
            problems.append(
                f"{name} writes have a write amplification of {found:.2f}; {most} is the most"
            )
    return problems
