"""What a drive is kept in: a folder, one file, or memory.

A folder holds `namespace-1` and so on, `namespaces.toml`, which remembers what each of them is, the
`sidecar` and the `flash`. One file is a drive with one namespace, and has the rest beside it under
its own name: `NAME.sidecar`, `NAME.flash`, and `NAME.toml` where its blocks are not of 4096 bytes.
All of it is opened exclusively, and closed together.
"""

import errno
import logging
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from potash_device.media.errors import MediaError
from potash_device.media.file import FileMedia
from potash_device.media.flash import FLASH_SIZE
from potash_device.media.memory import MemoryMedia
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_device.media.store import Media

log = logging.getLogger(__name__)

BLOCK_SIZES = (512, 4096)
DEFAULT_BLOCK_SIZE = 4096
DEFAULT_SIZE = 1 << 30
"""Bytes of a namespace that nothing is said of."""

MOST_NAMESPACES = 64


class NamespaceShape(NamedTuple):
    """Size and block size in bytes."""

    size: int = DEFAULT_SIZE
    block_size: int = DEFAULT_BLOCK_SIZE


class DriveError(Exception):
    """What was named is no drive, or not the one that was asked for; the sentence says why."""


@dataclass(frozen=True)
class _Places:
    """Where the parts of a drive are."""

    folder: bool
    namespace: Callable[[int], Path]
    list: Path
    sidecar: Path
    flash: Path

    @classmethod
    def of(cls, path: Path) -> "_Places":
        if path.is_dir():
            parts = (path / part for part in ("namespaces.toml", "sidecar", "flash"))
            return cls(True, lambda nsid: path / f"namespace-{nsid}", *parts)
        parts = (path.with_name(f"{path.name}.{part}") for part in ("toml", "sidecar", "flash"))
        return cls(False, lambda nsid: path, *parts)


