"""Drives of flash without a guest: how long a list of requests would take on a modelled drive.

```python
from potash import timing

drive = timing.drive("tlc")
timing.precondition(drive, fill=1.0, overwrites=2.0)
requests = timing.read_trace(Path("trace.csv"), drive.profile)
completions = drive.run(requests)  # nanoseconds
```

Block traces may be in the format of MSR Cambridge or of FIU.
"""

import contextlib
import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash.files import replacing
from potash.sdk.errors import PotashError
from potash.timing.steady import Window, steady
from potash_device.timing import named
from potash_device.timing.drive import Drive
from potash_device.timing.policies import Policies, PolicyError, Superblocks
from potash_device.timing.profile import PAGE, Profile, ProfileError
from potash_device.timing.requests import REQUEST, WORN, Counters, Op, RequestError
from potash_device.timing.saving import StateError, load
from potash_device.timing.saving import save as save_state

__all__ = [
    "REQUEST",
    "WORN",
    "Drive",
    "Op",
    "Policies",
    "PolicyError",
    "Profile",
    "RequestError",
    "Superblocks",
    "TimingError",
    "Window",
    "closed_loop",
    "drive",
    "policies",
    "precondition",
    "profile",
    "read_trace",
    "restored",
    "save",
    "steady",
]

_AT_ONCE = 1 << 20
"""Requests, of 48 bytes each."""


class TimingError(PotashError):
    """A profile, a policy or a trace that cannot be used; the sentence says why."""


def drive(name: str, chosen: Policies | None = None) -> Drive:
    """An empty drive of a built-in profile or of one in a TOML file.

    Raises TimingError for a profile that is none, PolicyError for an allocation policy that fails.
    """
    return Drive(profile(name), chosen)


def profile(name: str) -> Profile:
    """A built-in profile, or the one in a TOML file. Raises TimingError."""
    with _said():
        return named.profile(name)


def policies(names: Iterable[str]) -> Policies:
    """Policies from `KIND=NAME` or `KIND=FILE:CLASS`, whose code is run in another process.

    Raises TimingError for what is none.
    """
    with _said():
        return named.policies(names)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except ProfileError as error:
        raise TimingError(str(error)) from error.__cause__


def closed_loop(drive: Drive, requests: NDArray[np.void], depth: int) -> NDArray[np.int64]:
    """Completion times where `depth` requests are in flight: as fio, one arrives when another
    completes. The requests' times are set. Raises what `Drive.run` does."""
    return drive.closed_loop(requests, np.full(depth, drive.now))


def save(drive: Drive, path: Path) -> None:
    """Keep a drive at rest in a file, which is replaced whole. Raises OSError."""
    with replacing(path) as file:
        save_state(drive, file)


def restored(path: Path, chosen: Policies | None = None) -> Drive:
    """The drive in a file. Raises TimingError where it holds none, and what `drive` does."""
    try:
        with path.open("rb") as file:
            return load(file, chosen)
    except OSError as error:
        raise TimingError(f"{path} cannot be read: {error.strerror}") from None
    except StateError as error:
        raise TimingError(f"{path}: {error}") from None


def precondition(
    drive: Drive, fill: float = 1.0, overwrites: float = 0.0, seed: int = 0
) -> Counters:
    """Write a share of the drive in order, then random pages of it, `overwrites` times as many;
    then let it rest. What the last of both took. Raises PolicyError."""
    written, random = int(drive.profile.logical_pages * fill), np.random.default_rng(seed)
    before = drive.counters
    for count, in_order in ((written, True), (int(written * overwrites), False)):
        before = drive.counters if count else before
        for start in range(0, count, _AT_ONCE):
            end = min(count, start + _AT_ONCE)
            requests = np.zeros(end - start, REQUEST)
            requests["time"] = drive.now
            requests["op"], requests["count"] = Op.WRITE, 1
            requests["first"] = (
                np.arange(start, end) if in_order else random.integers(0, written, end - start)
            )
            drive.run(requests)
    took = drive.counters.since(before)
    drive.rest()
    return took


class _Form(NamedTuple):
    """Format of a trace: the columns of time, kind, offset and size, and their units."""

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
"""Maximum of nanoseconds (73 years) and of bytes, so that sums of them fit into 64 bits."""
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
        raise TimingError(
            f"{path} is not a trace in the format of MSR or FIU: it is not text"
        ) from None
    except (ValueError, IndexError) as error:
        reason = str(error).split(";")[0]
        raise TimingError(f"{path} is not a trace in the format of MSR or FIU: {reason}") from None
    if not len(lines):
        raise TimingError(f"{path} has no requests")
    writes = np.isin(lines["op"], ("W", "w"))
    bad = ~(writes | np.isin(lines["op"], ("R", "r"))) | (lines["size"] < 1) | (lines["offset"] < 0)
    if bad.any():
        at = int(np.argmax(bad)) + 1
        raise TimingError(f"request {at} of {path} is not a read or write of one byte or more")
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
