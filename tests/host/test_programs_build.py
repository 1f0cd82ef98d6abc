"""`potash build`: what it makes, and what it says where C asks for what BPF cannot do."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from potash.cli.app import run_app
from potash.programs import compiler as programs
from potash.programs.compiler import TABLE, BuildError, Compiler, advice, build, readable
from potash.programs.execution import execute
from potash.sdk.errors import PotashError
from potash_firmware.bpf import load_program
from support.bpf_compiler import INCLUDE, NO_COMPILER, compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

# Words of compilers, each with the beginning of its answer: clang 14, and where that differs
# clang 22.
SAID = [
    ("p.c:2:5: error: too many args to 0x2c02: i64 = GlobalAddress<…", "a function takes at most"),
    ("p.c:1:39: error: defined with too many args", "a function takes at most"),
    ("p.c:2:5: error: 0x7fc9: i64 = GlobalAddress<ptr @f> 0 too many arguments", "a function takes"),
    ("p.c:1:39: error: stack arguments are not supported", "a function takes at most five"),
    ("error: Looks like the BPF stack limit of 512 bytes is exceeded.", "a function's variables"),
    ("p.c:2:6: error: Looks like the BPF stack limit is exceeded. Please", "a function's variables"),
    ("fatal error: error in backend: Unsupported dynamic stack allocation", "an array's length"),
    ("p.c:1:26: error: unsupported dynamic stack allocation", "an array's length"),
    ("p.c:1:35: error: A call to built-in function '__muldf3' is not supported.", "there is no fl"),
    ("error: A call to built-in function '__fixdfdi' is not supported.", "there is no floating"),
    ("error: A call to built-in function '__gtsf2' is not supported.", "there is no floating"),
    ("error: A call to built-in function '__floatsidf' is not supported.", "there is no floating"),
    ("error: A call to built-in function '__multi3' is not supported.", "there are no 128-bit"),
    ("error: A call to built-in function '__udivti3' is not supported.", "there are no 128-bit"),
    ("error: A call to built-in function 'memcpy' is not supported.", "there is no C library"),
    ("p.c:1:6: error: functions with VarArgs or StructRet are not supported", "functions with a"),
    ("p.c:1:6: error: variadic functions are not supported", "functions with a variable number"),
    ("p.c:1:63: error: aggregate returns are not supported", "a function returns at most"),
    ("Error at line 1: Unsupport signed division for DAG: 0x7: i64 = sdiv", "dividing signed"),
    ("error: thread-local storage is not supported for the current target", "there are no threads"),
    ("error in backend: Cannot select: 0x3: ch = brind 0x3db, 0x3db5a9d8", "there is no computed"),
    ("error in backend: Cannot select: 0x2: i32,ch = AtomicLoadNand<…", "only add, and, or, xor"),
    ("error: sequentially consistent (seq_cst) atomic load/store is not supported", "only add,"),
    ("p.c:3:5: error: unsupported atomic operation, please use 32/64 bit version", "only add,"),
    ("error in backend: Runtime fence is not supported at the moment", "only add, and, or, xor"),
    ("instruction 3 (prog): ATOMIC DW may not have 256 in its imm field", "only add, and, or, xor"),
    ("p.c:27:5: error: Invalid usage of the XADD return value", "what an atomic operation"),
    ("p.c:1:10: fatal error: 'potash.h' file not found", "name the folder that has potash.h"),
    ("p.c:1:10: fatal error: 'string.h' file not found", "there is no C library and none of"),
    ("error: call to undeclared library function 'strlen' with type", "there is no C library and"),
    ("'memcpy' is neither in the object nor a helper", "there is no C library and none of its"),
    ("'checksum' is neither in the object nor a helper", "a program stands alone"),
    ("the object has no global function to begin with", "a program begins with `prog`"),
    ("'x' is not in a section that is part of the program", "a variable may be in a section"),
    ("the program has more than 1048576 bytes of rodata", "large tables belong into the input"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "answer"), SAID, ids=[said for said, _ in SAID])
def test_each_trouble_has_its_advice(said: str, answer: str) -> None:
    assert any(sentence.startswith(answer) for sentence in advice(said))


def test_every_advice_is_given_to_somebody() -> None:
    given = {sentence for said, _ in SAID for sentence in advice(said)}
    assert given == {row.text for row in TABLE}


@pytest.mark.parametrize(
    "said", ["", "p.c:1:40: error: use of undeclared identifier 'x'", "p.c:3: error: expected ';'"]
)
def test_an_error_of_every_c_has_no_advice(said: str) -> None:
    assert advice(said) == []


def test_what_a_compiler_says_of_its_own_end_is_left_out() -> None:
    said = """\
