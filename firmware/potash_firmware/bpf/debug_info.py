"""Debug information of a linked program: names and source lines."""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, NamedTuple

from csd_spec.reporting import Count
from potash_firmware.bpf import isa
from potash_wire.records import U8, U16, U32, Record

MAX_LINES = 1 << 17
"""Records that are read: one for each instruction of the longest program."""

MAX_TEXT = 4096

_MAGIC = 0xEB9F
_COLUMN_BITS = 10


class _Header(NamedTuple):
    """The header of .BTF and .BTF.ext: each has two parts, of which only the second is read."""

    magic: U16
    version: U8
    flags: U8
    size: U32
    first: tuple[U32, U32]
    offset: U32
    length: U32


class _Section(NamedTuple):
    name: U32
    records: U32


class _Record(NamedTuple):
    """A line; `position` has its number and its column."""

    offset: U32
    file: U32
    text: U32
    position: U32


_HEADERS, _SECTIONS, _RECORDS = Record(_Header), Record(_Section), Record(_Record)


class SourceLine(NamedTuple):
    """A line of a program's source; `text` as it was when the program was compiled."""

    file: Annotated[str, "The source file."]
    number: Annotated[Count, "The line number."]
    column: Annotated[Count, "The column; 0 if unknown."]
    text: Annotated[str, "The text of the line."]

    def __str__(self) -> str:
        return f"{PurePosixPath(self.file).name}:{self.number}"


class CodePlace(NamedTuple):
    """Place of a section of code in the linked program, in instructions."""

    start: int
    size: int


@dataclass(frozen=True)
class LineTable:
    """The lines of a linked program; read from the two sections when they are first asked for.

    `places` says where each section of code went, by name.
    """

    btf: bytes = b""
    btf_ext: bytes = b""
    places: Mapping[str, CodePlace] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[int, SourceLine]]:
        """Each instruction at which a line begins, in the program's order."""
        return iter(self._rows)

    def at(self, index: int, first: int = 0) -> SourceLine | None:
        """The line of instruction `index`: the last that begins at or after `first`."""
        found = bisect_right(self._rows, index, key=lambda row: row[0])
        if found and self._rows[found - 1][0] >= first:
            return self._rows[found - 1][1]
        return None

    @cached_property
    def _rows(self) -> list[tuple[int, SourceLine]]:
        rows = {}
        try:
            strings = _second_part(self.btf)
            for section, (offset, file, text, position) in _records(_second_part(self.btf_ext)):
                place = self.places.get(_text(strings, section))
                index, rest = divmod(offset, isa.INSTRUCTION_SIZE)
                if place is None or rest or index >= place.size:
                    continue
                number, column = position >> _COLUMN_BITS, position & (1 << _COLUMN_BITS) - 1
                rows[place.start + index] = SourceLine(
                    _text(strings, file), number, column, _text(strings, text)
                )
        except struct.error:
            pass  # it ends too early; what came before may still be of use
        return sorted(rows.items())


def _second_part(data: bytes) -> bytes:
    """The strings of .BTF, or the lines of .BTF.ext; offsets count from the end of the header."""
    header = _HEADERS.decode_from(data)
    if header.magic != _MAGIC:
        raise struct.error("this is not BTF")
    start = header.size + header.offset
    return data[start : start + header.length]


def _text(strings: bytes, offset: int) -> str:
    """The string at `offset`; empty where there is none."""
    end = strings.find(b"\0", offset, offset + MAX_TEXT)
    return strings[offset:end].decode(errors="replace") if end >= 0 else ""


def _records(lines: bytes) -> Iterator[tuple[int, _Record]]:
    """Each record with the name of its section; the size of one comes first."""
    step = int.from_bytes(lines[:4], "little")
    if step < _RECORDS.size:
        return
    at, left = 4, MAX_LINES
    while at < len(lines) and left:
        section = _SECTIONS.decode_from(lines, at)
        at += _SECTIONS.size
        for _ in range(min(section.records, left)):
            yield section.name, _RECORDS.decode_from(lines, at)
            at += step
            left -= 1


MAX_SHOWN = 80
"""Characters of a name in a message: enough to know it by, and little enough for what follows."""


def printable(text: str) -> str:
    """`text` without what could do anything but be read: an object file may hold any bytes."""
    return text if text.isprintable() else "".join(filter(str.isprintable, text.expandtabs(4)))


class Function(NamedTuple):
    """A function of a program."""

    name: Annotated[str, "The function's name."]
    start: Annotated[Count, "Number of the function's first instruction."]


class Reference(NamedTuple):
    """The target that an instruction's address or call was linked to."""

    name: str
    addend: int = 0

    def __str__(self) -> str:
        return f"{self.name}{self.addend:+d}" if self.addend else self.name


class Place(NamedTuple):
    """The source of an instruction, as far as the object file names it."""

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
        """Function and source line of an instruction."""
        function = self.function_at(index)
        return Place(function.name if function else None, self.line_at(index))
