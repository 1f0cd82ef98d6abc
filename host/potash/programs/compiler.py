"""Compiles C to an object file for the drive, with the newest clang, or else ziglang.

Nothing is left behind when something fails, and an object file is only put in its place when the
drive's own linker and verifier have taken it. Errors that only BPF has, C that this processor
cannot run, are each answered with one sentence; the patterns are the words of clang 14 to 22.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from potash.programs.examples import examples_folder
from potash.sdk.errors import PotashError, restated
from potash_firmware.bpf import Program, ProgramError, load_program
from potash_firmware.bpf.arena import FRAME_SIZE, LEAST_FRAME


class Advice(NamedTuple):
    """The remedy `text` for messages of the compiler that contain one of `patterns`."""

    patterns: Sequence[str]
    text: str


_LIBRARY = r"(?:mem(?:cpy|set|move|cmp)|str\w+|[fsv]?n?printf|malloc|free)"

TABLE: Sequence[Advice] = (
    Advice(
        [r"too many arg", r"stack arguments are not supported", r"pass by value not supported"],
        "a function takes at most five arguments, in registers: give it a pointer to a struct, or "
        "make it `static inline` so that there is no call",
    ),
    Advice(
        [r"BPF stack limit"],
        f"a function's variables have {FRAME_SIZE} bytes of stack, {LEAST_FRAME} with a clang that "
        "cannot have more: make large ones `static`, or use a part of the output buffer",
    ),
    Advice(
        [r"dynamic stack allocation"],
        "an array's length must be a constant: there is no stack that grows while a program runs",
    ),
    Advice(
        [r"built-in function '__\w*[sdtx]f\d?\w*'", r"floating.point"],
        "there is no floating point: compute with integers in fixed point, or let a model do it "
        "(tflite_apu, tflite_vta)",
    ),
    Advice(
        [r"built-in function '__\w*ti\d?'", r"function '__multi3'"],
        "there are no 128-bit integers: multiply and divide in 64 bits",
    ),
    Advice(
        [rf"built-in function '{_LIBRARY}'"],
        "there is no C library, and copying or clearing a large struct or array calls one: "
        "write a loop over its elements",
    ),
    Advice(
        [r"VarArgs", r"variadic functions are not supported", r"= vaarg"],
        "functions with a variable number of arguments are not possible: pass an array and its "
        "length",
    ),
    Advice(
        [r"StructRet", r"aggregate returns", r"only small returns", r"allocate function return"],
        "a function returns at most 8 bytes: let it fill a struct that it is given a pointer to",
    ),
    Advice(
        [r"[Uu]nsupport(?:ed)? signed division", r"= sdiv ", r"= srem "],
        "dividing signed numbers takes version 4 of the instruction set: build with --cpu v4 and "
        "clang 18 or later or --compiler ziglang, or make both operands unsigned",
    ),
    Advice(
        [r"thread-local storage"],
        "there are no threads, and no thread-local variables: make it `static`",
    ),
    Advice(
        [r"Cannot select:.*brind", r"jumps? (?:through a table|to a computed address)"],
        "there is no computed goto: write a switch",
    ),
    Advice(
        [
            r"Cannot select:.*Atomic",
            r"atomic load/store|nsupported atomic|Runtime fence",
            r"ATOMIC \w+ may not have",
        ],
        "only add, and, or, xor, exchange and compare-and-exchange are atomic, on 32 or 64 bits: "
        "load with atomic_fetch_add(p, 0), store with atomic_exchange(p, value)",
    ),
    Advice(
        [r"XADD return value"],
        "what an atomic operation returns is there from version 3 of the instruction set on: "
        "build with --cpu v3",
    ),
    Advice(
        [r"fatal error: 'potash\.h' file not found"], "name the folder that has potash.h with -I"
    ),
    Advice(
        [
            r"fatal error: '(?!potash\.h)[^']+' file not found",
            rf"undeclared (?:library )?function '{_LIBRARY}'",
            rf"declaring library function '{_LIBRARY}'",
            rf"implicit declaration of function '{_LIBRARY}'",
            rf"'{_LIBRARY}' is neither in the object nor a helper",
        ],
        "there is no C library and none of its headers: include potash.h, the compiler's own "
        "headers such as stdint.h, or what is in a folder that -I names",
    ),
    Advice(
        [rf"'(?!{_LIBRARY}')[^']+' is neither in the object nor a helper"],
        "a program stands alone: define what it uses in the same file, or include it",
    ),
    Advice(
        [r"has no global function"],
        "a program begins with `prog`, or with its first function that is not static",
    ),
    Advice(
        [r"is not in a section that is part of the program"],
        "a variable may be in a section of its own only if that is part of the program's data: "
        "leave the section away",
    ),
    Advice(
        [r"more than \d+ bytes of (?:code|data|rodata)"],
        "large tables belong into the input buffer, and large results into the output buffer",
    ),
)


def advice(said: str) -> list[str]:
    """A sentence for each kind of trouble that is in what the compiler or the linker said."""
    return [row.text for row in TABLE if any(re.search(pattern, said) for pattern in row.patterns)]


_CRASH = re.compile(
    r"PLEASE (?:submit|ATTACH)|^Stack dump|^\d+\.\t|^ ?#\d+ |^\*{5,}|note: diagnostic msg"
    r"|: error: clang frontend command failed"
    r"|^(?:[\w ]*clang version|Target:|Thread model:|InstalledDir:)"
    r"|^Preprocessed source|^ +0x[0-9a-f]+: |^ *In function: |could not determine the original"
    r"|symbolizer|^\S*(?:clang|zig)\S*\(|^$"
)


def readable(said: str) -> str:
    """A compiler's messages, without those about its own crash."""
    lines = [line for line in said.splitlines() if not _CRASH.search(line)]
    return "\n".join(re.sub(r"\b0x[0-9a-f]{6,}: ", "", line) for line in lines)


