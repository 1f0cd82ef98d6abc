"""A C compiler for BPF programs, where the machine has one."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INCLUDE = Path(__file__).parents[2] / "examples" / "include"
FLAGS = ["-O2", "-fno-builtin", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]

NO_COMPILER = "neither a clang that knows BPF nor the Python package ziglang is installed"


def compiler() -> Sequence[str] | None:
    """The command that compiles C for BPF; None where there is none."""
    clang = shutil.which("clang")
    if clang is not None:
        targets = subprocess.run(
            [clang, "--print-targets"], capture_output=True, text=True, timeout=30, check=False
        )
        if "bpf" in targets.stdout:
            return [clang, "-target", "bpf"]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"]
    return None


def compile_program(command: Sequence[str], source: Path, target: Path, *flags: str) -> bytes:
    """The object file of `source`, which must compile without a warning."""
    arguments = [*command, *FLAGS, *flags, "-I", str(INCLUDE), "-c", str(source), "-o", str(target)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return target.read_bytes()
