"""`potash demo`: an example through every layer."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import potash.sdk
from csd_spec.descriptors import LogEntryType, encode_arguments
from csd_spec.opcodes import PAGE_SIZE
from csd_spec.table_plans import Output as TableOutput
from nvme_spec.computational import MEMORY_RANGE_SIZE
from potash.cli.device import reports
from potash.cli.device.guest import SHARE, running_guest
from potash.cli.device.mirror import mirror_option
from potash.cli.drive.common import as_json, json_option, say
from potash.cli.progress import showing
from potash.columns import InComputeNamespace, OnAccelerator, QueryEngine, Request, StoredBlocks
from potash.columns import run as run_plan
from potash.configuration import Configuration
from potash.devices import serving
from potash.namespace_sections import NamespaceSection
from potash.observing.status import ask, status_socket
from potash.programs.compiler import compiled, find_compiler
from potash.programs.examples import Example, example_names, examples_folder
from potash.sdk import Device, LocalStorage
from potash.sdk.errors import PotashError, restated
from potash.sdk.memory_namespace import LARGEST_COPY, Blocks, Bytes
from potash.sections import MEBI, ComputeSection, GuestSection, MemorySection
from potash.tables import columns
from potash.vm.guest import DRIVE
from potash.vm.terminal import descriptor_sink

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from potash.vta.inference import Modelled

JOB_TIMEOUT = 300.0
"""Seconds. The first use of the tensor accelerator compiles its simulator, which takes ten seconds,
and a minute on a busy machine."""
DRIVE_WANTED = Configuration(namespaces=(NamespaceSection(64 * MEBI),))
PROGRAM, INPUT, OUTPUT = "program.o", "input.bin", "output.bin"
"""Names of an example's files in the guest."""
SOURCE, HEADER, EXPECTED = "program.c", "include/potash.h", "expected.bin"
ARGUMENTS = "arguments"
"""The options of `potash run` for the program's arguments, one a line."""
TEACHES = "**Teaches:**"
SHOWN = 12
"""Elements of a vector that are shown."""

Report = Callable[[str], None]


def _silent(_: str) -> None: ...


class _RunByDefault(click.Group):
    """A group that is its command `run` where no other is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args and args[0] in {*self.commands, *ctx.help_option_names}
        if not named and not ctx.resilient_parsing:  # which a shell's completion is
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, and examples for `run`."""
        run = self.commands["run"].params[0]
        return [
            *super().shell_complete(ctx, incomplete),
            *_example.shell_complete(ctx, run, incomplete),
        ]


_example = click.Choice(example_names())


@click.group(cls=_RunByDefault)
def demo() -> None:
    """Run an example on the drive that stores its input: `potash demo grep` runs grep.

    `potash demo list` lists the examples.
    """


@demo.command("list")
@json_option(reports.Examples)
def list_() -> None:
    """List the examples."""
    found, rows = examples(), []
    for one in found:
        other = "" if one.demo else f" (see {examples_folder() / one.name / 'README.md'})"
        rows.append((one.name, f"{one.title}{other}"))
    say(reports.Examples(found), columns(rows, "<"))


@demo.command()
@click.argument("name", type=_example)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def write(name: str, folder: Path) -> None:
    """Write the example NAME to FOLDER.

    It has README, sources, program, input and expected output."""
    example = Example.load(name)
    place = examples_folder() / name
    source = place / SOURCE
    program = example.program
    if source.exists():
        try:
            find_compiler()
        except PotashError as error:
            said = f"{name}: the program is the one that comes with Potash, as {error}"
            click.echo(said, err=True)
        else:
            program = compiled(source)
    options = "".join(f"--arg\nhex:{argument.hex()}\n" for argument in example.arguments)
    folder.mkdir(parents=True, exist_ok=True)
    files = [path for path in sorted(place.iterdir()) if path.is_file()]
    if source.exists():  # which includes the header
        files.append(place.parent / HEADER)
    for path in files:
        shutil.copyfile(path, folder / path.name)
    if program:
        (folder / PROGRAM).write_bytes(program)
    (folder / INPUT).write_bytes(example.input)
    (folder / EXPECTED).write_bytes(example.expected)
    (folder / ARGUMENTS).write_text(options)
    made = (*((PROGRAM,) if program else ()), INPUT, EXPECTED, ARGUMENTS)
    click.echo(f"{folder}: {', '.join(dict.fromkeys((*made, *(path.name for path in files))))}")