CPUS = ("v4", "v3", "v2", "v1")
"""Versions of the instruction set, the newest first."""

DEFAULT_CPUS = ("v4", "v3")
"""Versions that are tried when none is asked for: clang knows the first from 18 on."""

FLAGS = (
    "-O2",
    "-g",
    "-Wall",
    # Else a loop may become a call of a library that is not there, and the compiler's headers
    # include those of this machine's.
    "-ffreestanding",
    "-nostdlibinc",
    "-fno-jump-tables",  # else a switch may become a jump that no standard has
    "-fno-asynchronous-unwind-tables",
    "-fno-crash-diagnostics",  # clang gives up where it cannot do something, and calls it a crash
)

_STACK_OPTION = "-bpf-stack-size"
"""The option that clang suggests where larger stack frames are needed and possible."""

_UNKNOWN_CPU = ("unknown target CPU", "unknown CPU")


_CLANG = re.compile(r"clang(-\d+)?")

VARIABLE = "POTASH_COMPILER"
"""The environment variable that names the compiler."""

ZIGLANG = "ziglang"


class BuildError(PotashError):
    """The program did not become one that the drive runs.

    `said` is what the compiler said, `advice` what to do about it, a sentence each.
    """

    def __init__(self, reason: str, said: str, advice: Sequence[str]) -> None:
        super().__init__(reason)
        self.said = said
        self.advice = advice


class Compiler(NamedTuple):
    """A C compiler for BPF: its name, and the command to which flags and files are added."""

    name: str
    command: tuple[str, ...]


class Built(NamedTuple):
    """A finished object file, and what the drive sees in it."""

    compiler: Compiler
    cpu: str
    program: Program
    warnings: str


