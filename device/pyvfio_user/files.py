"""Files of a client's memory, each mapped whole, and what such a file has to be."""

import errno
import fcntl
import mmap
import os
import stat
from contextlib import suppress


class Content:
    """A file, mapped whole as it was then, and how many windows show it."""

    __slots__ = ("view", "windows")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.windows = 0


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
    # Only tmpfs and hugetlbfs have seals, and the block size of the latter is that of its pages.
    if os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
        raise OSError(errno.EINVAL, "memory must come in ordinary pages, not in huge ones")


def map_file(fd: int, size: int, *, writable: bool) -> memoryview:
    """The whole file, writable if it can be; where it must be and cannot, OSError."""
    try:
        return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
    except PermissionError:
        if writable:
            raise
        return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))
