"""A function of a module of tests, in a process that no earlier test has left anything in.

A fork of the process of tests has its memory, its reserved addresses and its open files, which
count towards the limits that a test sets.
"""

from __future__ import annotations

import os
import subprocess
import sys


def new_process(
    module: str, function: str, *arguments: int | str
) -> subprocess.CompletedProcess[str]:
    """Call the function there. `arguments` are literals; what it prints and raises is returned."""
    code = f"import {module}; {module}.{function}(*{arguments!r})"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, errors="replace", timeout=1800, check=False,
    )  # fmt: skip
