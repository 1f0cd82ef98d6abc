"""Queries of a table that is spread over drives: the drives aggregate their parts, and the host
combines what they give, with the engine that the drives have.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from csd_spec.table_plans import (
    Aggregate,
    Call,
    Column,
    Expression,
    Field,
    Output,
    Piece,
    Plan,
    Request,
    Value,
)
from potash.columns import Answer, InvalidQuery, Result, Stored
from potash.sdk.errors import PotashError, restated
from potash.sdk.progress import Progress, silent
from potash.sdk.targets import Range

if TYPE_CHECKING:
    from potash_firmware.tables import Execution

BUFFER = 4 << 20
"""Bytes of a piece of the combined result."""
SAME = ("min", "max", "any", "all", "first", "last", "sum")
"""Aggregates that are combined by themselves."""
COUNTS = ("count_all", "count")
REFUSED = ("stddev", "variance")


class Part(NamedTuple):
    """A drive's result for its part of a table: an Arrow stream, and the counters of the query."""

    data: bytes
    piece: Piece
    held: int
    moved: int
    jobs: int

    @classmethod
    def of(cls, answer: Answer) -> Part:
        """The whole of an answer."""
        return cls(answer.read(), answer.piece, answer.held, answer.moved, answer.jobs)


def split(plan: Plan) -> tuple[Plan, Plan]:
    """The plan of each drive, and that of the drives' results one after another. Raises
    InvalidQuery for what cannot be combined."""
    if not plan.aggregates:
        drives = plan._replace(output=Output.ARROW, show=0)
        if plan.limit is None:
            drives = drives._replace(order=())
        return drives, plan._replace(where=None, select=())
    return _Split(plan).plans()


class _Split:
    """The columns of the drives' results: `k0` and so on are the keys, `d0` values that are counted
    once each, and `a0` aggregates."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._keys = {key.expression: Column(f"k{at}") for at, key in enumerate(plan.by)}
        self._keys |= {Column(key.name): Column(f"k{at}") for at, key in enumerate(plan.by)}
        self._distinct: dict[Expression, Column] = {}
        self._aggregates: dict[Aggregate, Column] = {}

    def plans(self) -> tuple[Plan, Plan]:
        plan = self._plan
        select = tuple(Field(name, self._combined(each)) for name, each in plan.select)
        aggregates = [aggregate.function for aggregate in self._aggregates]
        if self._distinct and {"first", "last"} & {*aggregates}:
            raise InvalidQuery("a fleet combines no count_distinct together with first or last")
        by = [Field(f"k{at}", key.expression) for at, key in enumerate(plan.by)]
        combined = tuple(Field(key.name, Column(f"k{at}")) for at, key in enumerate(plan.by))
        by += [Field(str(column.name), each) for each, column in self._distinct.items()]
        given = [Field(str(column.name), each) for each, column in self._aggregates.items()]
        drives = Plan((*by, *given), plan.where, tuple(by), output=Output.ARROW)
        return drives, plan._replace(select=select, where=None, by=combined)

    def _combined(self, expression: Expression) -> Expression:
        if (key := self._keys.get(expression)) is not None:
            return key
        match expression:
            case Call(function, of):
                return Call(function, tuple(map(self._combined, of)))
            case Aggregate():
                return self._aggregate(expression)
        return expression

    def _aggregate(self, aggregate: Aggregate) -> Expression:
        function, of = aggregate
        if function in COUNTS:  # which drives do not give where they count distinct values of none
            return Call("coalesce", (Aggregate("sum", self._given(aggregate)), Value(0)))
        if function == "count_distinct" and of is not None:
            column = self._distinct.setdefault(of, Column(f"d{len(self._distinct)}"))
            return Aggregate(function, column)
        if function == "mean":
            total = Aggregate("sum", self._given(Aggregate("sum", of)))
            count = Aggregate("sum", self._given(Aggregate("count", of)))
            some = Call("if_else", (Call("greater", (count, Value(0))), count, Value(None)))
            return Call("divide_checked", (Call("cast", (total, Value("float64"))), some))
        if function in SAME:
            return Aggregate(function, self._given(aggregate))
        raise InvalidQuery(
            f"a fleet does not combine {function}; count(x), sum(x) and sum(x * x) give it"
        )

    def _given(self, aggregate: Aggregate) -> Column:
        return self._aggregates.setdefault(aggregate, Column(f"a{len(self._aggregates)}"))


class Table:
    """A table in this process's memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.ranges: Sequence[Range] = ()

    def read(self, offset: int, into: memoryview) -> None:
        into[:] = self.data[offset : offset + len(into)]

    def confirm(self) -> None: ...


class OnHost:
    """The drives' engine in this process, on a `Table`."""

    moved = 0

    def __init__(self, buffer: int = BUFFER) -> None:
        self._buffer = memoryview(bytearray(buffer))
        self._execution: Execution | None = None

    def attach(self, stored: Stored) -> None:
        assert isinstance(stored, Table)
        self._table = stored
        self._execution = None

    def ask(self, request: bytes) -> int:
        from potash_firmware.tables import Refused, begin

        with restated(Refused, to=InvalidQuery):
            if self._execution is None:
                self._execution = begin(request, self._table)
            return self._execution.piece(Request.decode_head(request).offset, self._buffer)

    def read(self, start: int, length: int) -> bytes:
        return bytes(self._buffer[start : start + length])

    def close(self) -> None:
        self._execution = None


class Combined(Answer):
    """The answer of several drives, whose counters are the sums of theirs."""

    def __init__(self, plan: Plan, parts: Sequence[Part], *, progress: Progress = silent) -> None:
        self._parts = parts
        super().__init__(plan, Table(_table(parts)), OnHost(), progress=progress)

    def result(self) -> Result:
        parts = self._parts
        return replace(
            super().result(),
            rows=sum(part.piece.file_rows for part in parts),
            held=sum(part.held for part in parts),
            read=sum(part.piece.read for part in parts),
            moved=sum(part.moved for part in parts),
            jobs=sum(part.jobs for part in parts),
            groups=sum(part.piece.groups for part in parts),
            excluded=sum(part.piece.excluded for part in parts),
        )


def require_engine() -> None:
    """Raises PotashError where this machine cannot combine results."""
    if importlib.util.find_spec("pyarrow") is None:
        raise PotashError(
            "results of drives are combined by pyarrow: pip install 'potash[columns]'"
        )


def _table(parts: Sequence[Part]) -> bytes:
    """An Arrow file of all rows. Raises InvalidQuery where columns have different types."""
    import pyarrow as pa

    tables = [pa.ipc.open_stream(part.data).read_all() for part in parts]
    try:
        whole = pa.concat_tables(tables, promote_options="default").unify_dictionaries()
    except pa.ArrowException:
        raise InvalidQuery(
            "the files have different types for a column; write them with one schema"
        ) from None
    stream = io.BytesIO()
    with pa.ipc.new_file(stream, whole.schema) as writer:
        writer.write_table(whole)
    return stream.getvalue()
