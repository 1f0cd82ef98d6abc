"""The refusal of a query, and Arrow's own errors as one."""

import difflib
from collections.abc import Iterable

LONGEST = 300
"""Characters of a reason that Arrow gives."""


class Refused(ValueError):
    """A query that cannot be answered, as its plan or its file does not allow it; one sentence."""


def sentence(error: BaseException) -> str:
    """The first line of what an error says, without a full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "".join(filter(str.isprintable, lines[0]))[:LONGEST].rstrip(". ")


def no_column(name: str, names: Iterable[str], where: str = "the file") -> Refused:
    """The refusal of a column that is not there; it proposes one that is."""
    text = f"{where} has no column {name!r}"
    close = difflib.get_close_matches(name, names, 1)
    return Refused(f"{text}; did you mean {close[0]!r}?" if close else text)
