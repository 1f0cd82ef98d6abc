"""`potash demo`: the ADD example through every layer."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

import potash.sdk
from potash.cli.device.example import Example
from potash.cli.device.guest import SHARE, running_guest
from potash.sdk.errors import PotashError
from potash.sdk.job import LocalStorage, run_job
from potash.vm.drive import serving
from potash.vm.guest import DRIVE
from potash.vm.sources import ENVIRONMENT
from potash.vm.terminal import descriptor_sink

JOB_TIMEOUT = 60.0
DRIVE_SIZE = ("--size", "64M")
SHOWN = 12
"""Elements of a vector that are shown."""

Report = Callable[[str], None]


@click.command()
@click.option("--embedded", is_flag=True, help="Drive the device from here, without a guest.")
@click.option(
    "--debian-mirror",
    metavar="ADDRESS",
    envvar=ENVIRONMENT,
    show_envvar=True,
    help="Debian archive to bring the guest from (default: the one that apt is configured with).",
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def demo(embedded: bool, debian_mirror: str | None, as_json: bool) -> None:
    """Add two int8 vectors with a TensorFlow Lite model, on the drive that stores them.

    A Linux guest is booted with the drive as /dev/nvme0n1, and the host application's sequence runs
    in it; with --embedded a driver in this process takes the guest's place. Ends with 0 only if the
    result is what TensorFlow Lite's own reference kernels say.
    """
    example = Example.load("add")
    started = time.monotonic()

    def report(step: str) -> None:
        if not as_json:
            click.echo(f"  {step}")

    if embedded:
        output = _run_embedded(example, report)
    else:
        output = _run_in_guest(example, debian_mirror, quiet=as_json)
    _show(example, output, time.monotonic() - started, as_json=as_json)
    if output != example.expected:
        sys.exit(1)


def _run_embedded(example: Example, report: Report) -> bytes:
    """The driver of the SDK attaches to the device's socket as QEMU would."""
    with serving(*DRIVE_SIZE) as socket, potash.sdk.open(f"vfio-user:{socket}") as device:
        result = run_job(
            device,
            example.program,
            example.input,
            arguments=example.argument_values,
            local=LocalStorage(example.lba),
            timeout=JOB_TIMEOUT,
            report=report,
        )
    return result.output


def _run_in_guest(example: Example, mirror: str | None, *, quiet: bool) -> bytes:
    """The light command runs in the guest, on the kernel's block device."""
    place = f"{SHARE}/{example.name}"
    command = ["potash", "run", DRIVE]
    command += [f"{place}/{name}" for name in (example.program_name, example.input_name)]
    command += [f"{place}/output.bin", "--lba", str(example.lba), "--timeout", str(JOB_TIMEOUT)]
    for argument in example.arguments:
        command += ["--arg", str(argument)]
    with (
        tempfile.TemporaryDirectory(prefix="potash-") as folder,
        running_guest(*DRIVE_SIZE, mirror=mirror, quiet=quiet) as guest,
    ):
        guest.copy_in(example.folder, place)
        said = descriptor_sink(2 if quiet else 1)
        code = guest.run([*command, "-v"], stdout=said, stderr=said)
        if code:
            raise PotashError(f"the example ended with {code} in the guest; what it says is above")
        output = Path(folder) / "output.bin"
        guest.copy_out(f"{place}/output.bin", output)
        return output.read_bytes()


def _show(example: Example, output: bytes, seconds: float, *, as_json: bool) -> None:
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


def _int8(data: bytes) -> list[int]:
    return list(memoryview(data).cast("b"))