fatal error: error in backend: Cannot select: 0x76accf0: i64 = sdiv 0x76acbb8, 0x76acc88, p.c:1:34
  0x76acbb8: i64,ch = CopyFromReg 0x75cfbe8, Register:i64 %0
In function: prog
PLEASE submit a bug report to https://example.org/ and include the crash backtrace.
Stack dump:
0.	Program arguments: clang -O2
 #0 0x00007fa692aa5291 llvm::sys::PrintStackTrace(llvm::raw_ostream&, int)
Debian clang version 14.0.6
Target: bpf
1 error generated.
"""
    assert readable(said).splitlines() == [
        "fatal error: error in backend: Cannot select: i64 = sdiv 0x76acbb8, 0x76acc88, p.c:1:34",
        "1 error generated.",
    ]


PROGRAM = """\
#include "potash.h"

static int __attribute__((noinline)) twice(int x) { return 2 * x; }

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	out[0] = twice(in[0]) + SHIFT;
	set_output_length(1);
	return 7;
}
"""


def potash(*arguments: object) -> int:
    return run_app([str(argument) for argument in arguments])


@needs_compiler
def test_a_program_is_built_beside_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "double.c"
    source.write_text(PROGRAM)
    assert potash("build", source, "-D", "SHIFT=1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["output"] == str(tmp_path / "double.o")
    assert report["entry"] == "prog"
    assert sorted(report["functions"]) == ["prog", "twice"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["double.c", "double.o"]
    program = load_program((tmp_path / "double.o").read_bytes())
    ran = execute(program, b"\x14", show=print)
    assert (ran.output, ran.return_value) == (b"\x29", 7)
    assert str(program.debug.place(program.entry)).startswith("prog, double.c:")


@needs_compiler
def test_the_object_file_goes_where_it_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, headers, target = tmp_path / "p.c", tmp_path / "headers", tmp_path / "far" / "x.o"
    headers.mkdir()
    target.parent.mkdir()
    (headers / "shift.h").write_text("#define SHIFT 5\n")
    source.write_text('#include "shift.h"\n' + PROGRAM)
    assert potash("build", source, "-o", target, "-I", headers, "--cpu", "v2") == 0
    assert f"{target}: " in capsys.readouterr().out
    assert execute(load_program(target.read_bytes()), b"\1", show=print).output == b"\x07"


CANNOT = {
    "six arguments": (
        ("__attribute__((noinline)) static long f(long a, long b, long c, long d, long e, long f)\n"
        "{ return a * b + c * d - e * f; }\n"
        "long prog(long a, long b, long c, long d, long e)\n"
        "{ return f(a, b, c, d, e, a) + f(b, a, c, d, e, b); }"),
        "at most five arguments",
    ),
    "a large array on the stack": (
        ("long prog(char *in) { volatile char copy[6000]; for (int i = 0; i < 6000; i++)"
        " copy[i] = in[i]; return copy[in[0] & 255]; }"),
        "4096 bytes of stack",
    ),
    "an array of any length": (
        "long prog(char *in, int n) { volatile char a[n]; a[n / 2u] = 1; return a[in[0] & 7]; }",
        "a constant",
    ),
    "floating point": ("long prog(double *in) { return in[0] * in[1]; }", "no floating point"),
    "a large copy": (
        "struct s { char bytes[4000]; }; void prog(struct s *a, struct s *b) { *b = *a; }",
        "write a loop",
    ),
    "any number of arguments": ("long prog(int a, ...) { return a; }", "number of arguments"),
    "a function that is not there": ("int f(int); int prog(int a) { return f(a); }", "stands alone"),
    "a variable that is not there": ("extern int v; int prog(void) { return v; }", "stands alone"),
    "the C library": ("#include <string.h>\nint prog(char *a) { return strlen(a); }", "no C library"),
    "nothing to begin with": ("static int f(void) { return 1; } int v = 1;", "begins with `prog`"),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(("source", "answer"), CANNOT.values(), ids=CANNOT)
def test_what_bpf_cannot_do_is_explained(
    source: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.c"
    path.write_text(source)
    assert potash("build", path) == 1
    said = capsys.readouterr().err.splitlines()
    assert any(line.startswith("advice: ") and answer in line for line in said), said
    assert said[-1].startswith(f"potash: {path} ")
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.c"], "nothing is left behind"


@needs_compiler
def test_an_object_file_stays_when_its_source_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.c"
    (tmp_path / "p.o").write_bytes(b"as it was")
    path.write_text("int prog(void) { return }")
    assert potash("build", path) == 1
    assert "p.c:1" in capsys.readouterr().err
    assert (tmp_path / "p.o").read_bytes() == b"as it was"


@needs_compiler
def test_a_warning_is_shown_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.c"
    path.write_text("int prog(void) { int unused; return 1; }")
    assert potash("build", path) == 0
    assert "unused" in capsys.readouterr().err


def test_the_source_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.o"
    path.write_text("int prog(void) { return 1; }")
    assert potash("build", path) == 2
    assert "the object file would replace" in capsys.readouterr().err


@needs_compiler
def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.c"
    path.write_text("int prog(void) { return 1; }")
    assert potash("build", path, "-o", tmp_path / "nowhere" / "p.o") == 1
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_without_a_compiler_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "_clangs", list)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = tmp_path / "p.c"
    path.write_text("int prog(void) { return 1; }")
    assert potash("build", path) == 1
    assert "install clang, or the Python package ziglang" in capsys.readouterr().err


def test_a_clang_that_does_not_know_bpf_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([*command], 0, "  Registered Targets:\n    x86-64", "")

    monkeypatch.setattr(programs, "_clangs", lambda: ["/usr/bin/clang"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(programs, "_run", run)
    with pytest.raises(PotashError, match="there is no compiler for BPF"):
        programs.find_compiler()


def stand_ins(folder: Path, **versions: str) -> None:
    """Commands that answer as clangs of these versions do; one without a version lacks BPF."""
    for name, version in versions.items():
        script = folder / name.replace("_", "-")
        target = "bpf" if version else "x86-64"
        script.write_text(
            f'#!/bin/sh\n[ "$1" = -dumpversion ] && echo {version or 30}.1.7 || echo "    {target}  -"'
        )
        script.chmod(0o755)


def test_the_newest_clang_is_taken_unless_another_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(tmp_path, clang="14", clang_19="19", clang_9="9", clang_30="", clang_format_40="40")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    unreadable = tmp_path / "unreadable"
    unreadable.mkdir(mode=0)
    folders = [tmp_path / "none", unreadable, tmp_path / "clang", tmp_path]
    monkeypatch.setattr(os, "get_exec_path", lambda: [*map(str, folders)])
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    assert programs.find_compiler().command == (str(tmp_path / "clang-19"), "-target", "bpf")
    assert programs.find_compiler("clang").command[0] == str(tmp_path / "clang")
    assert programs.find_compiler(str(tmp_path / "clang-9")).name == "clang-9"
    monkeypatch.setenv(programs.VARIABLE, "clang-9")
    assert programs.find_compiler().name == "clang-9"
    assert programs.find_compiler("clang-19").name == "clang-19"
    with pytest.raises(PotashError, match="clang-30 cannot compile for BPF, as it is no clang"):
        programs.find_compiler("clang-30")
    with pytest.raises(
        PotashError, match="as there is no such command: let --compiler or POTASH_C"
    ):
        programs.find_compiler("clang-77")


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
def test_ziglang_can_be_named_where_there_is_a_clang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(tmp_path, clang="14")
    monkeypatch.setattr(os, "get_exec_path", lambda: [str(tmp_path)])
    assert programs.find_compiler("ziglang").name == "ziglang"


def test_an_older_compiler_is_asked_for_an_older_instruction_set(tmp_path: Path) -> None:
    """A stand-in, which knows v3 and not v4, and has an object file ready."""
    ready = Path(__file__).parents[2] / "examples" / "add" / "program.o"
    script = tmp_path / "clang.py"
    script.write_text(
        "import shutil, sys\n"
        "if '-mcpu=v4' in sys.argv: sys.exit(\"error: unknown target CPU 'v4'\")\n"
        f"shutil.copy({str(ready)!r}, sys.argv[sys.argv.index('-o') + 1])\n"
    )
    stand_in = Compiler("clang", (sys.executable, str(script)))
    output = tmp_path / "p.o"
    assert build(tmp_path / "p.c", output, compiler=stand_in).cpu == "v3"
    assert output.read_bytes() == ready.read_bytes()
    with pytest.raises(BuildError):
        build(tmp_path / "p.c", output, compiler=stand_in, cpu="v4")


def test_a_compiler_that_can_is_asked_for_larger_stack_frames(tmp_path: Path) -> None:
    """A stand-in, which says what clang 19 does where a frame has more than 512 bytes."""
    ready = Path(__file__).parents[2] / "examples" / "add" / "program.o"
    script = tmp_path / "clang.py"
    script.write_text(
        "import shutil, sys\n"
        "if '-bpf-stack-size=4096' not in sys.argv: sys.exit('error: Looks like the BPF stack limit "
        "is exceeded. For non-kernel uses, the stack can be increased using -mllvm -bpf-stack-size.')\n"
        f"shutil.copy({str(ready)!r}, sys.argv[sys.argv.index('-o') + 1])\n"
    )
    stand_in = Compiler("clang", (sys.executable, str(script)))
    build(tmp_path / "p.c", tmp_path / "p.o", compiler=stand_in)
    assert (tmp_path / "p.o").read_bytes() == ready.read_bytes()


def compilers() -> list[Compiler]:
    """Every compiler that this machine has."""
    found = [programs._clang(path) for path in programs._clangs() if programs._has_bpf(path)]
    if importlib.util.find_spec("ziglang") is not None:
        target = ("-target", "bpfel-freestanding")
        found.append(Compiler("ziglang", (sys.executable, "-m", "ziglang", "cc", *target)))
    return found


EVERYTHING = """\
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "potash.h"

