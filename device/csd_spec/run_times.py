"""The run time that a program declares, for hardware that does not exist (an extension).

A drive whose time is modelled takes it in place of what its processor would take. It is a text in
the section `.potash` of the object file, such as "fixed=20us,per_byte=0.25ns,priority=2":

- `fixed`: the time of an execution
- `per_byte`: for each byte of its input or its memory ranges
- `per_instruction`, `per_alu`, `per_load`, …: for each executed instruction, or each of a kind
- `scale`: a factor for what the modelled processor would take, in place of all of these
- `priority`: a number for the scheduler; the larger, the more urgent
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fractions import Fraction

SECTION = ".potash"
MAX_TEXT = 512
"""Bytes of the text."""
KINDS = ("alu", "multiply", "divide", "load", "store", "atomic", "branch", "call")
"""Kinds of instructions, in the order of a job's counts."""
LONGEST = 10**15
"""The longest time of any part, in ns."""
MOST_PRIORITY = 255

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_TIMES = ("fixed", "per_byte", "per_instruction", *(f"per_{kind}" for kind in KINDS))


class RunTimeError(ValueError):
    """A text that declares no run time, or a file that cannot have one; one sentence."""


class RunTime(NamedTuple):
    """A declared run time. Times are fractions of ns, by their keys."""

    times: Mapping[str, Fraction] = {}
    scale: Fraction | None = None
    priority: int = 0

    def duration(self, counted_ns: int, length: int, instructions: Sequence[int]) -> int:
        """Nanoseconds of an execution, rounded up once.

        Args:
            counted_ns: the time that the modelled processor would take.
            length: bytes of the input or the memory ranges.
            instructions: executed instructions by kind, as `KINDS`.
        """
        if self.scale is not None:
            return -(-counted_ns * self.scale.numerator // self.scale.denominator)
        if not self.times:
            return counted_ns
        counts = {"fixed": 1, "per_byte": length, "per_instruction": sum(instructions)}
        counts |= {f"per_{kind}": count for kind, count in zip(KINDS, instructions, strict=True)}
        total = sum(time * counts[key] for key, time in self.times.items())
        return -int(-total // 1)


NOT_DECLARED = RunTime()


def parse(text: str) -> RunTime:
    """The run time that a text declares. Raises RunTimeError."""
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.strip().partition("=")
        if not equals or key in found:
            raise RunTimeError(f"{part.strip()!r:.60} is not KEY=VALUE, each key once")
        found[key] = value
    priority = found.pop("priority", "0")
    if not re.fullmatch("[0-9]{1,3}", priority) or int(priority) > MOST_PRIORITY:
        raise RunTimeError(f"priority={priority:.40} is not 0 to {MOST_PRIORITY}")
    scale = _number(found.pop("scale"), "scale") if "scale" in found else None
    if scale is not None and found:
        raise RunTimeError("scale is in place of all times; give one or the other")
    for key in found:
        if key not in _TIMES:
            raise RunTimeError(f"{key!r:.40} is none of {', '.join(_TIMES)}, scale, priority")
    return RunTime({key: _time(value, key) for key, value in found.items()}, scale, int(priority))


def _time(text: str, key: str) -> Fraction:
    number, unit = re.fullmatch(r"([0-9.]*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if unit not in _UNITS:
        raise RunTimeError(f"{key}={text:.40} is no time, as in 20us or 0.25ns")
    time = _number(number, key) * _UNITS[unit]
    if time > LONGEST:
        raise RunTimeError(f"{key}={text:.40} is longer than {LONGEST} ns")
    return time


def _number(text: str, key: str) -> Fraction:
    from fractions import Fraction  # with decimals, for which a start would wait

    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", text):
        raise RunTimeError(f"{key}={text:.40} is no number, as in 20 or 0.25")
    return Fraction(text)


class _Table(NamedTuple):
    """The section headers of an ELF64 file; `names` is the number of the one for names."""

    offset: int
    entries: int
    names: int


_HEADER = struct.Struct("<40xQ10xHHH")
"""Elf64_Ehdr: e_shoff, e_shentsize, e_shnum, e_shstrndx."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
"""Elf64_Shdr."""
_PROGBITS = 1


def declared_by(image: bytes) -> RunTime:
    """The run time that an object file declares; `NOT_DECLARED` for one without. Raises
    RunTimeError for a text that declares none."""
    for name, offset, size in reversed(_sections(image)):
        if name == SECTION.encode():
            text = image[offset : offset + min(size, MAX_TEXT + 1)].rstrip(b"\0")
            if len(text) > MAX_TEXT or not text.isascii():
                raise RunTimeError(f"the section {SECTION} is no text of {MAX_TEXT} bytes")
            return parse(text.decode())
    return NOT_DECLARED


def with_run_time(image: bytes, text: str) -> bytes:
    """An object file that declares a run time, in place of what it may declare. Raises RunTimeError
    for a text that declares none, and a file that is no object file."""
    parse(text)
    table = _table(image)
    if table is None:
        raise RunTimeError("the program is no object file, so that it can declare no run time")
    headers = [
        _SECTION.unpack_from(image, table.offset + number * _SECTION.size)
        for number in range(table.entries)
    ]
    old = headers[table.names]
    names = image[old[4] : old[4] + old[5]]
    made, encoded = bytearray(image), text.encode() + b"\0"
    texts_at = len(made)
    made += encoded
    names_at = len(made)
    made += names + SECTION.encode() + b"\0"
    headers[table.names] = (*old[:4], names_at, len(made) - names_at, *old[6:])
    headers.append((len(names), _PROGBITS, 0, 0, texts_at, len(encoded), 0, 0, 1, 0))
    made += bytes(-len(made) % 8)
    at = len(made)
    made += b"".join(_SECTION.pack(*header) for header in headers)
    struct.pack_into("<Q", made, 40, at)
    struct.pack_into("<H", made, 60, len(headers))
    return bytes(made)


def _table(image: bytes) -> _Table | None:
    """The section headers of an object file, all within it; None if it is not one."""
    if len(image) < _HEADER.size or not image.startswith(b"\x7fELF\x02\x01"):
        return None
    offset, size, entries, names = _HEADER.unpack_from(image)
    if size != _SECTION.size or names >= entries or offset + entries * size > len(image):
        return None
    return _Table(offset, entries, names)


def _sections(image: bytes) -> list[tuple[bytes, int, int]]:
    """Name, offset and size of the sections; none where the file is no object file."""
    table = _table(image)
    if table is None:
        return []
    headers = list(
        _SECTION.iter_unpack(image[table.offset : table.offset + table.entries * _SECTION.size])
    )
    begin, length = headers[table.names][4:6]
    strings = image[begin : begin + length]
    return [
        (strings[name : strings.find(b"\0", name) % (len(strings) + 1)], offset, size)
        for name, _, _, _, offset, size, *_ in headers
    ]
