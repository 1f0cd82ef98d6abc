"""`potash model quantize`: models in float32, for the device."""

from __future__ import annotations

from pathlib import Path

import click

from potash.cli.device import model_reports as reports
from potash.cli.device.model_files import apart_for, write_model
from potash.cli.device.vta_options import output_option, readable_file
from potash.cli.drive.common import json_option, say
from potash.cli.progress import showing
from potash.files import STREAM, read_whole
from potash.models import quantizing


@click.command()
@click.argument("file", metavar="MODEL", type=readable_file)
@click.option(
    "--calibration",
    "samples",
    multiple=True,
    required=True,
    metavar="FILE",
    type=readable_file,
    help="Inputs that the model will meet, as raw float32: one sample after the other.",
)
@output_option
@json_option(reports.ModelQuantized)
def quantize(file: Path, samples: tuple[Path, ...], output: Path) -> None:
    """Turn MODEL, a .tflite in float32, into one in int8.

    It runs on the samples first, and the scales are made to fit what flows through it. Needs the
    extra quantize: pip install 'potash[quantize]'.
    """
    with showing() as progress:
        data = bytes(read_whole(file, progress))
        pieces = [(str(path), bytes(read_whole(path, progress))) for path in samples]
        progress(f"quantising {file.name}", None)
        made = apart_for(file, quantizing.quantize, data, pieces)
        write_model(output, made.model, progress)
    report = reports.ModelQuantized(
        output=str(output),
        bytes=len(made.model),
        samples=made.samples,
        operators=made.operators,
        float_operators=made.float_operators,
        float_tensors=made.float_tensors,
    )
    lines = [f"{output}: {len(made.model)} bytes, with scales of {made.samples} samples"]
    if made.float_operators:
        lines.append(f"{made.float_operators} of {made.operators} operators still give float32")
    if made.float_tensors:
        lines.append(f"still float32 from outside: {', '.join(made.float_tensors)}")
    say(report, lines, aside=output == STREAM)
