"""Queries of tables: the plan that a host sends, and the pieces of the result that it gets.

A plan is data. As bytes it is a JSON object in UTF-8, so that a host needs no library to write it:

    {"version": 1, "where": {"call": "greater", "of": [{"column": "price"}, {"value": 100}]},
     "by": [{"name": "region", "is": {"column": "region"}}],
     "select": [{"name": "region", "is": {"column": "region"}},
                {"name": "count()", "is": {"aggregate": "count_all"}}],
     "order": [{"name": "count()", "descending": true}], "limit": 10, "output": "json", "show": 0}

Functions and aggregates have Arrow's names and meaning; `FUNCTIONS` and `AGGREGATES` list those
that a plan may use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import IntFlag, StrEnum
from typing import Any, NamedTuple

from potash_wire.packed import Packed
from potash_wire.records import U16, U32, U64

VERSION = 1

PROGRAM_INDEX = 9
"""The index of the device-defined program of a compute namespace that queries tables."""

MAX_PLAN = 60 << 10
"""Bytes of a plan: it fits in the arguments of a job."""
MAX_TERMS = 4096
"""Columns, values, calls and aggregates of a plan."""
MAX_DEPTH = 64
"""Expressions within one another."""
MAX_TEXT = 4096
"""Characters of a name."""


class PlanError(ValueError):
    """A plan that is none, or says what no plan may say; one sentence."""


class Arguments(NamedTuple):
    """The number of arguments of a function, of which the last `constants` must be values."""

    least: int
    most: int
    constants: int = 0


_ONE, _TWO = Arguments(1, 1), Arguments(2, 2)
_MANY = Arguments(1, 64)

FUNCTIONS: Mapping[str, Arguments] = {
    # Truth values, by Kleene's logic; `is_in` is never null.
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), _TWO),
    **dict.fromkeys(("and_kleene", "or_kleene", "xor"), _TWO),
    **dict.fromkeys(("invert", "is_null", "is_valid", "is_nan", "is_finite", "is_inf"), _ONE),
    "is_in": Arguments(2, 1025, 1024),
    # Numbers. Those named `_checked` fail where the result does not fit.
    **dict.fromkeys(("add_checked", "subtract_checked", "multiply_checked"), _TWO),
    **dict.fromkeys(("divide_checked", "power_checked", "atan2"), _TWO),
    **dict.fromkeys(("negate_checked", "abs_checked", "sign", "sqrt_checked", "exp"), _ONE),
    **dict.fromkeys(("ln_checked", "log10_checked", "log2_checked"), _ONE),
    **dict.fromkeys(("sin_checked", "cos_checked", "tan_checked", "atan"), _ONE),
    **dict.fromkeys(("floor", "ceil", "trunc"), _ONE),
    "round": Arguments(1, 2, 1),
    **dict.fromkeys(("bit_wise_and", "bit_wise_or", "bit_wise_xor"), _TWO),
    **dict.fromkeys(("shift_left_checked", "shift_right_checked"), _TWO),
    "bit_wise_not": _ONE,
    **dict.fromkeys(("min_element_wise", "max_element_wise"), _MANY),
    # Strings, in characters; `match_like` has SQL's wildcards, the regular expressions are RE2's.
    **dict.fromkeys(("starts_with", "ends_with", "match_substring"), Arguments(2, 2, 1)),
    **dict.fromkeys(("match_like", "match_substring_regex"), Arguments(2, 2, 1)),
    **dict.fromkeys(("find_substring", "count_substring"), Arguments(2, 2, 1)),
    **dict.fromkeys(("utf8_lower", "utf8_upper", "utf8_capitalize", "utf8_reverse"), _ONE),
    **dict.fromkeys(("utf8_length", "binary_length"), _ONE),
    **dict.fromkeys(("utf8_trim", "utf8_ltrim", "utf8_rtrim"), Arguments(1, 2, 1)),
    "utf8_slice_codeunits": Arguments(2, 3, 2),
    "replace_substring": Arguments(3, 3, 2),
    "binary_join_element_wise": Arguments(1, 64),
    # Dates and times.
    **dict.fromkeys(("year", "quarter", "month", "week", "day", "day_of_week"), _ONE),
    **dict.fromkeys(("day_of_year", "hour", "minute", "second"), _ONE),
    **dict.fromkeys(("millisecond", "microsecond", "nanosecond"), _ONE),
    "strftime": Arguments(2, 2, 1),
    # Whatever the type.
    "coalesce": _MANY,
    "if_else": Arguments(3, 3),
    "cast": Arguments(2, 2, 1),
    "list_value_length": _ONE,
}
"""Functions of a row's values, by Arrow's names. `cast` takes the name of a type, as in `int64`."""

AGGREGATES: Mapping[str, Arguments] = {
    "count_all": Arguments(0, 0),
    **dict.fromkeys(("count", "count_distinct", "sum", "mean", "min", "max"), _ONE),
    **dict.fromkeys(("any", "all", "first", "last", "stddev", "variance"), _ONE),
}
"""Functions of a group of rows, by Arrow's names; nulls are left out. `count_all` counts rows,
`mean` is a floating-point number whatever the values are, `stddev` and `variance` are of the
population, and a `sum` that does not fit fails."""


class ValueType(StrEnum):
    """The types of values that JSON cannot tell apart; their texts are as ISO 8601 has them."""

    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    DURATION = "duration"
    """An integer of nanoseconds."""
    DECIMAL = "decimal"
    """The text of a number, as in "12.50"."""
    BINARY = "binary"
    """Bytes in hexadecimal."""


class Output(StrEnum):
    """The form of the result."""

    JSON = "json"
    """A JSON object on each line, a member for each column."""
    CSV = "csv"
    ARROW = "arrow"
    """An Arrow stream."""
    FILE = "arrow-file"
    """An Arrow file (Feather version 2)."""
    NONE = "none"
    """Only the shown rows, and the counters of the whole result."""


class Column(NamedTuple):
    """The values of a column; `name` may lead into structures, as in ("place", "city")."""

    name: str | tuple[str, ...]


class Value(NamedTuple):
    """A value that is the same in all rows; None is null.

    Without a type, it is what it meets: a text is a date, a time or a timestamp (of UTC, unless it
    says otherwise) where it is compared with one, and a text or a number is a decimal.
    """

    value: bool | int | float | str | None
    type: ValueType | None = None


class Call(NamedTuple):
    """A function of `FUNCTIONS` of a row's values."""

    function: str
    of: tuple[Expression, ...]


