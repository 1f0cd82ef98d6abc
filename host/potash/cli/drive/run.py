"""`potash run`: the host application."""

from __future__ import annotations

import json
from pathlib import Path

import click

import potash.sdk
from potash.sdk.errors import PotashError
from potash.sdk.job import LocalStorage, run_job

ARGUMENT_SIZE = 4


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
            return LocalStorage(int(first, 0), int(second, 0) if colon else None)
        except ValueError:
            self.fail(f"{value!r} is not IN or IN:OUT, two block numbers", param, ctx)


@click.command()
@click.argument("device")
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("input", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--lba",
    type=Blocks(),
    help="Store the input at block IN and let the output go to block OUT (default: after it).",
)
@click.option(
    "--arg",
    "arguments",
    type=Argument(),
    multiple=True,
    help="An argument of the program, once for each: a 32-bit number, or hex:BYTES.",
)
@click.option("--accelerator", type=int, help="Which accelerator (default: the first).")
@click.option(
    "--firmware", default=0, show_default=True, help="Store the program as this firmware."
)
@click.option("--timeout", type=float, help="Seconds that the job may take (default: no limit).")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Say each step.")
def run(
    device: str,
    program: Path,
    input: Path,
    output: Path,
    lba: LocalStorage | None,
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
    """
    with potash.sdk.open(device) as opened:
        result = run_job(
            opened,
            program.read_bytes(),
            input.read_bytes(),
            arguments=arguments,
            local=lba,
            accelerator_id=accelerator,
            firmware_id=firmware,
            timeout=timeout,
            report=(lambda step: click.echo(step, err=True)) if verbose else lambda step: None,
        )
    try:
        output.write_bytes(result.output)
    except OSError as error:
        raise PotashError(f"the output cannot be written to {output}: {error.strerror}") from None
    if as_json:
        report = {
            "output": str(output),
            "produced": len(result.output),
            "return_value": result.status.return_value,
        }
        click.echo(json.dumps(report))
    else:
        click.echo(
            f"{len(result.output)} bytes in {output}; the program returned"
            f" {result.status.return_value}"
        )
