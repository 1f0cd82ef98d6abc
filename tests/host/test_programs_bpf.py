"""`potash bpf`: disasm, exec and plugin, on object files put together byte by byte."""

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from potash_firmware.bpf.engine import Engine
from support.bpf import engines, insn
from support.bpf_assembler import assemble
from support.bpf_commands import PROGRAM, cache, given, object_file, potash, program
from support.bpf_elf import Name, elf, text
from support.bpf_vectors import VECTORS, Vector

__all__ = ["cache", "given", "program"]


def test_disasm_shows_names_lines_and_code(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert potash("disasm", program) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{program}: 14 instructions, 0 bytes of data, 5 of constants; begins at 0",
        "",
        "prog:",
        "; sum.c:10: {",
        "       0: bf 16 00 00 00 00 00 00  r6 = r1",
        "       1: bf 27 00 00 00 00 00 00  r7 = r2",
        "; sum.c:11: out[0] = twice(in[0]);",
        "       2: 85 10 00 00 08 00 00 00  call double",
        "       3: 73 07 00 00 00 00 00 00  *(u8 *)(r7 + 0) = r0",
        '; sum.c:12: print("done");',
        "       4: 18 01 00 00 00 00 00 00  r1 = words ll",
        "       5: 00 00 00 00 00 00 00 00",
        "       6: 85 00 00 00 01 00 00 00  call print",
        "; sum.c:13: return -1;",
        "       7: b7 01 00 00 01 00 00 00  r1 = 1",
        "       8: 85 00 00 00 04 00 00 00  call set_output_length",
        "       9: b7 00 00 00 ff ff ff ff  r0 = -1",
        "      10: 95 00 00 00 00 00 00 00  exit",
        "",
        "double:",
        "; sum.c:3: int x = *in;",
        "      11: 71 10 00 00 00 00 00 00  r0 = *(u8 *)(r1 + 0)",
        "; sum.c:4: return x + x;",
        "      12: 0f 00 00 00 00 00 00 00  r0 += r0",
        "      13: 95 00 00 00 00 00 00 00  exit",
    ]


