"""Filters and aggregates as Python expressions: text to a tree of what they say.

Python's own parser reads the text; nothing of it is ever evaluated. The tree knows no columns:
`conditions` checks it against a file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from potash.columns.errors import InvalidQuery
from potash.columns.types import Value

MAX_LENGTH = 4096
"""Characters of an expression."""
MAX_TERMS = 512
"""Names, values and negations in it."""

FUNCTIONS = ("count", "sum", "min", "max", "mean")


class Name(NamedTuple):
    """A column; as an expression, one of truth values."""

    column: str


class Literal(NamedTuple):
    value: Value


class Compare(NamedTuple):
    left: Name | Literal
    operator: str
    right: Name | Literal


class IsNull(NamedTuple):
    column: str


class Not(NamedTuple):
    of: Expression


class And(NamedTuple):
    of: tuple[Expression, ...]


class Or(NamedTuple):
    of: tuple[Expression, ...]


Expression = Name | Compare | IsNull | Not | And | Or


class Aggregate(NamedTuple):
    """A function of a column; `count` without one counts rows."""

    function: str
    column: str | None

    def __str__(self) -> str:
        return f"{self.function}({self.column or ''})"


class Aggregates(NamedTuple):
    of: tuple[Aggregate, ...]


Read = TypeVar("Read")

_TERMS = (ast.Name, ast.Constant, ast.UnaryOp)
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def parse_filter(text: str) -> Expression:
    """`(price > 100) & (region == "EU")`. Raises InvalidQuery."""
    return _read(text, _filter)


def parse_query(text: str) -> Expression | Aggregates:
    """Aggregates such as `count(), sum(price)`, or else a filter. Raises InvalidQuery."""
    return _read(text, _query)


def _read(text: str, reader: Callable[[ast.expr], Read]) -> Read:
    if len(text) > MAX_LENGTH:
        raise InvalidQuery(f"the expression has more than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), "expression", "eval").body
        if sum(isinstance(node, _TERMS) for node in ast.walk(tree)) > MAX_TERMS:
            raise InvalidQuery(f"the expression has more than {MAX_TERMS} names and values")
        return reader(tree)
    except InvalidQuery:
        raise
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise InvalidQuery(f"{text!r} is not an expression: {reason}") from None
    except (RecursionError, MemoryError):
        raise InvalidQuery("the expression is nested too deeply") from None


def _query(tree: ast.expr) -> Expression | Aggregates:
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    if not any(_is_aggregate(part) for part in parts):
        return _filter(tree)
    return Aggregates(tuple(map(_aggregate, parts)))


def _is_aggregate(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    )


def _aggregate(node: ast.expr) -> Aggregate:
    if not isinstance(node, ast.Call) or not _is_aggregate(node) or node.keywords:
        raise InvalidQuery(
            f"{_text(node)} is not an aggregate; those are count(), and count, sum, min, max and"
            " mean of a column"
        )
    assert isinstance(node.func, ast.Name)
    function = node.func.id
    if not node.args and function == "count":
        return Aggregate(function, None)
    name = _name(node.args[0]) if len(node.args) == 1 else None
    if name is None:
        raise InvalidQuery(f"{function} takes the name of a column, not {_text(node)}")
    return Aggregate(function, name.column)


def _filter(node: ast.expr) -> Expression:
    match node:
        case ast.BoolOp(ast.And(), values):
            return And(tuple(map(_filter, values)))
        case ast.BoolOp(ast.Or(), values):
            return Or(tuple(map(_filter, values)))
        case ast.BinOp(left, ast.BitAnd(), right):
            return And((_filter(left), _filter(right)))
        case ast.BinOp(left, ast.BitOr(), right):
            return Or((_filter(left), _filter(right)))
        case ast.UnaryOp(ast.Invert() | ast.Not(), operand):
            return Not(_filter(operand))
        case ast.Compare(left, operators, others):  # `1 < x < 5` is two comparisons
            operands = zip([left, *others], operators, others, strict=False)
            parts = tuple(_comparison(*each) for each in operands)
            return parts[0] if len(parts) == 1 else And(parts)
    name = _name(node)
    if name is None:
        raise InvalidQuery(
            f"{_text(node)} is not a condition; compare columns with values, combine conditions"
            " with &, | and ~, and put each one in parentheses"
        )
    return name


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Expression:
    if isinstance(operator, ast.Is | ast.IsNot):
        name = _name(left)
        if name is None or not (isinstance(right, ast.Constant) and right.value is None):
            raise InvalidQuery(
                f"`is` compares with None only, not with {_text(right)}; put each comparison in"
                " parentheses, as in (a is None) & (b == 2)"
            )
        null = IsNull(name.column)
        return null if isinstance(operator, ast.Is) else Not(null)
    first = _operand(left)
    if isinstance(operator, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple | ast.Set) or not right.elts:
            raise InvalidQuery(f"{_text(right)} is not a list of values, as in `x in [1, 2]`")
        equal = Or(tuple(Compare(first, "==", _operand(one)) for one in right.elts))
        return equal if isinstance(operator, ast.In) else Not(equal)
    return Compare(first, _COMPARISONS[type(operator)], _operand(right))


def _operand(node: ast.expr) -> Name | Literal:
    name = _name(node)
    if name is not None:
        return name
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
        if not isinstance(node, ast.Constant) or not isinstance(node.value, int | float):
            raise InvalidQuery(f"{_text(node)} is not a number")
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Literal(sign * value)
        if isinstance(value, bool | str) and sign == 1:
            return Literal(value)
    raise InvalidQuery(f"{_text(node)} is neither a column nor a value; put each comparison in"
                       " parentheses, as in (a > 1) & (b == 2)")  # fmt: skip


def _name(node: ast.expr) -> Name | None:
    """A column: `price`, or `col("unit price")`."""
    match node:
        case ast.Name(name):
            return Name(name)
        case ast.Call(ast.Name("col"), [ast.Constant(str(name))], []):
            return Name(name)
    return None


def _text(node: ast.expr) -> str:
    try:
        return repr(ast.unparse(node))[:80]
    except (RecursionError, ValueError):  # also of numbers that are too long to be written
        return "a part of the expression"
