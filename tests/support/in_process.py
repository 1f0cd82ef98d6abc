"""The command line without a process of its own, which would cost each test a tenth of a second
and more: for tests of options, output and errors."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest import mock

from potash.cli.app import run_app


def potash(*words: object, stdin: str = "") -> CompletedProcess[str]:
    """Carry out a command line."""
    out, err = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch("sys.stdin", io.StringIO(stdin)),
    ):
        code = run_app([*map(str, words)])
    return CompletedProcess([*map(str, words)], code, out.getvalue(), err.getvalue())
