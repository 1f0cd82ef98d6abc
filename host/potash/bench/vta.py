"""Throughput of the tensor accelerator's simulator, as a share of the processor's peak rate.

Everything runs in one thread. Each stream runs once first, and its result has to equal numpy's. The
stream and the baseline, a loop of only the processor's best instruction, then run alternately.
"""

import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from potash.bench.report import Result, Settings, alone, median, once, paired
from potash.sdk.errors import PotashError, restated
from potash.sdk.progress import Progress
from potash.vta import scheduled
from potash_device.vta.config import Config
from potash_device.vta.fast import peak
from potash_device.vta.fast.simulator import FastSimulator
from potash_device.vta.isa import Alu, Gemm

START = """
import time
from typing import NamedTuple
started = time.perf_counter()
from potash_device.vta.config import Config
from potash_device.vta.core import Core
core = Core.create(Config.default(), 4096, engine="fast")
core.execute((3).to_bytes(16, "little"))
print(time.perf_counter() - started)
"""
"""A process of its own: from nothing to the end of an empty stream."""


class Load(NamedTuple):
    """A stream, and the path that is forced on the simulator."""

    make: Callable[[], scheduled.Stream]
    path: str | None = None


LOADS: Mapping[str, Load] = {
    **{name: Load(make) for name, make in scheduled.LAYERS.items()},
    **{f"{name}-avx2": Load(make, "avx2") for name, make in scheduled.LAYERS.items()},
    "irregular": Load(scheduled.irregular),
    **{name: Load(make) for name, make in scheduled.SCHEDULED.items()},
}
"""Loads that are measured in operations per second."""
LAYERS = "layers"
ADDITION = "add-200k"
START_NAME = "start"
NAMES = (*LOADS, LAYERS, ADDITION, START_NAME)


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure what is named. Raises PotashError where a stream does not leave what it should."""
    names, pairs = settings.names, settings.pairs
    layers = scheduled.LAYERS if LAYERS in names else ()
    wanted = [name for name in LOADS if name in names or name in layers]
    shares = []
    for done, name in enumerate(wanted):
        progress(name, done / (len(wanted) + 2))
        results = list(_throughput(name, LOADS[name], pairs))
        if name in scheduled.LAYERS and results[0].ratio is not None:
            shares.append(results[0].ratio)
        if name in names:
            yield from results
    if LAYERS in names and shares:
        mean = math.exp(statistics.fmean(map(math.log, shares)))
        yield Result(
            LAYERS, "share of peak", mean, "", None, None, pairs, (min(shares), max(shares))
        )
    if ADDITION in names:
        progress(ADDITION, len(wanted) / (len(wanted) + 2))
        engine, stream = _ready(ADDITION, Load(scheduled.addition))
        times = [median(lambda: engine.execute(stream.code)) * 1e3 for _ in range(pairs)]
        yield alone(ADDITION, "time", "ms", times)
    if START_NAME in names:
        progress(START_NAME, (len(wanted) + 1) / (len(wanted) + 2))
        yield alone(START_NAME, "time", "s", [_start() for _ in range(min(pairs, 3))])


def _throughput(name: str, load: Load, pairs: int) -> Iterator[Result]:
    engine, stream = _ready(name, load)
    operations = 2 * stream.products / 1e9
    windows = []
    for index in range(pairs):
        contenders = [lambda: operations / median(lambda: engine.execute(stream.code)), _peak]
        order = (0, 1) if index % 2 == 0 else (1, 0)
        found = {at: contenders[at]() for at in order}
        windows.append((found[0], found[1]))
    best = peak.best()
    if best is None:
        yield alone(name, "throughput", "GOP/s", [rate for rate, _ in windows])
    else:
        yield paired(name, "throughput", "GOP/s", f"{peak.PEAKS[best].name} alone", windows)
    if name in scheduled.BOUND:
        yield from _shares(name, engine, stream, pairs)
    if load.path is None:
        costs = [_preparation(engine, stream) for _ in range(pairs)]
        yield paired(name, "decoding", "ms", "running twice", costs)


def _shares(
    name: str, engine: FastSimulator, stream: scheduled.Stream, pairs: int
) -> Iterator[Result]:
    """Shares of the time by kind of work, and the useful share of the products of a layer."""
    streams = {
        "all": stream.code,
        "without ALU": scheduled.without(stream, Alu),
        "transfers": scheduled.without(stream, Gemm, Alu),
    }
    shares: dict[str, list[float]] = {"GEMM": [], "ALU": [], "transfers": []}
    for _ in range(pairs):
        times = {what: median(partial(engine.execute, code)) for what, code in streams.items()}
        shares["GEMM"].append((times["without ALU"] - times["transfers"]) / times["all"])
        shares["ALU"].append((times["all"] - times["without ALU"]) / times["all"])
        shares["transfers"].append(times["transfers"] / times["all"])
    for what, values in shares.items():
        yield alone(name, f"share of time in {what}", "", values)
    yield alone(name, "share of products of use", "", [scheduled.of_use(stream)])


def _ready(name: str, load: Load) -> tuple[FastSimulator, scheduled.Stream]:
    """An engine that has run the stream once, and rightly."""
    stream = load.make()
    dram = memoryview(bytearray(stream.image))
    with restated(ValueError, f"{name} cannot be measured"):
        engine = FastSimulator(Config.default(), dram, path=load.path)
    engine.execute(stream.code)
    if dram[stream.output] != stream.expected:
        raise PotashError(f"{name} does not leave what numpy says")
    return engine, stream


def _preparation(engine: FastSimulator, stream: scheduled.Stream) -> tuple[float, float]:
    """Milliseconds that the first run takes longer than another one, and that two of those take."""
    engine.forget()
    first = once(lambda: engine.execute(stream.code))
    again = median(lambda: engine.execute(stream.code))
    return max(first - again, 1e-9) * 1e3, again * 2e3


def _peak() -> float:
    best = peak.best()
    if best is None:
        return math.nan
    count = 20_000
    run = peak.iterations[best]
    return peak.PEAKS[best].operations * count / median(lambda: run(count)) / 1e9


def _start() -> float:
    done = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        raise PotashError("a process cannot load the VTA's fast engine")
    return float(done.stdout)
