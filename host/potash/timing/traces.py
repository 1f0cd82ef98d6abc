"""Block traces in public forms: MSR Cambridge's and FIU's."""

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash.timing.drives import TimingError
from potash_device.timing.profile import PAGE, Profile
from potash_device.timing.requests import REQUEST, Op


class _Form(NamedTuple):
    """How a trace is written: where time, kind, offset and size are, and their units."""

    delimiter: str | None
    columns: tuple[int, ...]
    tick: int
    block: int


_MSR = _Form(",", (0, 3, 4, 5), 100, 1)
"""Timestamp (100 ns), Hostname, DiskNumber, Type, Offset, Size (bytes), ResponseTime."""
_FIU = _Form(None, (0, 5, 3, 4), 1, 512)
"""Timestamp (ns), process ID, process, LBA, size (512 bytes), W or R, device, hash."""
_LATEST = np.iinfo(np.int64).max
_LARGEST = 1 << 61
"""Of nanoseconds, which are 73 years, and of bytes, so that sums of them fit into 64 bits."""
_LINE = np.dtype([("time", np.int64), ("op", "U1"), ("offset", np.int64), ("size", np.int64)])


def read_trace(path: Path, profile: Profile) -> NDArray[np.void]:
    """The requests of a trace in MSR Cambridge's form or in FIU's, which may be compressed (.gz).

    Requests are widened to pages of 4 KiB; those behind the drive's end begin again at its start.
    Raises TimingError for what is no such trace.
    """
    try:
        lines = _lines(path)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TimingError(f"{path} cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise TimingError(f"{path} is no trace of MSR's or FIU's form: it is not text") from None
    except (ValueError, IndexError) as error:
        reason = str(error).split(";")[0]
        raise TimingError(f"{path} is no trace of MSR's or FIU's form: {reason}") from None
    if not len(lines):
        raise TimingError(f"{path} has no requests")
    writes = np.isin(lines["op"], ("W", "w"))
    bad = ~(writes | np.isin(lines["op"], ("R", "r"))) | (lines["size"] < 1) | (lines["offset"] < 0)
    if bad.any():
        at = int(np.argmax(bad)) + 1
        raise TimingError(f"request {at} of {path} is no read or write of one byte or more")
    found = np.zeros(len(lines), REQUEST)
    found["time"] = lines["time"]
    found["op"] = np.where(writes, Op.WRITE, Op.READ)
    first, end = lines["offset"] // PAGE, -(-(lines["offset"] + lines["size"]) // PAGE)
    found["first"] = first % profile.logical_pages
    found["count"] = np.minimum(end - first, profile.logical_pages - found["first"])
    return found[np.argsort(found["time"], kind="stable")]


def _lines(path: Path) -> NDArray[np.void]:
    """Times in nanoseconds from the first on, offsets and sizes in bytes."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        form = _MSR if "," in file.readline() else _FIU
    # It opens files that end in .gz itself, and reads them faster than it reads Python's.
    lines = np.loadtxt(
        path, _LINE, comments=None, delimiter=form.delimiter, usecols=form.columns, ndmin=1
    )
    if lines["time"].min(initial=0) < 0:
        raise ValueError("a time is negative")
    # A Windows time has more nanoseconds than 64 bits.
    lines["time"] -= lines["time"].min(initial=_LATEST)
    for name, unit in (("time", form.tick), ("offset", form.block), ("size", form.block)):
        if lines[name].max(initial=0) > _LARGEST // unit:
            raise ValueError(f"a number is too large ({name})")
        lines[name] *= unit
    return lines
