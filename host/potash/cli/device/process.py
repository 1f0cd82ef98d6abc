"""A device in a process of its own, for commands that need one for a while."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from potash.sdk.errors import PotashError

START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0
"""Seconds."""


@contextmanager
def device_process(
    socket: Path, *, media: Path | None = None, size: int | str = "64M"
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `potash serve` at `socket` until the block ends. Raises PotashError if it does not start.

    Without `media` the drive is in memory; `size` is that of a new one.
    """
    command = [sys.executable, "-m", "potash.cli.main", "serve", "--json"]
    command += ["--log-level", "warning"]
    command += ["--socket", str(socket), "--size", str(size)]
    command += ["--media", str(media)] if media is not None else []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        try:
            _wait_until_listening(process)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_listening(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], (), (), START_TIMEOUT)
    if not readable:
        raise PotashError(f"the device did not start within {START_TIMEOUT:g} s")
    if not process.stdout.readline():
        raise PotashError("the device ended before it could be used; what it says stands above")
