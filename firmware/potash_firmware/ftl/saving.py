"""Saves the contents of a modelled drive in a file: a drive that was written to, for later.

It is the drive at rest: nothing under way, with an empty cache of the mapping. Arrays that follow
from others are made anew, so a file cannot contradict itself in them.
"""

import io
import json
import logging
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import starmap
from typing import IO, Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from potash_device.flash.profile import PAGE, Profile, ProfileError
from potash_device.flash.profiles import from_mapping
from potash_device.flash.state import NATIVE, NEVER, SLC, ages
from potash_firmware.ftl import state
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import Ftl, FtlError, Held, ZoneStream
from potash_firmware.ftl.policies import Policies, PolicyError

log = logging.getLogger(__name__)

ARRAYS = ("places", "status", "erases", "closed_at", "open", "filled")
LATER = ("zone", "mode", "born", "reads", "handles", "bad", "staged")
"""Arrays that files of earlier versions lack: they are those of an empty drive."""
LARGEST_PROFILE = 1 << 16
"""Maximum size of the profile in bytes."""
LARGEST_HELD = 1 << 24
"""Maximum size of the pieces in bytes."""
LARGEST_COUNT = 1 << 48
"""Maximum count of erases or fills of a superblock, so that sums fit into 64 bits."""
LARGEST_AGE = 1 << 61
"""Maximum of nanoseconds, likewise."""
LARGEST_HEADER = 1 << 12
"""Bytes of an array's, in its file."""

_DAMAGED = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, OverflowError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),
)
"""Errors of NumPy for files that are not its own, and those that follow from wrong files."""

NOTHING_HELD = Held()


class StateError(ValueError):
    """A file that holds no drive; a sentence."""


def save(ftl: Ftl, file: IO[bytes], held: Held = NOTHING_HELD, *, compressed: bool = True) -> None:
    """Write a drive in NumPy's .npz form, and what namespaces have of it, if it has any. Raises
    FtlError for a custom translation layer that keeps no state, or whose state is none."""
    if isinstance(ftl, CustomFtl):
        arrays: dict[str, Any] = {f"{PREFIX}{name}": array for name, array in ftl.save().items()}
        arrays["custom"] = _described(ftl)
    else:
        assert isinstance(ftl, Drive)
        arrays = {name: kept(ftl, name) for name in (*ARRAYS, *LATER)}
        arrays["born"] = ages(ftl.state.flash)
    for name, rows in held._asdict().items():
        arrays[name] = np.array(rows, np.int64).reshape(-1, 3)
    arrays["profile"] = np.frombuffer(json.dumps(asdict(ftl.profile)).encode(), np.uint8)
    (np.savez_compressed if compressed else np.savez)(file, **arrays)


PREFIX = "ftl_"
"""Beginning of the names of arrays of a custom translation layer."""
LARGEST_CUSTOM = 1 << 24
"""Bytes of each such array, besides `PAGE_BYTES` for each page of the drive."""
PAGE_BYTES = 16


def restore_custom(ftl: CustomFtl, file: IO[bytes]) -> None:
    """Have a custom translation layer go on from a file. Raises StateError, and FtlError where it
    fails, after which it is to be made anew."""
    largest = LARGEST_CUSTOM + ftl.profile.superblocks * ftl.profile.superblock_pages * PAGE_BYTES
    with _opened(file, ftl.name) as found:
        if "custom" not in found:
            raise StateError("it is of the FTL page")
        if _array(found, "custom", LARGEST_PROFILE).tobytes() != _described(ftl).tobytes():
            raise StateError("it is of another FTL, or version of it")
        if _profile(found) != ftl.profile:
            raise StateError("it is of another drive")
        names = [name for name in found.files if name.startswith(PREFIX)]
        arrays = {name.removeprefix(PREFIX): _array(found, name, largest) for name in names}
    ftl.restore(arrays)


def load_custom(file: IO[bytes], make: Callable[[Profile], CustomFtl]) -> CustomFtl:
    """The drive in a file, which `make` makes empty. Raises StateError, FtlError, and what `make`
    raises."""
    with _opened(file, "an FTL") as found:
        profile = _profile(found)
    ftl = make(profile)
    file.seek(0)
    restore_custom(ftl, file)
    return ftl


