"""`potash query`: filters and aggregates of a table where it is stored."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click

from csd_spec.opcodes import PAGE_SIZE
from csd_spec.reporting import Form
from csd_spec.table_plans import Output, Plan
from potash.cli.drive import common
from potash.cli.progress import showing
from potash.columns import (
    Answer,
    InComputeNamespace,
    OnAccelerator,
    QueryEngine,
    Request,
    Result,
    StoredBlocks,
    StoredFile,
    explained,
    run,
)
from potash.columns.query import ALL
from potash.columns.stored import BLOCKS, blocks_named, drive_with, stored_at
from potash.files import STREAM, replacing
from potash.sdk import Device
from potash.sdk.errors import InvalidRequest, PotashError, restated
from potash.sdk.progress import Progress
from potash.tables import columns as lines_of

SHOWN = 20
"""Rows that are shown."""
FORMS = {".csv": Output.CSV, ".jsonl": Output.JSON, ".ndjson": Output.JSON}
"""Forms of files by the ends of their names; others are Arrow files."""
QueryAnswered = Annotated[Result, Form(title="QueryAnswered")]


class ExplainedPlan(NamedTuple):
    """A part of a query, in the place where it is done."""

    place: Annotated[str, "The place: the drive, each drive, or this host."]
    steps: Annotated[Sequence[str], "The steps, in order."]
    plan: Annotated[str, "The plan as the engine gets it: a JSON object."]


class QueryExplained(NamedTuple):
    """The plans of a query, which is not run."""

    plans: Annotated[Sequence[ExplainedPlan], "The parts of the query, in order."]


question_options: common.Decorator = common.together(
    click.option("--where", metavar="FILTER", help="Use only rows like these."),
    click.option(
        "--by", metavar="KEY,…", help="Aggregates: one row for each group of rows with equal keys."
    ),
    click.option(
        "--order",
        metavar="COLUMN,…",
        help="Sort by columns of the result, or by their numbers; -COLUMN in descending order.",
    ),
    click.option("--limit", type=click.IntRange(0), help="Give only so many rows."),
    click.option(
        "--columns", metavar="NAME,…", help="Rows: show only these columns (default: all columns)."
    ),
    click.option("--explain", is_flag=True, help="Show what the drive would do, without it."),
    common.output_option("Write the result: FILE.csv, FILE.jsonl, or an Arrow file."),
)
"""Options of commands that ask about tables."""


class Question(NamedTuple):
    """The arguments of a command that asks about a table."""

    request: Request
    explain: bool
    output: Path | None

    @property
    def plan(self) -> Plan:
        form = Output.NONE
        if self.output is not None:
            form = FORMS.get(self.output.suffix, Output.FILE)
        return self.request.plan(form, ALL if common.as_json() else SHOWN)

    def show(self, answer: Answer) -> None:
        """Write the output to its file, and report the result."""
        if self.output is not None:
            with replacing(self.output) as file:
                for piece in answer:
                    file.write(piece)
        else:
            answer.read()
        result = answer.result()
        common.say(result, _lines(result), aside=self.output == STREAM)


def question_of(
    expression: str,
    where: str | None,
    by: str | None,
    order: str | None,
    limit: int | None,
    columns: str | None,
    explain: bool,
    output: Path | None,
) -> Question:
    """A command's question. Raises InvalidQuery."""
    select = tuple(name.strip() for name in columns.split(",")) if columns else ()
    return Question(Request(expression, where, by, select, order, limit), explain, output)


def explain(plans: Mapping[str, Plan]) -> None:
    """Report the parts of a query."""
    found = [
        ExplainedPlan(place, list(explained(plan)), plan.encode().decode())
        for place, plan in plans.items()
    ]
    lines = []
    for part in found:
        lines += [f"on {part.place}:", *(f"  {step}" for step in part.steps)]
    common.say(QueryExplained(found), lines)


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
@common.json_option(QueryAnswered | QueryExplained)
def query(
    file: str,
    expression: str,
    device: str | None,
    lba: int | None,
    execute: bool,
    accelerator: int | None,
    timeout: float | None,
    **options: Any,
) -> None:
    """Query the table FILE where it is stored on a drive.

    FILE is a Parquet or Arrow file in a file system of the drive, or lba:BLOCK:SIZE for one of SIZE
    bytes in the drive's blocks from BLOCK on. EXPRESSION is a filter, whose rows are the result:

    \b
        (price > 100) & (region == "EU")
        ~(quantity in [1, 2, 3]) | (day >= "2026-05-01") | name.startswith("A")

    or a list of expressions and aggregates:

    \b
        "day.year, total=sum(price * quantity), count()" --by day.year --order -total

    The drive's own program reads the columns that it needs; only the query and the result are
    transferred.
    """
    question = question_of(expression, **options)
    if question.explain:
        explain({"the drive": question.plan})
        return
    if device is None:
        device = drive_with(file, "--device", ", and use --lba to write the file to it")
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
        with run(question.plan, stored, engine, progress=progress) as answer:
            question.show(answer)


@contextmanager
def _stored(
    drive: Device, file: str, lba: int | None, progress: Progress
) -> Iterator[StoredBlocks | StoredFile]:
    """The stored file; with `--lba`, it is written to the drive first."""
    namespace = drive.namespace()
    if file.startswith(BLOCKS):
        if lba is not None:
            raise click.UsageError("--lba is for a FILE that is to be written to the drive")
        with restated(InvalidRequest, to=click.UsageError):
            blocks_named(file)
        stored = stored_at(drive, file)
    elif lba is not None:
        if drive.block_device is not None:
            raise PotashError("--lba is for a drive without a file system, by its socket")
        data = Path(file).read_bytes()
        stored = StoredBlocks(namespace, lba, len(data))
        namespace.write(lba, data.ljust(-(-len(data) // PAGE_SIZE) * PAGE_SIZE, b"\0"),
                        progress=progress)  # fmt: skip
    else:
        stored = stored_at(drive, file)
    with closing(stored):
        yield stored


def _lines(result: Result) -> Iterator[str]:
    texts = [column._replace(values=column.values[:SHOWN]).texts for column in result.columns]
    cells = [["null" if text is None else text for text in column] for column in texts]
    names = [column.name for column in result.columns]
    yield from lines_of([names, *zip(*cells, strict=True)], "<")
    if result.result_rows > SHOWN:
        yield f"… and {result.result_rows - SHOWN} more rows; -o FILE writes all"
    excluded = f"; statistics excluded {result.excluded} of {result.groups} row groups"
    yield (
        f"{result.moved} bytes between drive and host; the drive read {result.read}, and the file"
        f" has {result.held}{excluded if result.excluded else ''}"
    )
