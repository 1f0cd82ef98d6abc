"""Object files for the BPF linker in tests, put together byte by byte.

Source: System V ABI, chapter 4; values written out, apart from the ones under test.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PROGBITS, SYMTAB, STRTAB, RELA, NOBITS, REL = 1, 2, 3, 4, 8, 9
WRITE, ALLOC, EXEC, COMPRESSED = 1, 2, 4, 0x800
NOTYPE, OBJECT, FUNC, SECTION = range(4)
LOCAL, GLOBAL = 0, 1
R_64_64, R_ABS64, R_ABS32, R_NODYLD32, R_64_32 = 1, 2, 3, 4, 10
R_DATA_32, R_DATA_64 = 11, 12


@dataclass
class Part:
    """A section: its contents, and relocations as (offset, type, name of a symbol)."""

    name: str
    data: bytes = b""
    flags: int = ALLOC
    type: int = PROGBITS
    alignment: int = 8
    size: int | None = None
    info: int = 0
    relocations: Sequence[tuple[int, int, str]] = ()


def text(
    *code: bytes, name: str = ".text", relocations: Sequence[tuple[int, int, str]] = ()
) -> Part:
    """A section of instructions."""
    return Part(name, b"".join(code), ALLOC | EXEC, relocations=relocations)


@dataclass
class Name:
    """A symbol, in the section of a name, or with an index of its own (0 undefined)."""

    name: str
    section: str | int = ".text"
    value: int = 0
    type: int = FUNC
    binding: int = GLOBAL


@dataclass
class _Strings:
    data: bytearray = field(default_factory=lambda: bytearray(1))

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def elf(
    parts: Sequence[Part],
    names: Sequence[Name],
    *,
    machine: int = 247,
    kind: int = 1,
    relocation_type: int = REL,
    extra: Mapping[str, int] | None = None,
) -> bytes:
    """A relocatable object of `parts` (numbered from 1) and `names`.

    `extra` overrides fields of the header: shentsize, shnum, shstrndx, shoff.
    """
    strings = _Strings()
    index = {part.name: number for number, part in enumerate(parts, 1)}
    symbol_index = {name.name: number for number, name in enumerate(names, 1)}
    symbols = bytes(24) + b"".join(
        struct.pack(
            "<IBBHQQ",
            strings.add(name.name),
            name.binding << 4 | name.type,
            0,
            name.section if isinstance(name.section, int) else index[name.section],
            name.value,
            0,
        )
        for name in names
    )
    relocated = [part for part in parts if part.relocations]
    names_at, symbols_at = 1 + len(parts), 2 + len(parts)
    rows: list[tuple[str, int, int, bytes, int | None, int, int, int]] = [
        (part.name, part.type, part.flags, part.data, part.size, 0, part.info, part.alignment)
        for part in parts
    ]
    rows.append((".strtab", STRTAB, 0, b"", None, 0, 0, 1))
    rows.append((".symtab", SYMTAB, 0, symbols, None, names_at, 1, 8))
    for part in relocated:
        table = b"".join(
            struct.pack("<QQ", offset, symbol_index[name] << 32 | kind)
            for offset, kind, name in part.relocations
        )
        rows.append(
            (".rel" + part.name, relocation_type, 0, table, None, symbols_at, index[part.name], 8)
        )
    name_offsets = [strings.add(row[0]) for row in rows]
    body = bytearray()
    headers = bytearray(64)
    for (_, section, flags, data, size, link, info, alignment), name_offset in zip(
        rows, name_offsets, strict=True
    ):
        if section == STRTAB and not data:
            data = bytes(strings.data)
        body += bytes(-len(body) % 8)
        headers += struct.pack(
            "<IIQQQQIIQQ",
            name_offset,
            section,
            flags,
            0,
            64 + len(body),
            len(data) if size is None else size,
            link,
            info,
            alignment,
            0,
        )
        body += data
    body += bytes(-len(body) % 8)
    fields = {
        "shoff": 64 + len(body),
        "shentsize": 64,
        "shnum": len(rows) + 1,
        "shstrndx": names_at,
    } | dict(extra or {})
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        kind,
        machine,
        1,
        0,
        0,
        fields["shoff"],
        0,
        64,
        0,
        0,
        fields["shentsize"],
        fields["shnum"],
        fields["shstrndx"],
    )
    return bytes(header + body + headers)
