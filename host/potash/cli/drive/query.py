"""`potash query`: filters and aggregates of a table where it is stored."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import click

from csd_spec.opcodes import PAGE_SIZE
from csd_spec.reporting import Form
from potash.cli.drive import common
from potash.cli.progress import showing
from potash.columns.engines import InComputeNamespace, OnAccelerator, QueryEngine
from potash.columns.query import Request, Result
from potash.columns.query import query as run_query
from potash.columns.stored import Stored, StoredBlocks, StoredFile
from potash.columns.writer import arrow_file
from potash.files import STREAM
from potash.sdk import Device
from potash.sdk.errors import InvalidRequest, PotashError
from potash.sdk.extents import drive_of
from potash.sdk.progress import Progress
from potash.tables import columns as lines_of

SHOWN = 20
"""Rows that are shown."""
BLOCKS = "lba:"
QueryAnswered = Annotated[Result, Form(title="QueryAnswered")]


question_options: common.Decorator = common.together(
    click.option("--where", metavar="FILTER", help="Aggregates: count only rows like these."),
    click.option(
        "--by", metavar="COLUMN", help="Aggregates: one row for each value of this column."
    ),
    click.option(
        "--columns", metavar="NAME,…", help="Rows: show only these columns (default: all columns)."
    ),
    common.output_option("Write the result as an Arrow file."),
)
"""Options of commands that ask about tables."""


def request_of(expression: str, where: str | None, by: str | None, columns: str | None) -> Request:
    """The request of a command's arguments. Raises InvalidQuery."""
    select = tuple(one.strip() for one in columns.split(",")) if columns else ()
    return Request(expression, where, by, select)


@click.command()
@click.argument("file")
@click.argument("expression")
@click.option(
    "--device", metavar="DEVICE", help="The drive (default: the one on which FILE is stored)."
)
@question_options
@click.option(
    "--lba", type=click.IntRange(0), help="First write FILE to the drive, from this block on."
)
@click.option(
    "--execute",
    is_flag=True,
    help="Use the standard's commands, on a memory and a compute namespace.",
)
@common.accelerator_option
@common.job_timeout_option
@common.json_option(QueryAnswered)
def query(
    file: str,
    expression: str,
    device: str | None,
    where: str | None,
    by: str | None,
    columns: str | None,
    output: Path | None,
    lba: int | None,
    execute: bool,
    accelerator: int | None,
    timeout: float | None,
) -> None:
    """Query the table FILE where it is stored on a drive.

    FILE is an uncompressed Arrow file (Arrow IPC, Feather version 2) in a file system of the drive,
    or lba:BLOCK:SIZE for one of SIZE bytes in the drive's blocks from BLOCK on. EXPRESSION is a
    filter, whose rows are the result:

    \b
        (price > 100) & (region == "EU")
        ~(quantity in [1, 2, 3]) | (day >= "2026-05-01") | (price is None)

    or aggregates of the rows of a filter:

    \b
        "count(), sum(price), mean(quantity)" --where 'region == "EU"' --by product

    It becomes an eBPF program, which the drive runs on the columns that it needs. Only the program,
    the file's metadata and the result are transferred.
    """
    request = request_of(expression, where, by, columns)
    if device is None:
        device = _device_of(file)
    with (
        common.opened(device) as drive,
        showing() as progress,
        _stored(drive, file, lba, progress) as stored,
    ):
        engine: QueryEngine
        if execute:
            compute, memory = drive.compute_namespace(), drive.memory_namespace()
            engine = InComputeNamespace(compute, memory, timeout=timeout, progress=progress)
        else:
            chosen = drive.accelerator(accelerator)
            engine = OnAccelerator(chosen, timeout=timeout, progress=progress)
        result = run_query(request, stored, engine, progress=progress)
    show(result, output)


def show(result: Result, output: Path | None) -> None:
    """Report a result, and write it to a file."""
    if output is not None:
        common.write_output(output, arrow_file(result.columns))
    common.say(result, _lines(result), aside=output == STREAM)


def _device_of(file: str) -> str:
    if file.startswith(BLOCKS):
        raise InvalidRequest(f"{file} is on a drive; name the drive by --device")
    found = drive_of(Path(file))
    if found is None:
        raise InvalidRequest(
            f"{file} is not on a file system of an NVMe drive; name the drive by --device, and use"
            " --lba to write the file to it"
        )
    return found


@contextmanager
def _stored(drive: Device, file: str, lba: int | None, progress: Progress) -> Iterator[Stored]:
    """The stored file; with `--lba`, it is written to the drive first."""
    namespace = drive.namespace()
    if file.startswith(BLOCKS):
        if lba is not None:
            raise click.UsageError("--lba is for a FILE that is to be written to the drive")
        try:
            first, size = (int(part, 0) for part in file.removeprefix(BLOCKS).split(":"))
        except ValueError:
            raise click.UsageError(f"{file!r} is not lba:BLOCK:SIZE, two numbers") from None
        stored: Stored = StoredBlocks(namespace, first, size)
    elif lba is not None:
        if drive.block_device is not None:
            raise PotashError("--lba is for a drive without a file system, by its socket")
        data = Path(file).read_bytes()
        stored = StoredBlocks(namespace, lba, len(data))
        namespace.write(lba, data.ljust(-(-len(data) // PAGE_SIZE) * PAGE_SIZE, b"\0"),
                        progress=progress)  # fmt: skip
    else:
        stored = StoredFile(file, drive)
    with closing(stored):
        yield stored


def _lines(result: Result) -> Iterator[str]:
    columns, rows = result.columns, result.result_rows
    shown = [column._replace(values=column.values[:SHOWN]).texts for column in columns]
    texts = [["null" if text is None else text for text in column] for column in shown]
    yield from lines_of([[column.name for column in columns], *zip(*texts, strict=True)], "<")
    if rows > SHOWN:
        yield f"… and {rows - SHOWN} more rows; -o FILE writes all"
    yield (
        f"{result.moved} bytes between drive and host; the file has {result.held}, of which the"
        f" drive read {result.read}"
    )