class Aggregate(NamedTuple):
    """A function of `AGGREGATES` of an expression's values in the rows of a group."""

    function: str
    of: Expression | None = None


Expression = Column | Value | Call | Aggregate


class Field(NamedTuple):
    """A column of the result, or a key of groups."""

    name: str
    expression: Expression


class Order(NamedTuple):
    """The result is sorted by this column of it; nulls come last."""

    name: str
    descending: bool = False


class Plan(NamedTuple):
    """A query of a table.

    Rows for which `where` is true count. Without `by` and aggregates, they are the result: the
    fields of `select`, or all columns. Otherwise there is a row for each group of equal `by` (one
    row where there is no `by`), whose fields are aggregates, keys, and calls of these.
    """

    select: tuple[Field, ...] = ()
    where: Expression | None = None
    by: tuple[Field, ...] = ()
    order: tuple[Order, ...] = ()
    limit: int | None = None
    output: Output = Output.JSON
    show: int = 0
    """So many first rows are shown: before the output come lines of JSON, the first of which is an
    array of each column's name and type, and the others an array of a row's values each."""

    @property
    def aggregates(self) -> bool:
        """True if the result has a row for each group."""
        return bool(self.by) or any(
            isinstance(term, Aggregate) for field in self.select for term in terms(field.expression)
        )

    def encode(self) -> bytes:
        """The plan as bytes. Raises PlanError where a drive would refuse it."""
        data = json.dumps(_object(self), separators=(",", ":"), ensure_ascii=False).encode()
        decode(data)
        return data


def terms(expression: Expression) -> Iterator[Expression]:
    """The expression and all that is within it."""
    waiting = [expression]
    while waiting:
        term = waiting.pop()
        yield term
        if isinstance(term, Call):
            waiting += term.of
        elif isinstance(term, Aggregate) and term.of is not None:
            waiting.append(term.of)


