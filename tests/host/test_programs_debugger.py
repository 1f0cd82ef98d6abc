"""`potash bpf debug`: what is said to the debugger, and what it answers."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.bpf_assembler import assemble
from support.bpf_btf import Line, btf_parts
from support.bpf_commands import PROGRAM, cache, given, object_file, potash, program
from support.bpf_elf import Name, elf, text

__all__ = ["cache", "given", "program"]


def talk(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: Path,
    given: Path,
    commands: Sequence[str],
) -> list[str]:
    """What the debugger says after it has said where the program begins."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
    assert potash("debug", program, "--input", given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["prog, sum.c:10: {", "=>      0: r6 = r1"]
    return lines[2:]


CONVERSATIONS: dict[str, tuple[list[str], list[str]]] = {
    "to the end": (["continue"], ["program: done", "the program returned 18446744073709551615"]),
    "nothing": (["", "# a remark"], []),
    "quit": (["quit", "continue"], []),
    "a breakpoint at a function": (
        ["break double", "c", "bt"],
        [
            "breakpoint 1 at instruction 11 (double, sum.c:3)",
            "breakpoint 1",
            "double, sum.c:3: int x = *in;",
            "=>     11: r0 = *(u8 *)(r1 + 0)",
            "#0 instruction 11 (double, sum.c:3)",
            "#1 instruction 2 (prog, sum.c:11)",
        ],
    ),
    "breakpoints at a line and at an instruction": (
        ["b sum.c:4", "b 13", "b *9", "breakpoints", "delete 2", "c", "c"],
        [
            "breakpoint 1 at instruction 12 (double, sum.c:4)",
            "breakpoint 2 at instruction 7 (prog, sum.c:13)",
            "breakpoint 3 at instruction 9 (prog, sum.c:13)",
            "1: instruction 12 (double, sum.c:4)",
            "2: instruction 7 (prog, sum.c:13)",
            "3: instruction 9 (prog, sum.c:13)",
            "breakpoint 1",
            "double, sum.c:4: return x + x;",
            "=>     12: r0 += r0",
            "program: done",
            "breakpoint 3",
            "prog, sum.c:13: return -1;",
            "=>      9: r0 = -1",
        ],
    ),
    "all breakpoints gone": (
        ["b double", "d", "c"],
        [
            "breakpoint 1 at instruction 11 (double, sum.c:3)",
            "program: done",
            "the program returned 18446744073709551615",
        ],
    ),
    "lines, into what is called": (
        ["step", "step", "step", "step", "step"],
        [
            "prog, sum.c:11: out[0] = twice(in[0]);",
            "=>      2: call double",
            "double, sum.c:3: int x = *in;",
            "=>     11: r0 = *(u8 *)(r1 + 0)",
            "double, sum.c:4: return x + x;",
            "=>     12: r0 += r0",
            "prog, sum.c:11: out[0] = twice(in[0]);",
            "=>      3: *(u8 *)(r7 + 0) = r0",
            'prog, sum.c:12: print("done");',
            "=>      4: r1 = words ll",
        ],
    ),
    "lines, past what is called": (
        ["next 2", "next", "next"],
        [
            'prog, sum.c:12: print("done");',
            "=>      4: r1 = words ll",
            "program: done",
            "prog, sum.c:13: return -1;",
            "=>      7: r1 = 1",
            "the program returned 18446744073709551615",
        ],
    ),
    "past what is called, but not past a breakpoint in it": (
        ["b *12", "n", "n"],
        [
            "breakpoint 1 at instruction 12 (double, sum.c:4)",
            "prog, sum.c:11: out[0] = twice(in[0]);",
            "=>      2: call double",
            "breakpoint 1",
            "double, sum.c:4: return x + x;",
            "=>     12: r0 += r0",
        ],
    ),
    "instructions": (
        ["si", "si", "si", "finish"],
        [
            "prog, sum.c:10: {",
            "=>      1: r7 = r2",
            "prog, sum.c:11: out[0] = twice(in[0]);",
            "=>      2: call double",
            "double, sum.c:3: int x = *in;",
            "=>     11: r0 = *(u8 *)(r1 + 0)",
            "prog, sum.c:11: out[0] = twice(in[0]);",
            "=>      3: *(u8 *)(r7 + 0) = r0",
        ],
    ),
    "instructions, and what they call": (
        ["si 2", "ni"],
        [
            "prog, sum.c:11: out[0] = twice(in[0]);",
            "=>      2: call double",
            "prog, sum.c:11: out[0] = twice(in[0]);",
            "=>      3: *(u8 *)(r7 + 0) = r0",
        ],
    ),
    "registers": (
        ["registers r1 r3 r10"],
        [
            "  r1 0x0000000010008000 input+0x0",
            "  r3 0x0000000000000012",
            " r10 0x0000000010008000 stack+0x8000",
            "  pc 0",
        ],
    ),
    "the stack and its end": (
        ["b double", "c", "r r10", "x r10 - 8 8", "x r10-8 8"],
        [
            "breakpoint 1 at instruction 11 (double, sum.c:3)",
            "breakpoint 1",
            "double, sum.c:3: int x = *in;",
            "=>     11: r0 = *(u8 *)(r1 + 0)",
            " r10 0x0000000010007000 stack+0x7000",
            "  pc 11",
            "error: say where, and how many bytes",
            "0x10006ff8: 00 00 00 00 00 00 00 00                          ........",
        ],
    ),
    "memory": (
        ["x input+1 18", "x r1", "x constants 5"],
        [
            "0x10008001: 72 65 73 74 20 6f 66 20 74 68 65 20 69 6e 70 75  rest of the inpu",
            "0x10008011: 74 00                                            t.",
            "0x10008000: 15 72 65 73 74 20 6f 66 20 74 68 65 20 69 6e 70  .rest of the inp",
            "0x10008010: 75 74 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ut..............",
            "0x10008020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................",
            "0x10008030: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................",
            "0x18009000: 64 6f 6e 65 00                                   done.",
        ],
    ),
    "the lines that the object file knows": (
        ["n", "list"],
        [
            "prog, sum.c:11: out[0] = twice(in[0]);",
            "=>      2: call double",
            "      10 {",
            "=>    11     out[0] = twice(in[0]);",
            '      12     print("done");',
            "      13     return -1;",
        ],
    ),
    "instructions around": (
        ["b double", "c", "disasm 1"],
        [
            "breakpoint 1 at instruction 11 (double, sum.c:3)",
            "breakpoint 1",
            "double, sum.c:3: int x = *in;",
            "=>     11: r0 = *(u8 *)(r1 + 0)",
            "       10: exit",
            "double:",
            "=>     11: r0 = *(u8 *)(r1 + 0)",
            "       12: r0 += r0",
        ],
    ),
    "mistakes": (
        [
            "brake", "b", "b nothing", "b 99", "b *5", "b *x", "d 7", "d x", "x", "x nowhere",
            "x 0", "x r1 0", "step -1", "c", "c",
        ],
        [
            "error: there is no command 'brake'; help lists them",
            "error: say where: a function, LINE, FILE:LINE or *INSTRUCTION",
            "error: there is no function 'nothing'",
            "error: no instruction comes from line 99",
            "error: no instruction begins at 5",
            "error: 'x' is not the number of an instruction",
            "error: there is no breakpoint 7",
            "error: 'x' is not a number",
            "error: say where, and how many bytes",
            ("error: 'nowhere' is not an address: write a number, a register, input, output, data, "
            "constants or stack, and +N or -N behind it"),
            ("error: a read of 64 bytes at 0x0 was refused: the arena spans 0x10000000 to "
            "0x18009005"),
            "error: 0 is too few",
            "error: -1 is too few",
            "program: done",
            "the program returned 18446744073709551615",
            "error: the program has ended",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("commands", "answers"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_the_debugger_answers(
    commands: list[str],
    answers: list[str],
    program: Path,
    given: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert talk(monkeypatch, capsys, program, given, commands) == answers


def test_the_debugger_stops_where_a_program_faults(
    tmp_path: Path, given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.o"
    path.write_bytes(object_file(PROGRAM.replace("(r1 + 0)", "(r9 + 0)")))
    fault, line, instruction, *frames, ended = talk(
        monkeypatch, capsys, path, given, ["continue", "backtrace", "step"]
    )
    assert fault.startswith("memory access out of bounds at instruction 11 (double, sum.c:3): ")
    assert line == "double, sum.c:3: int x = *in;"
    assert instruction == "=>     11: r0 = *(u8 *)(r9 + 0)"
    assert frames == ["#0 instruction 11 (double, sum.c:3)", "#1 instruction 2 (prog, sum.c:11)"]
    assert ended == "error: the program has ended"


def test_the_debugger_s_help_names_every_command(
    program: Path, given: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = talk(monkeypatch, capsys, program, given, ["help"])
    listed = [name for line in answers for name in line[:16].strip().split(", ")]
    names = set(listed)
    assert len(names) == len(listed)
    assert {"break", "continue", "step", "next", "stepi", "nexti", "finish", "quit"} <= names
    assert {"backtrace", "registers", "memory", "list", "disasm", "delete", "help"} <= names


def test_the_debugger_needs_no_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.o"
    path.write_bytes(elf([text(assemble("r0 = 1\nr0 = 2\nexit"))], [Name("prog")]))
    monkeypatch.setattr(sys, "stdin", io.StringIO("step\nlist\nnext\nc\n"))
    assert potash("debug", path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "=>      0: r0 = 1",
        "=>      1: r0 = 2",
        "error: the object file has no line for this; build it with -g",
        "=>      2: exit",
        "the program returned 2",
    ]


def test_the_debugger_shows_the_source_file_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "two.c"
    source.write_text("int prog(void)\n{\n\treturn 1;\n}\n")
    parts = [text(assemble("r0 = 1\nexit")), *btf_parts({".text": [Line(0, 3, "", str(source))]})]
    (tmp_path / "p.o").write_bytes(elf(parts, [Name("prog")]))
    monkeypatch.setattr(sys, "stdin", io.StringIO("list\n"))
    assert potash("debug", tmp_path / "p.o") == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "       1 int prog(void)",
        "       2 {",
        "=>     3     return 1;",
        "       4 }",
    ]


def test_the_debugger_wants_its_commands_from_standard_input(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert potash("debug", program, "--input", "-") == 2
    assert "standard input has the commands" in capsys.readouterr().err