static long counter = 40;
static const short table[4] = {-1, 2, -3, 4};

static __attribute__((noinline)) long choose(long n)
{
	switch (n) {
	case 0: return 17;
	case 1: return -4;
	case 2: return counter;
	case 3: return n * 5;
	case 4: return 99 - n;
	case 5: return 12 ^ n;
	case 6: return counter * 2;
	case 7: return -n;
	case 8: return 1 << n;
	case 9: return 1000;
	case 10: return 77;
	case 11: return 54321;
	case 12: return 8;
	case 13: return counter - 1;
	default: return 5;
	}
}

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	s64 *result = (s64 *)out;

	result[0] = (signed char)in[0];
	result[1] = *(short *)(in + 2);
	result[2] = *(int *)(in + 4);
	result[3] = __builtin_bswap32(*(u32 *)(in + 4));
	FETCH
	result[5] = counter;
	_Static_assert(sizeof(size_t) == 8 && INT_MAX == INT32_MAX && true, "the headers' own");
	result[6] = table[in[8] & 3];
	for (int i = 0; i < 15; i++)
		result[7 + i] = choose(i);
	DIVISION
	set_output_length(24 * 8);
	return 0;
}
"""

FETCH = "result[4] = atomic_fetch_add((_Atomic int64_t *)&counter, 2);"
DIVISION = "result[22] = *(s64 *)(in + 8) / -3; result[23] = *(int *)(in + 12) % 7;"


@needs_compiler
@pytest.mark.parametrize("found", compilers(), ids=lambda found: found.name)
@pytest.mark.parametrize("cpu", ["v1", "v2", "v3", "v4"])
def test_every_instruction_set_of_every_compiler_does_the_same(
    found: Compiler, cpu: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "p.c", tmp_path / "p.o"
    signed = DIVISION if cpu == "v4" else "result[22] = 333; result[23] = -1;"
    fetch = FETCH if cpu in ("v3", "v4") else "result[4] = counter; counter += 2;"
    source.write_text(EVERYTHING.replace("DIVISION", signed).replace("FETCH", fetch))
    try:
        built = build(source, target, compiler=found, cpu=cpu, includes=[INCLUDE])
    except BuildError as error:
        assert cpu == "v4" and "unknown target CPU" in error.said  # clang before 18
        return
    given = bytes.fromhex("80 00 fe ff fd fc fb fa 19 fc ff ff ff ff ff ff")
    output = execute(built.program, given, show=print).output
    values = [int.from_bytes(output[at : at + 8], "little", signed=True) for at in range(0, 192, 8)]
    assert values == [
        -128, -2, *struct.unpack("<i", given[4:8]), *struct.unpack(">I", given[4:8]), 40, 42, 2,
        17, -4, 42, 15, 95, 9, 84, -7, 256, 1000, 77, 54321, 8, 41, 5,
        333, -1,
    ]  # fmt: skip
