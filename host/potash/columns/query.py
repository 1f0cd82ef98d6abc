"""A query on an Arrow file that is on a drive: from text to a result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from csd_spec.reporting import Count, Form, Key
from potash.columns import conditions, expressions
from potash.columns.arrow import ArrowFile, Batch
from potash.columns.conditions import require_computable
from potash.columns.engines import QueryEngine
from potash.columns.errors import InvalidFile, InvalidQuery
from potash.columns.expressions import Aggregate
from potash.columns.generator import Generator
from potash.columns.layout import Job, Limits, Locate, jobs_of, nullable_of, output_room, whole_file
from potash.columns.plan import Aggregated, Plan, Selected, states_of
from potash.columns.results import Groups, ResultColumn, Rows, groups_of, rows_of
from potash.columns.schema import Column
from potash.columns.stored import Stored
from potash.columns.types import TypeId, Value
from potash.sdk.errors import DeviceMisbehaved, PotashError
from potash.sdk.progress import Progress, silent

MAX_GROUPS = 4096
Columns = Sequence[Annotated[ResultColumn, Form(title="QueryColumn")]]


@dataclass(frozen=True)
class Request:
    """A query's expressions. Raises InvalidQuery for an expression that is invalid for any file."""

    expression: str
    """A filter, whose rows are the result, or aggregates."""
    where: str | None = None
    """A filter of the rows that count."""
    by: str | None = None
    """Aggregates: a column, for each of whose values there is a row of the result."""
    select: Sequence[str] = ()
    """A filter: the columns of the result, all if there are none."""

    def __post_init__(self) -> None:
        expressions.parse_query(self.expression)
        if self.where is not None:
            expressions.parse_filter(self.where)


@dataclass
class Result:
    """The result of a query, and the bytes that were transferred for it."""

    found: Groups | Rows
    """The partial result, which can be added to those of other files."""
    held: Annotated[Count, "Size of the file in bytes."]
    rows: Annotated[Count, Key("file_rows", before="held"), "Number of rows of the file."] = 0
    read: Annotated[Count, "Bytes of the file that the drive read."] = 0
    moved: Annotated[
        Count, "Bytes between drive and host: metadata, programs, tables and results."
    ] = 0
    jobs: Annotated[Count, "Number of jobs that the query took."] = 0

    @property
    def columns(self) -> Annotated[Columns, Key(before="file_rows")]:
        """The columns of the result."""
        return self.found.columns()

    @property
    def result_rows(self) -> Annotated[Count, Key("rows", before="file_rows")]:
        """Number of rows of the result."""
        return next((len(column.values) for column in self.columns), 0)

    def to_pydict(self) -> dict[str, list[Value | None]]:
        """Values by column, as pyarrow's method of this name."""
        return {column.name: list(column.values) for column in self.columns}


class Prepared:
    """A request checked against a file. Raises InvalidFile and InvalidQuery."""

    def __init__(self, request: Request, file: ArrowFile) -> None:
        self._file = file
        self._values: dict[str, list[Value | None]] = {}
        parsed = expressions.parse_query(request.expression)
        filters: list[expressions.Expression] = []
        if request.where is not None:
            filters.append(expressions.parse_filter(request.where))
        if not isinstance(parsed, expressions.Aggregates):
            filters.append(parsed)
        bound = [conditions.bind(one, file.schema, self.values) for one in filters]
        result: Selected | Aggregated
        if isinstance(parsed, expressions.Aggregates):
            if request.select:
                raise InvalidQuery("columns are chosen for rows, not for aggregates")
            result = self._aggregated(parsed.of, request.by)
        else:
            if request.by is not None:
                raise InvalidQuery('rows are not grouped; ask for aggregates, such as "count()"')
            result = self._selected(request.select)
        used = [*result.reads(), *(one for part in bound for one in conditions.columns_of(part))]
        columns = tuple({column.name: column for column in used}.values())
        self.batches: list[Batch] = list(file.batches(columns))
        condition = conditions.All(tuple(bound)) if bound else None
        nullable = nullable_of(columns, self.batches)
        self.plan = Plan(condition, result, columns, nullable)

    def values(self, column: Column) -> list[Value | None]:
        """A column's dictionary, which is read once."""
        if column.name not in self._values:
            self._values[column.name] = self._file.dictionary(column)
        return self._values[column.name]

    def _selected(self, names: Sequence[str]) -> Selected:
        schema = self._file.schema
        columns = [schema.column(name) for name in names] or list(schema.columns.values())
        for column in columns:
            require_computable(column)
            if column.dictionary is not None:
                self.values(column)
        return Selected(tuple(columns))

    def _aggregated(self, aggregates: tuple[Aggregate, ...], by: str | None) -> Aggregated:
        schema = self._file.schema
        columns: dict[str, Column] = {}
        for one in aggregates:
            if one.column is None:
                continue
            column = schema.column(one.column)
            require_computable(column)
            if one.function != "count" and column.dictionary is not None:
                raise InvalidQuery(f"{column} can be counted only")
            if one.function in ("sum", "mean") and not (
                column.type.is_number or column.type.id == TypeId.BOOL
            ):
                raise InvalidQuery(f"{column} has no {one.function}, as it has no numbers")
            columns[one.column] = column
        states = states_of(aggregates, columns, self.values)
        if by is None:
            return Aggregated(aggregates, states)
        column = schema.column(by)
        if column.dictionary is not None:
            count = len(self.values(column))
        elif column.type.id == TypeId.BOOL:
            count = 2
            self._values[column.name] = [False, True]
        else:
            raise InvalidQuery(f"{column} cannot group rows; write it as a dictionary")
        if count > MAX_GROUPS:
            raise InvalidQuery(f"{column} has {count} values; rows can have {MAX_GROUPS} groups")
        return Aggregated(aggregates, states, column, count)

    def program(self) -> bytes:
        """The program, an object file. Raises InvalidQuery if it would be too long."""
        return Generator(self.plan).program()

    def jobs(self, locate: Locate, limits: Limits) -> Iterator[Job]:
        """The jobs of the query; none where the metadata answer it. Raises InvalidFile."""
        batches = self.batches if self.plan.columns else []
        return jobs_of(self.plan, batches, locate, limits)

    def whole(self) -> Job:
        """A job whose input is the whole file."""
        return whole_file(self.plan, self.batches, self._file.size)

    def found(self, output: bytes) -> Groups | Rows:
        """The partial result of a job, from its output."""
        result = self.plan.result
        if isinstance(result, Selected):
            return rows_of(result, self.plan.nullable, output, self.values)
        return groups_of(result, output, [] if result.by is None else self.values(result.by))


