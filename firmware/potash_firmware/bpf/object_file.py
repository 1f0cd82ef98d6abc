"""A reader of untrusted relocatable ELF64 objects for BPF: sections, symbols, relocations.

Nothing here knows what a program is; the linker does. Sources: System V ABI, chapter 4 (object
files); the BPF processor number is in the Linux documentation, "BPF LLVM relocations".
"""

from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import Annotated, NamedTuple, TypeVar

from potash_firmware.bpf.errors import ElfError
from potash_wire.records import NOT_STORED, U8, U16, U32, U64, At, Record

EM_BPF = 247
MAX_SYMBOLS = 1 << 16
MAX_RELOCATIONS = 1 << 16
MAX_NAME = 1024

_IDENT = b"\x7fELF" + bytes([2, 1, 1])  # 64 bits, little endian, version 1
_ET_REL = 1

_UNWINDING = (".eh_frame",)
"""Sections that some compilers mark as part of the program although no code can use them."""


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
    GLOBAL = 1


class _Header(NamedTuple):
    """Elf64_Ehdr: `table` is the offset of the section headers, `names` the section of names."""

    kind: Annotated[U16, At(16)]
    machine: U16
    table: Annotated[U64, At(40)]
    entry_size: Annotated[U16, At(58)]
    entries: U16
    names: U16


class Section(NamedTuple):
    """Elf64_Shdr, with the section's number and its name."""

    name_offset: U32
    type: U32
    flags: U64
    offset: Annotated[U64, At(24)]
    size: U64
    link: U32
    info: U32
    alignment: U64
    number: Annotated[int, NOT_STORED] = 0
    name: Annotated[str, NOT_STORED] = ""

    @property
    def in_memory(self) -> bool:
        """True if the section is part of the running program."""
        return bool(self.flags & SectionFlag.ALLOC) and self.name not in _UNWINDING


class Symbol(NamedTuple):
    """Elf64_Sym, with the symbol's name."""

    name_offset: U32
    info: U8
    section: Annotated[U16, At(6)]
    value: U64
    name: Annotated[str, NOT_STORED] = ""

    @property
    def type(self) -> int:
        return self.info & 0xF

    @property
    def binding(self) -> int:
        return self.info >> 4


class Relocation(NamedTuple):
    """Elf64_Rel: `offset` bytes into its section, the address of symbol number `symbol` is to be
    stored as `type` says."""

    offset: U64
    type: U32
    symbol: U32


_HEADERS = Record(_Header)
_SECTIONS = Record(Section, least_size=64)
SYMBOLS = Record(Symbol, least_size=24)
_RELOCATIONS = Record(Relocation)

_Entry = TypeVar("_Entry", Section, Symbol, Relocation)


class ObjectFile:
    """One object file, its headers checked. Every method raises ElfError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        header = _header(data)
        if header.kind != _ET_REL or header.machine != EM_BPF:
            raise ElfError("this ELF file is not a relocatable object for BPF")
        if header.entry_size != _SECTIONS.size:
            raise ElfError(f"a section header has {_SECTIONS.size} bytes, not {header.entry_size}")
        size = header.entries * _SECTIONS.size
        unnamed = self._table(_SECTIONS, header.table, size, "the section headers")
        strings = self._strings(unnamed, header.names)
        self.sections = [
            section._replace(number=number, name=_string(strings, section.name_offset))
            for number, section in enumerate(unnamed)
        ]
        self.symbols = self._read_symbols()

    def contents(self, section: Section) -> bytes:
        """The bytes of a section; of one without bits in the file, zeroes."""
        if section.type == SectionType.NOBITS:
            return bytes(section.size)
        return self._bytes(section.offset, section.size, f"section {section.name!r}")

    def relocations(self) -> Iterator[tuple[Section, Relocation, Symbol]]:
        """The relocations of all sections that are part of the program, each with its section and
        its symbol."""
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
            total += table.size // _RELOCATIONS.size
            if total > MAX_RELOCATIONS:
                raise ElfError(f"the object has more than {MAX_RELOCATIONS} relocations")
            what = f"section {table.name!r}"
            for one in self._table(_RELOCATIONS, table.offset, table.size, what):
                if one.symbol >= len(self.symbols):
                    raise ElfError(f"{what} names symbol {one.symbol}, which does not exist")
                yield section, one, self.symbols[one.symbol]

    def _read_symbols(self) -> list[Symbol]:
        tables = [table for table in self.sections if table.type == SectionType.SYMTAB]
        if not tables:
            return []
        if len(tables) > 1:
            raise ElfError("the object has more than one symbol table")
        if tables[0].size > MAX_SYMBOLS * SYMBOLS.size:
            raise ElfError(f"the object has more than {MAX_SYMBOLS} symbols")
        strings = self._strings(self.sections, tables[0].link)
        unnamed = self._table(SYMBOLS, tables[0].offset, tables[0].size, "the symbol table")
        return [one._replace(name=_string(strings, one.name_offset)) for one in unnamed]

    def _strings(self, sections: list[Section], index: int) -> bytes:
        if index >= len(sections) or sections[index].type != SectionType.STRTAB:
            raise ElfError(f"section {index} should hold names, but does not")
        return self._bytes(sections[index].offset, sections[index].size, "a table of names")

    def _table(self, entry: Record[_Entry], offset: int, size: int, what: str) -> list[_Entry]:
        if size % entry.size:
            raise ElfError(f"{what} of {size} bytes is not made of entries of {entry.size} bytes")
        return list(entry.decode_all(self._bytes(offset, size, what)))

    def _bytes(self, offset: int, size: int, what: str) -> bytes:
        if offset + size > len(self._data):
            raise ElfError(f"{what} reaches past the end of the file")
        return self._data[offset : offset + size]


def stated_size(data: bytes) -> int:
    """End of the section headers, as a file states that begins with these bytes; 0 for no ELF
    file, and for one that is cut off within its header. Compilers put it at the file's end."""
    try:
        header = _header(data)
    except ElfError:
        return 0
    return header.table + header.entry_size * header.entries


def _header(data: bytes) -> _Header:
    if len(data) < _HEADERS.size or not data.startswith(_IDENT):
        raise ElfError("this is not a 64-bit little endian ELF file")
    return _HEADERS.decode_from(data)


def _string(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset, offset + MAX_NAME + 1)
    if end < 0:
        raise ElfError(f"the name at {offset} is longer than {MAX_NAME} bytes or has no end")
    return strings[offset:end].decode(errors="replace")
