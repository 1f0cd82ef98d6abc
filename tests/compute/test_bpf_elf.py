"""The linker: what an object's sections, symbols and relocations become.

Objects are put together by `support.bpf_elf`; the meaning of the relocations is that of the Linux
documentation, "BPF LLVM relocations".
"""

import struct

import pytest

from potash_firmware.bpf import ElfError
from potash_firmware.bpf.arena import Arena, Layout
from potash_firmware.bpf.elf import link
from potash_firmware.bpf.elf import load as load_elf
from potash_firmware.bpf.interpreter import execute as run
from support.bpf import call_local, exit_, insn, lddw, load, mov
from support.bpf_elf import (
    ALLOC,
    LOCAL,
    NOBITS,
    NOTYPE,
    OBJECT,
    R_64_32,
    R_64_64,
    R_ABS32,
    R_ABS64,
    R_DATA_32,
    R_DATA_64,
    R_NODYLD32,
    REL,
    RELA,
    SECTION,
    WRITE,
    Name,
    Part,
    elf,
    text,
)

UNDEFINED, ABSOLUTE = 0, 0xFFF1


def execute(data: bytes, entry: str | None = None) -> int:
    """Link an object, put it into an arena, run it; r0 at its exit."""
    program = load_elf(data, entry=entry)
    layout = Layout(64, 64, data_size=len(program.data), rodata_size=len(program.rodata))
    image = link(program, layout)
    memory = memoryview(bytearray(layout.size))
    memory[layout.data_offset : layout.data_offset + len(image.data)] = image.data
    memory[layout.rodata_offset :] = image.rodata
    helpers = {number: lambda *arguments, base=number: base * 1000 for number in range(1, 5)}
    return run(image.code, program.entry, Arena(memory, layout), helpers, (), 1000).value


def test_the_entry_is_prog_wherever_it_is() -> None:
    code = text(mov(0, 1), exit_, mov(0, 2), exit_)
    assert execute(elf([code], [Name("first"), Name("prog", value=16)])) == 2


def test_without_prog_the_entry_is_the_first_global_function() -> None:
    code = text(mov(0, 1), exit_, mov(0, 2), exit_, mov(0, 3), exit_)
    names = [Name("hidden", binding=LOCAL), Name("later", value=32), Name("sooner", value=16)]
    assert execute(elf([code], names)) == 2
    assert execute(elf([code], names), entry="later") == 3


def test_an_entry_asked_for_must_be_there() -> None:
    with pytest.raises(ElfError, match="no global function 'other'"):
        load_elf(elf([text(exit_)], [Name("prog")]), entry="other")


def test_all_executable_sections_become_one_program() -> None:
    """The addend of a call lies in its imm: -1 stands for the symbol itself."""
    main = text(insn(0x85, src=1, imm=-1), exit_, relocations=[(0, R_64_32, "far")])
    other = text(exit_, mov(0, 9), exit_, name="other")
    names = [Name("prog"), Name("far", "other", value=8)]
    assert execute(elf([main, other], names)) == 9
    assert execute(elf([other, main], names)) == 9


def test_a_call_relative_to_a_section_counts_instructions_in_its_addend() -> None:
    main = text(insn(0x85, src=1, imm=1), exit_, relocations=[(0, R_64_32, "section")])
    other = text(exit_, exit_, mov(0, 7), exit_, name="other")
    names = [Name("prog"), Name("section", "other", type=SECTION, binding=LOCAL)]
    assert execute(elf([main, other], names)) == 7


def test_a_local_call_without_a_relocation_stays() -> None:
    assert execute(elf([text(call_local(1), exit_, mov(0, 5), exit_)], [Name("prog")])) == 5


@pytest.mark.parametrize(
    ("name", "number"),
    [("print", 1), ("tflite_apu", 2), ("tflite_vta", 3), ("set_output_length", 4)],
)
def test_an_undefined_function_is_a_helper_by_name(name: str, number: int) -> None:
    main = text(insn(0x85, src=1, imm=-1), exit_, relocations=[(0, R_64_32, name)])
    assert execute(elf([main], [Name("prog"), Name(name, UNDEFINED, type=NOTYPE)])) == number * 1000


