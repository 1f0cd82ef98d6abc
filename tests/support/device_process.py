"""A whole device in a process of its own, as `potash serve` runs it."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT = 20
STOP_TIMEOUT = 10


@contextmanager
def device_process(socket: Path, *, size: str = "64M") -> Iterator[subprocess.Popen[bytes]]:
    """A device at `socket` with a drive of `size` in memory; ended when the block ends."""
    command = [sys.executable, "-m", "potash.cli.main", "serve", "--json"]
    command += ["--socket", str(socket), "--size", size]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
            assert readable and process.stdout.readline(), "the device did not start"
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
