"""What was compiled, kept on disk for the next time, where nobody else can put any.

A file is believed only if it is this user's, in a folder that is this user's alone, and holds what
its digest says. Anything else is as good as not there. Nothing that goes wrong here is an error: what
is missing is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

LIMIT = 256
"""Files that are kept; the ones used longest ago go first."""

MAX_OBJECT = 64 << 20

_SUFFIX = ".o"
_DIGEST = hashlib.sha256().digest_size


def folder(of: str) -> Path:
    """`$XDG_CACHE_HOME/potash/<of>` (XDG Base Directory Specification); not created here.

    Raises RuntimeError where there is no home folder.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    return base / "potash" / of


def key(*parts: bytes) -> str:
    """The name of what was made from `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def load(root: Path, name: str) -> bytes | None:
    """What was stored as `name`, if it is there and can be believed."""
    try:
        with _opened(root) as parent:
            file = os.open(
                name + _SUFFIX, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent
            )
            with open(file, "rb") as stream:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode) or not _private(status):
                    return None
                if status.st_size > MAX_OBJECT:
                    return None
                digest, contents = stream.read(_DIGEST), stream.read()
                if not hmac.compare_digest(digest, _digest(name, contents)):
                    return None
                with contextlib.suppress(OSError):  # a confined process may only read
                    os.utime(file)
    except (OSError, RuntimeError):  # Path.home() raises the latter where there is none
        return None
    return contents


def store(root: Path, name: str, contents: bytes, limit: int = LIMIT) -> None:
    """Keep `contents` as `name`, for a `load` in whatever process; no more than `limit` files."""
    try:
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
        _prune(root, limit)
    except OSError:
        return


def _digest(name: str, contents: bytes) -> bytes:
    """Of the name too, so that no file passes for another."""
    return hashlib.sha256(name.encode() + contents).digest()


def _private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[int]:
    """The folder as a descriptor. Raises OSError unless it is ours alone."""
    # A confined process may not list it.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(root, flags)
    try:
        if not _private(os.fstat(descriptor)):
            raise PermissionError(f"{root} is not private")
        yield descriptor
    finally:
        os.close(descriptor)


def _prune(root: Path, limit: int) -> None:
    files = [(item.stat().st_mtime, item) for item in root.iterdir()]
    for _, item in sorted(files)[: max(len(files) - limit, 0)]:
        item.unlink(missing_ok=True)