@demo.command()
@click.argument("name", type=_example, default="add")
@click.option("--embedded", is_flag=True, help="Use a driver in this process instead of a guest.")
@click.option(
    "--execute",
    is_flag=True,
    help="Use the standard's commands, on memory and compute namespaces (with --embedded).",
)
@mirror_option
@json_option(reports.VectorsAdded | reports.ExampleRun)
def run(name: str, embedded: bool, execute: bool, debian_mirror: str | None) -> None:
    """Run the example NAME (default: add); this is the default command.

    A Linux guest boots with the drive as /dev/nvme0n1 and runs the host application; with
    --embedded, a driver in this process replaces the guest. The exit code is 0 only if the output
    equals that of TensorFlow Lite's own reference kernels, or of plain Python.
    """
    if execute and not embedded:
        raise click.UsageError("--execute needs --embedded")
    example = Example.load(name)
    started = time.monotonic()

    if embedded:
        with showing() as progress:
            progress("starting the drive", None)

            def report(step: str) -> None:
                progress(step, None)
                if not as_json():
                    progress.write(f"  {step}", sys.stdout)

            if execute:
                ran = _run_executed(example, report)
            else:
                with _driven(DRIVE_WANTED) as device:
                    ran = start(device, example, report)
    else:
        ran = _run_in_guest(example, debian_mirror, quiet=as_json())
    show = _show_vectors if example.describe is None else _show_found
    show(example, ran, time.monotonic() - started)
    if ran.output != example.expected:
        sys.exit(1)


class Ran(NamedTuple):
    """A job's output, its duration in the drive in seconds, and the bytes transferred to and from
    the drive."""

    output: bytes
    job: float
    moved: int
    """Bytes between drive and host: program, arguments, descriptors and output."""


@contextmanager
def _driven(wanted: Configuration) -> Iterator[Device]:
    """A device without a guest: the SDK's own driver attaches to its socket as QEMU would."""
    with serving(wanted) as served, potash.sdk.open(f"vfio-user:{served.socket}") as device:
        yield device


def start(device: Device, example: Example, report: Report = _silent) -> Ran:
    """Run an example on an accelerator, with its input in place on the drive."""
    if example.request is not None:
        engine = OnAccelerator(device.accelerator(), timeout=JOB_TIMEOUT)
        return _query(device, example, example.request, engine, report)
    result = device.accelerator().run(
        example.program,
        example.input,
        args=example.arguments,
        local=LocalStorage(example.lba),
        timeout=JOB_TIMEOUT,
        report=report,
    )
    job = _job_seconds((entry.type, entry.timestamp) for entry in result.log)
    return Ran(result.output, job, _given(example) + _pages(len(result.output)))


def _query(
    device: Device, example: Example, request: Request, engine: QueryEngine, report: Report
) -> Ran:
    """Query a table, which is written to the drive first, by the drive's own program."""
    size = len(example.input)
    device.write(example.lba, example.input.ljust(_pages(size), b"\0"))
    report(f"write: {size} bytes of the table to block {example.lba}")
    stored = StoredBlocks(device.namespace(), example.lba, size)
    started = time.monotonic()
    with run_plan(request.plan(TableOutput.JSON), stored, engine) as answer:
        output = answer.read()
    took = time.monotonic() - started
    found = answer.result()
    report(
        f"query: the drive read {found.read} bytes, and left out {found.excluded} of {found.groups}"
        " row groups"
    )
    return Ran(output, took, found.moved)


def _run_executed(example: Example, report: Report) -> Ran:
    size = _pages(len(example.input)) + _pages(len(example.expected))
    wanted = replace(DRIVE_WANTED, memory=MemorySection((size,)), compute=ComputeSection(1))
    with _driven(wanted) as device:
        return execute(device, example, report)


