"""Drives of flash without a guest: how long a list of requests would take on a modelled drive.

```python
from potash import timing

drive = timing.drive("tlc")
timing.precondition(drive, fill=1.0, overwrites=2.0)
requests = timing.read_trace(Path("trace.csv"), drive.profile)
completions = drive.run(requests)  # nanoseconds
```

`potash.timing.traces` has the forms of traces.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from potash.files import replacing
from potash.timing import fio, traces
from potash.timing.fio import Measurement
from potash.timing.fitting import Fitted, fit
from potash.timing.steady import Window, random_pages, steady
from potash.timing.traces import TimingError
from potash_device.flash.profile import Profile, ProfileError
from potash_device.flash.profiles import PROFILES
from potash_device.flash.scaling import equipped
from potash_firmware.extension_registry import RegisteredClass
from potash_firmware.ftl import named
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import Ftl
from potash_firmware.ftl.policies import Policies, PolicyError, Superblocks
from potash_firmware.ftl.requests import REQUEST, WORN, Counters, Op, RequestError
from potash_firmware.ftl.saving import StateError, load, load_custom
from potash_firmware.ftl.saving import save as save_state

__all__ = [
    "REQUEST",
    "WORN",
    "Drive",
    "Fitted",
    "Measurement",
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
    "fit",
    "measurements",
    "policies",
    "precondition",
    "profile",
    "random_pages",
    "read_trace",
    "requests",
    "restored",
    "save",
    "steady",
]

_AT_ONCE = 1 << 20
"""Requests, of 48 bytes each."""


def drive(name: str, chosen: Policies | None = None) -> Drive:
    """An empty drive of a built-in profile or of one in a TOML file. Raises TimingError for a
    profile that is none, PolicyError for an allocation policy that fails."""
    return Drive(profile(name), chosen)


def compile_model() -> None:
    """Have the model compiled, which takes ten seconds the first time. Processes that begin
    together would each compile it."""
    drive(next(iter(PROFILES))).prepare()


def with_ftl(
    made: Profile, ftl: str, chosen: Sequence[str], registered: Mapping[str, RegisteredClass]
) -> Ftl:
    """An empty drive of a profile, with a translation layer by name, and policies by their texts.
    Raises what `drive` does."""
    with _said():
        return named.ftl(ftl, made, chosen, registered)


def profile(name: str, slc: int | None = None, over_provisioning: int | None = None) -> Profile:
    """A built-in profile, or the one in a TOML file, with an SLC cache and with spare flash of so
    many thousandths where they are not as in the profile. Raises TimingError."""
    with _said():
        return equipped(named.profile(name), slc, over_provisioning)


def policies(names: Iterable[str]) -> Policies:
    """Policies from `KIND=NAME` or `KIND=FILE:CLASS`, which is deprecated: see docs/ftl.md. Raises
    TimingError for what is none."""
    with _said():
        return named.policies(names)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except ProfileError as error:
        raise TimingError(str(error)) from error.__cause__


def closed_loop(drive: Ftl, requests: NDArray[np.void], depth: int) -> NDArray[np.int64]:
    """Completion times where `depth` requests are in flight: as fio, one arrives when another
    completes. The requests' times are set. Raises what `Drive.run` does."""
    return drive.closed_loop(requests, np.full(depth, drive.now))


def save(drive: Ftl, path: Path) -> None:
    """Keep a drive at rest in a file, which is replaced whole. Raises OSError, and FtlError for a
    translation layer that keeps no state."""
    with replacing(path) as file:
        save_state(drive, file)


def restored(path: Path, chosen: Policies | None = None) -> Drive:
    """The drive in a file. Raises TimingError where it holds none, and what `drive` does."""
    with _read(path) as file:
        return load(file, chosen)


@contextlib.contextmanager
def _read(path: Path) -> Iterator[IO[bytes]]:
    """A file with a drive. Raises TimingError where it cannot be read, or holds none."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise TimingError(f"{path} cannot be read: {error.strerror}") from None
    except StateError as error:
        raise TimingError(f"{path}: {error}") from None


def restored_with_ftl(
    path: Path, ftl: str, chosen: Sequence[str], registered: Mapping[str, RegisteredClass]
) -> Ftl:
    """The same as `restored`, with a translation layer by name, and policies by their texts."""
    if ftl == named.PAGE:
        return restored(path, policies(chosen))

    def make(profile: Profile) -> CustomFtl:
        made = named.ftl(ftl, profile, chosen, registered)
        assert isinstance(made, CustomFtl)
        return made

    with _said(), _read(path) as file:
        return load_custom(file, make)


def precondition(
    drive: Ftl,
    fill: float = 1.0,
    overwrites: float = 0.0,
    seed: int = 0,
    skew: tuple[int, int] | None = None,
) -> Counters:
    """Write a share of the drive in order, then random pages of it, `overwrites` times as many,
    with a skew as for `steady`; then let it rest. What the last of both took. Raises
    PolicyError."""
    written, random = int(drive.profile.logical_pages * fill), np.random.default_rng(seed)
    before = drive.counters
    for count, in_order in ((written, True), (int(written * overwrites), False)):
        before = drive.counters if count else before
        for start in range(0, count, _AT_ONCE):
            end = min(count, start + _AT_ONCE)
            pages = (
                np.arange(start, end)
                if in_order
                else random_pages(random, written, end - start, skew)
            )
            drive.run(requests(Op.WRITE, pages, time=drive.now))
    took = drive.counters.since(before)
    drive.rest()
    return took


def requests(
    op: Op | NDArray[np.int64],
    first: NDArray[np.int64],
    count: int | NDArray[np.int64] = 1,
    time: int | NDArray[np.int64] = 0,
    stream: int | NDArray[np.int64] = 0,
) -> NDArray[np.void]:
    """Requests for `run` and `closed_loop`: `count` pages of 4 KiB each from `first` on, which
    arrive at `time` in nanoseconds."""
    made = np.zeros(len(first), REQUEST)
    made["op"], made["first"], made["count"] = op, first, count
    made["time"], made["stream"] = time, stream
    return made


def read_trace(path: Path, profile: Profile, faster: float = 1.0) -> NDArray[np.void]:
    """The requests of a trace in one of the forms of `potash.timing.traces`.

    Requests are extended to pages of 4 KiB; those behind the drive's end begin again at its start.
    `faster` divides the times. Raises TimingError for what is no trace.
    """
    return traces.load(path, profile.logical_pages, faster).requests


def measurements(paths: Iterable[Path]) -> list[Measurement]:
    """The measurements in files of fio's JSON output, for `fit`. Raises TimingError."""
    return fio.read(paths)
