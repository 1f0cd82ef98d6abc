"""`potash bench`: how fast it is, against baselines."""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence

import click

from potash.bench import computational as computational_bench
from potash.bench import everything, generator, starting
from potash.bench import guest as guest_bench
from potash.bench import programs as program_bench
from potash.bench.report import Report, Result, document, table
from potash.cli.device.mirror import mirror_option
from potash.cli.drive.common import Decorator, json_option, say, together
from potash.cli.progress import showing
from potash.programs.examples import examples_folder
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.sections import MOST_THREADS
from potash.units import Real
from potash.vm import images

PAIRS = 8
SECONDS = 1.5

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
def nvme(
    guest: bool, patterns: tuple[str, ...], pairs: int, seconds: float, debian_mirror: str | None
) -> None:
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
    chosen = _chosen(patterns, guest_bench.NAMES if guest else generator.NAMES)
    with showing(steps=True) as progress:
        if guest:
            found = images.prepare(progress, mirror=debian_mirror)
            results = list(guest_bench.measure(found, chosen, pairs, seconds, progress))
        else:
            results = list(generator.measure(chosen, pairs, seconds, progress))
    say(document(results), table(results), indent=2)


@_benchmark("Number of measurements of each load.", _seconds)
def cp(patterns: tuple[str, ...], pairs: int, seconds: float) -> None:
    """Measure executions of a program in a compute namespace.

    The program returns immediately. Latency is the median time from the doorbell to the completion.
    Programs whose name contains -ranges- have two memory ranges.
    """
    names = _chosen(patterns, computational_bench.NAMES)
    _report(lambda progress: computational_bench.measure(names, pairs, seconds, progress))


@_benchmark("Number of measurements of each stream and of its baseline.")
def vta(patterns: tuple[str, ...], pairs: int) -> None:
    """Measure the tensor accelerator's simulator.

    Convolutions of ResNet-18, a matrix product and an addition run as streams in one thread. The
    baseline is a loop that contains only the processor's best instruction for the purpose, so the
    ratio is a share of the peak rate; `layers` is the geometric mean of these shares. Names that
    end in -avx2 use no better instructions than AVX2. `decoding` is the additional time of a
    stream's first run, `start` the time from the start of a process to its first result.
    """
    from potash.bench import vta as vta_bench  # brings numba

    names = _chosen(patterns, vta_bench.NAMES)
    _report(lambda progress: vta_bench.measure(names, pairs, progress))


@_benchmark("Number of measurements of each program and of its baseline.")
def bpf(patterns: tuple[str, ...], pairs: int) -> None:
    """Measure programs, compared with the same C on this machine.

    Each program processes 16 MiB, with bounds checks and an instruction limit. The baseline is the
    same source, compiled for this machine by clang -O2 (that of ziglang if there is no other). A
    ratio is Potash's time divided by the baseline's. Also measured are compiling a program, loading
    a compiled one from the cache, and calling a helper.
    """
    chosen, folder = _chosen(patterns, program_bench.NAMES), examples_folder() / "include"
    _report(lambda progress: program_bench.measure(chosen, folder, pairs, progress))


@_benchmark(
    "Number of measurements of the delegate and of each baseline.",
    click.option(
        "--threads",
        type=click.IntRange(1, MOST_THREADS),
        default=1,
        help="Threads of the tensor accelerator's simulator, and of XNNPACK.",
    ),
)
def model(patterns: tuple[str, ...], pairs: int, threads: int) -> None:
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
    from potash.bench import models as model_bench  # brings numba and TensorFlow Lite
    from potash.models.public import PUBLIC

    patterns = patterns or (*model_bench.NAMES, *model_bench.PUBLIC)
    chosen = _chosen(patterns, (*model_bench.NAMES, *PUBLIC))
    left_out: list[str] = []
    _report(
        lambda progress: model_bench.measure(
            chosen, examples_folder(), pairs, progress, left_out.append, threads
        ),
        left_out,
    )


