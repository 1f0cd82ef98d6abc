"""The linker's distrust: every malformed object is refused with one sentence, and no other way."""

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.bpf import ElfError, ProgramError, load_program
from potash_firmware.bpf.arena import Layout
from potash_firmware.bpf.disassembler import listing
from potash_firmware.bpf.elf import MAX_CODE, MAX_DATA, link
from potash_firmware.bpf.elf import load as load_elf
from support.bpf import call, call_local, exit_, insn, lddw, load, mov, mov_reg
from support.bpf_btf import Line, btf_parts
from support.bpf_elf import (
    ALLOC,
    COMPRESSED,
    EXEC,
    GLOBAL,
    LOCAL,
    NOBITS,
    NOTYPE,
    OBJECT,
    R_64_32,
    R_64_64,
    R_ABS32,
    R_ABS64,
    REL,
    RELA,
    SECTION,
    STRTAB,
    SYMTAB,
    WRITE,
    Name,
    Part,
    elf,
    text,
)

UNDEFINED, COMMON = 0, 0xFFF2


CODE = text(exit_)
NAMES = [Name("prog")]


def with_relocation(offset: int, kind: int, *code: bytes, **symbol: object) -> bytes:
    """A program with one relocation, for the symbol `x`."""
    name = Name("x")
    for key, value in symbol.items():
        setattr(name, key, value)
    parts = [text(*code, relocations=[(offset, kind, "x")]), Part("d", bytes(8))]
    return elf(parts, [Name("prog"), name])


