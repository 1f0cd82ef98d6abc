"""A query of a table that is on a drive: from text to a plan, and from the answer to a result."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from csd_spec.table_plans import (
    Aggregate,
    Call,
    Column,
    Expression,
    Field,
    Order,
    Output,
    Plan,
    PlanError,
    Value,
    terms,
)
from potash.columns.answer import QueryEngine, Result, Stored, run
from potash.columns.errors import InvalidQuery
from potash.columns.expressions import is_condition, parse_filter, parse_list, split
from potash.sdk.errors import restated
from potash.sdk.progress import Progress, silent

ALL = (1 << 63) - 1
"""A number of shown rows that no result has."""


@dataclass(frozen=True)
class Request:
    """A query's expressions. Raises InvalidQuery for what is invalid for any file."""

    expression: str
    """A filter, whose rows are the result, or a list of expressions and aggregates."""
    where: str | None = None
    """A filter of the rows that count."""
    by: str | None = None
    """Keys: the result has a row for each group of rows in which they are equal."""
    select: Sequence[str] = ()
    """A filter: the columns of the result, all if there are none."""
    order: str | None = None
    """Columns of the result, or their numbers from 1 on; - before one for descending order."""
    limit: int | None = None
    """Rows that the result has at most."""

    def __post_init__(self) -> None:
        with restated(PlanError, to=InvalidQuery):
            self.plan().encode()

    def plan(self, output: Output = Output.NONE, show: int = 0) -> Plan:
        """The query as the drive gets it."""
        where = [] if self.where is None else [parse_filter(self.where)]
        keys = [] if self.by is None else parse_list(self.by)
        fields = parse_list(self.expression)
        if self._is_filter(fields, keys):
            if keys:
                raise InvalidQuery('rows are not grouped; ask for aggregates, such as "count()"')
            where.append(fields[0].expression)
            fields = [Field(name, Column(name)) for name in self.select]
        elif self.select:
            raise InvalidQuery("columns are chosen for rows, not for aggregates")
        else:
            fields = _with_keys(fields, keys)
        condition = Call("and_kleene", tuple(where)) if where[1:] else where[0] if where else None
        plan = Plan(tuple(fields), condition, tuple(keys), (), self.limit, output, show)
        order = [_order(part, plan) for _, part in split(self.order or "") if part]
        if not order:
            expressions = {key.expression for key in keys} | {Column(key.name) for key in keys}
            order = [Order(field.name) for field in fields if field.expression in expressions]
        return plan._replace(order=tuple(order))

    def _is_filter(self, fields: list[Field], keys: list[Field]) -> bool:
        """True if the expression is no list, but a condition without a name."""
        (name, _), *others = split(self.expression)
        listed = name or others or self.expression.rstrip().endswith(",")
        condition = fields[0].expression
        if listed or (keys and isinstance(condition, Column)) or _aggregates(fields[0]):
            return False
        return is_condition(condition)


def query(
    request: Request, stored: Stored, engine: QueryEngine, *, progress: Progress = silent
) -> Result:
    """Run a query on a file where it is stored; the result has all rows.

    Args:
        request: the filter or the aggregates.
        stored: the file, a `StoredFile` or `StoredBlocks`.
        engine: `OnAccelerator` or `InComputeNamespace`.
        progress: called before each job.

    Raises:
        InvalidQuery: the expression is wrong, does not fit the file's columns, or the file is no
            table.
        PotashError: any other failure, also a file that has changed meanwhile.
    """
    with run(request.plan(Output.NONE, ALL), stored, engine, progress=progress) as answer:
        answer.read()
        return answer.result()


def explained(plan: Plan) -> Iterator[str]:
    """The steps of a plan, a line for each."""
    names = sorted({text_of(term) for part in _parts(plan) for term in terms(part)
                    if isinstance(term, Column)})  # fmt: skip
    rows = not plan.aggregates
    yield f"reads       {', '.join(names) if plan.select or not rows else 'all columns'}"
    if plan.where is not None:
        yield f"filters     {text_of(plan.where)}"
    if plan.by:
        yield f"groups by   {', '.join(map(_named, plan.by))}"
    if plan.select:
        yield f"{'computes' if rows else 'aggregates':<12}{', '.join(map(_named, plan.select))}"
    if plan.order:
        order = (f"{name}{' descending' if descending else ''}" for name, descending in plan.order)
        yield f"sorts by    {', '.join(order)}"
    if plan.limit is not None:
        yield f"limits to   {plan.limit} rows"


def _aggregates(field: Field) -> bool:
    return any(isinstance(term, Aggregate) for term in terms(field.expression))


def _with_keys(fields: list[Field], keys: list[Field]) -> list[Field]:
    """The keys that are not among the fields, and the fields. Raises InvalidQuery for columns that
    have no single value in a group."""
    expressions = {key.expression for key in keys}
    names = {Column(key.name) for key in keys}
    if keys or any(map(_aggregates, fields)):
        for field in fields:
            for column in _ungrouped(field.expression, expressions | names):
                raise InvalidQuery(
                    f"{text_of(column)} is neither in an aggregate nor a key; name it in --by"
                )
    given = {field.expression for field in fields}
    first = [key for key in keys if not given & {key.expression, Column(key.name)}]
    return first + fields


def _ungrouped(expression: Expression, keys: set[Expression]) -> Iterator[Column]:
    if expression in keys:
        return
    if isinstance(expression, Call):
        for part in expression.of:
            yield from _ungrouped(part, keys)
    elif isinstance(expression, Column):
        yield expression


def _order(text: str, plan: Plan) -> Order:
    """A column of the result. Raises InvalidQuery for one that there is not."""
    names = [field.name for field in plan.select]
    descending = text.startswith("-")
    name = text.removeprefix("-").strip()
    if name.isdecimal():
        if not names:
            raise InvalidQuery("the result has all columns, without numbers; order by a name")
        if not 1 <= int(name) <= len(names):
            raise InvalidQuery(f"the result has {len(names)} columns, and no column {name}")
        return Order(names[int(name) - 1], descending)
    if names and name not in names:
        name = parse_list(name)[0].name
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InvalidQuery(f"the result has no column {name!r}{hint}")
    return Order(name, descending)


def _parts(plan: Plan) -> Iterator[Expression]:
    yield from (field.expression for field in (*plan.select, *plan.by))
    if plan.where is not None:
        yield plan.where


def _named(field: Field) -> str:
    text = text_of(field.expression)
    return text if text == field.name else f"{field.name} = {text}"


def text_of(expression: Expression) -> str:
    """An expression as people read it."""
    match expression:
        case Column(name):
            return name if isinstance(name, str) else ".".join(name)
        case Value(value, kind):
            return repr(value) if kind is None else f"{kind}({value!r})"
        case Call(function, of):
            return f"{function}({', '.join(map(text_of, of))})"
        case Aggregate(function, of):
            return f"{function}({'' if of is None else text_of(of)})"
