"""Debug information of object files in tests, put together byte by byte.

Source: Linux documentation, "BPF Type Format (BTF)", sections 2 and 4.3; values written out, apart
from the ones under test.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from support.bpf_elf import Part

MAGIC = 0xEB9F


class Line(NamedTuple):
    """From byte `offset` of its section on, the code comes from this line."""

    offset: int
    number: int
    text: str = ""
    file: str = "/somewhere/sum.c"
    column: int = 1


def btf_parts(sections: Mapping[str, Sequence[Line]], *, record_size: int = 16) -> list[Part]:
    """The two sections of an object that say where the code of `sections` comes from."""
    strings = bytearray(1)

    def text(value: str) -> int:
        at = len(strings)
        strings.extend(value.encode() + b"\0")
        return at

    lines = struct.pack("<I", record_size)
    for name, rows in sections.items():
        lines += struct.pack("<II", text(name), len(rows))
        for row in rows:
            position = row.number << 10 | row.column
            record = struct.pack("<IIII", row.offset, text(row.file), text(row.text), position)
            lines += record.ljust(record_size, b"\xee")
    functions = struct.pack("<I", 8)
    ext = struct.pack("<HBBI", MAGIC, 1, 0, 32)
    ext += struct.pack("<IIII", 0, len(functions), len(functions), len(lines))
    ext += struct.pack("<II", len(functions) + len(lines), 0) + functions + lines
    types = b""
    btf = struct.pack("<HBBI", MAGIC, 1, 0, 24)
    btf += struct.pack("<IIII", 0, len(types), len(types), len(strings)) + types + bytes(strings)
    return [Part(".BTF", btf, flags=0), Part(".BTF.ext", ext, flags=0)]