def test_the_address_of_a_helper_is_its_number() -> None:
    main = text(lddw(1, 0), insn(0x8D, 1), exit_, relocations=[(0, R_64_64, "print")])
    assert execute(elf([main], [Name("prog"), Name("print", UNDEFINED, type=NOTYPE)])) == 1000


@pytest.mark.parametrize("flags", [ALLOC, ALLOC | WRITE], ids=["rodata", "data"])
def test_data_is_found_by_symbol_and_addend(flags: int) -> None:
    """The addend of a 64-bit immediate lies in its two imm fields."""
    values = Part("values", struct.pack("<4Q", 10, 20, 30, 40), flags)
    main = text(lddw(1, 16), load(0, 1), exit_, relocations=[(0, R_64_64, "second")])
    names = [Name("prog"), Name("second", "values", value=8, type=OBJECT)]
    assert execute(elf([main, values], names)) == 40


def test_an_address_of_data_is_one_whatever_the_instruction_said_before() -> None:
    values = Part("values", struct.pack("<Q", 10))
    main = text(lddw(1, 0, src=4), load(0, 1), exit_, relocations=[(0, R_64_64, "values")])
    assert execute(elf([main, values], [Name("prog"), Name("values", "values")])) == 10


def test_an_addend_may_be_negative() -> None:
    values = Part("values", struct.pack("<4Q", 10, 20, 30, 40), ALLOC)
    main = text(lddw(1, 2**64 - 8), load(0, 1), exit_, relocations=[(0, R_64_64, "second")])
    names = [Name("prog"), Name("second", "values", value=8, type=OBJECT)]
    assert execute(elf([main, values], names)) == 10


def test_several_sections_of_data_keep_their_alignment() -> None:
    parts = [
        text(lddw(1, 0), load(0, 1), exit_, relocations=[(0, R_64_64, "wide")]),
        Part(".rodata.str1.1", b"abc\0x", alignment=1),
        Part(".rodata", struct.pack("<Q", 77), alignment=64),
    ]
    names = [Name("prog"), Name("wide", ".rodata", type=OBJECT)]
    assert execute(elf(parts, names)) == 77
    program = load_elf(elf(parts, names))
    assert program.rodata == b"abc\0x" + bytes(59) + struct.pack("<Q", 77)


def test_bss_is_zeroed_writable_data() -> None:
    parts = [
        text(
            lddw(1, 0),
            insn(0x7A, 1, offset=8, imm=6),  # *(u64 *)(r1 + 8) = 6
            load(0, 1),
            load(2, 1, 8),
            insn(0x0F, 0, 2),
            exit_,
            relocations=[(0, R_64_64, "bss")],
        ),
        Part(".data", b"\xff" * 4, ALLOC | WRITE),
        Part(".bss", b"", ALLOC | WRITE, NOBITS, size=16),
    ]
    data = elf(parts, [Name("prog"), Name("bss", ".bss", type=OBJECT)])
    assert execute(data) == 6
    assert load_elf(data).data == b"\xff" * 4 + bytes(4 + 16)


def test_pointers_in_data_lead_to_data_and_functions() -> None:
    """Addends of R_BPF_64_ABS64 lie in the eight bytes that it relocates."""
    parts = [
        text(
            lddw(6, 0),
            load(1, 6),
            load(7, 1),  # values[1]
            load(1, 6, 8),
            insn(0x8D, 1),  # callee()
            insn(0x0F, 0, 7),
            exit_,
            mov(0, 5),
            exit_,
            relocations=[(0, R_64_64, "pointers")],
        ),
        Part("values", struct.pack("<2Q", 100, 200)),
        Part(
            "pointers",
            struct.pack("<2Q", 8, 0),
            ALLOC | WRITE,
            relocations=[(0, R_ABS64, "values"), (8, R_ABS64, "callee")],
        ),
    ]
    names = [
        Name("prog"),
        Name("callee", value=8 * 8, binding=LOCAL),
        Name("values", "values", type=OBJECT),
        Name("pointers", "pointers", type=OBJECT),
    ]
    assert execute(elf(parts, names)) == 205


def test_a_32_bit_pointer_to_data() -> None:
    parts = [
        text(lddw(1, 0), insn(0x61, 1, 1), load(0, 1), exit_, relocations=[(0, R_64_64, "short")]),
        Part("values", struct.pack("<2Q", 100, 200)),
        Part("short", struct.pack("<I", 8), relocations=[(0, R_ABS32, "values")]),
    ]
    names = [Name("prog"), Name("values", "values"), Name("short", "short", type=OBJECT)]
    assert execute(elf(parts, names)) == 200


