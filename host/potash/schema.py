"""JSON Schema (draft 2020-12) of a report's type.

A report is a TypedDict or a dataclass. A field is `Annotated` with a sentence, its description, and
with a mapping for further keywords of the schema.
"""

import dataclasses
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

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Form:
    """Further keywords of a field's schema, as JSON Schema calls them."""

    def __init__(self, **keywords: object) -> None:
        self.keywords = keywords


Count = Annotated[int, Form(minimum=0)]
Positive = Annotated[int, Form(minimum=1)]
Signed64 = Annotated[int, Form(minimum=-(1 << 63), maximum=(1 << 63) - 1)]
Amount = Annotated[float, Form(minimum=0)]
Share = Annotated[float, Form(minimum=0, maximum=1)]

_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string"}


def encode(report: object, indent: int | None = None) -> str:
    return json.dumps(report, default=_mapping, indent=indent)


def schema(report: Any) -> dict[str, Any]:
    """The schema of a report's type, or of a union of such types."""
    return {"$schema": DIALECT, **_form(report)}


def _mapping(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is no part of a report")


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
    assert is_typeddict(report) or dataclasses.is_dataclass(report), report
    hints = get_type_hints(report, include_extras=True)
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
