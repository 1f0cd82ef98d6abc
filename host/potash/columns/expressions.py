"""Expressions in Python's syntax: from text to those of a plan.

Python's own parser reads the text; nothing of it is ever evaluated. No column is known here: the
drive checks names and types.
"""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from csd_spec.table_plans import (
    AGGREGATES,
    FUNCTIONS,
    Aggregate,
    Call,
    Column,
    Expression,
    Field,
    Value,
    ValueType,
    terms,
)
from potash.columns.errors import InvalidQuery

MAX_LENGTH = 4096
"""Characters of an expression."""
MAX_TERMS = 512
"""Names, values and negations in it."""

_TERMS = (ast.Name, ast.Constant, ast.UnaryOp)
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal",
    ast.Eq: "equal", ast.NotEq: "not_equal",
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add_checked", ast.Sub: "subtract_checked", ast.Mult: "multiply_checked",
    ast.Div: "divide_checked", ast.FloorDiv: "divide_checked", ast.Pow: "power_checked",
    ast.LShift: "shift_left_checked", ast.RShift: "shift_right_checked",
    ast.BitAnd: "and_kleene", ast.BitOr: "or_kleene", ast.BitXor: "xor",
}  # fmt: skip
_LOGIC = ("and_kleene", "or_kleene", "xor", "invert")

CONDITIONS = {
    *_COMPARISONS.values(), *_LOGIC, "is_null", "is_valid", "is_nan", "is_finite", "is_inf",
    "is_in", "starts_with", "ends_with", "match_substring", "match_like", "match_substring_regex",
}  # fmt: skip
"""Functions whose values are truth values."""
_OF_ANY_TYPE = {"coalesce", "if_else", "cast"}

PARTS_OF_DATES = {
    "year", "quarter", "month", "week", "day", "day_of_week", "day_of_year", "hour", "minute",
    "second", "millisecond", "microsecond", "nanosecond",
}  # fmt: skip
"""Functions that are attributes, too: `day.year`."""

NAMES = {
    "len": "utf8_length", "like": "match_like", "matches": "match_substring_regex",
    "startswith": "starts_with", "endswith": "ends_with", "lower": "utf8_lower",
    "upper": "utf8_upper", "capitalize": "utf8_capitalize", "strip": "utf8_trim",
    "lstrip": "utf8_ltrim", "rstrip": "utf8_rtrim", "replace": "replace_substring",
    "find": "find_substring", "count": "count_substring",
}  # fmt: skip
"""Functions by the names that Python and SQL have for them; `count` is one as a method only."""
_TYPES = {*ValueType}
_STRINGS = {
    *(name for name in FUNCTIONS if name.startswith("utf8_") and not name.endswith("length")),
    "replace_substring", "binary_join_element_wise", "strftime",
}  # fmt: skip

Read = TypeVar("Read")


def parse_filter(text: str) -> Expression:
    """`(price > 100) & (region == "EU")`. Raises InvalidQuery."""
    return _without_nulls(_read(text, _condition))


def parse_list(text: str) -> list[Field]:
    """Expressions that commas separate, perhaps with names: `region, total=sum(price)`. Raises
    InvalidQuery."""
    _require_short(text)
    found = []
    for name, part in split(text):
        expression, described = _read(part, lambda node: (_expression(node), name_of(node)))
        if not any(isinstance(term, Column | Aggregate) for term in terms(expression)):
            hint = "; == compares" if name else ""
            raise InvalidQuery(f"{text!r} has {part!r}, in which there is no column{hint}")
        found.append(Field(name or described, _without_nulls(expression)))
    return found


def split(text: str) -> list[tuple[str, str]]:
    """Parts of a list, each with its name before `=`, or with none."""
    text = text.replace("\n", " ").strip()
    parts: list[tuple[str, str]] = []
    name, start, depth = "", 0, 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            at = token.start[1]
            if token.type != tokenize.OP:
                continue
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == "=" and not depth and not name:
                name, start = text[start:at].strip(), at + 1
                if not name.isidentifier():
                    raise InvalidQuery(f"{name!r} is no name for a column; == compares")
            elif token.string == "," and not depth:
                parts.append((name, text[start:at].strip()))
                name, start = "", at + 1
    except (tokenize.TokenError, SyntaxError):
        return [("", text)]  # which is reported when it is parsed
    if text[start:].strip() or not parts:
        parts.append((name, text[start:].strip()))
    return parts


def name_of(node: ast.expr) -> str:
    """The name of a column of the result that is given none: its text."""
    match node:
        case ast.Call(ast.Name(function), [operand], []) if function in AGGREGATES:
            return f"{function}({name_of(operand)})"
        case ast.Call(ast.Name("col"), [ast.Constant(str(name))], []):
            return name
    return ast.unparse(node)


def is_condition(expression: Expression) -> bool:
    """True if the values may be truth values."""
    match expression:
        case Column() | Value(bool()) | Aggregate("any" | "all"):
            return True
        case Call(function):
            return function in CONDITIONS | _OF_ANY_TYPE
    return False