def decode(data: bytes) -> Plan:
    """The plan in these bytes. Raises PlanError for what is none, or has what no plan may have."""
    if len(data) > MAX_PLAN:
        raise PlanError(f"the plan has {len(data)} bytes; it can have {MAX_PLAN}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"the plan is no JSON: {error}") from None
    names = {"version", *Plan._fields}
    given = _members(found, "the plan", {"version"}, names)
    if given["version"] != VERSION:
        raise PlanError(f"the plan has version {given['version']!r}; this drive reads {VERSION}")
    budget = [MAX_TERMS]
    plan = Plan(
        select=_fields(given.get("select", []), "select", budget),
        where=None if given.get("where") is None else _expression(given["where"], budget),
        by=_fields(given.get("by", []), "by", budget),
        order=tuple(map(_order, _list(given.get("order", []), "order"))),
        limit=None if given.get("limit") is None else _number(given["limit"], "limit"),
        output=_member_of(Output, given.get("output", Output.JSON), "output"),
        show=_number(given.get("show", 0), "show"),
    )
    _check(plan)
    return plan


def _check(plan: Plan) -> None:
    """Raises PlanError for parts of a plan that do not go together."""
    for place, fields in (("select", plan.select), ("by", plan.by)):
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise PlanError(f"two columns of {place} have the same name")
    if plan.by and not plan.select:
        raise PlanError("groups have no columns without select")
    within = [plan.where, *(field.expression for field in plan.by)]
    within += [
        term.of
        for field in plan.select
        for term in terms(field.expression)
        if isinstance(term, Aggregate)
    ]
    for expression in within:
        if expression is not None and any(
            isinstance(term, Aggregate) for term in terms(expression)
        ):
            raise PlanError("an aggregate stands where a row's value is needed")


def _members(data: Any, what: str, least: set[str], most: set[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise PlanError(f"{what} is no object")
    if lacking := least - data.keys():
        raise PlanError(f"{what} has no {min(lacking)}")
    if unknown := data.keys() - most:
        raise PlanError(f"{what} has an unknown member {min(unknown)[:80]!r}")
    return data


def _list(data: Any, what: str) -> list[Any]:
    if not isinstance(data, list):
        raise PlanError(f"{what} is no array")
    return data


def _text(data: Any, what: str) -> str:
    if not isinstance(data, str) or len(data) > MAX_TEXT:
        raise PlanError(f"{what} is no text of at most {MAX_TEXT} characters")
    return data


def _number(data: Any, what: str) -> int:
    if type(data) is not int or not 0 <= data < 1 << 63:
        raise PlanError(f"{what} is no number of rows")
    return data


def _member_of(kind: Any, data: Any, what: str) -> Any:
    try:
        return kind(data)
    except ValueError:
        raise PlanError(f"{what} {str(data)[:80]!r} is none of {', '.join(kind)}") from None


def _order(data: Any) -> Order:
    found = _members(data, "an order", {"name"}, {"name", "descending"})
    descending = found.get("descending", False)
    if not isinstance(descending, bool):
        raise PlanError("descending is neither true nor false")
    return Order(_text(found["name"], "the name of an order"), descending)


def _fields(data: Any, place: str, budget: list[int]) -> tuple[Field, ...]:
    found = [_members(each, f"a column of {place}", {"name", "is"}, {"name", "is"})
             for each in _list(data, place)]  # fmt: skip
    return tuple(
        Field(_text(each["name"], "a name"), _expression(each["is"], budget)) for each in found
    )


def _expression(data: Any, budget: list[int], depth: int = 0) -> Expression:
    """The expression in `data`; `budget` is the number of terms that the plan may still have."""
    budget[0] -= 1
    if budget[0] < 0 or depth > MAX_DEPTH:
        raise PlanError(f"the plan has more than {MAX_TERMS} terms, or {MAX_DEPTH} in one another")
    match data:
        case {"column": [*path], **rest} if path and not rest:
            return Column(tuple(_text(part, "a name of a column") for part in path))
        case {"column": name, **rest} if not rest:
            return Column(_text(name, "the name of a column"))
        case {"value": bool() | int() | float() | str() | None as value, **rest}:
            return _value(value, rest)
        case {"call": str(function), "of": [*arguments], **rest} if not rest:
            of = tuple(_expression(each, budget, depth + 1) for each in arguments)
            _require(FUNCTIONS, function, of)
            return Call(function, of)
        case {"aggregate": str(function), **rest} if not rest.keys() - {"of"}:
            inner = rest.get("of")
            expression = None if inner is None else _expression(inner, budget, depth + 1)
            _require(AGGREGATES, function, () if expression is None else (expression,))
            return Aggregate(function, expression)
    raise PlanError(f"{str(data)[:80]!r} is neither a column, a value, a call nor an aggregate")


def _value(value: Any, rest: dict[Any, Any]) -> Value:
    if not rest:
        return Value(value)
    kind = _member_of(ValueType, _members(rest, "a value", {"type"}, {"type"})["type"], "the type")
    if not isinstance(value, int if kind is ValueType.DURATION else str) or value is True:
        raise PlanError(f"{str(value)[:80]!r} is no {kind}")
    return Value(value, kind)


def _require(functions: Mapping[str, Arguments], function: str, of: Sequence[Expression]) -> None:
    """Raises PlanError for a function that there is not, or that takes other arguments."""
    takes = functions.get(function)
    if takes is None:
        raise PlanError(f"the drive has no function {function[:80]}")
    if not takes.least <= len(of) <= takes.most:
        raise PlanError(f"{function} does not take {len(of)} arguments")
    variable = max(1, len(of) - takes.constants) if takes.constants else len(of)
    if not all(isinstance(each, Value) for each in of[variable:]):
        raise PlanError(f"{function} takes columns or calls first, then values only")


def _object(part: Any) -> Any:
    """A part of a plan as JSON has it."""
    match part:
        case Plan():
            parts = {name: _object(value) for name, value in part._asdict().items()}
            return {"version": VERSION, **parts}
        case Field(name, expression):
            return {"name": name, "is": _object(expression)}
        case Column(name):
            return {"column": name}
        case Value(value, kind):
            return {"value": value} if kind is None else {"value": value, "type": kind}
        case Call(function, of):
            return {"call": function, "of": [_object(each) for each in of]}
        case Aggregate(function, inner):
            return {"aggregate": function, "of": None if inner is None else _object(inner)}
        case Order():
            return part._asdict()
        case tuple():
            return [_object(each) for each in part]
    return part


class Request(Packed, least_size=32, error=PlanError):
    """The header of a plan: the file's size in bytes, and the offset of the output to begin at.

    The output of a plan is a sequence of bytes, the shown rows and then the result, of which a job
    gives as many as there is room for. The next job asks for those that follow, with the same plan
    and the same file.
    """

    version: U32 = VERSION
    plan_size: U32 = 0
    file_size: U64 = 0
    offset: U64 = 0
    work: U64 = 0
    """Bytes of columns that are decoded for the piece, about: it ends after them, even without
    output, so that a host sees how far a long query is. 0 is any number."""


class PieceFlag(IntFlag):
    MORE = 1
    """More bytes follow this piece."""


class Piece(Packed, least_size=96, error=PlanError):
    """The header of a piece of the output; its counters are those of the query so far."""

    version: U16 = VERSION
    flags: U16 = 0
    reserved: U32 = 0
    shown: U64 = 0
    """Bytes of this piece that are shown rows, as lines of JSON; they come first."""
    length: U64 = 0
    """Bytes of this piece after those: the output in the plan's form."""
    rows: U64 = 0
    """Rows of the result."""
    file_rows: U64 = 0
    """Rows of the file."""
    read: U64 = 0
    """Bytes of the file that were read."""
    groups: U64 = 0
    """Row groups, or record batches, of the file."""
    excluded: U64 = 0
    """Row groups that were not read, as the file's statistics exclude them."""
    decoded: U64 = 0
    """Bytes of columns after they were decompressed and decoded."""
    compared: U64 = 0
    """Values that functions were applied to."""
    hashed: U64 = 0
    """Values of keys of groups."""
    aggregated: U64 = 0
    """Values that aggregates were applied to."""
