"""`potash cp`: programs that a drive runs on its memory namespaces."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import click

from csd_spec.chains import ChainRange, ChainStep, StepFlag
from csd_spec.reporting import Count, Form
from csd_spec.timing import TimingLog
from potash.cli.drive import common
from potash.cli.drive.common import BYTES, NamedRange
from potash.cli.progress import showing
from potash.sdk import Device
from potash.sdk.compute_namespace import EBPF, ComputeNamespace, Program
from potash.sdk.errors import CommandFailed, PotashError
from potash.sdk.memory_namespace import Bytes
from potash.units import Parsed, quadword


class RangeSet(NamedTuple):
    """A memory range set."""

    id: Annotated[Count, "The set's identifier."]
    ranges: Annotated[
        Sequence[Annotated[Bytes, Form(title="Range")]], "The ranges of the set, in order."
    ]


class Programs(NamedTuple):
    """A compute namespace."""

    nsid: Annotated[Count, "The namespace's identifier."]
    programs: Annotated[Sequence[Program], "All programs by ascending index."]
    range_sets: Annotated[Sequence[RangeSet], "All memory range sets."]


class Created(NamedTuple):
    """A memory range set that was created."""

    nsid: Annotated[Count, "The compute namespace's identifier."]
    id: Annotated[Count, "The set's identifier."]


@dataclass(frozen=True)
class Executed:
    """A program that ran to its end."""

    nsid: Annotated[Count, "The compute namespace's identifier."]
    index: Annotated[Count, "The program index."]
    return_value: Annotated[Count, "The program's return value, 64 bits."]
    measured_ns: Annotated[Count, "Time that the command took as this host measured it, in ns."]
    modelled_ns: Annotated[
        Count | None,
        "Modelled time of the program in ns; null without `--time modelled`, or if the drive "
        "executed other programs at the same time.",
    ]


@dataclass(frozen=True)
class ChainExecuted:
    """A chain that ran to its end."""

    nsid: Annotated[Count, "The compute namespace's identifier."]
    steps: Annotated[Count, "Number of programs that ran."]
    return_value: Annotated[Count, "The last program's return value, 64 bits."]
    measured_ns: Annotated[Count, "Time that the command took as this host measured it, in ns."]


QUADWORD = Parsed("NUMBER", quadword)

PREVIOUS = "previous"


class _Step(NamedTuple):
    program: int
    ranges: list[NamedRange]
    flags: StepFlag
    parameters: list[int]


def _step(text: str) -> _Step:
    index, *words = text.split() or [""]
    parameters = [word for word in words if ":" not in word]
    if not (index.isdecimal() and int(index) <= 0xFFFF) or len(parameters) > 2:
        raise ValueError(f"{text!r} is no program index with its ranges and at most two parameters")
    flags = StepFlag(parameters[:1] == [PREVIOUS])
    return _Step(
        int(index),
        [BYTES.parse(word) for word in words if ":" in word],
        flags,
        [0] * flags + [quadword(word) for word in parameters[flags:]],
    )


compute_option = common.namespace_option("the compute")
_compute = common.opening(Device.compute_namespace)
index_option = click.option(
    "--index", type=click.IntRange(0, 0xFFFF), required=True, help="The program index."
)


@click.group()
def cp() -> None:
    """Load and execute programs on a drive's compute namespaces (Computational Programs).

    DEVICE is /dev/nvme0n1 or /dev/nvme0, vfio-user:SOCKET or the socket's path.
    """


@cp.command(name="list")
@click.argument("device")
@compute_option
@common.json_option(Programs)
def list_(device: str, nsid: int | None) -> None:
    """Show the programs and the memory range sets."""
    with _compute(device, nsid) as compute:
        programs, sets = compute.programs(), compute.range_sets()
    report = Programs(compute.nsid, programs, [RangeSet(*one) for one in sets.items()])
    lines = [
        f"program {one.index}: {'built in' if one.built_in else f'type {one.type:02X}h'}"
        f"{', active' if one.active else ''}"
        f"{f', identifier {one.identifier:#x}' if one.identifier else ''}"
        for one in programs
    ]
    lines += [
        f"range set {rsid}: {' '.join(f'{one.nsid}:{one.start}:{one.length}' for one in ranges)}"
        for rsid, ranges in sets.items()
    ]
    common.say(report, lines or ["no programs"])


@cp.command()
@click.argument("device")
@common.program_file
@index_option
@compute_option
@click.option(
    "--type", "kind", type=click.IntRange(0, 0xFF), default=EBPF, help="The program type (PTYPE)."
)
@click.option(
    "--identifier",
    type=QUADWORD,
    default=0,
    help="Any number, which the drive stores with the program (PUID).",
)
@common.run_time_option
@click.option("--activate/--no-activate", default=True, help="Also activate the program.")
def load(
    device: str,
    program: Path,
    index: int,
    nsid: int | None,
    kind: int,
    identifier: int,
    runtime: str | None,
    activate: bool,
) -> None:
    """Load PROGRAM, an object file or a program in C."""
    image = common.program_of(program, runtime)
    with _compute(device, nsid) as compute, showing() as progress:
        compute.load(
            index, image, kind=kind, identifier=identifier, activate=activate, progress=progress
        )


def _of_a_program(name: str, help: str, act: Callable[[ComputeNamespace, int], None]) -> None:
    @cp.command(name=name, help=help)
    @click.argument("device")
    @index_option
    @compute_option
    def command(device: str, index: int, nsid: int | None) -> None:
        with _compute(device, nsid) as compute:
            act(compute, index)


_of_a_program("unload", "Unload a program that is not active.", ComputeNamespace.unload)
_of_a_program("activate", "Make a program ready to be executed.", ComputeNamespace.activate)
_of_a_program(
    "deactivate", "Deactivate a program, which stays loaded.", ComputeNamespace.deactivate
)


@cp.group()
def ranges() -> None:
    """Create and delete memory range sets."""


@ranges.command()
@click.argument("device")
@click.argument("wanted", metavar="RANGE...", type=BYTES, nargs=-1, required=True)
@compute_option
@common.json_option(Created)
def create(device: str, wanted: Sequence[NamedRange], nsid: int | None) -> None:
    """Create a set of ranges, and print its identifier.

    A RANGE is [NSID:]START:LENGTH.
    """
    with _compute(device, nsid) as compute:
        rsid = compute.create_ranges(_ranges(compute, wanted))
    common.say(Created(compute.nsid, rsid), [str(rsid)])


@ranges.command()
@click.argument("device")
@click.argument("rsid", metavar="ID", type=click.IntRange(1, 0xFFFF))
@compute_option
def delete(device: str, rsid: int, nsid: int | None) -> None:
    """Delete a set of ranges."""
    with _compute(device, nsid) as compute:
        compute.delete_ranges(rsid)


@cp.command()
@click.argument("device")
@index_option
@compute_option
@click.option("--ranges", "rsid", type=click.IntRange(1, 0xFFFF), help="A memory range set.")
@click.option(
    "--range", "wanted", type=BYTES, multiple=True, help="A memory range; may be repeated."
)
@click.option(
    "--param",
    "parameters",
    type=QUADWORD,
    multiple=True,
    help="A parameter (CPARAM1, CPARAM2); may be given twice.",
)
@click.option(
    "--data",
    type=common.READABLE,
    help="File with data for the program (not with Linux's driver).",
)
@click.option(
    "--timeout", type=common.SECONDS, help="Maximum run time of the program.  [default: 30]"
)
@common.json_option(Executed)
def execute(
    device: str,
    index: int,
    nsid: int | None,
    rsid: int | None,
    wanted: Sequence[NamedRange],
    parameters: Sequence[int],
    data: Path | None,
    timeout: float | None,
) -> None:
    """Run a program on memory ranges, and print its result.

    The program must be activated.
    """
    if rsid is not None and wanted:
        raise click.UsageError("give a range set or single ranges, not both")
    if len(parameters) > 2:
        raise click.UsageError("a program has two parameters")
    first, second = (*parameters, 0, 0)[:2]
    with _compute(device, nsid) as compute:
        ranges = _ranges(compute, wanted) if rsid is None else rsid
        sent = b"" if data is None else common.read_input(data)
        before, began = _timing(compute), time.monotonic_ns()
        value = compute.execute(
            index, ranges, parameters=(first, second), data=sent, timeout=timeout
        )
        measured, after = time.monotonic_ns() - began, _timing(compute)
    alone = after.executions == before.executions + 1
    modelled = after.execution_ns if alone else None
    report = Executed(compute.nsid, index, value, measured, modelled)
    line = f"returned {value}"
    if modelled is not None:
        line += f"; modelled {modelled / 1e6:.3f} ms, measured {measured / 1e6:.3f} ms"
    common.say(report, [line])


@cp.command()
@click.argument("device")
@click.argument("steps", metavar="STEP...", nargs=-1, required=True, type=Parsed("STEP", _step))
@compute_option
@click.option(
    "--timeout", type=common.SECONDS, help="Maximum run time of all programs.  [default: 30]"
)
@common.json_option(ChainExecuted)
def chain(device: str, steps: Sequence[_Step], nsid: int | None, timeout: float | None) -> None:
    """Run programs one after another, and print the last result.

    A STEP is a program index, memory ranges ([NSID:]START:LENGTH) and up to two parameters, all
    separated by spaces. The first parameter may be "previous", the result of the step before.
    """
    with _compute(device, nsid) as compute:
        encoded = []
        for step in steps:
            ranges = _ranges(compute, step.ranges)
            areas = tuple(ChainRange(area.nsid, area.length, area.start) for area in ranges)
            first, second = (*step.parameters, 0, 0)[:2]
            encoded.append(ChainStep(step.program, step.flags, first, second, areas))
        began = time.monotonic_ns()
        try:
            value = compute.execute_chain(encoded, timeout=timeout)
        except CommandFailed as error:
            ended = f"{error.result} of {len(steps)} steps had ended"
            raise PotashError(f"{error}; {ended}") from error
        measured = time.monotonic_ns() - began
    report = ChainExecuted(compute.nsid, len(steps), value, measured)
    common.say(report, [f"returned {value}"])


def _timing(compute: ComputeNamespace) -> TimingLog:
    """The log page on modelled time; an empty one of a drive or for a user that has none."""
    try:
        return compute.device.timing_log()
    except PotashError:
        return TimingLog()


def _ranges(compute: ComputeNamespace, wanted: Sequence[NamedRange]) -> list[Bytes]:
    """The ranges; those that name no namespace are of the first memory namespace."""
    own = 0
    if any(nsid is None for nsid, _, _ in wanted):
        own = compute.memory_nsid()
    return [Bytes(nsid or own, start, length) for nsid, start, length in wanted]
