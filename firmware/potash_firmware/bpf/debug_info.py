"""Debug information of a linked program: names and source lines."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from potash_firmware.bpf.line_info import LineTable, SourceLine

MAX_SHOWN = 80
"""Characters of a name in a message: enough to know it by, and little enough for what follows."""


def printable(text: str) -> str:
    """`text` without what could do anything but be read: an object file may hold any bytes."""
    return text if text.isprintable() else "".join(filter(str.isprintable, text.expandtabs(4)))


class Function(NamedTuple):
    """A function, and the index of its first instruction."""

    name: str
    start: int


class Reference(NamedTuple):
    """What an instruction's address or call was linked to."""

    name: str
    addend: int = 0

    def __str__(self) -> str:
        return f"{self.name}{self.addend:+d}" if self.addend else self.name


class Place(NamedTuple):
    """Where an instruction comes from, as far as the object file tells."""

    function: str | None
    line: SourceLine | None

    def __str__(self) -> str:
        return ", ".join(printable(str(part)[:MAX_SHOWN]) for part in self if part)


@dataclass(frozen=True)
class DebugInfo:
    """Functions in the program's order, what instructions refer to by index, and their lines."""

    functions: tuple[Function, ...] = ()
    references: Mapping[int, Reference] = field(default_factory=dict)
    lines: LineTable = field(default_factory=LineTable)

    def function_at(self, index: int) -> Function | None:
        """The function that the instruction at `index` belongs to."""
        found = bisect_right(self.functions, index, key=lambda function: function.start)
        return self.functions[found - 1] if found else None

    def line_at(self, index: int) -> SourceLine | None:
        """The source line of the instruction at `index`."""
        function = self.function_at(index)
        return self.lines.at(index, function.start if function else 0)

    def place(self, index: int) -> Place:
        """Both."""
        function = self.function_at(index)
        return Place(function.name if function else None, self.line_at(index))
