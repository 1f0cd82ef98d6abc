"""The linker: from an object file of a C compiler to a program in memory.

All executable sections become one piece of code; .data, .bss and the like one of writable data;
.rodata, strings and the like one of read-only data. Calls between functions, and to helpers by
name, are resolved at once. References to data are resolved by `link`, as the data's address
depends on the sizes of the buffers before it.

Source: Linux documentation, "BPF LLVM relocations" (addends are in the relocated place itself).
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import NamedTuple

from csd_spec.program import Helper
from csd_spec.run_times import NOT_DECLARED, RunTime, RunTimeError, declared_by
from potash_firmware.bpf import isa, object_file
from potash_firmware.bpf.arena import BASE, PAGE, Layout
from potash_firmware.bpf.debug_info import CodePlace, DebugInfo, Function, LineTable, Reference
from potash_firmware.bpf.errors import ElfError

MAX_CODE = 1 << 20
MAX_DATA = 1 << 20
"""Most bytes of code, and of writable and read-only data each."""

MAX_DEBUG_INFO = 1 << 22
"""Most bytes of a section of debug information; one that is longer is not looked at."""

ENTRY = "prog"
"""The function a program begins with, where it has one of this name."""

HELPER_NAMES: Mapping[str, int] = {helper.name.lower(): helper.value for helper in Helper}
"""The helpers as functions that an object may leave undefined."""

TRAP = 31
"""Number of the helper that LLVM 22 calls by the name of `__bpf_trap`."""

_JUMP_TABLES = ".jumptables"
"""LLVM 22's section of targets of `gotox`, an instruction of no standard."""

_MASK32 = 0xFFFF_FFFF
_MASK64 = (1 << 64) - 1


class RelocationType(IntEnum):
    R_BPF_64_64 = 1
    R_BPF_64_ABS64 = 2
    R_BPF_64_ABS32 = 3
    R_BPF_64_32 = 10


_RELOCATION_TYPES = frozenset(RelocationType)

_OF_GCC: Mapping[int, int] = {11: RelocationType.R_BPF_64_ABS32, 12: RelocationType.R_BPF_64_ABS64}
"""R_BPF_DATA_32 and R_BPF_DATA_64 of GNU binutils before 2.41 (include/elf/bpf.h)."""

_MAPS = (".maps", "maps")
"""Sections in which programs for Linux define maps."""


class Segment(Enum):
    """The three pieces that a program is put together from."""

    CODE = "code"
    DATA = "data"
    RODATA = "rodata"


class Fixup(NamedTuple):
    """A place that waits for an address.

    At byte `offset` of `segment`, as `type` says, goes the address of `target` plus `addend`.
    """

    segment: Segment
    offset: int
    type: RelocationType
    target: Segment
    addend: int


@dataclass(frozen=True)
class Program:
    """A program in which only the addresses of its data are open; `entry` counts instructions.

    Nothing that runs depends on `debug`.
    """

    code: bytes
    entry: int
    data: bytes
    rodata: bytes
    fixups: tuple[Fixup, ...] = ()
    debug: DebugInfo = field(default_factory=DebugInfo, compare=False, repr=False)
    run_time: RunTime = NOT_DECLARED


@dataclass(frozen=True)
class Image:
    """A program in memory with one layout."""

    code: bytes
    data: bytes
    rodata: bytes


def load(
    data: bytes, *, entry: str | None = None, helpers: Mapping[str, int] = HELPER_NAMES
) -> Program:
    """Link the object file `data`, which may be followed by padding.

    `entry` names the function to begin with: else `prog`, else the first global function.
    Raises ElfError.
    """
    program = _Linker(object_file.ObjectFile(bytes(data)), helpers).program(entry)
    try:
        return replace(program, run_time=declared_by(data))
    except RunTimeError as error:
        raise ElfError(str(error)) from None


def link(program: Program, layout: Layout, base: int = BASE) -> Image:
    """Fill in the addresses that the program's data has under `layout`, from `base` on."""
    pieces = {
        Segment.CODE: bytearray(program.code),
        Segment.DATA: bytearray(program.data),
        Segment.RODATA: bytearray(program.rodata),
    }
    addresses = {
        Segment.CODE: isa.CODE_BASE,
        Segment.DATA: base + layout.data_offset,
        Segment.RODATA: base + layout.rodata_offset,
    }
    for fixup in program.fixups:
        value = addresses[fixup.target] + fixup.addend
        _put(pieces[fixup.segment], fixup.offset, fixup.type, value)
    code, data, rodata = map(bytes, pieces.values())
    return Image(code, data, rodata)


