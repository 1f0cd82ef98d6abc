"""From C to an object file that the drive takes, with clang where there is one, else ziglang.

Nothing is left behind when something fails, and an object file is only put in its place when the
drive's own linker and verifier have taken it.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from potash.programs.advice import advice, readable
from potash.sdk.errors import PotashError
from potash_firmware.bpf import Program, ProgramError, load_program

CPUS = ("v4", "v3", "v2", "v1")
"""Versions of the instruction set, the newest first."""

DEFAULT_CPUS = ("v4", "v3")
"""Versions that are tried when none is asked for: clang knows the first from 18 on."""

FLAGS = (
    "-O2",
    "-g",
    "-Wall",
    "-fno-builtin",  # else a loop may become a call of a library that is not there
    "-fno-jump-tables",  # else a switch may become a jump that no standard has
    "-fno-asynchronous-unwind-tables",
    "-fno-crash-diagnostics",  # clang gives up where it cannot do something, and calls it a crash
)

_UNKNOWN_CPU = ("unknown target CPU", "unknown CPU")


class BuildError(PotashError):
    """The program did not become one that the drive runs.

    `said` is what the compiler said, `advice` what to do about it, a sentence each.
    """

    def __init__(self, reason: str, said: str, advice: Sequence[str]) -> None:
        super().__init__(reason)
        self.said = said
        self.advice = advice


@dataclass(frozen=True)
class Compiler:
    """A C compiler for BPF: its name, and the command to which flags and files are added."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Built:
    """A finished object file, and what the drive sees in it."""

    compiler: Compiler
    cpu: str
    program: Program
    warnings: str


def find_compiler() -> Compiler:
    """The compiler of this machine. Raises PotashError where there is none."""
    clang = shutil.which("clang")
    if clang is not None:
        targets = _run([clang, "--print-targets"]).stdout
        if any(line.split()[:1] == ["bpf"] for line in targets.splitlines()):
            return Compiler("clang", (clang, "-target", "bpf"))
    if importlib.util.find_spec("ziglang") is not None:
        return Compiler(
            "ziglang", (sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding")
        )
    raise PotashError(
        "there is no compiler for BPF: install clang, or the Python package ziglang "
        "(pip install 'potash[ziglang]')"
    )


def build(
    source: Path,
    output: Path,
    *,
    compiler: Compiler,
    includes: Sequence[Path] = (),
    defines: Sequence[str] = (),
    cpu: str | None = None,
) -> Built:
    """Compile `source`, link it as the drive would, and leave its object file in `output`.

    Raises BuildError, and PotashError where `output` cannot be written.
    """
    flags = [*FLAGS, *(f"-D{define}" for define in defines), *(f"-I{path}" for path in includes)]
    try:
        folder = tempfile.TemporaryDirectory(prefix=".potash-build-", dir=output.parent)
    except OSError as error:
        raise PotashError(f"{output} cannot be written: {error.strerror}") from None
    with folder as place:
        made = Path(place) / output.name
        for version in DEFAULT_CPUS if cpu is None else (cpu,):
            done = _run(
                [*compiler.command, f"-mcpu={version}", *flags]
                + ["-c", "-x", "c", str(source), "-o", str(made)]
            )
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
