"""`potash bench`: how fast it is, against baselines."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from potash.bench import everything
from potash.bench.report import PAIRS, SECONDS, Report, Settings, document, table
from potash.cli.device.mirror import mirror_option
from potash.cli.drive.common import Decorator, json_option, say, together
from potash.cli.progress import showing
from potash.sdk.errors import PotashError
from potash.sections import MOST_THREADS
from potash.units import Real

_only = click.option(
    "--only",
    "patterns",
    multiple=True,
    metavar="NAME",
    help="Measure only this; * matches anything. May be repeated.",
)


@click.group()
def bench() -> None:
    """Measure the performance of the device, compared with a baseline if there is one."""


def _benchmark(pairs: str, *options: Decorator, first: Sequence[Decorator] = ()) -> Decorator:
    """A command that measures; `pairs` describes `--pairs`."""
    return together(
        bench.command(),
        *first,
        _only,
        click.option("--pairs", type=click.IntRange(1), default=PAIRS, help=pairs),
        *options,
        json_option(Report),
    )


_guest = click.option(
    "--guest", is_flag=True, help="Measure in a Linux guest, compared with QEMU's own NVMe drive."
)
_seconds = click.option(
    "--seconds", type=Real(0.1, 600), default=SECONDS, help="Length of one measurement."
)


@_benchmark(
    "Number of measurements of each drive.",
    _seconds,
    mirror_option,
    first=[_guest],
)
def nvme(guest: bool, patterns: tuple[str, ...], **options: Any) -> None:
    """Measure the drive's reads and writes.

    Without --guest, a load generator accesses the device over its socket. The baseline is a copy of
    as many bytes in memory by plain Python; for reads and writes of a memory namespace, it is reads
    of blocks at the same depth. Names that end in -2q have two queues, each of that depth; those in
    -sgl have one SGL data block for each command, instead of PRPs. Names that begin with modelled-
    are of drives whose time is modelled, and the baseline is a drive whose time is not.

    With --guest, fio runs in one Linux guest on Potash's drive and on QEMU's own alternately. A
    ratio is Potash's value divided by the baseline's: the median of the pairs, the lowest and the
    highest. For names that end in -cpu2, the guest has two processors, and each runs the load.
    """
    _measure("guest" if guest else "generator", patterns, **options)


@_benchmark("Number of measurements of each load.", _seconds)
def cp(patterns: tuple[str, ...], **options: Any) -> None:
    """Measure executions of a program in a compute namespace.

    The program returns immediately. Latency is the median time from the doorbell to the completion.
    Programs whose name contains -ranges- have two memory ranges.
    """
    _measure("computational", patterns, **options)


@_benchmark("Number of measurements of each stream and of its baseline.")
def vta(patterns: tuple[str, ...], **options: Any) -> None:
    """Measure the tensor accelerator's simulator.

    Convolutions of ResNet-18, a matrix product and an addition run as streams in one thread. The
    baseline is a loop that contains only the processor's best instruction for the purpose, so the
    ratio is a share of the peak rate; `layers` is the geometric mean of these shares. Names that
    end in -avx2 use no better instructions than AVX2. `decoding` is the additional time of a
    stream's first run, `start` the time from the start of a process to its first result.
    """
    _measure("vta", patterns, **options)


@_benchmark("Number of measurements of each program and of its baseline.")
def bpf(patterns: tuple[str, ...], **options: Any) -> None:
    """Measure programs, compared with the same C on this machine.

    Each program processes 16 MiB, with bounds checks and an instruction limit. The baseline is the
    same source, compiled for this machine by clang -O2 (that of ziglang if there is no other). A
    ratio is Potash's time divided by the baseline's. Also measured are compiling a program, loading
    a compiled one from the cache, and calling a helper.
    """
    _measure("programs", patterns, **options)


@_benchmark(
    "Number of measurements of the delegate and of each baseline.",
    click.option(
        "--threads",
        type=click.IntRange(1, MOST_THREADS),
        default=1,
        help="Threads of the tensor accelerator's simulator, and of XNNPACK.",
    ),
)
def model(patterns: tuple[str, ...], **options: Any) -> None:
    """Measure models, compared with TensorFlow Lite's own kernels.

    They run with the delegate. The names are those of `potash model list`, resnet18-c1 to -c12,
    digits and callback. Five public networks are among those that are measured by default; one that
    cannot be downloaded is left out, and the reason is printed. Everything is measured after a
    first run. The baselines are XNNPACK and the reference kernels, to which the delegate must be
    bit-identical. A ratio is Potash's time divided by the baseline's.

    `cycles` and `modelled time` are those of the tensor accelerator, at 100 MHz as on the paper's
    board. `besides the streams` is the time of an inference without the accelerator: callbacks,
    packing, and nodes that are left to the processor. `callback` measures the same for a model that
    computes almost nothing. For resnet18, the breakdown of the paper's figure 16 is reported, too.
    """
    _measure("models", patterns, **options)


@_benchmark("Number of measurements of each speed.")
def drive(patterns: tuple[str, ...], **options: Any) -> None:
    """Measure the timing model of flash, and the effect of placement.

    `trace-reading` and `simulate` read a trace and run it against the `tlc` drive, in requests per
    second of wall time. The baseline of `placement` is the same drive without it.
    """
    _measure("drive_time", patterns, **options)


@_benchmark("Number of measurements of each.")
def fleet(patterns: tuple[str, ...], **options: Any) -> None:
    """Measure a fleet on this machine.

    `grep` searches the same eight shards on 1, 2, 4 and 8 drives. `task` is the time of a task of
    Dask that does nothing: client, scheduler and worker together, in one process. `fleet-1000` is
    calculated from it: how long a job must be so that the scheduler keeps 1000 drives busy.
    """
    _measure("fleet", patterns, **options)


@_benchmark(
    "Number of measurements of each query and of its baseline.",
    mirror_option,
    first=[
        click.option("--guest", is_flag=True, help="Measure commands in a Linux guest."),
    ],
)
def columns(patterns: tuple[str, ...], **options: Any) -> None:
    """Measure queries of a table on a drive.

    The baseline is a host that reads the whole file from the drive, and then computes the same. The
    query is number 6 of TPC-H, for 1, 10 and 100 % of a million rows.

    With --guest, the time is that of `potash query` for a file of a file system on the drive, and
    the baseline reads this file into the guest's memory, and computes nothing. `time without a
    query` is that of the same command with --explain.
    """
    try:
        _measure("tables", patterns, **options)
    except ModuleNotFoundError as error:
        raise PotashError(f"there is no {error.name}: pip install 'potash[columns]'") from None


@_benchmark("Number of measurements of each.")
def start(patterns: tuple[str, ...], **options: Any) -> None:
    """Measure how long a drive takes to start, and its memory.

    `help` is `potash --help`. `ready` is the time until clients can connect to the drive, once
    everything is compiled; `memory` is the proportional set size of all its processes, which only
    root can read.
    """
    _measure("starting", patterns, **options)


@bench.command("all")
@_only
@click.option("--pairs", type=click.IntRange(1), default=PAIRS, help="As of each benchmark.")
@_seconds
@mirror_option
@json_option(everything.Figures)
def all_(patterns: tuple[str, ...], **options: Any) -> None:
    """Run all benchmarks, which takes most of an hour.

    The names are those of the other commands, with their options, as in --only 'nvme*'. What cannot
    be measured is left out, and the reason is printed.
    """
    names = _chosen(patterns, list(everything.BENCHMARKS))
    with _settings(names, options) as settings, showing(steps=True) as progress:
        figures = everything.measure(settings, progress)
    say(figures, everything.table(figures), indent=2)


def _measure(module: str, patterns: Sequence[str], **options: Any) -> None:
    """Measure what the patterns choose of a module, and print the results."""
    found = everything.load(module)
    patterns = patterns or getattr(found, "DEFAULT", ())
    names = _chosen(patterns, getattr(found, "OFFERED", found.NAMES))
    with _settings(names, options) as settings, showing(steps=True) as progress:
        results = list(found.measure(settings, progress))
    say(document(results), table(results), indent=2)


@contextmanager
def _settings(names: Sequence[str], options: Mapping[str, Any]) -> Iterator[Settings]:
    """The settings of benchmarks; reasons for what they leave out go to standard error at the
    end."""
    left_out: list[str] = []
    yield Settings(names, left_out.append, **options)
    for reason in left_out:
        click.echo(reason, err=True)


def _chosen(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that match any of the patterns, all of them when there is none."""
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise click.UsageError(f"no name matches {pattern!r}; the names are {', '.join(names)}")
    return [
        name
        for name in names
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
