"""Object files of this processor in this process without LLVM, whose import takes most of the time
and half of the memory that a modelled drive needs.

Sources: System V ABI, chapter 4 (object files); its AMD64 supplement, section 4.4 (relocations).
"""

import ctypes
import mmap
import platform
import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = struct.Struct("<4s12xHH20xQ10xHHH")
"""Elf64_Ehdr: magic, type, machine, offset, size and number of the section headers, and (not used)
the section of their names."""
_SECTION = struct.Struct("<4xIQ8xQQIIQ8x")
_SYMBOL = struct.Struct("<IBxHQ8x")
_RELOCATION = struct.Struct("<QIIq")

_MACHINES = {"x86_64": 62}
"""The numbers of processors whose relocations are supported, by the names that Linux has."""
_SYMTAB, _RELA, _NOBITS, _UNWINDING = 2, 4, 8, 0x7000_0001
"""Types of sections."""
_WRITE, _ALLOC = 1, 2
"""Flags of sections."""
_UNDEF, _RESERVED = 0, 0xFF00
"""Section of an undefined symbol, and the first number that is no section's."""
_ABSOLUTE, _RELATIVE = 1, 24
"""Types of relocations: R_X86_64_64 and R_X86_64_PC64."""


class CannotPlaceError(Exception):
    """An object file that LLVM has to load."""


class Placed(NamedTuple):
    """Code and data, for as long as `memory` lives, and the address of a function."""

    address: int
    memory: mmap.mmap


class _Section(NamedTuple):
    """Elf64_Shdr."""

    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    """Elf64_Sym."""

    name: int
    info: int
    section: int
    value: int


def place(contents: bytes, function: str) -> Placed:
    """Place an object file that a cache holds, which is trusted, in memory that can be read and
    executed. Raises CannotPlaceError where it needs more than this module supports."""
    try:
        return _place(contents, function)
    except (struct.error, IndexError, KeyError, ValueError, OSError) as error:
        raise CannotPlaceError(str(error)) from None


def _place(contents: bytes, function: str) -> Placed:
    magic, _, machine, table, size, count, _ = _HEADER.unpack_from(contents)
    if magic != b"\x7fELF" or machine != _MACHINES.get(platform.machine()):
        raise ValueError("this is not an object file for this processor, or for one of its kind")
    sections = [
        _Section(*_SECTION.unpack_from(contents, table + number * size)) for number in range(count)
    ]
    offsets, end = {}, 0
    for number, section in enumerate(sections):
        if section.flags & _ALLOC and section.type != _UNWINDING:
            if section.flags & _WRITE:
                raise ValueError("the object file has data that can be written")
            step = max(1, section.alignment)
            offsets[number] = end = -(-end // step) * step
            end += section.size
    memory = mmap.mmap(-1, end, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, offset in offsets.items():
        section = sections[number]
        if section.type != _NOBITS:
            data = contents[section.offset : section.offset + section.size]
            memory[offset : offset + section.size] = data
    (symtab,) = (section for section in sections if section.type == _SYMTAB)
    symbols = [_Symbol(*fields) for fields in _rows(_SYMBOL, contents, symtab)]
    names = sections[symtab.link].offset
    library = ctypes.CDLL(None)

    def name(symbol: _Symbol) -> str:
        start = names + symbol.name
        return contents[start : contents.index(b"\0", start)].decode()

    def address(symbol: _Symbol) -> int:
        if symbol.section == _UNDEF:
            try:
                found = ctypes.cast(library[name(symbol)], ctypes.c_void_p).value
            except AttributeError:
                found = None
            if found is None:
                raise ValueError(f"this process has no {name(symbol)}")
            return found
        return base + offsets[symbol.section] + symbol.value

    for section in sections:
        if section.type != _RELA or section.info not in offsets:
            continue
        for offset, kind, number, addend in _rows(_RELOCATION, contents, section):
            at = offsets[section.info] + offset
            value = address(symbols[number]) + addend
            if kind == _RELATIVE:
                value -= base + at
            elif kind != _ABSOLUTE:
                raise ValueError(f"relocations of type {kind} are not supported")
            struct.pack_into("<Q", memory, at, value % (1 << 64))
    defined = (symbol for symbol in symbols if symbol.section != _UNDEF)
    (entry,) = (symbol for symbol in defined if name(symbol) == function)
    if library.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(end), 1 | 4):  # to read and execute
        raise OSError("mprotect(2) has failed")
    return Placed(address(entry), memory)


def _rows(row: struct.Struct, contents: bytes, section: _Section) -> Iterator[tuple[int, ...]]:
    return row.iter_unpack(contents[section.offset : section.offset + section.size])


def processor() -> str:
    """This processor as Linux describes it, on which an object file may depend. Raises OSError."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        lines = iter(file.readline, "\n")  # up to an empty one: those of the first core
        return "".join(line for line in lines if not line.startswith(_MEASURED))


_MEASURED = ("cpu MHz", "bogomips", "BogoMIPS")
"""Beginnings of lines with what differs each time."""
