"""`potash bench`: how fast it is, against baselines."""

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import click

from potash.bench import computational as computational_bench
from potash.bench import guest as guest_bench
from potash.bench import programs as program_bench
from potash.bench import socket as socket_bench
from potash.bench.report import Report, document, table
from potash.cli.device.mirror import mirror_option
from potash.cli.drive.common import json_option, say
from potash.cli.progress import showing
from potash.programs.examples import examples_folder
from potash.vm import images

PAIRS = 8
SECONDS = 1.5

_only = click.option(
    "--only",
    "patterns",
    multiple=True,
    metavar="NAME",
    help="Measure only what is called so, * standing for anything; may be given several times.",
)


def _pairs(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--pairs", type=click.IntRange(1), default=PAIRS, show_default=True, help=help
    )


@click.group()
def bench() -> None:
    """Measure how fast the device is, against a baseline where there is one."""


_seconds = click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    default=SECONDS,
    show_default=True,
    help="Length of one measurement.",
)


@bench.command()
@click.option("--guest", is_flag=True, help="In a Linux guest, beside QEMU's own NVMe drive.")
@_only
@_pairs("Measurements of each drive, in turn.")
@_seconds
@mirror_option
@json_option(Report)
def nvme(
    guest: bool,
    patterns: tuple[str, ...],
    pairs: int,
    seconds: float,
    debian_mirror: str | None,
) -> None:
    """Measure the drive's reads and writes.

    Without --guest, a load generator drives the device over its socket; copies of as many bytes
    from memory to memory in plain Python are the baseline. With two queues, a name that ends in
    -2q, each has the depth. Reads and writes of a memory namespace have reads of blocks of the same
    drive as their baseline, at the same depth.

    With --guest, fio runs in one Linux guest on Potash's drive and on QEMU's own in turn. A ratio
    is Potash's figure over the baseline's, the median of the pairs, with the lowest and the
    highest. A name that ends in -cpu2 is of a guest with two processors, each of which runs the
    load.
    """
    chosen = _chosen(patterns, guest_bench.NAMES if guest else socket_bench.NAMES)
    with showing(steps=True) as progress:
        if guest:
            found = images.prepare(progress, mirror=debian_mirror)
            results = list(guest_bench.measure(found, chosen, pairs, seconds, progress))
        else:
            results = list(socket_bench.measure(chosen, pairs, seconds, progress))
    say(document(results), table(results), indent=2)


@bench.command()
@_only
@_pairs("Measurements of each load.")
@_seconds
@json_option(Report)
def cp(patterns: tuple[str, ...], pairs: int, seconds: float) -> None:
    """Measure executions of a program that returns at once, over the device's socket.

    Latency is the median time from the doorbell to the completion; a name with -ranges- is of a
    program with two memory ranges.
    """
    chosen = _chosen(patterns, computational_bench.NAMES)
    with showing(steps=True) as progress:
        results = list(computational_bench.measure(chosen, pairs, seconds, progress))
    say(document(results), table(results), indent=2)


@bench.command()
@_only
@_pairs("Measurements of each stream and of its baseline, in turn.")
@json_option(Report)
def vta(patterns: tuple[str, ...], pairs: int) -> None:
    """Measure the tensor accelerator's simulator.

    Convolutions of ResNet-18, a matrix product and an addition run as streams in one thread. The
    baseline of a throughput is a loop of nothing but the processor's best instruction for it, so
    the ratio is a share of what could be had; `layers` is those shares' geometric mean. What ends
    in
    -avx2 is as on a processor that has nothing better. `decoding` is what the first run takes
    longer than another one, `start` what a process takes from nothing to its first result.
    """
    from potash.bench import vta as vta_bench  # brings numba

    chosen = _chosen(patterns, vta_bench.NAMES)
    with showing(steps=True) as progress:
        results = list(vta_bench.measure(chosen, pairs, progress))
    say(document(results), table(results), indent=2)


@bench.command()
@_only
@_pairs("Runs of each program and of its native form, which take turns.")
@json_option(Report)
def bpf(patterns: tuple[str, ...], pairs: int) -> None:
    """Measure programs, beside the same C compiled for this machine.

    Each program works on 16 MiB, with its bounds checks and its instruction limit. The baseline is
    what clang -O2 makes of the same source for the machine itself, or ziglang's clang where there
    is no other; a ratio is Potash's time over the baseline's. Also measured: compiling a program,
    loading a compiled one from the cache, and a helper's call.
    """
    chosen = _chosen(patterns, program_bench.NAMES)
    with showing(steps=True) as progress:
        folder = examples_folder() / "include"
        results = list(program_bench.measure(chosen, folder, pairs, progress))
    say(document(results), table(results), indent=2)


@bench.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_pairs("Measurements of the delegate and of each of its baselines, in turn.")
@json_option(Report)
def model(names: tuple[str, ...], pairs: int) -> None:
    """Measure models through the delegate, beside TensorFlow Lite's own kernels.

    NAME is one of `potash model make`'s networks, digits, or callback, * standing for anything: all
    by default. One thread, warm. The baselines are XNNPACK and the reference
    kernels, whose bytes the delegate has to give; a ratio is Potash's time over the baseline's.

    `cycles` and `modelled time` are the tensor accelerator's own, at 100 MHz as on the paper's
    board. `besides the streams` is what an inference takes here without them: callbacks, packing,
    and nodes left to the processor; `callback` is the same for a model that has nothing to compute.
    Of resnet18 there is the breakdown of the paper's figure 16 too.
    """
    from potash.bench import models as model_bench  # brings numba and TensorFlow Lite

    chosen = _chosen(names, model_bench.NAMES)
    with showing(steps=True) as progress:
        results = list(model_bench.measure(chosen, examples_folder(), pairs, progress))
    say(document(results), table(results), indent=2)


def _chosen(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that match any of the patterns, all of them when there is none."""
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise click.UsageError(f"nothing is called {pattern!r}; there is {', '.join(names)}")
    return [
        name
        for name in names
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
