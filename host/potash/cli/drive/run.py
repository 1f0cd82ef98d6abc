"""`potash run`: the host application."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from csd_spec.text import plain
from potash.cli.drive import common, reports
from potash.cli.progress import showing
from potash.files import STREAM
from potash.sdk import INPUT_LENGTH, Device, FileSink, FileSource, JobResult, LocalStorage
from potash.sdk.accelerator import Argument
from potash.sdk.errors import JobFailed, PotashError
from potash.sdk.extents import mounts_of, volume_of
from potash.units import Parsed, Size

LENGTH = "length"


def _blocks(text: str) -> LocalStorage:
    first, colon, second = text.partition(":")
    try:
        blocks = LocalStorage(int(first, 0), int(second, 0) if colon else None)
    except ValueError:
        blocks = LocalStorage(-1)
    if blocks.input_lba < 0 or (blocks.output_lba or 0) < 0:
        raise ValueError(f"{text!r} is not IN or IN:OUT, two block numbers")
    return blocks


def _argument(text: str) -> Argument:
    return (
        INPUT_LENGTH if text == LENGTH else common.program_argument(text, f'"{LENGTH}", hex:BYTES')
    )


def program_argument_option(input: str) -> common.Decorator:
    """`--arg`, for a program that runs on what `input` names."""
    return click.option(
        "--arg",
        "arguments",
        type=Parsed("VALUE", _argument),
        multiple=True,
        help="An argument of the program: a 32-bit number, hex:BYTES, or "
        f'"{LENGTH}" for the length of {input} in bytes; may be repeated.',
    )


@click.command()
@click.argument("device")
@common.program_file
@common.input_file
@common.output_file
@click.option(
    "--copy",
    is_flag=True,
    help="Transfer INPUT and OUTPUT through the buffers even if they are files on DEVICE.",
)
@click.option(
    "--lba",
    type=Parsed("IN[:OUT]", _blocks),
    help="Store the input from block IN on, and the output from block OUT on (default: after it).",
)
@click.option(
    "--output-size",
    type=Size(),
    help="Size of the output on the drive (default: that of the input).",
)
@program_argument_option("INPUT")
@common.then_option("A program", Path, _argument)
@common.accelerator_option
@click.option(
    "--firmware",
    type=click.IntRange(0, common.FIRMWARE_LIMIT),
    default=0,
    help="Firmware ID under which the program is stored; the next ones have those of --then.",
)
@common.job_timeout_option
@common.json_option(reports.JobEnded)
@click.option("-v", "--verbose", is_flag=True, help="Report each step.")
def run(
    device: str,
    program: Path,
    input: Path,
    output: Path,
    copy: bool,
    lba: LocalStorage | None,
    output_size: int | None,
    arguments: tuple[Argument, ...],
    steps: common.Steps[Path, Argument],
    accelerator: int | None,
    firmware: int,
    timeout: float | None,
    verbose: bool,
) -> None:
    """Run PROGRAM on a drive's accelerator.

    DEVICE is /dev/nvme0n1, vfio-user:SOCKET or the socket's path. PROGRAM is an object file, or a
    program in C, which is built first. INPUT and OUTPUT are files, or - for standard input and
    output.

    A file on an ext4 file system of DEVICE itself is used in place: the program reads and writes
    its blocks on the drive, and none of its bytes pass through the host. Any other INPUT is sent to
    the accelerator's input buffer, and any other OUTPUT is read from the output buffer. With --lba,
    both are stored in blocks of a drive without a file system.

    The program sees the input padded with zeroes to a multiple of 4 bytes, on the drive of 4096.
    With --then, more programs follow, and the last one's output is OUTPUT. Text that programs print
    goes to standard error.
    """
    if copy and lba is not None:
        raise click.UsageError("--copy and --lba exclude each other")
    image = common.program_of(program)
    then = [(common.program_of(path), values) for path, values in steps]
    try:
        with common.opened(device) as drive, showing() as progress:
            if lba is not None:
                _require_unmounted(drive)
                lba = lba._replace(output_size=output_size)
            in_place = lba is None and not copy
            source = FileSource(input) if in_place and _on_drive(drive, input) else None
            sink = None
            if in_place and _on_drive(drive, output):
                sink = FileSink(output, size=output_size)
            elif output_size is not None and lba is None:
                raise click.UsageError(
                    "--output-size goes with --lba, or with an OUTPUT on the drive"
                )

            def report(step: str) -> None:
                progress.write(plain(step))

            result = drive.accelerator(accelerator).run(
                image,
                source or common.read_input(input),
                args=arguments,
                then=then,
                output=sink,
                local=lba,
                timeout=timeout,
                firmware_id=firmware,
                progress=progress,
                report=report if verbose else lambda step: None,
            )
    except JobFailed as error:
        _show_printed(error.printed)
        raise
    if sink is None:
        common.write_output(output, result.output)
    _report(result, output, reports.InPlace(source is not None, sink is not None))


def _on_drive(drive: Device, path: Path) -> bool:
    """True if a file, which need not exist yet, is on a file system of the drive itself."""
    if path == STREAM:
        return False
    real = Path(os.path.realpath(path))
    return volume_of(real if real.exists() else real.parent, drive.block_device) is not None


def _require_unmounted(drive: Device) -> None:
    """Blocks that a file system has are not there to be written over."""
    if drive.block_device is not None:
        for place in mounts_of(drive.block_device):
            raise PotashError(
                f"the drive has a file system at {place}, which --lba would write over; use files"
                " on it, or unmount it"
            )


def _show_printed(lines: Sequence[str]) -> None:
    for line in "".join(f"{text.rstrip()}\n" for text in lines).splitlines():
        click.echo(f"program: {plain(line)}", err=True)


def _report(result: JobResult, output: Path, in_place: reports.InPlace) -> None:
    """Say what came of it, on standard error where standard output has the output itself."""
    aside = output == STREAM
    value, produced = result.status.return_value, result.status.produced
    if not common.as_json():
        _show_printed(result.printed)
    modelled = result.status.modelled_ns
    report = reports.JobEnded(
        str(output), produced, value, result.printed, in_place, result.measured, modelled
    )
    where = "" if aside else f" in {output}"
    line = f"{produced} bytes{where}; the program returned {common.returned(value)}"
    if modelled is not None:
        line += f"; modelled {modelled / 1e6:.3f} ms, measured {result.measured / 1e6:.3f} ms"
    common.say(report, [line], aside=aside)
