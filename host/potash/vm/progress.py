"""Showing what takes its time: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from potash.vm.cache import Progress


@contextlib.contextmanager
def reporting(quiet: bool = False) -> Iterator[Progress]:
    """A `Progress` that writes to standard error; nothing appears when there is nothing to do."""
    if quiet:
        yield lambda label, fraction: None
    elif sys.stderr.isatty():
        with _bars() as progress:
            yield progress
    else:
        yield _lines()


def _lines() -> Progress:
    said: list[str] = []

    def report(label: str, fraction: float | None) -> None:
        if said[-1:] != [label]:
            said.append(label)
            print(f"potash: {label}", file=sys.stderr, flush=True)

    return report


@contextlib.contextmanager
def _bars() -> Iterator[Progress]:
    # Imported when there is a terminal to draw on: it is heavy.
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bars = Bars(*columns, console=Console(stderr=True), transient=True)
    tasks: list[TaskID] = []

    def report(label: str, fraction: float | None) -> None:
        if not tasks:
            bars.start()
        if not tasks or bars.tasks[-1].description != label:
            for task in tasks:
                bars.remove_task(task)
            tasks[:] = [bars.add_task(label, total=None)]
        if fraction is not None:
            bars.update(tasks[-1], total=1.0, completed=fraction)

    try:
        yield report
    finally:
        if tasks:
            bars.stop()
