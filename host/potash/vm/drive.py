"""Devices in separate processes (`potash serve`), for as long as a block lasts."""

import contextlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
    socket: Path, *options: str, more: Sequence[Path] = (), verbose: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `potash serve` at `socket`, and at those of `more` for further controllers, while the
    block lasts. Yields its process, whose log goes to standard error if `verbose`. Raises
    PotashError where it does not start; what it said is the reason."""
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "potash.cli.main", "serve"]
        command += [f"--socket={each}" for each in (socket, *more)]
        command += ["--json", *options]
        process = subprocess.Popen(
            dies_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if verbose else said,
            # Ctrl-C at the terminal is for this process only, which ends the guest first.
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            require_listening(process.stdout, said, verbose=verbose)
            yield process
        finally:
            end(process)


def require_listening(output: IO[bytes], said: IO[bytes], *, verbose: bool) -> None:
    """Wait until a device has reported in `output` that it listens. Raises PotashError if it ends,
    or does not within the limit; what it `said` is the reason."""
    if not _listens(output, said):
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
        silent = "its log says why" if verbose else "it said nothing"
        reason = lines[-1].removeprefix("potash: ") if lines else silent
        raise PotashError(f"the drive does not start: {reason}")


def _listens(output: IO[bytes], said: IO[bytes]) -> bool:
    """True once the device has reported that it listens. Shows what it says of compiling
    meanwhile."""
    waiting = select.poll()
    waiting.register(output, select.POLLIN)
    shown = 0
    for _ in range(int(START_LIMIT / LOOK)):
        if waiting.poll(LOOK * 1000):
            return bool(output.readline())
        # The device writes at the end of the file, whose position it shares.
        lines = os.pread(said.fileno(), 1 << 16, 0).decode(errors="replace").splitlines()
        for line in lines[shown:]:
            if COMPILING in line and sys.stderr is not None:
                erase = "\r\x1b[K" if sys.stderr.isatty() else ""  # a line of progress
                print(f"{erase}{line}", file=sys.stderr, flush=True)
        shown = len(lines)
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    """End devices in good order, or else kill them."""
    with process:
        process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