@pytest.mark.parametrize(("kind", "width"), [(R_DATA_32, "I"), (R_DATA_64, "Q")])
def test_pointers_in_data_as_gcc_writes_them(kind: int, width: str) -> None:
    """Relocations of GNU binutils, relative to a section; other symbols are refused below."""
    load_short = insn(0x61 if width == "I" else 0x79, 1, 1)
    parts = [
        text(lddw(1, 0), load_short, load(0, 1), exit_, relocations=[(0, R_64_64, "pointer")]),
        Part("values", struct.pack("<2Q", 100, 200)),
        Part("pointer", struct.pack(f"<{width}", 8), relocations=[(0, kind, "values")]),
        Part(".comment", b"\0GCC: (12.2.0) 12.2.0\0", flags=0),
    ]
    names = [Name("prog"), Name("values", "values", type=SECTION), Name("pointer", "pointer")]
    assert execute(elf(parts, names)) == 200
    names[1].value = 8
    with pytest.raises(ElfError, match="made by GCC, whose relocations .* compile it with clang"):
        load_elf(elf(parts, names))


def test_the_address_of_a_function_can_be_called() -> None:
    parts = [
        text(exit_, mov(0, 8), exit_, name="other"),
        text(lddw(2, 8), insn(0x8D, 2), exit_, relocations=[(0, R_64_64, "section")]),
    ]
    names = [Name("prog"), Name("section", "other", type=SECTION, binding=LOCAL)]
    assert execute(elf(parts, names)) == 8


def test_callx_as_older_compilers_write_it() -> None:
    """LLVM up to 18 put the register's number into the imm field."""
    assert execute(elf([text(mov(3, 2), insn(0x8D, imm=3), exit_)], [Name("prog")])) == 2000


def test_sections_about_the_program_do_not_matter() -> None:
    debug = Part(".debug", b"\xff" * 9, flags=0, relocations=[(0, R_NODYLD32, "prog")])
    for kind in (REL, RELA):
        data = elf([debug, text(mov(0, 4), exit_)], [Name("prog")], relocation_type=kind)
        assert execute(data) == 4


def test_padding_behind_an_object_does_not_matter() -> None:
    """Firmware travels in whole dwords."""
    assert execute(elf([text(mov(0, 4), exit_)], [Name("prog")]) + bytes(3)) == 4


def test_an_absolute_symbol_is_its_value() -> None:
    main = text(lddw(0, 1), exit_, relocations=[(0, R_64_64, "constant")])
    assert execute(elf([main], [Name("prog"), Name("constant", ABSOLUTE, value=41)])) == 42


def test_a_label_without_a_type_can_be_the_entry() -> None:
    """Hand-written assembly often has labels without a type."""
    assert execute(elf([text(mov(0, 3), exit_)], [Name("prog", type=NOTYPE)])) == 3
    with pytest.raises(ElfError, match="no global function"):
        load_elf(elf([text(exit_)], [Name("prog", type=OBJECT)]))


def test_what_unwinds_stacks_is_no_data_of_the_program() -> None:
    """Some compilers mark it as loaded, and relocate it."""
    frames = Part(".eh_frame", bytes(24), ALLOC, relocations=[(8, R_ABS64, "prog")])
    program = load_elf(elf([text(exit_), frames], [Name("prog")]))
    assert (program.data, program.rodata, program.fixups) == (b"", b"", ())


@pytest.mark.parametrize("in_imm", [True, False], ids=["clang 18", "clang 19"])
def test_callx_names_its_register_in_imm_or_in_dst(in_imm: bool) -> None:
    callx = insn(0x8D, imm=3) if in_imm else insn(0x8D, 3)
    code = text(lddw(3, 3, src=4), callx, exit_, mov(0, 6), exit_)
    assert execute(elf([code], [Name("prog")])) == 6


def test_data_that_looks_like_callx_stays() -> None:
    """The second half of a wide instruction is no instruction."""
    wide = insn(0x18, 0) + insn(0x8D, imm=3)
    assert load_elf(elf([text(wide, exit_)], [Name("prog")])).code == wide + exit_
