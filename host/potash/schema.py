"""Reports as JSON, and the JSON Schema (draft 2020-12) of a report's type.

A report is a TypedDict, or the fields and properties of a dataclass or NamedTuple that are
`Annotated` with a sentence, their description (`csd_spec.reporting`). Bytes are reported in
hexadecimal.
"""

import dataclasses
import functools
import json
import types
from collections.abc import Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from csd_spec.reporting import Amount, Count, Form, Positive, Share, Signed64

__all__ = ["Amount", "Count", "Form", "Positive", "Share", "Signed64", "encode", "schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", bytes: "string"}


def encode(report: object, indent: int | None = None) -> str:
    """A report as JSON: what has a description, and nothing else."""
    return json.dumps(_encoded(report), indent=indent)


def schema(report: Any) -> dict[str, Any]:
    """The schema of a report's type, or of a union of such types."""
    return {"$schema": DIALECT, **_form(report)}


def _encoded(value: object) -> object:
    kind: Any = type(value)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return {key: _encoded(getattr(value, key)) for key in _hints(kind)}
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


@functools.cache
def _hints(report: type) -> dict[str, Any]:
    """The types of what is reported of a type, by key; properties are behind fields."""
    hints = get_type_hints(report, include_extras=True)
    if is_typeddict(report):
        return hints
    for name, member in vars(report).items():
        if isinstance(member, property):
            hints[name] = get_type_hints(member.fget, include_extras=True).get("return")
    return {
        name: hint
        for name, hint in hints.items()
        if get_origin(hint) is Annotated and any(isinstance(one, str) for one in get_args(hint))
    }


def _form(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        form = _form(arguments[0])
        for said in arguments[1:]:
            form |= {"description": said} if isinstance(said, str) else said.keywords
        return form
    if origin in (Union, types.UnionType):
        forms = [_form(one) for one in arguments if one is not types.NoneType]
        if len(forms) > 1:
            return {"oneOf": forms}
        return forms[0] | {"type": [forms[0]["type"], "null"]}
    if origin is Literal:
        return {"type": _PLAIN[type(arguments[0])], "enum": list(arguments)}
    if origin is tuple:
        return {
            "type": "array",
            "items": _form(arguments[0]),
            "minItems": len(arguments),
            "maxItems": len(arguments),
        }
    if origin is Sequence:
        return {"type": "array", "items": _form(arguments[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _form(arguments[1])}
    if issubclass(hint, str) and hint is not str:
        return {"type": "string", "enum": [one.value for one in hint]}
    return {"type": _PLAIN[hint]} if hint in _PLAIN else _object(hint)


def _object(report: type) -> dict[str, Any]:
    hints = _hints(report)
    required = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
    properties = {
        name: _form(hint if name in required else get_args(hint)[0]) for name, hint in hints.items()
    }
    return {
        "title": report.__name__,
        "description": (report.__doc__ or "").split("\n\n")[0].replace("\n    ", " "),
        "type": "object",
        "properties": properties,
        "required": required,
    }
