"""Annotations of fields that commands report, an extension of this project.

A reported field is `Annotated` with a sentence, its description, and where needed with a `Form`.
The types stand where the values come from; `potash.schema` makes JSON and its schema of them.
"""

from typing import Annotated


class Form:
    """Further keywords of a field's schema, as JSON Schema calls them."""

    def __init__(self, **keywords: object) -> None:
        self.keywords = keywords


Count = Annotated[int, Form(minimum=0)]
Positive = Annotated[int, Form(minimum=1)]
Signed64 = Annotated[int, Form(minimum=-(1 << 63), maximum=(1 << 63) - 1)]
Amount = Annotated[float, Form(minimum=0)]
Share = Annotated[float, Form(minimum=0, maximum=1)]
