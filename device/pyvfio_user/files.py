"""Files of a client's memory, each mapped whole, and what such a file has to be."""

import errno
import fcntl
import mmap
import os
import stat
from contextlib import suppress

MAX_FILES = 64
"""Files at a time; each takes a descriptor of this process for as long as it is mapped. A file that
has grown is mapped again for the windows behind its old end, and counts as another one."""
MAX_TRUSTED_FILES = 512
"""Files at a time of a client that is trusted: DPDK has one for each huge page if it may."""
MAX_BYTES = 1 << 44
"""Bytes of all files that are mapped, which take as much of this process's addresses."""


class Content:
    """A file, mapped whole as it was then, and how many windows show it; `huge` where its pages may
    not be ordinary ones."""

    __slots__ = ("huge", "view", "windows")

    def __init__(self, view: memoryview, *, huge: bool) -> None:
        self.view = view
        self.huge = huge
        self.windows = 0


class Files:
    """The files of one client; with `trust`, any file will do."""

    def __init__(self, *, trust: bool) -> None:
        self._require = require_trusted if trust else require_sealed
        self._most = MAX_TRUSTED_FILES if trust else MAX_FILES
        self._mapped: dict[tuple[int, int], Content] = {}
        """Mapped files, by st_dev and st_ino."""
        self._outgrown: set[Content] = set()
        """Files that windows still show as they were before they grew."""

    def __len__(self) -> int:
        return len(self._mapped) + len(self._outgrown)

    def clear(self) -> None:
        self._mapped.clear()
        self._outgrown.clear()

    def closed(self, content: Content) -> None:
        """A window that showed it is closed."""
        content.windows -= 1
        if not content.windows:
            self._outgrown.discard(content)

    def content(self, fd: int, end: int, *, writable: bool) -> Content:
        """The whole of a file that has at least `end` bytes; OSError where it may not be used."""
        # In this order: a size is only worth knowing once it cannot shrink.
        self._require(fd)
        status = os.fstat(fd)
        if end > status.st_size:
            raise OSError(
                errno.EINVAL,
                f"the window ends at {end:#x} of its file, which has {status.st_size} bytes",
            )
        file = (status.st_dev, status.st_ino)
        content = self._mapped.get(file)
        if content is None or len(content.view) < end or (writable and content.view.readonly):
            self._make_room(status.st_size)
            made = Content(map_file(fd, status.st_size, writable=writable), huge=_is_huge(fd))
            if content is not None and content.windows:
                self._outgrown.add(content)
            content = self._mapped[file] = made
        return content

    def _make_room(self, size: int) -> None:
        """Forget the files that no window shows, where another of `size` bytes would be too
        much."""
        if self._is_full(size):
            self._mapped = {file: one for file, one in self._mapped.items() if one.windows}
        if self._is_full(size):
            raise OSError(
                errno.ENOSPC,
                f"{self._most} files, or {MAX_BYTES} bytes of files, are mapped already",
            )

    def _is_full(self, size: int) -> bool:
        mapped = [*self._mapped.values(), *self._outgrown]
        return len(mapped) >= self._most or sum(len(one.view) for one in mapped) + size > MAX_BYTES


def require_trusted(fd: int) -> None:
    """Refuse what is no file; its owner is trusted not to make it smaller.

    Where seals may still be added, one against shrinking is.
    """
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "memory must come as a file")
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def require_sealed(fd: int) -> None:
    """Refuse what this process could not touch safely for as long as it is mapped."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise OSError(errno.EINVAL, "memory must come as a memfd that is sealed against shrinking")
    if _is_huge(fd):
        raise OSError(errno.EINVAL, "memory must come in ordinary pages, not in huge ones")


def _is_huge(fd: int) -> bool:
    """True if a file is in huge pages, which are the blocks of hugetlbfs."""
    return os.fstatvfs(fd).f_bsize != mmap.PAGESIZE


def map_file(fd: int, size: int, *, writable: bool) -> memoryview:
    """The whole file, writable if it can be; where it must be and cannot, OSError."""
    try:
        return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
    except PermissionError:
        if writable:
            raise
        return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))