@contextmanager
def _opened(file: IO[bytes], name: str) -> Iterator[NpzFile]:
    """The arrays of a file. Raises StateError, also for errors in the block."""
    try:
        with np.load(file, allow_pickle=False) as found:
            yield found
    except PolicyError:
        raise
    except _DAMAGED as error:
        said = error if isinstance(error, StateError | ProfileError) else "it is damaged"
        raise StateError(f"this is no state of {name}: {said}") from error


def _profile(found: NpzFile) -> Profile:
    """The profile of a drive. Raises what is in `_DAMAGED`."""
    return from_mapping(json.loads(_array(found, "profile", LARGEST_PROFILE).tobytes()))


def _described(ftl: CustomFtl) -> NDArray[np.uint8]:
    """The name of a custom translation layer, and the version of its state."""
    return np.frombuffer(json.dumps([ftl.name, ftl.version]).encode(), np.uint8)


MOST_CARRIED = 1 << 23
"""Pages of the largest drive whose state moves: to check those of 32 GiB takes a second."""
LARGEST_CARRIED = 48 << 20
"""Maximum size of a state that moves in bytes."""


def carried(ftl: Ftl, held: Held) -> bytes:
    """See `Keeper`, as for `replace`."""
    kept = not isinstance(ftl, CustomFtl) or ftl.version is not None
    if not kept or ftl.profile.mapped_pages > MOST_CARRIED:
        return b""
    file = io.BytesIO()
    try:
        save(ftl, file, held, compressed=False)
    except FtlError as error:
        log.error("the state of the modelled drive is not moved: %s", error)
        return b""
    return file.getvalue() if file.tell() <= LARGEST_CARRIED else b""


def replace(ftl: Ftl, file: IO[bytes]) -> None:
    """See `Keeper`. A custom translation layer that fails is empty then."""
    if isinstance(ftl, CustomFtl):
        ftl.begin_anew()
        try:
            restore_custom(ftl, file)
        except (ValueError, FtlError):
            ftl.begin_anew()
            raise
        return
    assert isinstance(ftl, Drive)
    with _opened(file, "a drive") as found:  # before a drive of any size is made
        if _profile(found) != ftl.profile:
            raise StateError("it is of another drive")
    file.seek(0)
    ftl.become(load(file, ftl.policies))


def load_held(file: IO[bytes]) -> Held:
    """The parts of the drive in a file that namespaces have. Raises StateError."""
    with _opened(file, "a drive") as found:
        pieces = _rows(found, "pieces")
        zones = _rows(found, "zones") if "zones" in found else []  # version 1.0 had none
    return Held(tuple(pieces), tuple(starmap(ZoneStream, zones)))


def _rows(found: NpzFile, name: str) -> list[tuple[int, int, int]]:
    """The rows of a table of three columns. Raises what is in `_DAMAGED`."""
    rows = _array(found, name, LARGEST_HELD)
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != 3:
        raise StateError(f"{name} has the wrong size")
    return [(first, second, third) for first, second, third in rows.tolist()]


def load(file: IO[bytes], policies: Policies | None = None) -> Drive:
    """The drive in a file. Raises StateError, and what `Drive` does."""
    with _opened(file, "a drive") as found:
        if "custom" in found:
            raise StateError("it is not of the FTL page; give the --extend and --ftl that wrote it")
        drive = Drive(_profile(found), policies)
        for name in (*ARRAYS, *(name for name in LATER if name in found)):
            empty = kept(drive, name)
            if name in ("open", "filled") and "zone" not in found:  # version 1.0 knew no zones
                empty = empty[: drive.profile.frontiers]
            read = _array(found, name, empty.nbytes)
            if read.shape != empty.shape or read.dtype != empty.dtype:
                raise StateError(f"{name} has the wrong size")
            empty[:] = read
        _check(drive)
        _complete(drive)
    return drive


def kept(drive: Drive, name: str) -> NDArray[Any]:
    """An array of those in `ARRAYS` or `LATER`."""
    state = drive.state
    found: NDArray[Any] = getattr(state if hasattr(state, name) else state.flash, name)
    return found


def _array(found: NpzFile, name: str, largest: int) -> NDArray[Any]:
    """An array of so many bytes at most. Raises what is in `_DAMAGED`."""
    assert found.zip is not None
    if found.zip.getinfo(f"{name}.npy").file_size > largest + LARGEST_HEADER:
        raise StateError(f"{name} has the wrong size")
    try:
        read = found[name]
    except (MemoryError, tokenize.TokenError) as error:  # of a header that claims any shape
        raise StateError(f"{name} is damaged") from error
    if not isinstance(read, np.ndarray):
        raise StateError(f"{name} is no array")
    return read


