"""The command line: without a process of its own, which would cost each test of options, output or
errors a tenth of a second and more, or with one."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest import mock

from potash.cli.app import run_app


def potash(*words: object, stdin: str = "") -> CompletedProcess[str]:
    """Carry out a command line."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), mock.patch("sys.stdin", io.StringIO(stdin)):
        code = run_app([*map(str, words)])
    return CompletedProcess([*map(str, words)], code, out.getvalue(), err.getvalue())


def potash_command(*arguments: object) -> CompletedProcess[str]:
    """Carry out a command line in a process, within a minute."""
    command = [sys.executable, "-m", "potash.cli.main", *map(str, arguments)]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