# Where in the relocated place the value's 32-bit words are, the low word first.
_PLACES: Mapping[int, tuple[int, ...]] = {
    RelocationType.R_BPF_64_64: (4, 12),  # the two imm fields of an LDDW
    RelocationType.R_BPF_64_ABS64: (0, 4),
    RelocationType.R_BPF_64_ABS32: (0,),
}


def _get(piece: bytearray, offset: int, kind: int) -> int:
    """The addend that is stored in the relocated place."""
    return int.from_bytes(
        b"".join(piece[offset + at : offset + at + 4] for at in _PLACES[kind]), "little"
    )


def _put(piece: bytearray, offset: int, kind: int, value: int) -> None:
    for index, at in enumerate(_PLACES[kind]):
        word = value >> 32 * index & _MASK32
        piece[offset + at : offset + at + 4] = word.to_bytes(4, "little")


def _set_immediate_kind(code: bytearray, offset: int, kind: isa.ImmediateKind) -> None:
    opcode, registers, field, imm = isa.INSTRUCTION.unpack_from(code, offset)
    isa.INSTRUCTION.pack_into(code, offset, opcode, registers & 0xF | kind << 4, field, imm)


def _extent(kind: int) -> int:
    """Number of bytes that a relocation of this type changes."""
    return 8 if kind == RelocationType.R_BPF_64_32 else _PLACES[kind][-1] + 4


def with_callx_registers(code: bytes) -> bytes:
    """`code` with the register of each CALLX in its dst field: LLVM up to 18 had it in imm."""
    if isa.CALLX not in code[:: isa.INSTRUCTION_SIZE]:
        return code
    changed = bytearray(code)
    end = len(code) - isa.INSTRUCTION_SIZE
    offset = 0
    while offset <= end:
        opcode, registers, field, imm = isa.INSTRUCTION.unpack_from(code, offset)
        if opcode == isa.CALLX and registers == 0 and 0 < imm <= isa.FRAME_POINTER:
            isa.INSTRUCTION.pack_into(changed, offset, opcode, imm, field, 0)
        offset += isa.INSTRUCTION_SIZE * (2 if opcode == isa.LDDW else 1)
    return bytes(changed)