class Drive:
    """Open media: `namespaces` and `block_sizes` by identifier, `sidecar`, `flash`.

    A context manager that closes them; `open` does the work.
    """

    def __init__(self) -> None:
        self.namespaces: dict[int, Media] = {}
        self.block_sizes: dict[int, int] = {}
        self.sidecar: Media
        self.flash: Media
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @classmethod
    def open(
        cls, path: Path | None, wanted: Sequence[NamespaceShape] = (), *, read_only: bool = False
    ) -> Self:
        """Open the drive at `path`, made where it is not there; in memory without a path.

        A path that is not there becomes a file, or a folder where several namespaces are wanted.
        `wanted` is what a new drive gets, and must be what an old one has. Raises DriveError and
        MediaError.
        """
        if len(wanted) > MOST_NAMESPACES:
            raise DriveError(f"a drive has at most {MOST_NAMESPACES} namespaces")
        drive = cls()
        with drive._stack as stack:
            if path is None:
                drive._open_in_memory(wanted or (NamespaceShape(),))
            else:
                drive._open_files(path, wanted, read_only=read_only)
            drive._stack = stack.pop_all()
        return drive

    def _add(self, media: Media) -> Media:
        self._stack.callback(media.close)
        return media

    def _open_in_memory(self, shapes: Sequence[NamespaceShape]) -> None:
        for nsid, shape in enumerate(shapes, 1):
            self.namespaces[nsid] = self._add(MemoryMedia.create(shape.size))
            self.block_sizes[nsid] = shape.block_size
        self.sidecar = self._add(MemoryMedia.create(SIDECAR_SIZE))
        self.flash = self._add(MemoryMedia.create(FLASH_SIZE))

    def _open_files(self, path: Path, wanted: Sequence[NamespaceShape], *, read_only: bool) -> None:
        if len(wanted) > 1 and not path.exists() and not read_only:
            _make_folder(path)
        places = _Places.of(path)
        if len(wanted) > 1 and not places.folder:
            raise DriveError(f"{path} is one file; several namespaces need a folder")
        known = _read_list(places.list)
        if known is None:
            self._open_new(places, wanted, read_only=read_only)
        else:
            self._open_known(places, wanted, known, read_only=read_only)
        self.sidecar = self._open_aside(places.sidecar, SIDECAR_SIZE, read_only=read_only)
        self.flash = self._open_aside(places.flash, FLASH_SIZE, read_only=read_only)

    def _open_new(
        self, places: _Places, wanted: Sequence[NamespaceShape], *, read_only: bool
    ) -> None:
        """A drive of which nothing is remembered: a new one, or bare images."""
        shapes = dict(enumerate(wanted, 1)) or {
            nsid: NamespaceShape() for nsid in _present(places) or [1]
        }
        for nsid, shape in shapes.items():
            path = places.namespace(nsid)
            media = self._add(FileMedia.open(path, shape.size, read_only=read_only))
            if media.size < shape.block_size:
                raise DriveError(
                    f"{path} has {media.size} bytes, fewer than a block; choose another file"
                )
            if wanted and media.size != shape.size:
                raise DriveError(
                    f"{path} has {media.size} bytes already; leave its size out, or choose another"
                )
            self.namespaces[nsid] = media
            self.block_sizes[nsid] = shape.block_size
            shapes[nsid] = shape._replace(size=media.size)
        # A lone image stays one: what every image is taken for needs not be remembered.
        worth_it = places.folder or shapes[1].block_size != DEFAULT_BLOCK_SIZE
        if worth_it and not any(media.read_only for media in self.namespaces.values()):
            _write_list(places.list, shapes)

    def _open_known(
        self,
        places: _Places,
        wanted: Sequence[NamespaceShape],
        known: Mapping[int, NamespaceShape],
        *,
        read_only: bool,
    ) -> None:
        """Namespaces that are remembered: a file that is gone or cut is not taken for a new one."""
        if wanted and list(wanted) != list(known.values()):
            has = ", ".join(
                f"{one.size} bytes in blocks of {one.block_size}" for one in known.values()
            )
            raise DriveError(f"{places.list} remembers other namespaces: {has}; leave them out")
        for nsid, shape in known.items():
            path = places.namespace(nsid)
            media = self._add(FileMedia.open(path, read_only=read_only))
            if media.size < shape.size:
                log.warning(
                    "%s has %d bytes of %d; the rest cannot be read", path, media.size, shape.size
                )
            media.size = shape.size
            self.namespaces[nsid] = media
            self.block_sizes[nsid] = shape.block_size

    def _open_aside(self, path: Path, size: int, *, read_only: bool) -> Media:
        """The sidecar or the flash; one that cannot be kept is in memory, and gone at the end."""
        try:
            media: Media = FileMedia.open(path, size, read_only=read_only)
        except MediaError as error:
            if not read_only and error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            log.warning("%s cannot be made, so it is kept in memory", path)
            media = MemoryMedia.create(size)
        media.size = size
        return self._add(media)


def _present(places: _Places) -> list[int]:
    """The namespaces of a folder that remembers nothing: those from the first without a gap."""
    found: list[int] = []
    while places.folder and places.namespace(len(found) + 1).exists():
        found.append(len(found) + 1)
    return found


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        raise DriveError(f"cannot make the folder {path}: {error.strerror}") from None


def _read_list(path: Path) -> dict[int, NamespaceShape] | None:
    """What is remembered, by identifier; None where nothing is. Raises DriveError for nonsense."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DriveError(f"cannot read {path}: {error}") from None
    try:
        shapes = {int(nsid): _shape(table) for nsid, table in content["namespace"].items()}
        if not shapes or not all(1 <= nsid <= MOST_NAMESPACES for nsid in shapes):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DriveError(f"{path} does not describe the namespaces of a drive") from None
    return dict(sorted(shapes.items()))


def _shape(table: Mapping[str, Any]) -> NamespaceShape:
    """One entry of the list. Raises ValueError, TypeError or KeyError."""
    size, block_size = int(table["size"]), table["block_size"]
    if (
        block_size not in BLOCK_SIZES
        or size < block_size
        or len(table) != len(NamespaceShape._fields)
    ):
        raise ValueError
    return NamespaceShape(size, block_size)


def _write_list(path: Path, shapes: Mapping[int, NamespaceShape]) -> None:
    """Remember the namespaces: the list is there whole, or not at all. Raises DriveError."""
    lines = ["# What the files of this drive are; sizes in bytes."]
    for nsid, shape in shapes.items():
        lines += ["", f"[namespace.{nsid}]"]
        lines += [f"{name} = {value}" for name, value in shape._asdict().items()]
    new = path.with_name(path.name + ".new")
    try:
        with new.open("w") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise DriveError(f"cannot write {path}: {error.strerror}") from None