def test_disasm_as_json_has_a_row_for_each_instruction(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert potash("disasm", program, "--entry", "double", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["entry"], report["constants"]) == (11, 5)
    assert report["functions"] == [{"name": "prog", "start": 0}, {"name": "double", "start": 11}]
    assert report["instructions"][-2] == {
        "pc": 12,
        "code": "0f00000000000000",
        "text": "r0 += r0",
        "function": None,
        "label": None,
        "source": {"file": "/somewhere/sum.c", "number": 4, "column": 1, "text": "\treturn x + x;"},
    }


def test_disasm_shows_a_program_that_the_drive_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.o"
    path.write_bytes(elf([text(insn(0xFF), assemble("exit"))], [Name("prog")]))
    assert potash("disasm", path) == 0
    assert "<opcode 0xff does not exist>" in capsys.readouterr().out
    assert potash("exec", path) == 1
    assert capsys.readouterr().err == (
        f"potash: {path}: instruction 0 (prog): opcode 0xff does not exist\n"
    )


@pytest.mark.parametrize("command", ["disasm", "exec", "debug"])
def test_what_is_no_object_file_is_one_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.o"
    path.write_bytes(b"#!/bin/sh")
    assert potash(command, path) == 1
    said = capsys.readouterr().err
    assert said == f"potash: {path}: this is not a 64-bit little endian ELF file\n"


@pytest.mark.parametrize("engine", engines())
def test_exec_runs_a_program_on_files(
    engine: Engine, program: Path, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output"
    options = ["--input", given, "--output", output, "--engine", engine.value]
    assert potash("exec", program, *options) == 0
    assert output.read_bytes() == b"\x2a"
    said = capsys.readouterr()
    assert said.err == "program: done\n"
    after = "the program returned -1 after 13 instructions"
    assert said.out == f"1 bytes in {output}; {after}\n"
    assert potash("exec", program, *options, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "output": str(output),
        "produced": 1,
        "return_value": -1,
        "instructions": 13,
        "printed": ["done"],
    }


@pytest.mark.parametrize("engine", engines())
def test_exec_hands_on_arguments_and_begins_where_it_is_told(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The context: its version, two arguments, 8 bytes and 7 of list; the second's value."""
    code = "f:\nexit\ng:\nr0 = *(u32 *)(r5 + 4)\nr0 <<= 32\nr3 = *(u32 *)(r5 + 28)\nr0 |= r3\nexit"
    path = tmp_path / "p.o"
    path.write_bytes(elf([text(assemble(code))], [Name("f"), Name("g", value=8)]))
    options = ["--arg", "5", "--arg", "hex:01020304", "--entry", "g", "--engine", engine.value]
    assert potash("exec", path, *options, "--output-size", "4K", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["return_value"] == 2 << 32 | 0x04030201
    assert (report["produced"], report["output"]) == (4096, None)


@pytest.mark.parametrize("engine", engines())
def test_exec_says_how_a_program_was_stopped(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.o"
    path.write_bytes(object_file(PROGRAM.replace("(r1 + 0)", "(r9 + 0)")))
    output = tmp_path / "output"
    assert potash("exec", path, "--output", output, "--engine", engine.value) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "potash: the program was stopped: memory access out of bounds at instruction 11 "
        "(double, sum.c:3): a read of 1 byte at 0x0 was refused: "
    )
    assert not output.exists()


@pytest.mark.parametrize("engine", engines())
def test_exec_stops_an_endless_loop(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.o"
    path.write_bytes(elf([text(assemble("loop:\ngoto loop"))], [Name("prog")]))
    assert potash("exec", path, "--limit", "1000", "--engine", engine.value) == 1
    assert "instruction limit exceeded at instruction 0" in capsys.readouterr().err


@pytest.mark.parametrize("engine", engines())
def test_an_interrupt_ends_exec_whatever_its_program_does(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "p.o"
    path.write_bytes(elf([text(insn(0x85, imm=1), assemble("loop:\ngoto loop"))], [Name("prog")]))
    command = [
        sys.executable,
        "-m",
        "potash.cli.main",
        "bpf",
        "exec",
        str(path),
        "--engine",
        engine.value,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == b"program: \n"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()


def test_exec_as_a_process_between_pipes(program: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "potash.cli.main", "bpf", "exec", program, "--input", "-",
         "--output", "-"],
        input=b"\x08", capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout == b"\x10"
    assert done.stderr.splitlines()[0] == b"program: done"


@pytest.mark.parametrize("command", ["exec", "debug"])
def test_frames_have_the_size_that_the_drive_is_to_give_them(
    tmp_path: Path,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "large.o"
    code = insn(0x7A, 10, 0, -5000, 7), insn(0x79, 0, 10, -5000), insn(0x95)
    file.write_bytes(elf([text(*code)], [Name("prog")]))
    monkeypatch.setattr("sys.stdin", io.StringIO("continue\n"))
    assert potash(command, file) == 1
    assert "frame has 4096 bytes at most" in capsys.readouterr().err
    assert potash(command, file, "--frame-size", "8K") == 0
    assert "returned 7" in capsys.readouterr().out


def test_exec_runs_models(tmp_path: Path) -> None:
    """The shipped example: two vectors added on the tensor accelerator."""
    example = Path(__file__).parents[2] / "examples" / "add"
    output = tmp_path / "output"
    options = ["--input", example / "input.bin", "--arg", "520", "--arg", "1024"]
    assert potash("exec", example / "program.o", *options, "--output", output) == 0
    assert output.read_bytes() == (example / "expected.bin").read_bytes()


# The public conformance suite's plugin: an ordinary program's hexadecimal bytes in, r0 out


def plug(monkeypatch: pytest.MonkeyPatch, code: str, *arguments: object, expected: int = 0) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(code + "\n"))
    assert potash("plugin", *arguments) == expected


def spaced(data: bytes) -> str:
    """Bytes as the suite's runner writes them, with two spaces behind each."""
    return "".join(f"{byte:02x}  " for byte in data)


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize("vector", VECTORS[::20], ids=lambda vector: vector.name)
def test_plugin_prints_r0(
    engine: Engine,
    vector: Vector,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plug(monkeypatch, spaced(vector.code), spaced(vector.memory), "--engine", engine.value)
    assert capsys.readouterr().out == f"{vector.value:x}\n"


def test_plugin_s_memory_is_in_r1_and_its_length_in_r2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = spaced(assemble("r0 = *(u16 *)(r1 + 1)\nr0 <<= 8\nr0 += r2\nexit"))
    plug(monkeypatch, code, "aa bb cc")
    assert capsys.readouterr().out == "ccbb03\n"
    plug(monkeypatch, code, "aabbcc", "")  # an older runner passes options that are not there
    assert capsys.readouterr().out == "ccbb03\n"
    plug(monkeypatch, spaced(assemble("r0 = r1\nr0 |= r2\nexit")))
    assert capsys.readouterr().out == "0\n"


def test_plugin_takes_callx_of_the_suite_s_helper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the register in dst, as the suite has it, and in imm, as LLVM 18 had it."""
    for call in (insn(0x8D, 2), insn(0x8D, imm=2)):
        code = assemble("r1 = -1\nr2 = 5") + call + assemble("r0 = 2\nexit")
        plug(monkeypatch, spaced(code))
        assert capsys.readouterr().out == "2\n"


def test_plugin_takes_an_object_file(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = elf([text(assemble("f:\nr0 = *(u8 *)(r1 + 0)\nexit"))], [Name("f")])
    plug(monkeypatch, spaced(data), "07", "--elf")
    assert capsys.readouterr().out == "7\n"


@pytest.mark.parametrize(
    ("code", "memory", "said"),
    [
        (assemble("r0 = *(u64 *)(r2 + 0)\nexit"), "00", "memory access out of bounds at instr"),
        (assemble("r0 = 1"), "", "instruction 0: the program runs past its last instruction"),
        (insn(0x20) + assemble("exit"), "", "instruction 0: opcode 0x20 is one of the deprecated"),
        (insn(0x85, src=2) + assemble("exit"), "", "instruction 0: CALL may not have 2"),
        (b"", "", "instruction 0: 0 bytes are not a program"),
        (assemble("exit"), "zz", "the program and the memory are hexadecimal bytes"),
    ],
)
def test_plugin_s_errors_are_a_text_and_an_exit_code(
    code: bytes,
    memory: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plug(monkeypatch, spaced(code), memory, expected=1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"potash: {said}")
