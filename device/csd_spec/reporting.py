"""Annotations of fields that commands report, an extension of this project.

A reported field is `Annotated` with a sentence, its description. A reported property is `Annotated`
with a `Key`, and its description is the first paragraph of its docstring. The types are those that
the values come from; `potash.schema` makes JSON and its schema of them.
"""

from enum import Enum, auto
from typing import Annotated, NamedTuple


class Form:
    """Further keywords of a field's schema, as JSON Schema calls them."""

    def __init__(self, **keywords: object) -> None:
        self.keywords = keywords


class Key(NamedTuple):
    """The key, if that is not the field's name, and the key before which it is reported.

    Otherwise, properties are behind fields, and each in the order of their declarations.
    """

    name: str = ""
    before: str = ""


class Mark(Enum):
    """The way in which a field is reported."""

    INLINE = auto()
    """The keys of its value, in place of one key; it has no description."""
    OPTIONAL = auto()
    """A key behind the required ones, which is missing if the value is None."""


INLINE, OPTIONAL = Mark

Count = Annotated[int, Form(minimum=0)]
Positive = Annotated[int, Form(minimum=1)]
Signed64 = Annotated[int, Form(minimum=-(1 << 63), maximum=(1 << 63) - 1)]
Amount = Annotated[float, Form(minimum=0)]
Share = Annotated[float, Form(minimum=0, maximum=1)]
