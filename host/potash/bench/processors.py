"""Processor time of processes and threads, followed while something runs.

Source: proc(5), `/proc/pid/stat` (utime, stime), `/proc/pid/task/tid/schedstat` and `children`.
"""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

INTERVAL = 0.05
"""Seconds between two samples."""

_TICK = os.sysconf("SC_CLK_TCK")
RESOLUTION = 1 / _TICK
"""Seconds by which the processor time of a process grows."""
_UTIME = 11
"""Index of utime among the fields behind the process's name; stime is the next one."""

Meter = Callable[[], float]
"""Gives the processor time used so far, in seconds."""


def process_time(pid: int) -> float:
    """Seconds that a process has used, threads that have ended included."""
    with open(f"/proc/{pid}/stat") as stream:
        fields = stream.read().rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_UTIME + 1])) / _TICK


def family_time(pid: int) -> float:
    """Seconds that a process and those that descend from it have used, as far as they live."""
    used = process_time(pid)
    for child in children(pid):
        with suppress(OSError):  # it has ended meanwhile
            used += family_time(child)
    return used


def children(pid: int) -> Iterator[int]:
    """The processes that a process has started. Raises OSError for one that has ended."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        yield from map(int, path.read_text().split())


def family(pid: int) -> Iterator[int]:
    """A process, and those that descend from it."""
    yield pid
    with suppress(OSError):
        for child in children(pid):
            yield from family(child)


def thread_time(pid: int, tid: int) -> float:
    """Seconds that one thread of a process has used."""
    with open(f"/proc/{pid}/task/{tid}/schedstat") as stream:
        return int(stream.read().split()[0]) / 1e9


class _Sample(NamedTuple):
    at: float
    used: dict[str, float]


class Followed:
    """Looks at meters again and again while the block lasts; a context manager."""

    def __init__(self, meters: Mapping[str, Meter]) -> None:
        self._meters = dict(meters)
        self._samples: list[_Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="meters", daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    def between(self, start: float, end: float) -> dict[str, float]:
        """Seconds used from `start` to `end`, both seconds since the epoch, by each meter."""
        before, after = self._at(start), self._at(end)
        return {name: after[name] - before[name] for name in self._meters}

    def _follow(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._sample()

    def _sample(self) -> None:
        used = {name: meter() for name, meter in self._meters.items()}
        self._samples.append(_Sample(time.time(), used))

    def _at(self, moment: float) -> dict[str, float]:
        """Processor time used up to a moment, interpolated between the samples around it."""
        at = bisect_left(self._samples, moment, key=lambda sample: sample.at)
        at = min(max(at, 1), len(self._samples) - 1)
        left, right = self._samples[at - 1], self._samples[at]
        part = min(max((moment - left.at) / max(right.at - left.at, 1e-9), 0.0), 1.0)
        return {
            name: left.used[name] + part * (right.used[name] - left.used[name])
            for name in self._meters
        }
