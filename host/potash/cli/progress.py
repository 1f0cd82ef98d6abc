"""Progress of long commands on standard error: one line on a terminal, a line now and then
elsewhere."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

PATIENCE = math.inf if os.environ.get("POTASH_PROGRESS") == "steps" else 2.0
"""Seconds before anything is shown but steps."""
INTERVAL = 0.1
"""Seconds between two changes of the line on a terminal."""
RARELY = 10.0
"""Seconds between two lines elsewhere."""
ERASE = "\r\x1b[K"


class Reporter:
    """A `Progress` that a thread shows on a stream, or nowhere, so that a step is seen that takes
    long. With `steps`, each is printed as it begins if the stream is no terminal."""

    def __init__(self, stream: TextIO | None, *, steps: bool = False) -> None:
        self._stream = stream
        self._steps = steps
        self._terminal = stream is not None and stream.isatty()
        self._step: tuple[str, float | None] = ("", None)
        self._began = time.monotonic()
        self._next = self._began + PATIENCE
        self._shown = False
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, label: str, fraction: float | None) -> None:
        before, _ = self._step
        self._step = (label, fraction)
        if label != before and self._steps and not self._terminal:
            self._next = time.monotonic() + PATIENCE
            self.write(f"potash: {label}")
        if self._thread is None and self._stream is not None:
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()

    def write(self, text: str, output: TextIO | None = None) -> None:
        """Write a line of other output, by default to the stream itself."""
        with self._lock:
            self._clear()
            if output or self._stream:
                print(text, file=output or self._stream, flush=True)

    def close(self) -> None:
        """Show nothing any more."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._clear()

    def _show(self) -> None:
        with contextlib.suppress(OSError):  # nobody reads it
            while not self._done.wait(INTERVAL):
                self.show(time.monotonic())

    def show(self, now: float) -> None:
        """Show the current step, if it is time."""
        if now < self._next:
            return
        label, fraction = self._step
        seconds = f"{now - self._began:.0f} s"
        how_far = seconds if fraction is None else f"{fraction:.0%}"
        text = f"{label}{_compiling()}: {how_far}"
        if self._terminal:
            with self._lock:
                print(f"{ERASE}{text}", end="", file=self._stream, flush=True)
                self._shown = True
        else:
            self.write(f"potash: {text}")
            self._next = now + RARELY

    def _clear(self) -> None:
        if self._shown:
            print(ERASE, end="", file=self._stream, flush=True)
            self._shown = False


def _compiling() -> str:
    """Words for what this process compiles at the moment."""
    # Not imported: it takes half a second to import, and is not there in a guest.
    module = sys.modules.get("potash_device.vta.fast.compiling")
    return " (compiling the simulator, once)" if getattr(module, "is_compiling", False) else ""


@contextlib.contextmanager
def showing(*, steps: bool = False, quiet: bool = False) -> Iterator[Reporter]:
    """A `Progress` that is shown on standard error after two seconds, unless `quiet`. With `steps`,
    each is printed as it begins if that is no terminal."""
    with contextlib.closing(Reporter(None if quiet else sys.stderr, steps=steps)) as reporter:
        yield reporter


@contextlib.contextmanager
def ticking(label: str) -> Iterator[None]:
    """Show for how long a block runs that has no progress of its own."""
    with showing() as progress:
        progress(label, None)
        yield