@_benchmark("Number of measurements of each speed.")
def drive(patterns: tuple[str, ...], pairs: int) -> None:
    """Measure the timing model of flash, and the effect of placement.

    `trace-reading` and `simulate` read a trace and run it against the `tlc` drive, in requests per
    second of wall time. The baseline of `placement` is the same drive without it.
    """
    from potash.bench import drive_time  # brings numba

    names = _chosen(patterns, drive_time.NAMES)
    _report(lambda progress: drive_time.measure(names, pairs, progress))


@_benchmark("Number of measurements of each.")
def fleet(patterns: tuple[str, ...], pairs: int) -> None:
    """Measure a fleet on this machine.

    `grep` searches the same eight shards on 1, 2, 4 and 8 drives. `task` is the time of a task of
    Dask that does nothing: client, scheduler and worker together, in one process. `fleet-1000` is
    calculated from it: how long a job must be so that the scheduler keeps 1000 drives busy.
    """
    from potash.bench import fleet as fleet_bench

    names = _chosen(patterns, fleet_bench.NAMES)
    _report(lambda progress: fleet_bench.measure(names, pairs, progress))


@_benchmark(
    "Number of measurements of each query and of its baseline.",
    mirror_option,
    first=[
        click.option("--guest", is_flag=True, help="Measure commands in a Linux guest."),
    ],
)
def columns(guest: bool, patterns: tuple[str, ...], pairs: int, debian_mirror: str | None) -> None:
    """Measure queries of a table on a drive.

    The baseline is a host that reads the whole file from the drive, and then computes the same. The
    query is number 6 of TPC-H, for 1, 10 and 100 % of a million rows.

    With --guest, the time is that of `potash query` for a file of a file system on the drive, and
    the baseline reads this file into the guest's memory, and computes nothing. `time without a
    query` is that of the same command with --explain.
    """
    try:
        from potash.bench import tables as table_bench
    except ModuleNotFoundError as error:
        raise PotashError(f"there is no {error.name}: pip install 'potash[columns]'") from None

    names = _chosen(patterns, table_bench.NAMES)

    def measure(progress: Progress) -> Iterator[Result]:
        if guest:
            found = images.prepare(progress, mirror=debian_mirror)
            return table_bench.measure_in_guest(found, names, pairs, progress)
        return table_bench.measure(names, pairs, progress)

    _report(measure)


@_benchmark("Number of measurements of each.")
def start(patterns: tuple[str, ...], pairs: int) -> None:
    """Measure how long a drive takes to start, and its memory.

    `help` is `potash --help`. `ready` is the time until clients can connect to the drive, once
    everything is compiled; `memory` is the proportional set size of all its processes, which only
    root can read.
    """
    names = _chosen(patterns, starting.NAMES)
    _report(lambda progress: starting.measure(names, pairs, progress))


@bench.command("all")
@_only
@click.option("--pairs", type=click.IntRange(1), default=PAIRS, help="As of each benchmark.")
@_seconds
@mirror_option
@json_option(everything.Figures)
def all_(patterns: tuple[str, ...], pairs: int, seconds: float, debian_mirror: str | None) -> None:
    """Run all benchmarks, which takes most of an hour.

    The names are those of the other commands, with their options, as in --only 'nvme*'. What cannot
    be measured is left out, and the reason is printed.
    """
    names = _chosen(patterns, list(everything.BENCHMARKS))
    left_out: list[str] = []
    settings = everything.Settings(pairs, seconds, debian_mirror, left_out.append)
    with showing(steps=True) as progress:
        figures = everything.measure(names, settings, progress)
    for reason in left_out:
        click.echo(reason, err=True)
    say(figures, everything.table(figures), indent=2)


def _report(measure: Callable[[Progress], Iterator[Result]], left_out: Iterable[str] = ()) -> None:
    """Measure and print; what was left out, with the reason, goes to standard error."""
    with showing(steps=True) as progress:
        results = list(measure(progress))
    for reason in left_out:
        click.echo(reason, err=True)
    say(document(results), table(results), indent=2)


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
