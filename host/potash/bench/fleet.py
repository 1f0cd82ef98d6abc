"""Fleets: a program over the same shards on more and more drives, and what a task costs Dask."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from potash.bench.report import Result, Settings, alone
from potash.fleet import Drive, Fleet, Totals, cluster
from potash.programs.examples import Example
from potash.sdk import INPUT_LENGTH
from potash.sdk.accelerator import Argument
from potash.sdk.progress import Progress

SHARDS = 8
COPIES = 8
"""Number of copies of the example's log in a shard."""
TASKS = 1000
DRIVES = (1, 2, 4, 8)
NAMES = (*(f"grep-{count}" for count in DRIVES), "task", "fleet-1000")
LARGE = 1000
"""Drives of the fleet that is calculated."""


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure the named ones of NAMES; `fleet-1000` is calculated from the cost of a task."""
    names, pairs = settings.names, settings.pairs
    for count in DRIVES:
        if f"grep-{count}" in names:
            progress(f"grep on {count} drives", None)
            yield from _grep(count, pairs)
    if {"task", "fleet-1000"} & set(names):
        progress(f"{TASKS} tasks that do nothing", None)
        cost = alone("task", "time", "µs", [1e6 * one for one in _tasks(pairs)])
        if "task" in names:
            yield cost
        if "fleet-1000" in names:
            # Below this, jobs of as many drives end faster than the scheduler sends new ones.
            shortest = [LARGE * one / 1e6 for one in (cost.value, *cost.spread)]
            yield alone("fleet-1000", "shortest job that keeps all drives busy", "s", shortest)


def _grep(count: int, pairs: int) -> Iterator[Result]:
    example = Example.load("grep")
    args: list[Argument] = [INPUT_LENGTH, example.arguments[1]]
    drives = [Drive(f"d{at}", size=f"{4 + SHARDS * COPIES * 2}M") for at in range(count)]
    with tempfile.TemporaryDirectory(prefix="potash-") as folder, Fleet(drives) as fleet:
        paths = [Path(folder) / f"part-{at}" for at in range(SHARDS)]
        for path in paths:
            path.write_bytes(example.input * COPIES)
        fleet.put("logs", paths)
        seconds = []
        for warm in (True, *(False for _ in range(pairs))):
            began = time.perf_counter()
            totals = Totals()
            with contextlib.closing(fleet.map(example.program, "logs", args)) as results:
                for result in results:
                    totals.add(result)
            if not warm:
                seconds.append(time.perf_counter() - began)
    yield alone(f"grep-{count}", "time", "s", seconds)
    yield alone(f"grep-{count}", "moved", "bytes", [totals.moved])
    yield alone(f"grep-{count}", "held", "bytes", [totals.held])


def _tasks(pairs: int) -> Iterator[float]:
    """Seconds of client, scheduler and worker, all in this process, for a task."""
    with cluster.within(1) as client:
        for _ in range(pairs):
            began = time.perf_counter()
            futures = client.map(abs, range(TASKS), pure=False)
            for _at, future in cluster.completed(client, futures):
                future.result()
            yield (time.perf_counter() - began) / TASKS
