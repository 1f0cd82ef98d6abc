"""The time that commands take to start, and the memory of a drive."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from potash.bench.processors import family
from potash.bench.report import Result, Settings, alone, paired
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress

POTASH = (sys.executable, "-m", "potash.cli.main")
SERVED = {"serve": (), "serve-modelled": ("--time", "modelled")}
NAMES = ("help", *SERVED)
SETTLED = 1.0
"""Seconds in which all processes of a drive have started."""


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure what is named. Raises PotashError where a device does not start."""
    names, times = settings.names, settings.pairs
    for name in names:
        progress(name, names.index(name) / len(names))
        if name == "help":
            commands = (*POTASH, "--help"), (sys.executable, "-c", "")
            pairs = [(_run(*commands[0]), _run(*commands[1])) for _ in range(times)]
            yield paired(name, "time", "ms", "Python alone", pairs)
            continue
        _serve(SERVED[name])  # which compiles what is not in a cache
        ready, memory = zip(*(_serve(SERVED[name]) for _ in range(times)), strict=True)
        yield alone(name, "ready", "ms", ready)
        if any(memory):
            yield alone(name, "memory", "MiB", memory)


def _run(*command: str) -> float:
    """Milliseconds of a command, from start to end."""
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1e3


def _serve(options: Sequence[str]) -> tuple[float, float]:
    """Milliseconds until a drive says that clients can connect, and the MiB of its processes,
    which only root can read; 0 for others."""
    with tempfile.TemporaryDirectory(prefix="potash-bench-") as folder:
        command = [*POTASH, "serve", "--socket", f"{folder}/drive", *options]
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise PotashError(f"`potash serve {' '.join(options)}` does not start")
                ready = time.perf_counter() - began
                time.sleep(SETTLED)
                memory = sum(map(_proportional, family(process.pid))) if os.geteuid() == 0 else 0
            finally:
                process.terminate()
    return ready * 1e3, memory / 1024


def _proportional(pid: int) -> int:
    """KiB of a process, of which shared ones are divided among those that share them (PSS)."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        if found := re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE):
            return int(found[1])
    return 0
