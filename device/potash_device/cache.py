"""Caches on disk for compiled code and search results: a store for each kind.

The name of an entry is a digest of everything that it depends on. A file is used only if it belongs
to this user, is in a directory that only this user can access, and matches its digest. Failures are
not errors: a missing entry is made again."""

import contextlib
import functools
import hashlib
import hmac
import itertools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

MAX_FILE = 64 << 20
"""Bytes; nothing larger is read."""

FORGET_AFTER = 30 * 24 * 3600.0
"""Seconds after which a folder that other sources have used is removed."""

_SLACK = 1 / 16
"""A process may exceed the limits by this share, as looking at all files takes long."""

ignored: set[str] = set()
"""Kinds of which this process finds and keeps nothing, to measure how long making them takes."""

_SUFFIX = ".o"
_DIGEST = hashlib.sha256().digest_size


def folder(kind: str) -> Path:
    """`$XDG_CACHE_HOME/potash/<kind>` (XDG Base Directory Specification); not created here. Raises
    RuntimeError where there is no home folder."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    return base / "potash" / kind


def package(module: ModuleType) -> Path:
    return Path(module.__path__[0])


class Store:
    """The cached files of one kind.

    Args:
        kind: the folder's name.
        sources: packages' folders and files, whose contents are part of the cache's key.
        versions: returns the rest of the key, such as a compiler's version. Called once.
        limit: about how many files are kept; the ones used longest ago go first.
        room: about how many bytes these may take, where there is a limit.
    """

    def __init__(
        self,
        kind: str,
        sources: Iterable[Path],
        versions: Callable[[], Iterable[str]] = tuple,
        limit: int = 256,
        room: int | None = None,
    ) -> None:
        self.kind = kind
        self.sources = tuple(sources)
        self._versions = versions
        self._limits = limit, room
        self._added = _SLACK
        """Share of the limits that was stored since old files were last removed."""

    @functools.cached_property
    def identity(self) -> bytes:
        """A digest of the sources and versions. Raises what `versions` does."""
        return _digest_of(
            *(part.encode() for part in self._versions()), *map(digest_of_sources, self.sources)
        )

    def name(self, *parts: bytes) -> str:
        return _digest_of(self.identity, *parts).hex()

    def load(self, name: str) -> bytes | None:
        """The contents stored as `name`; None if there are none or their digest is wrong."""
        if self.kind in ignored:
            return None
        try:
            with _opened(folder(self.kind)) as parent:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(name + _SUFFIX, flags, dir_fd=parent)
                with open(file, "rb") as stream:
                    status = os.fstat(file)
                    if not stat.S_ISREG(status.st_mode) or not _private(status):
                        return None
                    if status.st_size > MAX_FILE:
                        return None
                    digest, contents = stream.read(_DIGEST), stream.read()
                    if not hmac.compare_digest(digest, _digest(name, contents)):
                        return None
                    with contextlib.suppress(OSError):  # a confined process may only read
                        os.utime(file)
        except (OSError, RuntimeError):  # Path.home() raises the latter where there is none
            return None
        return contents

    def keep(self, name: str, contents: bytes) -> None:
        """Keep `contents` as `name`, for a `load` in whatever process."""
        if self.kind in ignored:
            return
        with contextlib.suppress(OSError, RuntimeError):
            root = folder(self.kind)
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(root):
                file, unfinished = tempfile.mkstemp(prefix="unfinished-", dir=root)
                try:
                    with open(file, "wb") as stream:
                        stream.write(_digest(name, contents) + contents)
                    os.rename(unfinished, root / (name + _SUFFIX))
                except BaseException:
                    os.unlink(unfinished)
                    raise
            limit, room = self._limits
            self._added += 1 / limit + (len(contents) / room if room else 0)
            if self._added >= _SLACK:
                _prune(root, limit, room)
                self._added = 0

    def directory(self) -> Path | None:
        """A folder for these sources and versions alone, for what writes and reads files itself;
        None where there is no place that is this user's alone."""
        try:
            root = folder(self.kind)
            own = root / self.identity.hex()[:16]
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            _close(root)
            with _opened(root), _opened(own):
                pass
        except (OSError, RuntimeError):
            return None
        with contextlib.suppress(OSError):
            os.utime(own)
            _prune(root, *self._limits)
        return own


def _digest_of(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


@functools.cache
def digest_of_sources(root: Path) -> bytes:
    """A digest of a file, or of all modules in a folder."""
    files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
    named = ((str(file.relative_to(root)).encode(), file.read_bytes()) for file in files)
    return _digest_of(*(part for pair in named for part in pair))


def _digest(name: str, contents: bytes) -> bytes:
    """A digest of name and contents, so that no file passes for another."""
    return hashlib.sha256(name.encode() + contents).digest()


def _private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[int]:
    """The folder as a descriptor. Raises OSError unless it is this user's alone."""
    # A confined process may not list it.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(root, flags)
    try:
        if not _private(os.fstat(descriptor)):
            raise PermissionError(f"{root} is not private")
        yield descriptor
    finally:
        os.close(descriptor)


def _close(root: Path) -> None:
    """Have nobody else put a folder into `root`, where it is this user's."""
    status = root.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not _private(status):
        root.chmod(0o700)


def _prune(root: Path, limit: int, room: int | None) -> None:
    """Remove the files used longest ago where there are too many or too large ones, and folders
    that are old."""
    files = []
    for entry in os.scandir(root):
        if not entry.is_dir(follow_symlinks=False):
            files.append(entry)
        elif entry.stat(follow_symlinks=False).st_mtime < time.time() - FORGET_AFTER:
            shutil.rmtree(entry, ignore_errors=True)
    if len(files) <= limit and room is None:
        return
    known = [(entry.stat(follow_symlinks=False), entry.path) for entry in files]
    known.sort(key=lambda one: one[0].st_mtime, reverse=True)
    used = itertools.accumulate(status.st_size for status, _ in known)
    for number, ((_, path), so_far) in enumerate(zip(known, used, strict=True)):
        if number >= limit or (room is not None and so_far > room):
            Path(path).unlink(missing_ok=True)
