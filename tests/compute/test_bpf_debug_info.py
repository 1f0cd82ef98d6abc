"""Where an instruction comes from: functions and source lines, in faults and refusals."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.bpf import (
    Fault,
    Services,
    VerificationError,
    buffer_layout,
    load_program,
)
from potash_firmware.bpf.debug_info import MAX_LINES, CodePlace, LineTable, SourceLine
from potash_firmware.bpf.elf import Program
from support.bpf import exit_, insn, load, mov, run_program
from support.bpf_btf import Line, btf_parts
from support.bpf_compiler import NO_COMPILER, compile_program, compiler
from support.bpf_elf import LOCAL, NOTYPE, Name, Part, elf, text


def place(program: Program, index: int) -> str:
    return str(program.debug.place(index))


CODE = text(mov(0, 1), mov(0, 2), exit_, mov(0, 3), exit_, exit_)
NAMES = [Name("prog"), Name("helper", value=24, binding=LOCAL)]
LINES = [Line(0, 10, "first"), Line(16, 12, "third"), Line(24, 3, "other")]


def test_an_instruction_belongs_to_the_line_that_began_last() -> None:
    program = load_program(elf([CODE, *btf_parts({".text": LINES})], NAMES))
    assert [place(program, index) for index in range(6)] == [
        "prog, sum.c:10",
        "prog, sum.c:10",
        "prog, sum.c:12",
        "helper, sum.c:3",
        "helper, sum.c:3",
        "helper, sum.c:3",
    ]
    assert program.debug.line_at(2) == SourceLine("/somewhere/sum.c", 12, 1, "third")


def test_a_line_does_not_reach_into_the_next_function() -> None:
    program = load_program(elf([CODE, *btf_parts({".text": LINES[:2]})], NAMES))
    assert place(program, 3) == "helper"


def test_lines_are_found_in_each_section_of_code() -> None:
    """The second section follows the first in the linked program."""
    other = text(mov(0, 1), exit_, name="other")
    names = [Name("prog"), Name("far", "other")]
    lines = {"other": [Line(8, 20)], ".text": [Line(0, 10)]}
    program = load_program(elf([CODE, other, *btf_parts(lines)], names))
    assert [place(program, index) for index in (5, 6, 7)] == [
        "prog, sum.c:10",
        "far",
        "far, sum.c:20",
    ]


def test_longer_records_of_a_later_compiler_are_read() -> None:
    parts = btf_parts({".text": LINES}, record_size=24)
    assert place(load_program(elf([CODE, *parts], NAMES)), 2) == "prog, sum.c:12"


def test_without_lines_a_place_is_a_function_and_without_functions_nothing() -> None:
    program = load_program(elf([CODE], NAMES))
    assert (place(program, 0), place(program, 3)) == ("prog", "helper")
    late = load_program(elf([CODE], [Name("prog", value=8)]))
    assert place(late, 0) == ""


def test_labels_inside_a_function_are_no_functions() -> None:
    names = [*NAMES, Name("LBB0_1", value=8, type=NOTYPE, binding=LOCAL)]
    assert place(load_program(elf([CODE], names)), 1) == "prog"


def run(program: Program) -> None:
    layout = buffer_layout(0, 0)
    run_program(
        program,
        memoryview(bytearray(layout.size)),
        input_size=0,
        output_size=0,
        input_length=0,
        services=Services(print, lambda *_: 0, lambda *_: 0),
    )


def test_a_fault_says_where_it_comes_from() -> None:
    code = text(mov(1, 8), load(0, 1), exit_)
    program = load_program(elf([code, *btf_parts({".text": [Line(8, 77)]})], [Name("prog")]))
    with pytest.raises(Fault) as caught:
        run(program)
    assert str(caught.value).startswith(
        "memory access out of bounds at instruction 1 (prog, sum.c:77): a read of 8 bytes at 0x8 "
    )


def test_a_refusal_says_where_it_comes_from() -> None:
    code = text(mov(1, 8), insn(0xFF), exit_)
    with pytest.raises(VerificationError) as caught:
        load_program(elf([code, *btf_parts({".text": [Line(8, 77)]})], [Name("prog")]))
    assert str(caught.value) == "instruction 1 (prog, sum.c:77): opcode 0xff does not exist"


def test_names_are_shown_as_what_can_be_read_of_them() -> None:
    lines = [Line(0, 5, file="a/\x1b[31mred\n.c")]
    names = [Name("p\trog\u202e" + "o" * 500)]
    shown = place(load_program(elf([CODE, *btf_parts({".text": lines})], names)), 0)
    assert shown == "p   rog" + "o" * 74 + ", [31mred.c:5"


# What is malformed

BTF, EXT = (part.data for part in btf_parts({".text": LINES}))
PLACES = {".text": CodePlace(0, 6)}


def table(btf: bytes = BTF, ext: bytes = EXT) -> list[int]:
    """The numbers of the lines that are found."""
    return [line.number for _, line in LineTable(btf, ext, PLACES)]


def changed(data: bytes, offset: int, value: int) -> bytes:
    """`data` with one word changed."""
    return data[:offset] + struct.pack("<I", value) + data[offset + 4 :]


# In .BTF.ext: a header of 32 bytes, 4 of functions, then the record size, the section's name and
# count, and the first record.
RECORD_SIZE, COUNT, FIRST = 36, 44, 48


def test_what_is_changed_below_is_sound() -> None:
    assert table() == [10, 12, 3]


@pytest.mark.parametrize(
    "ext",
    [
        b"",
        EXT[:4],
        b"\x9f\xeb\x01",
        b"\xeb\x9f" + EXT[2:],  # big endian
        changed(EXT, 4, 1 << 31),  # the header's length
        changed(EXT, 16, 1 << 31),  # where the lines are
        changed(EXT, 20, 3),  # how long they are
        changed(EXT, RECORD_SIZE, 15),
        changed(EXT, RECORD_SIZE, 0),
        changed(EXT, COUNT - 4, 9999),  # the section's name
        changed(EXT, COUNT, 0),
    ],
)
def test_lines_that_cannot_be_read_are_not_there(ext: bytes) -> None:
    assert table(ext=ext) == []


def test_records_that_do_not_fit_are_left_out() -> None:
    assert table(ext=changed(EXT, FIRST, 4)) == [12, 3]  # between two instructions
    assert table(ext=changed(EXT, FIRST, 48)) == [12, 3]  # behind the section
    assert table(ext=changed(EXT, COUNT, 1 << 31)) == [10, 12, 3]  # more than there are
    assert table(ext=EXT[:-4]) == [10, 12]


def test_names_that_cannot_be_read_are_empty() -> None:
    rows = [line for _, line in LineTable(BTF, changed(EXT, FIRST + 4, 1 << 31), PLACES)]
    assert (rows[0].file, rows[0].number) == ("", 10)


def test_no_more_records_are_read_than_a_program_has_instructions() -> None:
    """All at the same place, so that only the last one read shows."""
    count = MAX_LINES + 5
    many = EXT[:COUNT] + struct.pack("<I", count)
    many += b"".join(struct.pack("<IIII", 0, 0, 0, number << 10) for number in range(count))
    many = changed(many, 20, len(many) - RECORD_SIZE)
    assert table(ext=many) == [MAX_LINES - 1]


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 200), st.one_of(st.integers(0, 255))),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_damaged_debug_information_never_matters(
    changes: list[tuple[bool, int, int]], cut_btf: int, cut_ext: int
) -> None:
    damaged = {False: bytearray(BTF), True: bytearray(EXT)}
    for which, at, value in changes:
        data = damaged[which]
        data[at % len(data)] = value
    btf = Part(".BTF", bytes(damaged[False][: max(cut_btf, 1)]), flags=0)
    ext = Part(".BTF.ext", bytes(damaged[True][: max(cut_ext, 1)]), flags=0)
    program = load_program(elf([CODE, btf, ext], NAMES))
    for index in range(-1, 8):
        assert str(program.debug.place(index)).isprintable()


def test_debug_information_behind_the_end_of_the_file_is_not_there() -> None:
    parts = [CODE, *btf_parts({".text": LINES})]
    parts[2].size = 1 << 20
    assert place(load_program(elf(parts, NAMES)), 0) == "prog"


SOURCE = """\
#include "potash.h"

static __attribute__((noinline)) long get(const long *from)
{
	return *from;
}

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	print("about to fail");
	return get((long *)(in_len + 8));
}
"""


@pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
@pytest.mark.parametrize("flags", [["-g"], ["-g", "-ffunction-sections"]])
def test_a_compiler_s_lines_are_those_of_the_source(tmp_path: Path, flags: list[str]) -> None:
    command = compiler()
    assert command is not None
    (tmp_path / "broken.c").write_text(SOURCE)
    data = compile_program(command, tmp_path / "broken.c", tmp_path / "broken.o", *flags)
    program = load_program(data)
    with pytest.raises(Fault) as caught:
        run(program)
    assert str(caught.value.place) == "get, broken.c:5"
    function = program.debug.function_at(program.entry)
    assert function is not None
    assert function.name == "prog"
    lines = {
        str(program.debug.line_at(index))
        for index in range(program.entry, len(program.code) // 8)
        if program.debug.place(index).function == "prog"
    }
    assert lines == {"broken.c:8", "broken.c:10", "broken.c:11"}
