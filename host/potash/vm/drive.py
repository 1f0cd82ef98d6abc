"""Devices in separate processes (`potash serve`), for as long as a block lasts."""

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from potash.sdk.errors import PotashError
from potash.vm.parent_death import dies_with_parent

START_LIMIT = 180.0
"""Seconds; compiling the model of a drive takes ten seconds the first time."""
LOOK = 1.0
"""Seconds between two looks at what it says meanwhile."""
COMPILING = "compiling the simulator"
"""Part of what it says then, which takes long enough to be shown."""
STOP_LIMIT = 20.0
"""Seconds for the device to write its data and to release its media."""


@contextlib.contextmanager
def serving(*options: str, verbose: bool = False) -> Iterator[Path]:
    """Run a device at a private socket while the block lasts. Yields the socket.

    Takes and raises what `device_process` does.
    """
    # The folder is this user's alone, and so is what listens in it.
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        socket = Path(folder) / "drive"
        with device_process(socket, *options, verbose=verbose):
            yield socket


@contextlib.contextmanager
def device_process(
    socket: Path, *options: str, verbose: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `potash serve` at `socket` while the block lasts. Yields its process.

    Args:
        options: further options of `potash serve`.
        verbose: let what the device logs through to standard error.

    Raises:
        PotashError: it does not start; what it said is the reason.
    """
    with starting_device(socket, *options, verbose=verbose) as (process, wait):
        wait()
        yield process


@contextlib.contextmanager
def starting_device(
    socket: Path, *options: str, verbose: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], None]]]:
    """The same, without waiting for the device to listen.

    Yields its process, and a function that waits for that and raises what `device_process` does.
    """
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "potash.cli.main", "serve"]
        command += ["--socket", str(socket), "--json", *options]
        process = subprocess.Popen(
            dies_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if verbose else said,
            # Ctrl-C at the terminal is for this process only, which ends the guest first.
            start_new_session=True,
        )

        def wait() -> None:
            if not _listens(process, said):
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                silent = "its log says why" if verbose else "it said nothing"
                reason = lines[-1].removeprefix("potash: ") if lines else silent
                raise PotashError(f"the drive does not start: {reason}")

        try:
            yield process, wait
        finally:
            _end(process)


def _listens(process: subprocess.Popen[bytes], said: IO[bytes]) -> bool:
    """True once the device has reported that it listens; False if it ends, or does not within the
    limit. Shows what it says of compiling meanwhile."""
    assert process.stdout is not None
    waiting = select.poll()
    waiting.register(process.stdout, select.POLLIN)
    shown = 0
    for _ in range(int(START_LIMIT / LOOK)):
        if waiting.poll(LOOK * 1000):
            return bool(process.stdout.readline())
        # The device writes at the end of the file, whose position it shares.
        lines = os.pread(said.fileno(), 1 << 16, 0).decode(errors="replace").splitlines()
        for line in lines[shown:]:
            if COMPILING in line and sys.stderr is not None:
                erase = "\r\x1b[K" if sys.stderr.isatty() else ""  # a line of progress
                print(f"{erase}{line}", file=sys.stderr, flush=True)
        shown = len(lines)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
