"""A program with names and lines, and `potash bpf` on it."""

from pathlib import Path

import pytest

from potash.cli.app import run_app
from support.bpf_assembler import assemble
from support.bpf_btf import Line, btf_parts
from support.bpf_elf import R_64_64, Name, Part, elf, text


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is kept apart from the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


PROGRAM = """
prog:                   ; 0  line 10
    r6 = r1
    r7 = r2
    call double         ; 2  line 11
    *(u8 *)(r7 + 0) = r0
    r1 = words ll       ; 4  line 12
    call 1              ; 6
    r1 = 1              ; 7  line 13
    call 4
    r0 = -1
    exit
double:                 ; 11 line 3
    r0 = *(u8 *)(r1 + 0)
    r0 += r0            ; 12 line 4
    exit
"""
LINES = [
    Line(0, 10, "{"),
    Line(16, 11, "\tout[0] = twice(in[0]);"),
    Line(32, 12, '\tprint("done");'),
    Line(56, 13, "\treturn -1;"),
    Line(88, 3, "\tint x = *in;"),
    Line(96, 4, "\treturn x + x;"),
]


def object_file(code: str = PROGRAM) -> bytes:
    """The program above; its functions and lines are those of its remarks."""
    instructions = assemble(code.replace("r1 = words ll", "r1 = 0 ll"))
    parts = [
        text(instructions, relocations=[(32, R_64_64, "words")]),
        Part("words", b"done\0", alignment=1),
        *btf_parts({".text": LINES}),
    ]
    return elf(parts, [Name("prog"), Name("double", value=88), Name("words", "words")])


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.o"
    path.write_bytes(object_file())
    return path


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "input"
    path.write_bytes(b"\x15rest of the input")
    return path


def potash(*arguments: object) -> int:
    return run_app(["bpf", *map(str, arguments)])
