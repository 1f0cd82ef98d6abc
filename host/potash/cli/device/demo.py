"""`potash demo`: an example through every layer."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

import potash.sdk
from csd_spec.opcodes import PAGE_SIZE
from potash.cli.device.example import Example, example_names
from potash.cli.device.example_index import show_index, write_files
from potash.cli.device.guest import SHARE, running_guest
from potash.sdk.errors import PotashError
from potash.sdk.job import LocalStorage, run_job
from potash.vm.drive import serving
from potash.vm.guest import DRIVE
from potash.vm.sources import ENVIRONMENT
from potash.vm.terminal import descriptor_sink

JOB_TIMEOUT = 60.0
DRIVE_SIZE = ("--size", "64M")
PROGRAM, INPUT, OUTPUT = "program.o", "input.bin", "output.bin"
"""What an example's files are called in the guest."""
SHOWN = 12
"""Elements of a vector that are shown."""

Report = Callable[[str], None]


@click.command()
@click.argument("name", type=click.Choice(example_names()), default="add")
@click.option("--embedded", is_flag=True, help="Drive the device from here, without a guest.")
@click.option(
    "--debian-mirror",
    metavar="ADDRESS",
    envvar=ENVIRONMENT,
    show_envvar=True,
    help="Debian archive to bring the guest from (default: the one that apt is configured with).",
)
@click.option("--list", "listed", is_flag=True, help="List the examples, and run none.")
@click.option(
    "--write",
    "files",
    type=click.Path(file_okay=False, path_type=Path),
    help="Build the program into this folder, with its input and what must come of it, and run "
    "nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def demo(
    name: str,
    embedded: bool,
    debian_mirror: str | None,
    listed: bool,
    files: Path | None,
    as_json: bool,
) -> None:
    """Run the example NAME on the drive that stores its input: add, unless it is said.

    add adds two int8 vectors with a TensorFlow Lite model, grep finds the lines of a log that have
    a text in them, filter selects records by a field, checksum checks pages. A Linux guest is booted with the drive as /dev/nvme0n1, and the host application's sequence runs
    in it; with --embedded a driver in this process takes the guest's place. Ends with 0 only if the
    result is what TensorFlow Lite's own reference kernels say, or plain Python.
    """
    if listed:
        show_index(as_json=as_json)
        return
    if files is not None:
        write_files(name, files)
        return
    example = Example.load(name)
    started = time.monotonic()

    def report(step: str) -> None:
        if not as_json:
            click.echo(f"  {step}")

    if embedded:
        output = _run_embedded(example, report)
    else:
        output = _run_in_guest(example, debian_mirror, quiet=as_json)
    show = _show_vectors if example.describe is None else _show_found
    show(example, output, time.monotonic() - started, as_json=as_json)
    if output != example.expected:
        sys.exit(1)


def _run_embedded(example: Example, report: Report) -> bytes:
    """The driver of the SDK attaches to the device's socket as QEMU would."""
    with serving(*DRIVE_SIZE) as socket, potash.sdk.open(f"vfio-user:{socket}") as device:
        result = run_job(
            device,
            example.program,
            example.input,
            arguments=example.arguments,
            local=LocalStorage(example.lba),
            timeout=JOB_TIMEOUT,
            report=report,
        )
    return result.output


def _run_in_guest(example: Example, mirror: str | None, *, quiet: bool) -> bytes:
    """The light command runs in the guest, on the kernel's block device."""
    place = f"{SHARE}/{example.name}"
    command = ["potash", "run", DRIVE]
    command += [f"{place}/{name}" for name in (PROGRAM, INPUT, OUTPUT)]
    command += ["--lba", str(example.lba), "--timeout", str(JOB_TIMEOUT)]
    for argument in example.arguments:
        command += ["--arg", f"hex:{argument.hex()}"]
    with (
        tempfile.TemporaryDirectory(prefix="potash-") as folder,
        running_guest(*DRIVE_SIZE, mirror=mirror, quiet=quiet) as guest,
    ):
        for name, content in ((PROGRAM, example.program), (INPUT, example.input)):
            (Path(folder) / name).write_bytes(content)
        guest.copy_in(Path(folder), place)
        said = descriptor_sink(2 if quiet else 1)
        code = guest.run([*command, "-v"], stdout=said, stderr=said)
        if code:
            raise PotashError(f"the example ended with {code} in the guest; what it says is above")
        output = Path(folder) / OUTPUT
        guest.copy_out(f"{place}/{OUTPUT}", output)
        return output.read_bytes()


def _show_vectors(example: Example, output: bytes, seconds: float, *, as_json: bool) -> None:
    size = len(example.expected)
    first, second = example.input[-2 * size : -size], example.input[-size:]
    vectors = {"a": first, "b": second, "output": output, "expected": example.expected}
    equal = output == example.expected
    if as_json:
        report = {"equal": equal, "elements": size, "seconds": round(seconds, 3)}
        click.echo(json.dumps(report | {name: _int8(data) for name, data in vectors.items()}))
        return
    for name, data in vectors.items():
        dots = " …" if len(data) > SHOWN else ""
        shown = " ".join(f"{value:4}" for value in _int8(data)[:SHOWN])
        click.echo(f"{name:>8}: {shown}{dots}  ({len(data)} elements)")
    click.echo("equal" if equal else "NOT equal")


def _show_found(example: Example, output: bytes, seconds: float, *, as_json: bool) -> None:
    """What was found, and what had to come from the drive for it."""
    equal = output == example.expected
    without = _pages(len(example.input))
    given = len(example.program) + sum(len(argument) for argument in example.arguments)
    moved = _pages(len(output)) + given
    if as_json:
        report = {
            "example": example.name,
            "equal": equal,
            "input": len(example.input),
            "output": len(output),
            "moved_without": without,
            "moved_with": moved,
            "seconds": round(seconds, 3),
        }
        click.echo(json.dumps(report))
        return
    if equal and example.describe is not None:
        for line in example.describe(example.input, output):
            click.echo(line)
    click.echo(
        f"moved between drive and host: {moved} bytes, program included;"
        f" without the device {without}, {without / moved:.0f} times as many"
    )
    click.echo("equal" if equal else "NOT equal")


def _pages(size: int) -> int:
    """Bytes of the pages that so many bytes take on the drive."""
    return -(-size // PAGE_SIZE) * PAGE_SIZE


def _int8(data: bytes) -> list[int]:
    return list(memoryview(data).cast("b"))