class _Linker:
    """One object on its way to a program."""

    def __init__(self, source: object_file.ObjectFile, helpers: Mapping[str, int]) -> None:
        self._object = source
        self._helpers = helpers
        self._pieces = {segment: bytearray() for segment in Segment}
        self._placed: dict[int, tuple[Segment, int]] = {}
        self._fixups: list[Fixup] = []
        self._references: dict[int, Reference] = {}
        # GNU binutils count the symbol's value in the addend, so only a value of 0 is unambiguous.
        self._by_gcc = any(
            b"GCC: (" in source.contents(one) for one in source.sections if one.name == ".comment"
        )

    def program(self, entry: str | None) -> Program:
        for section in self._object.sections:
            if section.in_memory and section.size:
                self._place(section)
        for section, relocation, symbol in self._object.relocations():
            if section.number in self._placed:
                self._relocate(section, relocation, symbol)
        code, data, rodata = map(bytes, self._pieces.values())
        start, fixups = self._entry(entry), tuple(self._fixups)
        code = with_callx_registers(code)
        return Program(code, start, data, rodata, fixups, self._debug_info())

    def _place(self, section: object_file.Section) -> None:
        """Append a section to its piece of the program."""
        segment = _segment(section)
        if section.name in _MAPS:
            raise ElfError(
                f"the program has maps (section {section.name!r}) and so is one for Linux, whose "
                "helpers have other numbers: keep data in variables, and call what potash.h has"
            )
        piece = self._pieces[segment]
        limit = MAX_CODE if segment is Segment.CODE else MAX_DATA
        if section.alignment > PAGE:
            raise ElfError(f"section {section.name!r} has an alignment of more than a page")
        padding = -len(piece) % max(section.alignment, 1)
        if len(piece) + padding + section.size > limit:
            raise ElfError(f"the program has more than {limit} bytes of {segment.value}")
        if segment is Segment.CODE:
            padding = 0  # instructions need no more than their own size, which they all have
            if section.size % isa.INSTRUCTION_SIZE:
                raise ElfError(f"section {section.name!r} ends in the middle of an instruction")
        piece += bytes(padding)
        self._placed[section.number] = segment, len(piece)
        piece += self._object.contents(section)

    def _relocate(
        self,
        section: object_file.Section,
        relocation: object_file.Relocation,
        symbol: object_file.Symbol,
    ) -> None:
        segment, base = self._placed[section.number]
        offset, kind, _ = relocation
        kind = _OF_GCC.get(kind, kind)
        if kind not in _RELOCATION_TYPES:
            raise ElfError(f"relocations of type {kind} are not those of a BPF program")
        if offset + _extent(kind) > section.size:
            raise ElfError(f"a relocation reaches past the end of section {section.name!r}")
        if symbol.value and self._by_gcc:
            raise ElfError(
                "the object was made by GCC, whose relocations have another encoding: compile it "
                "with clang or ziglang"
            )
        in_code = segment is Segment.CODE
        if in_code != (kind in (RelocationType.R_BPF_64_64, RelocationType.R_BPF_64_32)):
            raise ElfError(f"section {section.name!r} has a relocation of type {kind}")
        if in_code and offset % isa.INSTRUCTION_SIZE:
            raise ElfError(f"a relocation in {section.name!r} is not at an instruction")
        offset += base
        if in_code:
            self._remember(offset, kind, symbol)
        if kind == RelocationType.R_BPF_64_32:
            self._relocate_call(offset, symbol)
        else:
            self._relocate_address(segment, offset, RelocationType(kind), symbol)

    def _relocate_call(self, offset: int, symbol: object_file.Symbol) -> None:
        """A call: to a function of the program, or to a helper by name."""
        code = self._pieces[Segment.CODE]
        opcode, registers, field, imm = isa.INSTRUCTION.unpack_from(code, offset)
        if opcode != isa.CALL:
            raise ElfError(f"the call of {symbol.name!r} is not at a call instruction")
        if symbol.section == object_file.SectionIndex.UNDEF:
            isa.INSTRUCTION.pack_into(code, offset, opcode, 0, field, self._helper(symbol))
            return
        # The addend counts instructions from the one behind the call, so an addend of 0 is -1.
        start = self._address(symbol, Segment.CODE) + (imm + 1) * isa.INSTRUCTION_SIZE
        here = offset // isa.INSTRUCTION_SIZE
        distance = self._function(symbol, start) - here - 1
        registers = isa.CallKind.LOCAL << 4
        isa.INSTRUCTION.pack_into(code, offset, opcode, registers, field, distance)

    def _relocate_address(
        self, segment: Segment, offset: int, kind: RelocationType, symbol: object_file.Symbol
    ) -> None:
        """A pointer: to data, to a function of the program, or to a helper (its number)."""
        piece = self._pieces[segment]
        if segment is Segment.CODE and piece[offset] != isa.LDDW:
            raise ElfError(f"the address of {symbol.name!r} is not at an LDDW instruction")
        addend = _get(piece, offset, kind)
        if segment is Segment.CODE:
            _set_immediate_kind(piece, offset, isa.ImmediateKind.INTEGER)
        if symbol.section == object_file.SectionIndex.UNDEF:
            _put(piece, offset, kind, self._helper(symbol))
            return
        if symbol.section == object_file.SectionIndex.ABS:
            _put(piece, offset, kind, symbol.value + addend)
            return
        target, _ = self._home(symbol)
        address = self._address(symbol, target) + addend & _MASK64
        if target is not Segment.CODE:
            self._fixups.append(Fixup(segment, offset, kind, target, address))
            return
        index = self._function(symbol, address)
        if segment is Segment.CODE:
            distance = index - offset // isa.INSTRUCTION_SIZE - 1
            _set_immediate_kind(piece, offset, isa.ImmediateKind.CODE_ADDRESS)
            _put(piece, offset, kind, distance & _MASK32)
        elif kind == RelocationType.R_BPF_64_ABS64:
            self._fixups.append(Fixup(segment, offset, kind, target, address))
        else:
            raise ElfError(f"the address of function {symbol.name!r} does not fit in 32 bits")

    def _remember(self, offset: int, kind: int, symbol: object_file.Symbol) -> None:
        """Keep the name that is about to become a number."""
        name = symbol.name or self._section_name(symbol)
        addend = 0  # of a call to a function there is nothing to say: its target has a name
        if kind == RelocationType.R_BPF_64_64:
            addend = _get(self._pieces[Segment.CODE], offset, kind)
        self._references[offset // isa.INSTRUCTION_SIZE] = Reference(name, addend)

    def _section_name(self, symbol: object_file.Symbol) -> str:
        sections = self._object.sections
        return sections[symbol.section].name if symbol.section < len(sections) else ""

    def _debug_info(self) -> DebugInfo:
        functions = {
            self._placed[symbol.section][1] + symbol.value: symbol.name
            for symbol in self._object.symbols
            if self._is_function(symbol)
        }
        places: dict[str, CodePlace] = {}
        debug = {".BTF": b"", ".BTF.ext": b""}
        for section in self._object.sections:
            segment, start = self._placed.get(section.number, (None, 0))
            if segment is Segment.CODE:
                places[section.name] = CodePlace(
                    start // isa.INSTRUCTION_SIZE, section.size // isa.INSTRUCTION_SIZE
                )
            elif section.name in debug and section.size <= MAX_DEBUG_INFO:
                with suppress(ElfError):
                    debug[section.name] = self._object.contents(section)
        return DebugInfo(
            tuple(
                Function(name, start // isa.INSTRUCTION_SIZE)
                for start, name in sorted(functions.items())
            ),
            self._references,
            LineTable(debug[".BTF"], debug[".BTF.ext"], places),
        )

    def _is_function(self, symbol: object_file.Symbol) -> bool:
        """True if a symbol names a piece of code that people would call a function."""
        return self._placed.get(symbol.section, (None,))[0] is Segment.CODE and (
            symbol.type == object_file.SymbolType.FUNC
            or (
                symbol.type == object_file.SymbolType.NOTYPE
                and symbol.binding != object_file.Binding.LOCAL
            )
        )

    def _home(self, symbol: object_file.Symbol) -> tuple[Segment, int]:
        """The piece that a symbol is in, and where in it its section begins."""
        if self._section_name(symbol) == _JUMP_TABLES:
            raise ElfError(
                "the program jumps through a table of addresses, which the machine does not do: "
                "compile it with -fno-jump-tables, and write a switch for a computed goto"
            )
        if symbol.section not in self._placed:
            raise ElfError(f"{_called(symbol)} is not in a section that is part of the program")
        if symbol.value > self._object.sections[symbol.section].size:
            raise ElfError(f"{_called(symbol)} is outside its section")
        return self._placed[symbol.section]

    def _address(self, symbol: object_file.Symbol, expected: Segment) -> int:
        """Address of a symbol in the segment `expected`."""
        segment, base = self._home(symbol)
        if segment is not expected:
            raise ElfError(f"{_called(symbol)} is not {expected.value}")
        return base + symbol.value

    def _function(self, symbol: object_file.Symbol, address: int) -> int:
        """The index of the instruction at byte `address` of the code."""
        index, rest = divmod(address, isa.INSTRUCTION_SIZE)
        if rest or not 0 <= address < len(self._pieces[Segment.CODE]):
            raise ElfError(f"{_called(symbol)} is not at an instruction")
        return index

    def _helper(self, symbol: object_file.Symbol) -> int:
        number = TRAP if symbol.name == "__bpf_trap" else self._helpers.get(symbol.name)
        if number is None:
            raise ElfError(f"{_called(symbol)} is neither in the object nor a helper")
        return number

    def _entry(self, name: str | None) -> int:
        functions = {
            symbol.name: self._address(symbol, Segment.CODE)
            for symbol in self._object.symbols
            if self._is_function(symbol) and symbol.binding != object_file.Binding.LOCAL
        }
        if not functions:
            raise ElfError("the object has no global function to begin with")
        if name is not None and name not in functions:
            raise ElfError(f"the object has no global function {name!r}")
        first = min(functions.values())
        address = functions[name] if name is not None else functions.get(ENTRY, first)
        if address % isa.INSTRUCTION_SIZE or address >= len(self._pieces[Segment.CODE]):
            raise ElfError("the function to begin with is not at an instruction")
        return address // isa.INSTRUCTION_SIZE


def _segment(section: object_file.Section) -> Segment:
    if section.flags & object_file.SectionFlag.COMPRESSED:
        raise ElfError(f"section {section.name!r} is compressed")
    if section.type not in (object_file.SectionType.PROGBITS, object_file.SectionType.NOBITS):
        raise ElfError(f"section {section.name!r} is of a type that is not loaded")
    if section.flags & object_file.SectionFlag.EXECINSTR:
        return Segment.CODE
    return Segment.DATA if section.flags & object_file.SectionFlag.WRITE else Segment.RODATA


def _called(symbol: object_file.Symbol) -> str:
    return repr(symbol.name) if symbol.name else "an unnamed symbol"