def _check(drive: Drive) -> None:
    """Raises StateError for what a drive cannot have come to."""
    profile, s = drive.profile, drive.state
    size, opened = profile.superblock_pages, s.open[s.open >= 0]
    sizes = np.where(s.flash.mode == SLC, profile.slc_pages, size)
    if (
        not np.isin(s.status, range(state.IS_CACHED + 1)).all()
        or (s.open < -1).any()
        or (s.open >= profile.superblocks).any()
        or sorted(opened) != np.flatnonzero(s.status == state.IS_OPEN).tolist()
        or (s.filled < 0).any()
        or (s.filled[s.open >= 0] >= sizes[opened]).any()
        or min(s.flash.erases.min(), s.closed_at.min(), s.flash.reads.min()) < 0
        or max(s.flash.erases.max(), s.closed_at.max(), s.flash.reads.max()) > LARGEST_COUNT
        or s.flash.born.min() < -LARGEST_AGE
        or not np.isin(s.flash.bad, (0, 1)).all()
        or (s.flash.bad.astype(bool) & np.isin(s.status, (state.IS_FREE, state.IS_OPEN))).any()
        # Only where superblocks have retired, none is left free: the drive is worn out then.
        or not np.isin(s.status, (state.IS_FREE, state.IS_RETIRED)).any()
    ):
        raise StateError("its superblocks contradict each other")
    if _contradictory_cache(drive):
        raise StateError("its SLC cache contradicts its superblocks")
    if _contradictory_zones(drive) or _contradictory_buffer(drive):
        raise StateError("its zones contradict its superblocks")
    if _contradictory_streams(drive):
        raise StateError("its streams contradict its superblocks")
    used = s.places[s.places >= 0].astype(np.int64)
    filled = _filled(drive)
    if (
        (s.places < (state.LOST if profile.rber else -1)).any()
        or (used >= profile.superblocks * size).any()
        or (np.bincount(used) > 1).any()
        or (used % size >= filled[used // size]).any()
    ):
        raise StateError("its mapping is not of pages that were written")


def _filled(drive: Drive) -> NDArray[np.int64]:
    """The places that have been filled of each superblock, as far as its mode has some."""
    profile, s = drive.profile, drive.state
    sizes = np.where(s.flash.mode == SLC, profile.slc_pages, profile.superblock_pages)
    filled = np.where(np.isin(s.status, state.FULL), sizes, 0)
    filled[s.open[s.open >= 0]] = s.filled[s.open >= 0]
    return filled


def _contradictory_cache(drive: Drive) -> bool:
    """True unless superblocks in SLC mode are full, or open for streams, and as few as allowed."""
    profile, s = drive.profile, drive.state
    slc, written = (s.flash.mode == SLC) & (s.zone < 0), np.zeros(profile.superblocks, bool)
    written[s.open[: profile.streams][s.open[: profile.streams] >= 0]] = True
    return bool(
        not np.isin(s.flash.mode, (NATIVE, SLC)).all()
        or slc.sum() > profile.slc_superblocks
        or (slc & ~written != (s.status == state.IS_CACHED)).any()
    )


def _contradictory_streams(drive: Drive) -> bool:
    """True unless relocated pages of a superblock go to one frontier, and superblocks that are
    filled are in the groups of their frontiers."""
    profile, s = drive.profile, drive.state
    if (s.handles < 0).any() or (s.handles >= profile.streams).any():
        return True
    if profile.relocations == 1:
        return False
    streams, groups = profile.streams, profile.reclaim_groups
    mapped = np.flatnonzero((s.places >= 0) & (s.places < len(s.owners)))
    handles = np.full(profile.mapped_pages, streams)
    handles[: profile.logical_pages] = s.handles if profile.isolated else 0
    blocks = s.places[mapped] // profile.superblock_pages
    least, most = np.full(profile.superblocks, streams + 1), np.full(profile.superblocks, -1)
    np.minimum.at(least, blocks, handles[mapped])
    np.maximum.at(most, blocks, handles[mapped])
    cold = np.arange(streams + 1, profile.frontiers)
    opened = s.open[: profile.frontiers]
    whose = np.r_[np.arange(streams), streams, (cold - streams - 1) // groups]
    held = (opened >= 0) & (most[opened] >= 0)
    return bool(
        ((least < most) & (most >= 0)).any()
        or (profile.isolated and (most[opened] != whose)[held].any())
        or (opened[cold] % groups != (cold - streams - 1) % groups)[opened[cold] >= 0].any()
    )


def _contradictory_zones(drive: Drive) -> bool:
    """True unless zones have full superblocks, and the open ones of their own frontiers."""
    s, first = drive.state, drive.profile.frontiers
    held = s.zone >= 0
    frontiers = np.flatnonzero(s.open >= 0)
    at = s.open[frontiers]
    return bool(
        ((s.zone < -1) | (s.zone >= len(s.open)) | (held & (s.zone < first))).any()
        or (held != (s.status == state.IS_ZONED))[s.status != state.IS_OPEN].any()
        or (s.zone[at] != np.where(frontiers >= first, frontiers, -1)).any()
    )


def _contradictory_buffer(drive: Drive) -> bool:
    """True unless superblocks of the SLC buffer of zones are in SLC mode, as few as allowed, and
    hold only pages that zones lack for their next program units."""
    profile, s = drive.profile, drive.state
    first, staged = profile.frontiers, s.staged >= 0
    buffer, zones = s.zone == first + profile.superblocks, slice(first, len(s.open) - 1)
    other = ((s.flash.mode == SLC) != buffer)[s.zone >= 0].any()
    if other or not profile.zone_slc_superblocks:
        return bool(other)
    counts, mapped = staged.sum(axis=1), np.flatnonzero(s.places >= 0)
    inside = mapped[buffer[s.places[mapped] // profile.superblock_pages % profile.superblocks]]
    pages = s.staged[staged]
    return bool(
        (buffer & (s.flash.bad == 0)).sum() > profile.zone_slc_superblocks
        or (staged != (np.arange(profile.unit_pages) < counts[:, None])).any()
        or (s.staged >= profile.logical_pages).any()
        or (counts >= profile.unit_pages).any()
        or ((s.open[zones] < 0) | (s.filled[zones] % profile.unit_pages > 0))[counts > 0].any()
        or len(np.unique(pages)) != len(pages)
        or not np.isin(inside, pages).all()
    )


def _complete(drive: Drive) -> None:
    profile, s, r = drive.profile, drive.state, drive.state.registers
    mapped = np.flatnonzero(s.places >= 0)
    s.owners[s.places[mapped]] = mapped
    blocks = s.places[mapped] // profile.superblock_pages
    s.valid[:] = np.bincount(blocks, minlength=profile.superblocks)
    programmed = s.flash.programmed.reshape(profile.superblocks, -1)
    units = _filled(drive) // profile.unit_pages
    programmed[np.arange(programmed.shape[1]) < units[:, None]] = 0
    s.flash.born[:] = np.where(units > 0, np.minimum(s.flash.born, 0), NEVER)
    free = np.flatnonzero(s.status == state.IS_FREE)
    r[state.FREE] = len(free)
    s.free[:] = np.bincount(free % profile.reclaim_groups, minlength=profile.reclaim_groups)
    r[state.CLOSED] = (s.status == state.IS_CLOSED).sum()
    r[state.SLC_USED] = ((s.flash.mode == SLC) & (s.zone < 0)).sum()
    s.staged_count[:] = (s.staged >= 0).sum(axis=1)
    r[state.SLC_FULL] = (s.status == state.IS_CACHED).sum()
    r[state.GOOD] = profile.superblocks - (s.status == state.IS_RETIRED).sum()
    r[state.FAILED] = (s.flash.bad.astype(bool) & (s.status != state.IS_RETIRED)).sum()
    r[state.WORN_OUT] = r[state.GOOD] < profile.least_superblocks or not r[state.FREE]
    r[state.FILLED] = s.closed_at.max() + 1
    if profile.buffer_bytes // PAGE:
        partial = np.where(s.open >= 0, s.filled % profile.unit_pages, 0)
        zones = profile.frontiers + profile.superblocks
        partial[profile.streams : zones if profile.zone_units else profile.frontiers] = 0
        r[state.BUFFERED] = partial.sum()
