"""Counts of the Python calls that a flow makes, as a measure of how much code it passes through.

Calls of the product's own functions count, in this thread; those of tests, of the standard library
and of built-in functions do not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[2]
OWN = tuple(f"{ROOT / name}/" for name in ("device", "firmware", "host"))


@dataclass
class Calls:
    """The calls of a flow, by function."""

    by_function: Counter[CodeType] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.by_function.total()

    @property
    def functions(self) -> int:
        return len(self.by_function)

    @property
    def files(self) -> int:
        return len({code.co_filename for code in self.by_function})

    def __str__(self) -> str:
        return f"{self.total} calls of {self.functions} functions in {self.files} files"

    def listed(self) -> str:
        """A line for each function, the most frequent first."""
        return "\n".join(
            f"{count:5} {Path(code.co_filename).relative_to(ROOT)}: {code.co_qualname}"
            for code, count in self.by_function.most_common()
        )


@contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls of a block.

    A generator that goes on counts as a call each time; a comprehension does not count.
    """
    calls = Calls()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN) and code.co_name not in _INLINED:
            calls.by_function[code] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


_INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""Comprehensions, which are calls only in older Pythons."""