def find_compiler(name: str | None = None) -> Compiler:
    """The compiler `name`, or the one that the environment names, or the best of this machine.
    Raises PotashError where there is none."""
    name = name or os.environ.get(VARIABLE)
    if name not in (None, ZIGLANG):
        path = shutil.which(name)
        if path is None or not _has_bpf(path):
            why = "there is no such command" if path is None else "it is no clang that has BPF"
            raise PotashError(
                f"{name} cannot compile for BPF, as {why}: let --compiler or {VARIABLE} name a "
                f"clang that lists bpf with --print-targets, or {ZIGLANG}"
            )
        return _clang(path)
    if name is None and (path := next(filter(_has_bpf, _clangs()), None)) is not None:
        return _clang(path)
    if importlib.util.find_spec("ziglang") is not None:
        return Compiler(
            ZIGLANG, (sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding")
        )
    raise PotashError(
        "there is no compiler for BPF: install clang, or the Python package ziglang "
        f"({shlex.quote(sys.executable)} -m pip install ziglang)"
    )


def _clang(path: str) -> Compiler:
    return Compiler(Path(path).name, (path, "-target", "bpf"))


def _clangs() -> list[str]:
    """The paths of `clang` and `clang-19` and the like, the newest first."""
    found: dict[str, int] = {}
    for folder in os.get_exec_path():
        try:
            names = sorted(os.listdir(folder))
        except OSError:  # PATH may name what is not there, or what this user may not list
            continue
        for path in (os.path.join(folder, name) for name in names if _CLANG.fullmatch(name)):
            if os.access(path, os.X_OK):
                version = re.match(r"\d+", _run([path, "-dumpversion"]).stdout)
                found.setdefault(path, int(version[0]) if version else 0)
    return sorted(found, key=found.__getitem__, reverse=True)


def _has_bpf(clang: str) -> bool:
    targets = _run([clang, "--print-targets"]).stdout
    return any(line.split()[:1] == ["bpf"] for line in targets.splitlines())


def build(
    source: Path,
    output: Path,
    *,
    compiler: Compiler,
    includes: Sequence[Path] = (),
    defines: Sequence[str] = (),
    cpu: str | None = None,
) -> Built:
    """Compile `source`, link it as the drive would, and leave its object file in `output`. Raises
    BuildError, and PotashError where `output` cannot be written."""
    flags = [*FLAGS, *(f"-D{define}" for define in defines), *(f"-I{path}" for path in includes)]
    with restated(OSError, f"{output} cannot be written"):
        folder = tempfile.TemporaryDirectory(prefix=".potash-build-", dir=output.parent)
    with folder as place:
        made = Path(place) / output.name
        for version in DEFAULT_CPUS if cpu is None else (cpu,):
            command = [*compiler.command, f"-mcpu={version}", *flags]
            command += ["-c", "-x", "c", str(source), "-o", str(made)]
            done = _run(command)
            if _STACK_OPTION in done.stderr:
                done = _run([*command, "-mllvm", f"{_STACK_OPTION}={FRAME_SIZE}"])
            if done.returncode == 0 or not any(text in done.stderr for text in _UNKNOWN_CPU):
                break
        if done.returncode != 0:
            said = readable(done.stderr)
            silent = "" if "rror" in said else ": the compiler gives up on it without a reason"
            raise BuildError(
                f"{source} does not compile for BPF{silent}", said, advice(done.stderr)
            )
        try:
            program = load_program(made.read_bytes())
        except ProgramError as error:
            said = readable(done.stderr)
            raise BuildError(
                f"{source} compiles, but the drive would refuse it: {error}",
                said,
                advice(str(error)),
            ) from None
        os.replace(made, output)
    return Built(compiler, version, program, readable(done.stderr))


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def build_program(
    source: Path,
    target: Path,
    includes: Sequence[Path] = (),
    defines: Sequence[str] = (),
    cpu: str | None = None,
    compiler: str | None = None,
) -> Built:
    """Call `build` with `find_compiler(compiler)`; shows its messages. Raises PotashError."""
    try:
        built = build(
            source,
            target,
            compiler=find_compiler(compiler),
            includes=[*includes, examples_folder() / "include"],
            defines=defines,
            cpu=cpu,
        )
    except BuildError as error:
        if error.said:
            click.echo(error.said, err=True)
        for sentence in error.advice:
            click.echo(f"advice: {sentence}", err=True)
        raise
    if built.warnings:
        click.echo(built.warnings, err=True)
    return built


def compiled(source: Path) -> bytes:
    """The object file of a program, for a command that needs it at once. Raises PotashError."""
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        target = Path(folder) / source.with_suffix(".o").name
        build_program(source, target)
        return target.read_bytes()
