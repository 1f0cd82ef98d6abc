"""The execution of a plan over a file, whose output is taken in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from csd_spec.table_plans import (
    Aggregate,
    Column,
    Expression,
    Field,
    Piece,
    PieceFlag,
    Plan,
    PlanError,
    Request,
    decode,
    terms,
)
from potash_firmware.tables.errors import Refused, no_column, sentence
from potash_firmware.tables.exclusion import excluded
from potash_firmware.tables.expressions import Evaluator, path_of
from potash_firmware.tables.files import (
    Batch,
    ByteSource,
    Counters,
    Path,
    SourceFile,
    open_table,
)
from potash_firmware.tables.groups import Groups
from potash_firmware.tables.output import shown, written

SORTED_ROWS = 1 << 16
"""Rows beside those of the limit that wait before they are sorted, at least."""


def begin(request: bytes, source: ByteSource) -> Execution:
    """The execution of a request: a header of `table_plans.Request`, and a plan. Raises Refused."""
    try:
        header = Request.decode_head(request)
        size = Request.RECORD.size
        if len(request) < size + header.plan_size:
            raise PlanError(f"the plan has {header.plan_size} bytes, which the request has not")
        plan = decode(bytes(request[size : size + header.plan_size]))
    except PlanError as error:
        raise Refused(str(error)) from None
    if header.file_size > source.size:
        raise Refused(f"the file has {header.file_size} bytes; {source.size} can be read")
    return Execution(plan, source, header.file_size)


class Execution:
    """A query; its output is taken piece after piece."""

    def __init__(self, plan: Plan, source: ByteSource, size: int) -> None:
        self._plan, self._source, self._size = plan, source, size
        self._query: _Query | None = None
        self._offset = 0
        """The offset at which the next piece begins, if `_query` is there."""
        self.codecs: dict[str, int] = {}
        """Decoded bytes of the query so far that were compressed, by `CODECS`."""

    def resume(self, source: ByteSource) -> None:
        """Read the file from another source of the same bytes from now on."""
        self._source = source
        if self._query is not None:
            self._query.file.source = source

    def piece(self, offset: int, into: memoryview, work: int = 0) -> int:
        """Write a header of `table_plans.Piece` and the output from this offset on, and return how
        many bytes these are. `work` is as in `table_plans.Request`.

        Shown rows come before the output, and offsets count the bytes of both. Another offset than
        that where the last piece has ended begins the query anew. Raises Refused, MemoryError, and
        what the source raises.
        """
        try:
            return self._piece(offset, into, work or math.inf)
        except (Refused, MemoryError):
            raise
        except (pa.ArrowException, UnicodeError) as error:  # a name of a hostile file is no UTF-8
            raise Refused(f"the query cannot be executed: {sentence(error)}") from None

    def _piece(self, offset: int, into: memoryview, work: float) -> int:
        query, self._query = self._query, None  # nothing goes on after an error
        if query is None or offset != self._offset:
            query = _Query(self._plan, self._source, self._size)
            query.skip(offset)
        room = len(into) - Piece.RECORD.size
        if room < 1:
            raise Refused(f"the output has room for {len(into)} bytes, and none of the result")
        lines, length = query.fill(into[Piece.RECORD.size :], work)
        flags = PieceFlag.MORE if query.more() else 0
        counts = asdict(query.counters)
        self.codecs = counts.pop("codecs")
        header = Piece(flags=flags, shown=lines, length=length, **counts).encode()
        into[: len(header)] = header
        self._query, self._offset = query, offset + lines + length
        return len(header) + lines + length


class _Query:
    """A query from its beginning."""

    def __init__(self, plan: Plan, source: ByteSource, size: int) -> None:
        self.counters = Counters()
        self.file = SourceFile(source, size, self.counters)
        self._shown = 0
        """Bytes of shown rows that are still to come."""
        self._left = memoryview(b"")
        self._chunks = self._output(plan)
        self._most: float = math.inf
        """Decoded bytes after which the piece ends."""

    def skip(self, count: int) -> None:
        """Leave out so many bytes. Raises Refused where there are fewer."""
        while count:
            if not self.more():
                raise Refused("the output ends before this offset")
            count -= len(self._advance(count))

    def fill(self, into: memoryview, work: float) -> tuple[int, int]:
        """Write as much as there is room for, or as comes of so many decoded bytes: the numbers of
        bytes of shown rows and of output."""
        lines = at = 0
        self._most = self.counters.decoded + work
        while at < len(into) and self.more() and self._left:
            before = self._shown
            part = self._advance(len(into) - at)
            into[at : at + len(part)] = part
            at += len(part)
            lines += before - self._shown
        return lines, at - lines

    def more(self) -> bool:
        """True if bytes are still to come, or may be, as the piece has to end before."""
        while not self._left and self.counters.decoded < self._most:
            chunk = next(self._chunks, None)
            if chunk is None:
                return False
            self._left = memoryview(chunk)
        return True

    def _advance(self, most: int) -> memoryview:
        part, self._left = self._left[:most], self._left[most:]
        self._shown -= min(self._shown, len(part))
        return part

    def _output(self, plan: Plan) -> Iterator[bytes]:
        schema, batches = _result(plan, self.file, self.counters)
        batches = self._counted(batches)
        if plan.show:
            first: list[Any] = []
            rows = 0
            for batch in batches:
                yield b""
                first.append(batch)
                rows += batch.num_rows
                if rows >= plan.show:
                    break
            rows = plan.show
            beginning = []
            for batch in first:
                beginning.append(batch.slice(0, rows))
                rows -= beginning[-1].num_rows
            lines = shown(schema, beginning)
            self._shown = len(lines)
            yield lines
            batches = chain(first, batches)
        yield from written(plan.output, schema, batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.counters.rows += batch.num_rows
            yield batch


def _result(
    plan: Plan, file: SourceFile, counters: Counters
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The result's columns and its rows, and none after each step of the way to them. Raises
    Refused, the rows too."""
    table = open_table(file, counters)
    nothing = table.empty()
    plan = (
        plan
        if plan.select
        else plan._replace(select=tuple(Field(name, Column(name)) for name in table.schema.names))
    )
    used = _columns(_of_rows(plan))
    names = {path[0] for path in used}
    paths = used | _columns([] if plan.where is None else [plan.where])
    for path in sorted(paths):
        if table.schema.names.count(path[0]) > 1:
            raise Refused(f"the file has two columns {path[0]!r}")
    evaluator = Evaluator(counters)
    if plan.where is not None:
        evaluator.matching(plan.where, nothing, names)
    needed = names if plan.where is None else {path[0] for path in _columns([plan.where])}
    first = sorted(path for path in paths if path[0] in needed)
    rest = sorted(path for path in paths if path[0] not in needed)

    def batches() -> Iterator[Batch]:
        types = {name: column.type for name, column in nothing.columns.items()}
        for batch in table.batches(first, rest, partial(excluded, plan.where, types)):
            if plan.where is not None:
                batch = evaluator.matching(plan.where, batch, names)
            yield batch if batch.rows else nothing

    if plan.aggregates:
        groups = Groups(plan, evaluator, counters)
        groups.add(nothing)
        columns = groups.result()

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in batches():
                groups.add(batch)
                yield pa.RecordBatch.from_pylist([], schema=schema)
            yield pa.RecordBatch.from_pydict(groups.result())
    else:

        def selected(batch: Batch) -> dict[str, Any]:
            return {field.name: evaluator.array(field.expression, batch) for field in plan.select}

        columns = selected(nothing)

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in batches():
                yield pa.RecordBatch.from_pydict(selected(batch))

    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    for order in plan.order:
        if order.name not in columns:
            raise no_column(order.name, columns, "the result")
    found = rows()
    if plan.order:
        found = _sorted(plan, schema, found)
    if plan.limit is not None:
        found = _limited(found, plan.limit)
    return schema, found


