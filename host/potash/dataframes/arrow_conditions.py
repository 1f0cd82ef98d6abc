"""Conditions of plans from pyarrow's expressions, which DuckDB gives, too.

pyarrow has no way to look into an expression. Its Substrait form lacks functions, such as `is_in`;
but what it pickles has everything, as Arrow's C++ library writes it: an Arrow file with one row,
whose columns are the literals and the options of functions, and whose schema has the expression in
its metadata, as pairs in prefix order: `call` NAME, the arguments, `options` COLUMN (if there are
any), `end` NAME; `field_ref` NAME; `nested_field_ref` COUNT and as many `field_ref`; `literal`
COLUMN. What is written otherwise is not read, and stays with the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from csd_spec.table_plans import Call, Expression, Value
from potash.dataframes import terms
from potash.dataframes.terms import Term, Unpushable, call, column

CONNECTIVES = {"and_kleene": 2, "or_kleene": 2, "xor": 2, "invert": 1}
TESTS = {"is_null", "is_valid", "is_nan", "is_finite", "is_inf"}
STRING_TESTS = {"starts_with", "ends_with", "match_substring"}
STRING_TESTS |= {"match_like", "match_substring_regex"}
LENGTHS = {"utf8_length", "binary_length"}
STRINGS = {"utf8_lower", "utf8_upper", "utf8_capitalize", "utf8_reverse"}
PARTS_OF_DATES = {"year", "quarter", "month", "day", "day_of_year", "hour", "minute", "second"}
ARITHMETIC = {"add_checked", "subtract_checked", "multiply_checked"}
"""Functions of doubles; those of integers fail where a result does not fit."""


class Node(NamedTuple):
    """A part of an expression: a call, a field or a literal."""

    kind: str
    name: tuple[str, ...] = ()
    """The function, or the field and those within it."""
    arguments: tuple[Node, ...] = ()
    value: pa.Scalar | None = None
    """The literal, or the options of the function."""

    def fields(self) -> Iterator[str]:
        """Names of the columns that it needs."""
        if self.kind == "field":
            yield self.name[0]
        for argument in self.arguments:
            yield from argument.fields()


def read(expression: pc.Expression) -> Node:
    """An expression as a tree. Raises Unpushable where it is in a form that is not read."""
    try:
        _, (data,) = expression.__reduce__()
        file = pa.ipc.open_file(data)
        items = _metadata(file.schema)
        row = file.get_batch(0)
        node = _node(items, row)
        if items:
            raise ValueError("something follows")
    except (
        pa.ArrowException, AttributeError, IndexError, RecursionError, TypeError, ValueError
    ) as error:  # fmt: skip
        raise Unpushable(f"pyarrow {pa.__version__} has another form of expressions") from error
    return node


def conditions(expression: pc.Expression) -> Iterator[Node]:
    """The parts of a condition, of which all must be true. Raises Unpushable as `read` does."""
    waiting = [read(expression)]
    while waiting:
        node = waiting.pop()
        if node.kind == "call" and node.name == ("and_kleene",):
            waiting += reversed(node.arguments)
        else:
            yield node


def condition(node: Node, schema: pa.Schema) -> Expression:
    """A condition of a plan. Raises Unpushable."""
    if node.kind == "literal":
        return _constant(node)
    if node.kind == "field":
        return _boolean(node, schema)
    (function,), arguments = node.name, node.arguments
    match function, len(arguments):
        case (name, count) if CONNECTIVES.get(name) == count:
            _require_options(node, {})
            return Call(name, tuple(condition(part, schema) for part in arguments))
        case ("if_else", 3):
            return Call(function, tuple(condition(part, schema) for part in arguments))
        case (name, 2) if name in terms.FLIPPED:
            left, right = arguments
            if left.kind == "literal":
                name, left, right = terms.FLIPPED[name], right, left
            other = right.value if right.kind == "literal" else _term(right, schema)
            assert other is not None
            return terms.compare(name, _term(left, schema), other, nan_largest=False)
        case (name, 1) if name in TESTS:
            _require_options(node, {"nan_is_null": False})
            return call(name, _term(arguments[0], schema).expression)
        case ("is_in", 1) if node.value is not None:
            options = dict(node.value)
            values = options.pop("value_set").values
            if values.null_count or options != {
                "null_matching_behavior": pa.scalar(0, pa.uint32()),
                "_type_name": pa.scalar(b"SetLookupOptions"),
            }:
                raise Unpushable("a list has null")
            return terms.is_in(_term(arguments[0], schema), values, null_is_null=False)
        case (name, 1) if name in STRING_TESTS and node.value is not None:
            pattern = node.value["pattern"]
            _require_options(node, {"pattern": pattern.as_py(), "ignore_case": False})
            term = _term(arguments[0], schema)
            return call(name, term.expression, terms.value(pattern.cast(term.type), term.type))
    raise Unpushable(f"no equivalent of {function} on the drive")


def _term(node: Node, schema: pa.Schema) -> Term:
    if node.kind == "field":
        return column(schema, *node.name)
    if node.kind == "literal" or node.value is not None:
        raise Unpushable(
            f"no equivalent of {node.name[0] if node.name else 'a literal'} on the drive"
        )
    (function,) = node.name
    literals = [part.value for part in node.arguments]
    arguments = [_term(part, schema) for part in node.arguments if part.value is None]
    kinds = {term.type for term in arguments}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is not None and function in ARITHMETIC and pa.types.is_float64(kind):
        remaining = iter(arguments)
        doubles = [
            next(remaining).expression if literal is None else terms.value(literal, kind)
            for literal in literals
        ]
        return Term(Call(function, tuple(doubles)), kind)
    if kind is not None and len(node.arguments) == 1:
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        day = pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
        result = None
        if text and function in LENGTHS:
            result = pa.int64() if pa.types.is_large_string(kind) else pa.int32()
        elif text and function in STRINGS:
            result = kind
        elif day and function in PARTS_OF_DATES:
            result = pa.int64()
        if result is not None:
            return Term(call(function, arguments[0].expression), result)
    raise Unpushable(f"no equivalent of {function} of {kind or 'several types'} on the drive")


def _boolean(node: Node, schema: pa.Schema) -> Expression:
    term = column(schema, *node.name)
    if not pa.types.is_boolean(term.type):
        raise Unpushable(f"column {'.'.join(node.name)} is no condition")
    return term.expression


def _constant(node: Node) -> Expression:
    assert node.value is not None
    if not pa.types.is_boolean(node.value.type):
        raise Unpushable(f"a {node.value.type} is no condition")
    return Value(node.value.as_py())


def _require_options(node: Node, least: dict[str, object]) -> None:
    """Raises Unpushable for a function with other options than these, if there are any."""
    found = {} if node.value is None else dict(node.value.as_py())
    found.pop("_type_name", None)
    if node.value is not None and found != least:
        raise Unpushable(f"no equivalent of {node.name[0]} with its options on the drive")


def _node(items: list[tuple[str, str]], row: pa.RecordBatch) -> Node:
    kind, name = items.pop(0)
    match kind:
        case "field_ref":
            return Node("field", (name,))
        case "nested_field_ref":
            parts = [items.pop(0) for _ in range(int(name))]
            if {part for part, _ in parts} != {"field_ref"}:
                raise ValueError(parts)
            return Node("field", tuple(part for _, part in parts))
        case "literal":
            return Node("literal", value=row.column(int(name))[0])
        case "call":
            arguments, options = [], None
            while items[0][0] not in ("options", "end"):
                arguments.append(_node(items, row))
            if items[0][0] == "options":
                options = row.column(int(items.pop(0)[1]))[0]
            if items.pop(0) != ("end", name):
                raise ValueError(name)
            return Node("call", (name,), tuple(arguments), options)
    raise ValueError(kind)


class _Schema(ctypes.Structure):
    """ArrowSchema of Arrow's C data interface."""

    _fields_ = [
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("pointers", ctypes.c_void_p * 5),
    ]


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """All pairs of a schema's metadata; `Schema.metadata` has one for each key."""
    exported = _Schema()
    schema._export_to_c(ctypes.addressof(exported))
    try:
        at = exported.metadata
        if not at:
            return []
        count = ctypes.c_int32.from_address(at).value
        at += 4
        texts = []
        for _ in range(2 * count):
            length = ctypes.c_int32.from_address(at).value
            texts.append(ctypes.string_at(at + 4, length).decode())
            at += 4 + length
    finally:
        pa.Schema._import_from_c(ctypes.addressof(exported))  # releases it
    return list(zip(texts[::2], texts[1::2], strict=True))
