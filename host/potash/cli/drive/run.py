"""`potash run`: the host application."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

import potash.sdk
from potash.cli.units import Size
from potash.sdk.errors import JobFailed, PotashError
from potash.sdk.job import JobResult, LocalStorage, run_job

ARGUMENT_SIZE = 4
STREAM = Path("-")


class Argument(click.ParamType[bytes]):
    """One argument of a program: a 32-bit number, or hex:BYTES."""

    name = "VALUE"

    def convert(
        self, value: str | bytes, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            if value.startswith("hex:"):
                return bytes.fromhex(value.removeprefix("hex:"))
            number = int(value, 0)
            return number.to_bytes(ARGUMENT_SIZE, "little", signed=number < 0)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a 32-bit number nor hex:BYTES", param, ctx)


class Blocks(click.ParamType[LocalStorage]):
    """IN or IN:OUT, in blocks."""

    name = "IN[:OUT]"

    def convert(
        self, value: str | LocalStorage, param: click.Parameter | None, ctx: click.Context | None
    ) -> LocalStorage:
        if isinstance(value, LocalStorage):
            return value
        first, colon, second = value.partition(":")
        try:
            blocks = LocalStorage(int(first, 0), int(second, 0) if colon else None)
        except ValueError:
            blocks = LocalStorage(-1)
        if blocks.input_lba < 0 or (blocks.output_lba or 0) < 0:
            self.fail(f"{value!r} is not IN or IN:OUT, two block numbers", param, ctx)
        return blocks


class Seconds(click.ParamType[float]):
    """A time that can pass."""

    name = "SECONDS"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (seconds > 0 and math.isfinite(seconds)):
            self.fail(f"{value!r} is no number of seconds above 0", param, ctx)
        return seconds


@click.command()
@click.argument("device")
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument(
    "input", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.argument("output", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--lba",
    type=Blocks(),
    help="Store the input at block IN, and let the output go to block OUT (default: after it).",
)
@click.option(
    "--output-size",
    type=Size(),
    help="With --lba: room for the output on the drive (default: as large as the input).",
)
@click.option(
    "--arg",
    "arguments",
    type=Argument(),
    multiple=True,
    help="An argument of the program, once for each: a 32-bit number, or hex:BYTES.",
)
@click.option("--accelerator", type=click.IntRange(0, 0xFFFF), help="Which (default: the first).")
@click.option(
    "--firmware",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Store the program as this firmware.",
)
@click.option("--timeout", type=Seconds(), help="Stop the job after this time (default: never).")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Say each step.")
def run(
    device: str,
    program: Path,
    input: Path,
    output: Path,
    lba: LocalStorage | None,
    output_size: int | None,
    arguments: tuple[bytes, ...],
    accelerator: int | None,
    firmware: int,
    timeout: float | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run PROGRAM on a drive's accelerator.

    DEVICE is a path (/dev/nvme0n1) or vfio-user:SOCKET. INPUT goes to the accelerator's input
    buffer and OUTPUT gets what the program made; with --lba both pass through the drive's blocks.
    INPUT and OUTPUT may be - for standard input and output.

    The program sees the input padded with zeroes, to 4 bytes or with --lba to 4096. What it prints
    goes to standard error.
    """
    if output_size is not None:
        if lba is None:
            raise click.UsageError("--output-size goes with --lba")
        lba = lba._replace(output_size=output_size)
    _require_writable(output)
    data = sys.stdin.buffer.read() if input == STREAM else input.read_bytes()
    try:
        with potash.sdk.open(device) as opened:
            result = run_job(
                opened,
                program.read_bytes(),
                data,
                arguments=arguments,
                local=lba,
                accelerator_id=accelerator,
                firmware_id=firmware,
                timeout=timeout,
                report=(lambda step: click.echo(step, err=True)) if verbose else lambda step: None,
            )
    except JobFailed as error:
        _show_printed(error.printed)
        raise
    if output == STREAM:
        sys.stdout.buffer.write(result.output)
        sys.stdout.buffer.flush()
    else:
        output.write_bytes(result.output)
    _report(result, output, as_json=as_json)


def _require_writable(output: Path) -> None:
    """A job may take long: what cannot be written afterwards is refused before it starts."""
    place = output if output.exists() else output.parent
    if output != STREAM and not os.access(place, os.W_OK):
        raise PotashError(f"the output cannot be written to {output}; choose another place")


def _show_printed(lines: Sequence[str]) -> None:
    """What the program has printed, apart from its output."""
    for line in lines:
        click.echo(f"program: {line.rstrip()}", err=True)


def _report(result: JobResult, output: Path, *, as_json: bool) -> None:
    """Say what came of it, on standard error where standard output has the output itself."""
    aside = output == STREAM
    value = result.status.return_value
    if as_json:
        report = {
            "output": str(output),
            "produced": len(result.output),
            "return_value": value,
            "printed": result.printed,
        }
        click.echo(json.dumps(report), err=aside)
        return
    _show_printed(result.printed)
    # A C function that returns int leaves 32 bits in the register.
    signed = f" ({value - (1 << 32)} as int)" if 1 << 31 <= value < 1 << 32 else ""
    where = "" if aside else f" in {output}"
    click.echo(
        f"{len(result.output)} bytes{where}; the program returned {value}{signed}", err=aside
    )
