"""Having every device that a block starts write down what it does, and making one trace of it."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from potash.files import replacing, require_writable, unwritable
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress

if TYPE_CHECKING:
    from potash_device.vta.timing.parameters import Parameters

VARIABLE = "POTASH_TRACE"
"""The environment variable that names a folder, into which each device then writes its lines."""

LINES = ".jsonl"

TRACES = (".json", ".gz")
"""Suffixes of traces; any other file has lines."""

PREFIX = "potash-trace-"
"""Prefix of such folders in the temporary folder."""

NEW = 60.0
"""Seconds in which a folder may not be locked yet."""

PLACES = 8
"""Room for the processes of one device, from the top of a trace."""

REPORT_EVERY = 10_000
"""Lines between two reports of progress."""


class NothingRecorded(PotashError):
    """No device has written a line."""


class Recorded(NamedTuple):
    """Contents of a trace."""

    events: int
    devices: int
    unreadable: int
    """Lines that were left out: a process that was killed may not have written all of its last."""


@contextmanager
def recording(out: Path | None, progress: Progress) -> Iterator[None]:
    """Make a trace of what the devices do that are started in the block; none where `out` is None.

    It is written however the block ends. Raises what `write_trace` does, unless the block has said
    already what was wrong.
    """
    if out is None:
        yield
        return
    require_writable(out)
    with folder_for_lines() as folder:
        try:
            yield
        except BaseException:
            with suppress(PotashError):
                write_trace(lines_of(folder), out, progress)
            raise
        write_trace(lines_of(folder), out, progress)


@contextmanager
def folder_for_lines() -> Iterator[Path]:
    """A folder that the devices which are started in the block write their lines into."""
    import tempfile

    _sweep(tempfile.gettempdir())
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder, _locked(folder):
        os.environ[VARIABLE] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


def _sweep(temporary: str) -> None:
    """Remove what processes that were killed have left: it may be gigabytes."""
    import shutil

    for left in Path(temporary).glob(f"{PREFIX}*"):
        with suppress(OSError), _locked(left):
            found = left.lstat()
            if found.st_uid == os.geteuid() and found.st_mtime < time.time() - NEW:
                shutil.rmtree(left)


@contextmanager
def _locked(folder: str | Path) -> Iterator[None]:
    """Raises OSError where another process has the folder locked, or it is none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def lines(path: Path | None) -> Iterator[int | None]:
    """A descriptor for the lines of this process's trace, in `path`, or else in the folder that
    `VARIABLE` names; None if there is neither. Raises PotashError."""
    if path is None and VARIABLE in os.environ:
        path = Path(os.environ[VARIABLE], f"{os.getpid()}{LINES}")
    if path is None:
        yield None
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lines_of(folder: Path) -> list[Path]:
    """The files of lines in a folder, in the order in which their devices were started."""
    return sorted(folder.glob(f"*{LINES}"), key=_begin)


def write_trace(
    sources: Sequence[Path], out: Path, progress: Progress, parameters: Parameters | None = None
) -> Recorded:
    """Make a trace of files of lines, one for each device.

    The tensor accelerators' clock has `parameters`, by default those of the build `pynq`.
    Compressed where the name ends in .gz. Raises NothingRecorded where there is nothing to show,
    and PotashError where it cannot be written.
    """
    began = [when for source in sources if (when := _begin(source)) > 0]
    if not began:
        raise NothingRecorded("no device has written anything, so there is nothing to show")
    with replacing(out) as file:
        if out.suffix != ".gz":
            return _write(sources, file, min(began), parameters, progress)
        import gzip

        with gzip.open(file, "wb") as compressed:
            return _write(sources, cast(BinaryIO, compressed), min(began), parameters, progress)


def _write(
    sources: Sequence[Path],
    file: BinaryIO,
    began: float,
    parameters: Parameters | None,
    progress: Progress,
) -> Recorded:
    # They need numpy, which a device that is recorded would import for nothing.
    from potash.tracing.device import DeviceTrace
    from potash.tracing.document import Document
    from potash.tracing.modelled import Modelled
    from potash_device.vta.timing.parameters import PYNQ

    parameters = parameters or PYNQ
    about = {"clock": "CLOCK_MONOTONIC", "began": began, "vta_clock_hz": parameters.clock}
    document = Document(file, began, about)
    modelled = Modelled(document, parameters)
    unreadable = 0
    size, done = sum(source.stat().st_size for source in sources), 0
    for number, source in enumerate(sources):
        title = f"device {number}: " if len(sources) > 1 else ""
        device = DeviceTrace(document, modelled, title, number * PLACES)
        with source.open("rb") as lines:
            for count, line in enumerate(lines):
                done += len(line)
                if count % REPORT_EVERY == REPORT_EVERY - 1:
                    progress("writing the trace", done / max(size, 1))
                try:
                    device.take(json.loads(line, parse_float=_finite, parse_constant=_finite))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    unreadable += 1
        device.close()
    document.close()
    return Recorded(document.events, len(sources), unreadable)


def _finite(text: str) -> float:
    """A number that JSON can say again. Raises ValueError."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number in a trace")
    return value


def _begin(source: Path) -> float:
    """The time of a file's first line; 0 where there is none."""
    with source.open("rb") as lines:
        try:
            return float(json.loads(lines.readline(), parse_constant=_finite)["time"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return 0.0