def query(
    request: Request, stored: Stored, engine: QueryEngine, *, progress: Progress = silent
) -> Result:
    """Run a query on a file where it is stored.

    Args:
        request: the filter or the aggregates.
        stored: the file, a `StoredFile` or `StoredBlocks`.
        engine: `OnAccelerator` or `InComputeNamespace`.
        progress: called with the part of the rows that is done.

    Raises:
        InvalidFile: the file is no Arrow file, is compressed, or is damaged.
        InvalidQuery: the expression is wrong, or does not fit the file's columns.
        PotashError: any other failure, also a file that has changed meanwhile.
    """
    try:
        file = ArrowFile(stored)
        prepared = Prepared(request, file)
        plan = prepared.plan
        rows = sum(batch.rows for batch in prepared.batches)
        found: Any = prepared.found(bytes(output_room(plan, 0)))
        if not plan.columns:  # count() alone, which the metadata answer
            found.found[None].rows = rows
        result = Result(found, file.size, rows)
        image = prepared.program()
        done = 0
        try:
            for job in prepared.jobs(stored.locate, engine.limits):
                pages = [here for run in job.pages for here in stored.locate(run)]
                room = output_room(plan, job.rows)
                output = engine.run(image, job, pages, room)
                _require_whole(plan, output.data, room)
                found.add(prepared.found(output.data))
                result.jobs += 1
                result.read += job.size
                result.moved += output.moved
                done += job.rows
                progress("querying", done / rows)
        except BaseException:
            with suppress(PotashError):  # what was raised first is the reason
                engine.close()
            raise
        engine.close()
        stored.confirm()
    except InvalidFile as error:
        raise InvalidFile(f"the file cannot be queried: {error}") from None
    result.moved += stored.moved
    return result


def merged(parts: Sequence[Result]) -> Result:
    """The result of a request on several files, from those of each, in their order.

    Raises InvalidQuery where a column has not the same type in all files.
    """
    if len(set(map(_form, parts))) > 1:
        raise InvalidQuery(
            "the files have different types for a column; write them with one schema"
        )
    whole = Result(parts[0].found.empty(), 0)
    found: Any = whole.found
    for one in parts:
        found.add(one.found)  # of the same kind, by their form
        whole.held += one.held
        whole.rows += one.rows
        whole.read += one.read
        whole.moved += one.moved
        whole.jobs += one.jobs
    return whole


def _form(result: Result) -> tuple[object, ...]:
    """Names and types of a result, and of what was aggregated for it."""
    types = result.found.types if isinstance(result.found, Groups) else {}
    return (*((one.name, one.type) for one in result.columns), *types.items())


def _require_whole(plan: Plan, output: bytes, room: int) -> None:
    """Raises DeviceMisbehaved for an output that no program of the plan makes."""
    if isinstance(plan.result, Selected):
        whole = len(output) <= room and not len(output) % plan.result.record(plan.nullable).size
    else:
        whole = len(output) == room
    if not whole:
        raise DeviceMisbehaved(f"the drive gives {len(output)} bytes for a query with {room}")