def _require_short(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise InvalidQuery(f"the expression has more than {MAX_LENGTH} characters")


def _read(text: str, reader: Callable[[ast.expr], Read]) -> Read:
    _require_short(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of escape sequences such as \\d, which stay as they are
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


def _condition(node: ast.expr) -> Expression:
    expression = _expression(node)
    if not is_condition(expression):
        raise InvalidQuery(
            f"{_text(node)} is not a condition; compare columns with values, combine conditions"
            " with &, | and ~, and put each one in parentheses, as in (a > 1) & (b == 2)"
        )
    return expression


def _expression(node: ast.expr) -> Expression:
    match node:
        case ast.Name(name):
            return Column(name)
        case ast.Constant(bool() | int() | float() | str() | None as value):
            return Value(value)
        case ast.Constant(bytes(data)):
            return Value(data.hex(), ValueType.BINARY)
        case ast.BoolOp(operator, parts):
            function = "and_kleene" if isinstance(operator, ast.And) else "or_kleene"
            return _joined(function, [_condition(part) for part in parts])
        case ast.BinOp():
            return _binary(node)
        case ast.UnaryOp(ast.Invert() | ast.Not(), operand):
            return _inverted(_condition(operand))
        case ast.UnaryOp(operator, operand):
            return _signed(operator, _expression(operand))
        case ast.Compare(left, operators, others):  # `1 < x < 5` is two comparisons
            pairs = zip([left, *others], operators, others, strict=False)
            return _joined("and_kleene", [_comparison(*pair) for pair in pairs])
        case ast.IfExp(test, body, other):
            return Call("if_else", (_condition(test), _expression(body), _expression(other)))
        case ast.Attribute(inner, name):
            return _attribute(node, _expression(inner), name)
        case ast.Subscript(inner, ast.Constant(str(name))):
            return _attribute(node, _expression(inner), name, field=True)
        case ast.Subscript(inner, index):
            return _slice(node, _expression(inner), index)
        case ast.Call():
            return _call(node)
    raise InvalidQuery(
        f"{_text(node)} is neither a column nor a value; put each comparison in parentheses, as in"
        " (a > 1) & (b == 2)"
    )


def _binary(node: ast.BinOp) -> Expression:
    function = _OPERATORS.get(type(node.op))
    if function is None:
        raise InvalidQuery(f"{_text(node)} has an operator that the drive does not have")
    if function in _LOGIC:
        return _joined(function, [_condition(part) for part in _chain(node)])
    left, right = _expression(node.left), _expression(node.right)
    if isinstance(node.op, ast.Add) and (_is_string(left) or _is_string(right)):
        return Call("binary_join_element_wise", (left, right, Value("")))
    if isinstance(node.op, ast.Div):
        left = Call("cast", (left, Value("float64")))
    return Call(function, (left, right))


def _chain(node: ast.BinOp) -> list[ast.expr]:
    """The operands of `a | b | c`, which are nested to the left."""
    parts: list[ast.expr] = []
    operand: ast.expr = node
    while isinstance(operand, ast.BinOp) and type(operand.op) is type(node.op):
        parts.append(operand.right)
        operand = operand.left
    return [operand, *reversed(parts)]


def _joined(function: str, parts: Sequence[Expression]) -> Expression:
    """A function of two arguments of all parts, nested as little as possible."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return Call(function, (_joined(function, parts[:half]), _joined(function, parts[half:])))


def _is_string(expression: Expression) -> bool:
    match expression:
        case Value(str(), None):
            return True
        case Call("cast", (_, Value(kind))):
            return kind in ("string", "utf8")
        case Call(function):
            return function in _STRINGS
    return False


def _inverted(condition: Expression) -> Expression:
    """The negation, by De Morgan's laws."""
    match condition:
        case Call("and_kleene", parts):
            return Call("or_kleene", tuple(map(_inverted, parts)))
        case Call("or_kleene", parts):
            return Call("and_kleene", tuple(map(_inverted, parts)))
        case Call("invert", (inner,)):
            return inner
    return Call("invert", (condition,))


def _without_nulls(expression: Expression) -> Expression:
    """Null is neither in a list nor not in it, although Arrow's `is_in` is false for null."""
    match expression:
        case Call("invert", (Call("is_in", (operand, *_)) as found,)):
            return Call("and_kleene", (Call("invert", (found,)), Call("is_valid", (operand,))))
        case Call(function, of):
            return Call(function, tuple(map(_without_nulls, of)))
        case Aggregate(function, Call() as inner):
            return Aggregate(function, _without_nulls(inner))
    return expression


def _signed(operator: ast.unaryop, operand: Expression) -> Expression:
    match operand:
        case Value(bool() | str() | None as value):
            raise InvalidQuery(f"{value!r} is not a number")
        case Value(int() | float() as number, None):
            return Value(-number if isinstance(operator, ast.USub) else number)
    return operand if isinstance(operator, ast.UAdd) else Call("negate_checked", (operand,))


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Expression:
    if isinstance(operator, ast.Is | ast.IsNot):
        if not (isinstance(right, ast.Constant) and right.value is None):
            raise InvalidQuery(
                f"`is` compares with None only, not with {_text(right)}; put each comparison in"
                " parentheses, as in (a is None) & (b == 2)"
            )
        function = "is_null" if isinstance(operator, ast.Is) else "is_valid"
        return Call(function, (_operand(left),))
    if isinstance(operator, ast.In | ast.NotIn):
        found = _membership(_operand(left), right)
        return found if isinstance(operator, ast.In) else _inverted(found)
    return Call(_COMPARISONS[type(operator)], (_operand(left), _operand(right)))


def _operand(node: ast.expr) -> Expression:
    operand = _expression(node)
    if operand == Value(None):
        raise InvalidQuery("only `is` compares with None, as in (a is None) & (b == 2)")
    if isinstance(operand, Call) and operand.function in _LOGIC:
        raise InvalidQuery(f"{_text(node)} is neither a column nor a value; put each comparison in"
                           " parentheses, as in (a > 1) & (b == 2)")  # fmt: skip
    return operand


def _membership(left: Expression, right: ast.expr) -> Expression:
    if isinstance(right, ast.List | ast.Tuple | ast.Set) and right.elts:
        values = tuple(map(_operand, right.elts))
        if all(isinstance(value, Value) for value in values):
            return Call("is_in", (left, *values))
    elif isinstance(left, Value) and isinstance(left.value, str):
        return Call("match_substring", (_operand(right), left))
    raise InvalidQuery(f"{_text(right)} is not a list of values, as in `x in [1, 2]`")


def _attribute(node: ast.expr, inner: Expression, name: str, *, field: bool = False) -> Expression:
    if name in PARTS_OF_DATES and not field:
        return Call(name, (inner,))
    if isinstance(inner, Column):
        path = (inner.name,) if isinstance(inner.name, str) else inner.name
        return Column((*path, name))
    raise InvalidQuery(f"{_text(node)}: {name} is neither a part of a date nor a field of a column")


def _slice(node: ast.expr, inner: Expression, index: ast.expr) -> Expression:
    """`name[:3]`, `name[-1]`: characters of a string."""
    try:
        if isinstance(index, ast.Slice) and index.step is None:
            begin = 0 if index.lower is None else int(ast.literal_eval(index.lower))
            end = None if index.upper is None else int(ast.literal_eval(index.upper))
        else:
            begin = int(ast.literal_eval(index))
            end = begin + 1 or None
    except (TypeError, ValueError):
        raise InvalidQuery(f"{_text(node)} is no slice of numbers, as name[0:3] is") from None
    bounds = [Value(begin)] if end is None else [Value(begin), Value(end)]
    return Call("utf8_slice_codeunits", (inner, *bounds))


def _call(node: ast.Call) -> Expression:
    if node.keywords:
        raise InvalidQuery(f"{_text(node)}: functions take no arguments by name")
    match node.func, node.args:
        case ast.Name("col"), [_, *_]:
            names = [part.value for part in node.args if isinstance(part, ast.Constant)]
            texts = tuple(name for name in names if isinstance(name, str))
            if len(texts) == len(node.args):
                return Column(texts if len(texts) > 1 else texts[0])
            raise InvalidQuery(f'{_text(node)} is no column, as col("unit price") is')
        case ast.Name(kind), [ast.Constant(str() | int() as value)] if kind in _TYPES:
            return Value(value, ValueType(kind))
        case ast.Name("min" | "max" as name), [_, _, *_]:
            return _function(f"{name}_element_wise", node.args)
        case ast.Name(name), arguments if name in AGGREGATES:
            return _aggregate(node, name, arguments)
        case ast.Name(name), arguments:
            return _function(NAMES.get(name, name), arguments)
        case ast.Attribute(inner, name), arguments:
            return _function(NAMES.get(name, name), [inner, *arguments])
    raise InvalidQuery(f"{_text(node)} is no function of the drive")


def _aggregate(node: ast.Call, name: str, arguments: Sequence[ast.expr]) -> Expression:
    if name in ("count", "count_all") and not arguments:
        return Aggregate("count_all")
    if len(arguments) != 1:
        raise InvalidQuery(f"{name} takes one column or expression, not {_text(node)}")
    return Aggregate(name, _expression(arguments[0]))


def _function(name: str, arguments: Sequence[ast.expr]) -> Expression:
    """A call. Raises InvalidQuery for a function that there is not."""
    function = name if name in FUNCTIONS else f"{name}_checked"
    if function not in FUNCTIONS:
        names = [*FUNCTIONS, *AGGREGATES, *NAMES, "col", *ValueType]
        close = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InvalidQuery(f"the drive has no function {name[:80]}{hint}")
    return Call(function, tuple(map(_expression, arguments)))


def _text(node: ast.expr) -> str:
    try:
        return repr(ast.unparse(node))[:80]
    except (RecursionError, ValueError):  # also of numbers that are too long to be written
        return "a part of the expression"
