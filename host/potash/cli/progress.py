"""Progress of long commands: one line on a terminal, a line for each step elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from potash.sdk.progress import Progress, silent

PATIENCE = 2.0
"""Seconds before anything is shown."""
INTERVAL = 0.1
"""Seconds between two changes of the line."""
ERASE = "\r\x1b[K"


class Line:
    """The line, on a terminal. `clear` it before other output is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = self._changed = time.monotonic()
        self._shown = False

    def __call__(self, label: str, fraction: float | None) -> None:
        now = time.monotonic()
        if now - self._began < PATIENCE or now - self._changed < INTERVAL:
            return
        self._changed = now
        self._shown = True
        how_far = f"{now - self._began:.0f} s" if fraction is None else f"{fraction:.0%}"
        self._stream.write(f"{ERASE}{label}: {how_far}")
        self._stream.flush()

    def clear(self) -> None:
        if self._shown:
            self._stream.write(ERASE)
            self._stream.flush()
            self._shown = False


@contextlib.contextmanager
def showing(*, steps: bool = False, quiet: bool = False) -> Iterator[Progress]:
    """A `Progress` that shows itself on standard error.

    Args:
        steps: print a line for each step if that is no terminal.
        quiet: show nothing.
    """
    if not quiet and sys.stderr.isatty():
        line = Line(sys.stderr)
        try:
            yield line
        finally:
            line.clear()
    else:
        yield _steps() if steps and not quiet else silent


@contextlib.contextmanager
def ticking(label: str) -> Iterator[None]:
    """Show, on a terminal, for how long a block runs that has no progress of its own."""
    done = threading.Event()

    def tick(progress: Progress) -> None:
        while not done.wait(INTERVAL):
            progress(label, None)

    with showing() as progress:
        thread = threading.Thread(target=tick, args=(progress,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _steps() -> Progress:
    last = ""

    def report(label: str, fraction: float | None) -> None:
        nonlocal last
        if label != last:
            last = label
            print(f"potash: {label}", file=sys.stderr, flush=True)

    return report