def execute(device: Device, example: Example, report: Report = _silent) -> Ran:
    """Run an example in a compute namespace; its input is copied to memory within the drive."""
    if example.request is not None:
        compute, memory = device.compute_namespace(), device.memory_namespace()
        engine = InComputeNamespace(compute, memory, timeout=JOB_TIMEOUT)
        return _query(device, example, example.request, engine, report)
    size, room = _pages(len(example.input)), _pages(len(example.expected))
    blocks = size // device.block_size
    device.write(example.lba, example.input.ljust(size, b"\0"))
    memory, compute = device.memory_namespace(), device.compute_namespace()
    memory.copy(0, [Blocks(device.nsid, example.lba, blocks)])
    report(f"copy: {blocks} blocks to memory namespace {memory.nsid}")
    index = compute.free_index()
    compute.load(index, example.program)
    report(f"load: {len(example.program)} bytes as program {index}")
    ranges = [Bytes(memory.nsid, 0, size), Bytes(memory.nsid, size, room)]
    started = time.monotonic()
    value = compute.execute(
        index, ranges, data=encode_arguments(example.arguments), timeout=JOB_TIMEOUT
    )
    took = time.monotonic() - started
    report(f"execute: returned {value}")
    output = memory.read(size, len(example.expected))
    described = -(-size // LARGEST_COPY) + len(ranges)
    return Ran(output, took, _given(example) + described * MEMORY_RANGE_SIZE + len(output))


def _run_in_guest(example: Example, mirror: str | None, *, quiet: bool) -> Ran:
    """The light command runs in the guest, on the kernel's block device."""
    place = f"{SHARE}/{example.name}"
    if example.request is not None:
        command = _query_in_guest(example, example.request, place)
    else:
        command = ["potash", "run", DRIVE]
        command += [f"{place}/{name}" for name in (PROGRAM, INPUT, OUTPUT)]
        command += ["--lba", str(example.lba), "--timeout", str(JOB_TIMEOUT), "-v"]
        for argument in example.arguments:
            command += ["--arg", f"hex:{argument.hex()}"]
    wanted = replace(DRIVE_WANTED, guest=GuestSection(debian_mirror=mirror))
    with (
        tempfile.TemporaryDirectory(prefix="potash-") as folder,
        running_guest(wanted, quiet=quiet) as guest,
    ):
        for name, content in ((PROGRAM, example.program), (INPUT, example.input)):
            (Path(folder) / name).write_bytes(content)
        guest.copy_in(Path(folder), place)
        said = descriptor_sink(2 if quiet else 1)
        code = guest.run(command, stdout=said, stderr=said)
        if code:
            raise PotashError(f"the example ended with {code} in the guest; what it says is above")
        output = Path(folder) / OUTPUT
        guest.copy_out(f"{place}/{OUTPUT}", output)
        # From the device: another command in the guest would take as long as the job.
        (accelerator,) = ask(status_socket(str(guest.socket)))["accelerators"]
        made = output.read_bytes()
        return Ran(made, accelerator["seconds"], _given(example) + _pages(len(made)))


def _query_in_guest(example: Example, request: Request, place: str) -> list[str]:
    """The commands of a guest that write the table to the drive, and query it there."""
    copy = ["dd", f"if={place}/{INPUT}", f"of={DRIVE}", "bs=4096", f"seek={example.lba}"]
    ask = ["potash", "query", f"lba:{example.lba}:{len(example.input)}", request.expression]
    ask += ["--device", DRIVE, "-o", f"{place}/{OUTPUT}.jsonl"]
    for option, value in (("--where", request.where), ("--by", request.by)):
        ask += [option, value] if value is not None else []
    rename = ["mv", f"{place}/{OUTPUT}.jsonl", f"{place}/{OUTPUT}"]
    return ["sh", "-ec", "; ".join(map(shlex.join, (copy, ["sync"], ask, rename)))]


def _given(example: Example) -> int:
    """Bytes of what goes to the drive besides the input."""
    if example.request is not None:
        return len(example.request.plan(TableOutput.JSON).encode())
    return len(example.program) + sum(len(argument) for argument in example.arguments)


def _job_seconds(entries: Iterable[tuple[int, int]]) -> float:
    """Duration of the last job by the drive's log, whose entries are types and milliseconds."""
    last = dict(entries)
    return (last[LogEntryType.JOB_FINISHED] - last[LogEntryType.JOB_STARTED]) / 1000


def _show_vectors(example: Example, ran: Ran, seconds: float) -> None:
    size = len(example.expected)
    first, second = example.input[-2 * size : -size], example.input[-size:]
    vectors = {"a": first, "b": second, "output": ran.output, "expected": example.expected}
    shown = {name: list(memoryview(data).cast("b")) for name, data in vectors.items()}
    equal = ran.output == example.expected
    lines = []
    for name, data in shown.items():
        dots = " …" if len(data) > SHOWN else ""
        values = " ".join(f"{value:4}" for value in data[:SHOWN])
        lines.append(f"{name:>8}: {values}{dots}  ({len(data)} elements)")
    report = reports.VectorsAdded(equal, size, round(seconds, 3), **shown)
    say(report, [*lines, "equal" if equal else "NOT equal"])


def _show_found(example: Example, ran: Ran, seconds: float) -> None:
    output = ran.output
    equal = output == example.expected
    without = _pages(len(example.input) if example.needed is None else example.needed)
    lines = []
    figures: dict[str, Any] = {}
    if equal and example.describe is not None:
        lines += example.describe(example.input, output)
    if equal and example.figures is not None:
        figures = example.figures(example.input, output)
    ratio = without / ran.moved
    lines.append(
        f"moved between drive and host: {ran.moved} bytes, program included;"
        f" without the device {without}, {ratio:.{0 if ratio >= 10 else 1}f} times as many"
    )
    modelled = _modelled(example)
    if modelled is not None:
        figures["vta_cycles"] = modelled.cycles
        figures["vta_instructions"] = modelled.instructions
        figures["vta_seconds"] = modelled.seconds
        lines.append(
            f"modelled time of the tensor accelerator: {modelled.seconds * 1e3:.1f} ms,"
            f" {modelled.cycles} cycles at {modelled.clock / 1e6:g} MHz"
            f" for {modelled.instructions} instructions; the job took {ran.job * 1e3:.0f} ms here"
        )
    report = reports.ExampleRun(
        example=example.name,
        equal=equal,
        input=len(example.input),
        output=len(output),
        moved_without=without,
        moved_with=ran.moved,
        job_seconds=ran.job,
        seconds=round(seconds, 3),
        **figures,
    )
    say(report, [*lines, "equal" if equal else "NOT equal"])


def _modelled(example: Example) -> Modelled | None:
    """Modelled time of all of a program's inferences on the tensor accelerator."""
    if example.inferences is None:
        return None
    from potash.vta.inference import infer  # brings numba and TensorFlow Lite

    model, inputs, runs = example.inferences
    return infer(model, inputs).modelled.times(runs)


def _pages(size: int) -> int:
    """Bytes of the pages that so many bytes take on the drive."""
    return -(-size // PAGE_SIZE) * PAGE_SIZE


def described(folder: Path) -> reports.ExampleEntry:
    """Title and topic of an example from its README.md. Raises PotashError if it lacks them.

    The title is the heading, the topic the paragraph that begins with `TEACHES`, or else the first
    one.
    """
    with restated(OSError, f"the example {folder.name} has no README.md"):
        title, *paragraphs = (folder / "README.md").read_text().strip().split("\n\n")
    matching = [
        paragraph for paragraph in paragraphs if paragraph.startswith(TEACHES)
    ] or paragraphs[:1]
    if not title.startswith("# ") or not matching:
        raise PotashError(f"{folder}/README.md does not begin with a heading and a paragraph")
    teaches = re.sub(r"\s+", " ", matching[0].removeprefix(TEACHES)).strip()
    return reports.ExampleEntry(folder.name, title[2:], teaches, folder.name in example_names())


def examples() -> list[reports.ExampleEntry]:
    """Every example that comes with Potash."""
    folders = sorted(path.parent for path in examples_folder().glob("*/README.md"))
    return [described(folder) for folder in folders]
