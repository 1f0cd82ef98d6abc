"""Reports as JSON, and the JSON Schema (draft 2020-12) of a report's type.

A report is a TypedDict, or an object whose reported fields and properties are `Annotated` with
their description (`csd_spec.reporting`). Bytes are reported in hexadecimal.
"""

import functools
import json
import types
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from csd_spec.reporting import INLINE, OPTIONAL, Form, Key

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", bytes: "string"}


class _Member(NamedTuple):
    """A reported field: its path from the report, such as `timing.cycles`, and its type."""

    path: str
    hint: Any
    required: bool


def encode(report: object, indent: int | None = None) -> str:
    """A report as JSON: what has a description, and nothing else."""
    return json.dumps(_encoded(report), indent=indent)


def schema(report: Any) -> dict[str, Any]:
    """The schema of a report's type, or of a union of such types."""
    return {"$schema": DIALECT, **_form(report)}


def _encoded(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    kind: Any = type(value)
    if members := _members(kind):
        found = {key: _encoded(attrgetter(one.path)(value)) for key, one in members.items()}
        optional = {key: found.pop(key) for key, one in members.items() if not one.required}
        return found | {key: one for key, one in optional.items() if one is not None}
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


@functools.cache
def _members(report: Any) -> Mapping[str, _Member]:
    """The reported members of a type, by key."""
    hints = get_type_hints(report, include_extras=True)
    for parent in reversed(report.__mro__):
        for name, member in vars(parent).items():
            if isinstance(member, (property, functools.cached_property)):
                get = member.fget if isinstance(member, property) else member.func
                hint = get_type_hints(get, include_extras=True).get("return")
                if any(isinstance(mark, Key) for mark in get_args(hint)):
                    hints[name] = Annotated[hint, _summary(get)]
    found: list[tuple[str, _Member]] = []
    placed: list[tuple[str, tuple[str, _Member]]] = []
    for name, hint in hints.items():
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        key = next((mark for mark in marks if isinstance(mark, Key)), Key())
        if INLINE in marks:
            below = _members(kind).items()
            more = [(name_, one._replace(path=f"{name}.{one.path}")) for name_, one in below]
        elif any(isinstance(mark, str) for mark in marks):
            more = [(key.name or name, _Member(name, hint, OPTIONAL not in marks))]
        else:
            continue
        if key.before:
            placed += [(key.before, one) for one in more]
        else:
            found += more
    for before, one in placed:
        found.insert([name for name, _ in found].index(before), one)
    return dict(found)


def _form(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, *marks = arguments
        if OPTIONAL in marks:
            kind = next(one for one in get_args(kind) if one is not types.NoneType)
        form = _form(kind)
        for mark in marks:
            form |= {"description": mark} if isinstance(mark, str) else {}
            form |= mark.keywords if isinstance(mark, Form) else {}
        return form
    if origin in (Union, types.UnionType):
        forms = [_form(one) for one in arguments if one is not types.NoneType]
        if len(forms) > 1:
            return {"oneOf": forms}
        return forms[0] | {"type": [forms[0]["type"], "null"]}
    if origin is Literal:
        return {"type": _PLAIN[type(arguments[0])], "enum": list(arguments)}
    if origin is tuple and arguments[1:] != (...,):
        return {
            "type": "array",
            "items": _form(arguments[0]),
            "minItems": len(arguments),
            "maxItems": len(arguments),
        }
    if origin in (Sequence, tuple):
        return {"type": "array", "items": _form(arguments[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _form(arguments[1])}
    if issubclass(hint, str) and hint is not str:
        return {"type": "string", "enum": [one.value for one in hint]}
    return {"type": _PLAIN[hint]} if hint in _PLAIN else _object(hint)


def _object(report: type) -> dict[str, Any]:
    members = _members(report)
    return {
        "title": report.__name__,
        "description": _summary(report),
        "type": "object",
        "properties": {key: _form(one.hint) for key, one in members.items()},
        "required": [key for key, one in members.items() if one.required],
    }


def _summary(documented: object) -> str:
    """The first paragraph of a docstring."""
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())