def _columns(expressions: Iterable[Expression]) -> set[Path]:
    """The file's columns in expressions."""
    found = (term for expression in expressions for term in terms(expression))
    return {path_of(term) for term in found if isinstance(term, Column)}


def _of_rows(plan: Plan) -> list[Expression]:
    """The expressions of a plan that have a value in each row of the file, beside `where`."""
    select = [field.expression for field in plan.select]
    if not plan.aggregates:
        return select
    found = [term for expression in select for term in terms(expression)]
    aggregated = [term.of for term in found if isinstance(term, Aggregate) and term.of is not None]
    return [field.expression for field in plan.by] + aggregated


def _limited(batches: Iterator[Any], limit: int) -> Iterator[Any]:
    while limit and (batch := next(batches, None)) is not None:
        part = batch.slice(0, limit)
        limit -= part.num_rows
        yield part


def _sorted(plan: Plan, schema: pa.Schema, batches: Iterator[Any]) -> Iterator[Any]:
    """Rows in the order of the plan, of which only those within the limit are kept."""
    keys = [(order.name, "descending" if order.descending else "ascending") for order in plan.order]
    kept = pa.Table.from_batches([], schema)
    most = None if plan.limit is None else plan.limit + max(plan.limit, SORTED_ROWS)

    def best(table: pa.Table) -> pa.Table:
        try:
            order = pc.sort_indices(table, sort_keys=keys)
        except (pa.ArrowNotImplementedError, TypeError) as error:
            raise Refused(f"the rows cannot be sorted: {error}") from None
        return table.take(order[: plan.limit])

    best(kept)
    waiting = [kept]
    rows = 0
    for batch in batches:
        yield batch.slice(0, 0)
        waiting.append(pa.Table.from_batches([batch]))
        rows += batch.num_rows
        if most is not None and rows > most:
            waiting = [best(pa.concat_tables(waiting))]
            rows = waiting[0].num_rows
    yield from best(pa.concat_tables(waiting)).combine_chunks().to_batches(SORTED_ROWS)
