"""The user's cache folder for downloaded and built files, keyed by content.

An entry is made under a temporary name and renamed when it is complete, so an interrupted build
leaves nothing that looks finished; a lock file prevents two processes from building at the same
time. Its files are executed, so it is used only where nobody but its user can write. The folder is
the XDG Base Directory Specification's `$XDG_CACHE_HOME`.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from potash.sdk.progress import Progress, silent
from potash.vm.errors import PackagesUnavailable

SILENT_WAIT = 2.0
"""Seconds of waiting for another process before the user is informed."""


def folder() -> Path:
    """The cache folder for machines, `$XDG_CACHE_HOME/potash/vm`; it is not created here."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    return base / "potash" / "vm"


def key(*parts: str | bytes | Iterable[str | bytes]) -> str:
    """A name derived from everything that an entry depends on: other parts, or another order of
    them, give another name."""
    digest = hashlib.sha256()
    for part in parts:
        items: list[str | bytes] = [part] if isinstance(part, str | bytes) else list(part)
        # The count and each length are hashed too, or ("ab", "c") would be ("a", "bc").
        digest.update(len(items).to_bytes(8, "little"))
        for item in items:
            data = item.encode() if isinstance(item, str) else item
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()[:20]


def files_key(root: Path, paths: Iterable[Path]) -> str:
    """The key of some files' names (below `root`) and contents."""
    parts: list[str | bytes] = []
    for path in sorted(paths):
        parts += [str(path.relative_to(root)), path.read_bytes()]
    return key(*parts)


class Cache:
    """A cache folder, which is created when something is first put into it. Every method that makes
    something expects the lock to be held."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def locked(self, progress: Progress = silent) -> Iterator[None]:
        """Lock the folder for building; waits for another process that holds the lock. Raises
        PackagesUnavailable where the folder is not this user's, or cannot be used."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.root.parent, self.root):
                _require_private(folder)
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PackagesUnavailable(
                f"the cache folder {self.root} cannot be used: {error.strerror}; set "
                "XDG_CACHE_HOME to a folder of your own"
            ) from None
        try:
            if not _lock(descriptor, SILENT_WAIT):
                progress("waiting for another process that prepares the guest", None)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The lock is held, so unfinished folders were left by a process that was killed.
            for path in self.root.glob("unfinished-*"):
                _remove(path)
            yield
        finally:
            os.close(descriptor)

    def entry(self, kind: str, name: str, build: Callable[[Path], None]) -> Path:
        """The file or folder `name`, which holds its key, of a kind such as "trees". `build` makes
        it at the path that it is given where it is not there. Raises PackagesUnavailable where the
        entry is not this user's."""
        path = self.root / kind / name
        if path.exists():
            for place in (path.parent, path):
                _require_private(place)
        else:
            with self.scratch() as place:
                build(place / name)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                os.rename(place / name, path)
        os.utime(path)
        return path

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder in the cache for unfinished work, which is always removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=self.root) as name:
            yield Path(name)

    def prune(self, kind: str, keep: int) -> None:
        """Drop all but the most recently used entries of a kind."""
        parent = self.root / kind
        if not parent.is_dir():
            return
        entries = sorted(parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in entries[keep:]:
            _remove(path)


def _lock(descriptor: int, limit: float) -> bool:
    """Lock a file; False where another process still holds it after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def _require_private(path: Path) -> None:
    """Remove other users' write permission for `path`. Raises PackagesUnavailable where it belongs
    to another user."""
    found = path.stat()
    if {found.st_uid, path.lstat().st_uid} != {os.geteuid()}:
        raise PackagesUnavailable(
            f"{path} belongs to another user, who could put anything there; remove it, or set "
            "XDG_CACHE_HOME to a folder of your own"
        )
    if found.st_mode & 0o022:
        path.chmod(stat.S_IMODE(found.st_mode) & ~0o022)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
