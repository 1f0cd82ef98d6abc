"""All benchmarks, one after another, as `potash bench all` and docs/bench.md have them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from potash.bench import report
from potash.bench.report import Machine, Result
from potash.programs.examples import examples_folder
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


class Settings(NamedTuple):
    """The settings of all benchmarks, as far as one has them."""

    pairs: int
    seconds: float
    mirror: str | None
    left_out: Callable[[str], None]
    """Is given the reason why something is not measured."""


Measure = Callable[[Settings, Progress], Iterator[Result]]


def _start(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import starting

    return starting.measure(starting.NAMES, settings.pairs, progress)


def _nvme(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import generator

    return generator.measure(generator.NAMES, settings.pairs, settings.seconds, progress)


def _nvme_guest(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import guest
    from potash.vm import images

    found = images.prepare(progress, mirror=settings.mirror)
    return guest.measure(found, guest.NAMES, settings.pairs, settings.seconds, progress)


def _cp(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import computational

    return computational.measure(computational.NAMES, settings.pairs, settings.seconds, progress)


def _bpf(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import programs

    include = examples_folder() / "include"
    return programs.measure(programs.NAMES, include, settings.pairs, progress)


def _vta(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import vta

    return vta.measure(vta.NAMES, settings.pairs, progress)


def _models(threads: int) -> Measure:
    def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
        from potash.bench import models

        names, folder = (*models.NAMES, *models.PUBLIC), examples_folder()
        return models.measure(names, folder, settings.pairs, progress, settings.left_out, threads)

    return measure


def _drive(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import drive_time

    return drive_time.measure(drive_time.NAMES, settings.pairs, progress)


def _fleet(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import fleet

    return fleet.measure(fleet.NAMES, settings.pairs, progress)


def _columns(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import tables

    return tables.measure(tables.NAMES, settings.pairs, progress)


def _columns_guest(settings: Settings, progress: Progress) -> Iterator[Result]:
    from potash.bench import tables
    from potash.vm import images

    found = images.prepare(progress, mirror=settings.mirror)
    return tables.measure_in_guest(found, tables.NAMES, settings.pairs, progress)


BENCHMARKS: Mapping[str, Measure] = {
    "start": _start,
    "nvme": _nvme,
    "nvme --guest": _nvme_guest,
    "cp": _cp,
    "bpf": _bpf,
    "vta": _vta,
    "model": _models(1),
    "model --threads 2": _models(2),
    "drive": _drive,
    "fleet": _fleet,
    "columns": _columns,
    "columns --guest": _columns_guest,
}
"""All of them by the rest of their commands. Each imports what it needs when it runs."""


def measure(names: Sequence[str], settings: Settings, progress: Progress) -> Figures:
    """Measure what is named. A benchmark that cannot run is left out, with the reason."""
    found = []
    for name in names:
        try:
            found.append(
                Benchmark(
                    name,
                    f"potash bench {name}",
                    list(BENCHMARKS[name](settings, _within(name, names, progress))),
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
