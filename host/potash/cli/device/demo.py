"""`potash demo`: the ADD example through every layer."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import click

import potash.sdk
from potash.cli.device.example import Example
from potash.cli.device.process import device_process
from potash.sdk.job import LocalStorage, run_job

JOB_TIMEOUT = 60.0
SHOWN = 12
"""Elements of a vector that are printed."""


@click.command()
@click.option("--embedded", is_flag=True, help="Drive the device from here, without a guest.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def demo(embedded: bool, as_json: bool) -> None:
    """Add two int8 vectors with a TensorFlow Lite model, on the drive that stores them.

    A device process is started; a driver in this one attaches to its socket as QEMU would, and the
    host application's sequence runs over it. Ends with 0 only if the result is what TensorFlow
    Lite's own reference kernels say.
    """
    if not embedded:
        raise click.UsageError("there is no guest to run it in yet; use: potash demo --embedded")
    example = Example.load("add")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        socket = Path(folder) / "device.sock"
        with device_process(socket), potash.sdk.open(f"vfio-user:{socket}") as device:
            result = run_job(
                device,
                example.program,
                example.input,
                arguments=example.argument_values,
                local=LocalStorage(example.lba),
                timeout=JOB_TIMEOUT,
                report=lambda step: None if as_json else click.echo(f"  {step}"),
            )
    equal = result.output == example.expected
    elements = len(example.expected)
    first, second = example.input[-2 * elements : -elements], example.input[-elements:]
    vectors = {"a": first, "b": second, "output": result.output, "expected": example.expected}
    if as_json:
        report = {"equal": equal, "seconds": round(time.monotonic() - started, 3)}
        click.echo(json.dumps(report | {name: _int8(data) for name, data in vectors.items()}))
    else:
        for name, data in vectors.items():
            click.echo(f"{name:>8}: {_shown(data)}")
        click.echo("equal" if equal else "NOT equal")
    if not equal:
        raise SystemExit(1)


def _int8(data: bytes) -> list[int]:
    return list(memoryview(data).cast("b"))


def _shown(data: bytes) -> str:
    values = _int8(data)
    dots = " …" if len(values) > SHOWN else ""
    return " ".join(f"{value:4}" for value in values[:SHOWN]) + f"{dots}  ({len(values)} elements)"
