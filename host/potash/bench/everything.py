"""All benchmarks, one after another, as `potash bench all` and docs/bench.md have them."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from potash.bench import report
from potash.bench.report import Machine, Result, Settings
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress


class Benchmark(NamedTuple):
    """The results of one benchmark."""

    name: Annotated[str, "The benchmark's name."]
    command: Annotated[str, "The command that measures it alone."]
    results: Annotated[Sequence[Result], "One for each workload and metric."]


class Figures(NamedTuple):
    """Results of all benchmarks, and the machine on which they ran."""

    machine: Annotated[Machine, "The machine that ran the benchmarks."]
    benchmarks: Annotated[Sequence[Benchmark], "The benchmarks that could be run."]


Measure = Callable[[Settings, Progress], Iterator[Result]]


def load(module: str) -> Any:
    """A module of this package, which has `NAMES` and `measure`, and may have `OFFERED`, all names
    that can be measured, and `DEFAULT`, those that are. It is imported when it is needed."""
    return importlib.import_module(f"potash.bench.{module}")


def _by(module: str, **changes: Any) -> Measure:
    """A benchmark of a module with further settings."""

    def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
        found = load(module)
        names = getattr(found, "DEFAULT", found.NAMES)
        results: Iterator[Result] = found.measure(
            settings._replace(names=names, **changes), progress
        )
        return results

    return measure


BENCHMARKS: Mapping[str, Measure] = {
    "start": _by("starting"),
    "nvme": _by("generator"),
    "nvme --guest": _by("guest"),
    "cp": _by("computational"),
    "bpf": _by("programs"),
    "vta": _by("vta"),
    "model": _by("models"),
    "model --threads 2": _by("models", threads=2),
    "drive": _by("drive_time"),
    "fleet": _by("fleet"),
    "columns": _by("tables"),
    "columns --guest": _by("tables", guest=True),
}
"""All of them by the rest of their commands."""


def measure(settings: Settings, progress: Progress) -> Figures:
    """Measure the benchmarks that are named. One that cannot run is left out, with the reason."""
    found = []
    for name in settings.names:
        try:
            found.append(
                Benchmark(
                    name,
                    f"potash bench {name}",
                    list(BENCHMARKS[name](settings, _within(name, settings.names, progress))),
                )
            )
        except (PotashError, ModuleNotFoundError) as error:
            settings.left_out(f"{name} is left out: {error}")
    return Figures(report.machine(), found)


def _within(name: str, names: Sequence[str], progress: Progress) -> Progress:
    """The progress of one of several benchmarks."""

    def shown(label: str, share: float | None = None) -> None:
        whole = None if share is None else (names.index(name) + share) / len(names)
        progress(f"{name}: {label}", whole)

    return shown


def table(figures: Figures) -> list[str]:
    """The figures as text."""
    lines = []
    for benchmark in figures.benchmarks:
        lines += ["", benchmark.command, *report.table(benchmark.results)]
    return lines[1:]
