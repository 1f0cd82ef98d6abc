"""A reader of untrusted relocatable ELF64 objects for BPF: sections, symbols, relocations.

Nothing here knows what a program is; the linker does. Sources: System V ABI, chapter 4 (object
files); the BPF processor number is in the Linux documentation, "BPF LLVM relocations".
"""

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import NamedTuple

from potash_firmware.bpf.errors import ElfError

EM_BPF = 247
MAX_SYMBOLS = 1 << 16
MAX_RELOCATIONS = 1 << 16
MAX_NAME = 1024

_IDENT = b"\x7fELF" + bytes([2, 1, 1])  # 64 bits, little endian, version 1
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
"""Elf64_Ehdr."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQ")

_ET_REL = 1

_UNWINDING = (".eh_frame",)
"""What some compilers mark as part of the program although nothing that runs can use it."""


class SectionType(IntEnum):
    PROGBITS = 1
    SYMTAB = 2
    STRTAB = 3
    RELA = 4
    NOBITS = 8
    REL = 9


class SectionFlag(IntFlag):
    WRITE = 1
    ALLOC = 2
    EXECINSTR = 4
    COMPRESSED = 0x800


class SectionIndex(IntEnum):
    """Special values of a symbol's section."""

    UNDEF = 0
    RESERVED = 0xFF00
    ABS = 0xFFF1


class SymbolType(IntEnum):
    NOTYPE = 0
    FUNC = 2
    SECTION = 3


class Binding(IntEnum):
    LOCAL = 0


class _Header(NamedTuple):
    """`table` is where the section headers begin, `names` the section that names them."""

    kind: int
    machine: int
    table: int
    entry_size: int
    entries: int
    names: int


class Section(NamedTuple):
    number: int
    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int

    @property
    def in_memory(self) -> bool:
        """Whether the section is part of the running program, and not about it."""
        return bool(self.flags & SectionFlag.ALLOC) and self.name not in _UNWINDING


class Symbol(NamedTuple):
    name: str
    type: int
    binding: int
    section: int
    value: int


class Relocation(NamedTuple):
    """`offset` bytes into its section, the address of `symbol` is wanted in the way of `type`."""

    offset: int
    type: int
    symbol: Symbol


class ObjectFile:
    """One object file, its headers checked. Every method raises ElfError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        header = _header(data)
        if header.kind != _ET_REL or header.machine != EM_BPF:
            raise ElfError("this ELF file is not a relocatable object for BPF")
        if header.entry_size != _SECTION.size:
            raise ElfError(f"a section header has {_SECTION.size} bytes, not {header.entry_size}")
        size = header.entries * _SECTION.size
        rows = self._table(_SECTION, header.table, size, "the section headers")
        # The names are found through the table, so the sections first come without them.
        unnamed = [_section(number, row) for number, row in enumerate(rows)]
        strings = self._strings(unnamed, header.names)
        self.sections = [
            section._replace(name=_string(strings, row[0]))
            for section, row in zip(unnamed, rows, strict=True)
        ]
        self.symbols = self._read_symbols()

    def contents(self, section: Section) -> bytes:
        """The bytes of a section; of one without bits in the file, zeroes."""
        if section.type == SectionType.NOBITS:
            return bytes(section.size)
        return self._bytes(section.offset, section.size, f"section {section.name!r}")

    def relocations(self) -> Iterator[tuple[Section, Relocation]]:
        """The relocations of all sections that are part of the program, each with its section."""
        total = 0
        for table in self.sections:
            if table.type not in (SectionType.REL, SectionType.RELA):
                continue
            if table.info >= len(self.sections):
                raise ElfError(f"section {table.name!r} relocates a section that does not exist")
            section = self.sections[table.info]
            if not section.in_memory:
                continue
            if table.type == SectionType.RELA:
                raise ElfError(f"section {table.name!r} has addends, which BPF does not use")
            total += table.size // _RELOCATION.size
            if total > MAX_RELOCATIONS:
                raise ElfError(f"the object has more than {MAX_RELOCATIONS} relocations")
            what = f"section {table.name!r}"
            for offset, info in self._table(_RELOCATION, table.offset, table.size, what):
                number = info >> 32
                if number >= len(self.symbols):
                    raise ElfError(f"{what} names symbol {number}, which does not exist")
                yield section, Relocation(offset, info & 0xFFFF_FFFF, self.symbols[number])

    def _read_symbols(self) -> list[Symbol]:
        tables = [table for table in self.sections if table.type == SectionType.SYMTAB]
        if not tables:
            return []
        if len(tables) > 1:
            raise ElfError("the object has more than one symbol table")
        if tables[0].size > MAX_SYMBOLS * _SYMBOL.size:
            raise ElfError(f"the object has more than {MAX_SYMBOLS} symbols")
        strings = self._strings(self.sections, tables[0].link)
        rows = self._table(_SYMBOL, tables[0].offset, tables[0].size, "the symbol table")
        return [
            Symbol(_string(strings, name), info & 0xF, info >> 4, section, value)
            for name, info, _, section, value, _ in rows
        ]

    def _strings(self, sections: list[Section], index: int) -> bytes:
        if index >= len(sections) or sections[index].type != SectionType.STRTAB:
            raise ElfError(f"section {index} should hold names, but does not")
        return self._bytes(sections[index].offset, sections[index].size, "a table of names")

    def _table(
        self, entry: struct.Struct, offset: int, size: int, what: str
    ) -> list[tuple[int, ...]]:
        if size % entry.size:
            raise ElfError(f"{what} of {size} bytes is not made of entries of {entry.size} bytes")
        return list(entry.iter_unpack(self._bytes(offset, size, what)))

    def _bytes(self, offset: int, size: int, what: str) -> bytes:
        if offset + size > len(self._data):
            raise ElfError(f"{what} reaches past the end of the file")
        return self._data[offset : offset + size]


def stated_size(data: bytes) -> int:
    """Where the file whose first bytes these are says that its section headers end.

    That is the end of the file in what compilers write. Raises ElfError for no ELF file, and for
    one that is cut off within its header.
    """
    header = _header(data)
    return header.table + header.entry_size * header.entries


def _header(data: bytes) -> _Header:
    if len(data) < _HEADER.size or not data.startswith(_IDENT):
        raise ElfError("this is not a 64-bit little endian ELF file")
    _, kind, machine, *_, table, _, _, _, _, entry_size, entries, names = _HEADER.unpack_from(data)
    return _Header(kind, machine, table, entry_size, entries, names)


def _section(number: int, row: tuple[int, ...]) -> Section:
    _, kind, flags, _, offset, size, link, info, alignment, _ = row
    return Section(number, "", kind, flags, offset, size, link, info, max(alignment, 1))


def _string(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset, offset + MAX_NAME + 1)
    if end < 0:
        raise ElfError(f"the name at {offset} is longer than {MAX_NAME} bytes or has no end")
    return strings[offset:end].decode(errors="replace")