def with_jump_table() -> bytes:
    """What LLVM 22 makes of a large switch: a table, in a section that is not loaded."""
    parts = [text(lddw(1, 0), exit_, relocations=[(0, R_64_64, "x")])]
    return elf([*parts, Part(".jumptables", bytes(8), flags=0)], [*NAMES, Name("x", ".jumptables")])


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "not a 64-bit"),
    "a table of jumps": (with_jump_table, "compile it with -fno-jump-tables"),
    "a short header": (lambda: elf([CODE], NAMES)[:63], "not a 64-bit"),
    "32 bits": (lambda: b"\x7fELF\x01\x01\x01" + bytes(57), "not a 64-bit"),
    "big endian": (lambda: b"\x7fELF\x02\x02\x01" + bytes(57), "not a 64-bit"),
    "another machine": (lambda: elf([CODE], NAMES, machine=62), "not a relocatable object for BPF"),
    "an executable": (lambda: elf([CODE], NAMES, kind=2), "not a relocatable object for BPF"),
    "odd section headers": (lambda: elf([CODE], NAMES, extra={"shentsize": 40}), "64 bytes"),
    "headers outside": (lambda: elf([CODE], NAMES, extra={"shoff": 2**63}), "past the end"),
    "too many headers": (lambda: elf([CODE], NAMES, extra={"shnum": 500}), "past the end"),
    "no names": (lambda: elf([CODE], NAMES, extra={"shstrndx": 4}), "should hold names"),
    "names in code": (lambda: elf([CODE], NAMES, extra={"shstrndx": 1}), "should hold names"),
    "no sections": (lambda: elf([CODE], NAMES, extra={"shnum": 0}), "should hold names"),
    "no function": (lambda: elf([CODE], []), "no global function"),
    "an entry in data": (
        lambda: elf([CODE, Part("d", bytes(8))], [Name("prog", "d")]),
        "no global function",
    ),
    "an entry between instructions": (
        lambda: elf([text(exit_, exit_)], [Name("prog", value=4)]),
        "not at an instruction",
    ),
    "an entry behind the code": (lambda: elf([CODE], [Name("prog", value=8)]), "not at an"),
    "an entry outside": (lambda: elf([CODE], [Name("prog", value=9)]), "outside its section"),
    "half an instruction": (lambda: elf([text(exit_[:7])], NAMES), "middle of an instruction"),
    "code outside the file": (
        lambda: elf([dataclasses.replace(CODE, size=1 << 19)], NAMES),
        "past the end of the file",
    ),
    "compressed data": (
        lambda: elf([CODE, Part("d", bytes(8), ALLOC | COMPRESSED)], NAMES),
        "compressed",
    ),
    "a strange section": (
        lambda: elf([CODE, Part("d", bytes(8), ALLOC, type=7)], NAMES),
        "not loaded",
    ),
    "a wild alignment": (
        lambda: elf([CODE, Part("d", bytes(8), alignment=1 << 62)], NAMES),
        "more than a page",
    ),
    "too much code": (
        lambda: elf([CODE, Part("c", b"", ALLOC | EXEC, NOBITS, size=MAX_CODE)], NAMES),
        "bytes of code",
    ),
    "too much data": (
        lambda: elf([CODE, Part("d", b"", ALLOC | WRITE, NOBITS, size=MAX_DATA + 1)], NAMES),
        "bytes of data",
    ),
    "endless bss": (
        lambda: elf([CODE, Part("d", b"", ALLOC | WRITE, NOBITS, size=2**64 - 1)], NAMES),
        "bytes of data",
    ),
    "an unknown function": (
        lambda: with_relocation(0, R_64_32, call(0), exit_, section=UNDEFINED),
        "'x' is neither in the object nor a helper",
    ),
    "an unknown variable": (
        lambda: with_relocation(0, R_64_64, lddw(1, 0), exit_, section=UNDEFINED),
        "'x' is neither in the object nor a helper",
    ),
    "a common variable": (
        lambda: with_relocation(0, R_64_64, lddw(1, 0), exit_, section=COMMON),
        "not in a section that is part",
    ),
    "a symbol outside": (
        lambda: with_relocation(0, R_64_64, lddw(1, 0), exit_, section="d", value=9),
        "outside its section",
    ),
    "a call into data": (
        lambda: with_relocation(0, R_64_32, call(0), exit_, section="d"),
        "'x' is not code",
    ),
    "a call behind the code": (
        lambda: with_relocation(0, R_64_32, call_local(-1), exit_, value=16),
        "not at an instruction",
    ),
    "a call between instructions": (
        lambda: with_relocation(0, R_64_32, call_local(-1), exit_, value=4),
        "not at an instruction",
    ),
    "a call before the code": (
        lambda: with_relocation(0, R_64_32, call_local(-3), exit_),
        "not at an instruction",
    ),
    "a call that is none": (lambda: with_relocation(0, R_64_32, mov(0, 0), exit_), "not at a call"),
    "an address that is none": (
        lambda: with_relocation(0, R_64_64, mov(0, 0), exit_),
        "not at an LDDW",
    ),
    "half an address": (lambda: with_relocation(0, R_64_64, insn(0x18)), "past the end"),
    "a relocation outside": (lambda: with_relocation(8, R_64_32, exit_), "past the end"),
    "a relocation far outside": (
        lambda: with_relocation(2**64 - 1, R_64_32, exit_),
        "past the end",
    ),
    "a relocation between": (
        lambda: with_relocation(4, R_64_32, exit_, exit_),
        "not at an instruction",
    ),
    "another relocation": (lambda: with_relocation(0, 77, exit_), "type 77"),
    "data's relocation in code": (lambda: with_relocation(0, R_ABS64, exit_), "type 2"),
    "code's relocation in data": (
        lambda: elf([CODE, Part("d", bytes(16), relocations=[(0, R_64_64, "prog")])], NAMES),
        "type 1",
    ),
    "a short pointer to code": (
        lambda: elf([CODE, Part("d", bytes(4), relocations=[(0, R_ABS32, "prog")])], NAMES),
        "does not fit in 32 bits",
    ),
    "relocations with addends": (
        lambda: elf(
            [text(call(1), exit_, relocations=[(0, R_64_32, "prog")])], NAMES, relocation_type=RELA
        ),
        "addends",
    ),
    "relocations of no section": (
        lambda: elf([CODE, Part("r", bytes(16), 0, REL, info=5)], NAMES),
        "a section that does not exist",
    ),
    "a relocation for no symbol": (
        lambda: elf([CODE, Part("r", struct.pack("<QQ", 0, 2 << 32), 0, REL, info=1)], NAMES),
        "names symbol 2",
    ),
    "half a relocation": (
        lambda: elf([CODE, Part("r", bytes(15), 0, REL, info=1)], NAMES),
        "not made of entries",
    ),
    "two symbol tables": (
        lambda: elf([CODE, Part("more", bytes(24), 0, SYMTAB)], NAMES),
        "more than one symbol table",
    ),
    "a name without an end": (
        lambda: elf([CODE, Part("s", b"abc", 0, STRTAB)], NAMES, extra={"shstrndx": 2}),
        "has no end",
    ),
    "maps of a program for Linux": (
        lambda: elf([text(call(1), exit_), Part(".maps", bytes(32), ALLOC | WRITE)], NAMES),
        "has maps .* is one for Linux, whose helpers have other numbers",
    ),
    "a name without measure": (lambda: elf([CODE], [Name("p" * 1025)]), "longer than 1024"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_the_reason(what: str) -> None:
    make, message = REFUSED[what]
    with pytest.raises(ElfError, match=message) as caught:
        load_elf(make())
    assert "\n" not in str(caught.value)


def rich_object() -> bytes:
    """An object with something of everything."""
    parts = [
        text(
            lddw(1, 0),
            load(0, 1),
            insn(0x85, src=1, imm=-1),
            insn(0x85, src=1, imm=-1),
            lddw(3, 0),
            mov_reg(4, 0),
            exit_,
            relocations=[
                (0, R_64_64, "table"),
                (24, R_64_32, "far"),
                (32, R_64_32, "print"),
                (40, R_64_64, "far"),
            ],
        ),
        text(mov(0, 1), exit_, name="other"),
        Part(".rodata.str1.1", b"hello\0", alignment=1),
        Part(
            ".data",
            bytes(16),
            ALLOC | WRITE,
            relocations=[(0, R_ABS64, "strings"), (8, R_ABS64, "far")],
        ),
        Part(".bss", b"", ALLOC | WRITE, NOBITS, size=32),
        *btf_parts({".text": [Line(0, 3, "int prog()")], "other": [Line(8, 9, "return 1;")]}),
    ]
    names = [
        Name("prog"),
        Name("far", "other", binding=LOCAL),
        Name("print", UNDEFINED, type=NOTYPE, binding=GLOBAL),
        Name("table", ".data", type=OBJECT),
        Name("strings", ".rodata.str1.1", type=SECTION, binding=LOCAL),
    ]
    return elf(parts, names)


RICH = rich_object()


def load_or_refuse(data: bytes) -> None:
    """Nothing but a ProgramError may come of a damaged object, and what loads must link.

    What is only linked, or is there for people to read, has no other exception either.
    """
    try:
        for row in listing(load_elf(data)):
            assert row.text
    except ElfError:
        pass
    try:
        program = load_program(data)
    except ProgramError as error:
        assert "\n" not in str(error)
        return
    assert str(program.debug.place(0)).isprintable()
    layout = Layout(0, 0, data_size=len(program.data), rodata_size=len(program.rodata))
    image = link(program, layout)
    assert len(image.code) == len(program.code)


def test_the_object_that_is_damaged_below_is_sound() -> None:
    program = load_program(RICH)
    assert program.entry == 0
    assert str(program.debug.place(1)) == "prog, sum.c:3"


@given(
    st.lists(
        st.tuples(st.integers(0, len(RICH) - 1), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])),
        min_size=1,
        max_size=6,
    )
)
def test_bytes_changed_anywhere_make_no_other_exception(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(RICH)
    for at, value in changes:
        damaged[at] = value
    load_or_refuse(bytes(damaged))


@given(
    at=st.integers(0, len(RICH) // 4 - 2).map(lambda word: 4 * word),
    value=st.one_of(
        st.sampled_from([0, 1, 7, 8, 2**31, 2**32 - 1, 2**63, 2**64 - 8, 2**64 - 1]),
        st.integers(0, 2**64 - 1),
    ),
)
def test_words_changed_anywhere_make_no_other_exception(at: int, value: int) -> None:
    damaged = bytearray(RICH)
    struct.pack_into("<Q", damaged, at, value)
    load_or_refuse(bytes(damaged))


EXAMPLE = (Path(__file__).parents[2] / "examples" / "add" / "program.o").read_bytes()


@given(
    st.lists(st.tuples(st.integers(0, len(EXAMPLE) - 1), st.integers(0, 255)), min_size=1),
    st.one_of(st.just(len(EXAMPLE)), st.integers(0, len(EXAMPLE))),
)
def test_a_compiler_s_object_damaged_makes_no_other_exception(
    changes: list[tuple[int, int]], length: int
) -> None:
    damaged = bytearray(EXAMPLE)
    for at, value in changes:
        damaged[at] = value
    load_or_refuse(bytes(damaged[:length]))


@given(st.integers(0, len(RICH)))
def test_an_object_cut_short_makes_no_other_exception(length: int) -> None:
    load_or_refuse(RICH[:length])


@given(st.binary(max_size=300))
def test_noise_behind_a_good_start_makes_no_other_exception(noise: bytes) -> None:
    load_or_refuse(RICH[:64] + noise)
