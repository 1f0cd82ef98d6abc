"""Results of benchmarks, as JSON and as tables.

Other processes and changes of the clock rate affect measurements. So the subject and its baseline
run alternately, each pair of measurements gives one ratio, and the report has the median, the
lowest and the highest ratio.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from csd_spec.reporting import Positive
from potash.tables import columns

PAIRS, SECONDS = 8, 1.5
WINDOW = 0.02
"""Seconds that a measurement takes at least."""


class Settings(NamedTuple):
    """The settings of benchmarks; each has those that apply to it."""

    names: Sequence[str]
    """Names of what is measured, of the module's `NAMES`."""
    left_out: Callable[[str], None]
    """Called with the reason why something is not measured."""
    pairs: int = PAIRS
    """Number of measurements, and as many of a baseline."""
    seconds: float = SECONDS
    """Length of a measurement of load."""
    debian_mirror: str | None = None
    guest: bool = False
    """Commands in a guest are measured."""
    threads: int = 1
    """Threads of the tensor accelerator's simulator, and of its baseline."""


class Baseline(NamedTuple):
    """The baseline, and the median of what was measured of it."""

    name: Annotated[str, "The baseline's name."]
    value: Annotated[float, "The median of the baseline's measurements."]


class Result(NamedTuple):
    """One figure of one workload.

    `value` is the median; `ratio` the median of the pairs' ratios, Potash's over the baseline's;
    `spread` the lowest and the highest of those ratios, or of the values where there is no
    baseline.
    """

    name: Annotated[str, "The workload."]
    metric: Annotated[str, "The measured quantity."]
    value: Annotated[float, "The median of the measurements."]
    unit: Annotated[str, "Unit of `value`."]
    baseline: Annotated[Baseline | None, "The baseline; null if there is none."]
    ratio: Annotated[float | None, "The median of the pairs' ratios to the baseline."]
    pairs: Annotated[Positive, "Number of measurements; of the baseline as many, if there is one."]
    spread: Annotated[
        tuple[float, float],
        "The lowest and the highest of the ratios; of the values if there is no baseline.",
    ]


class Machine(NamedTuple):
    """The machine that figures were measured on."""

    processor: Annotated[str, "The processor's model."]
    processors: Annotated[int | None, "Number of processors."]
    system: Annotated[str, "Name and version of the kernel."]
    python: Annotated[str, "Version of Python."]


class Report(NamedTuple):
    """Results of a benchmark, and the machine on which it ran."""

    machine: Annotated[Machine, "The machine that ran the benchmark."]
    results: Annotated[Sequence[Result], "One for each workload and metric."]


def paired(
    name: str, metric: str, unit: str, baseline: str, pairs: Sequence[tuple[float, float]]
) -> Result:
    """The result of `pairs` of neighbouring measurements, Potash's and the baseline's."""
    ratios = [potash / baseline_value for potash, baseline_value in pairs]
    return Result(
        name,
        metric,
        statistics.median(potash for potash, _ in pairs),
        unit,
        Baseline(baseline, statistics.median(baseline_value for _, baseline_value in pairs)),
        statistics.median(ratios),
        len(pairs),
        (min(ratios), max(ratios)),
    )


def alone(name: str, metric: str, unit: str, values: Sequence[float]) -> Result:
    """The result of measurements that have no baseline."""
    median = statistics.median(values)
    return Result(name, metric, median, unit, None, None, len(values), (min(values), max(values)))


def once(run: Callable[[], object]) -> float:
    """Seconds of a run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def median(run: Callable[[], object]) -> float:
    """The median of the seconds of as many runs as fit into a window, after one that warms up."""
    run()
    until = time.perf_counter() + WINDOW
    times = [once(run)]
    while time.perf_counter() < until:
        times.append(once(run))
    return statistics.median(times)


def machine() -> Machine:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return Machine(
        processor=models[0] if models else platform.processor(),
        processors=len(models) or None,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def document(results: Iterable[Result]) -> Report:
    """The document that `--json` prints."""
    return Report(machine(), list(results))


def table(results: Sequence[Result]) -> list[str]:
    """The results as text."""
    heads = ("", "metric", "unit", "value", "baseline", "ratio", "lowest", "highest", "pairs")
    rows = [
        (
            result.name,
            result.metric,
            result.unit,
            _figure(result.value),
            _figure(result.baseline.value) if result.baseline else "",
            f"{result.ratio:.2f}" if result.ratio is not None else "",
            *(f"{end:.2f}" if result.baseline else _figure(end) for end in result.spread),
            str(result.pairs),
        )
        for result in results
    ]
    return columns([heads, *rows], "<<<>")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
