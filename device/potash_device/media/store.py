"""Blocks behind one file descriptor.

Data moves with `preadv` and `pwritev` straight into and out of the caller's views: the media is
never mapped, because a mapped file that shrinks, or a full disk under one, ends the process with
SIGBUS where a system call returns an error.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence

from potash_device.media.errors import MediaError

IOV_MAX = os.sysconf("SC_IOV_MAX")
"""Views that one system call takes (POSIX `{IOV_MAX}`)."""

Move = Callable[..., int]
"""`os.preadv` or `os.pwritev`."""


class Media:
    """`size` bytes of non-volatile memory behind the descriptor `fd`, which this object owns."""

    def __init__(self, fd: int, size: int, *, read_only: bool = False) -> None:
        self.fd = fd
        self.size = size
        self.read_only = read_only
        self.lost: MediaError | None = None
        """Why a flush failed, once one has: what was written may be gone, whatever comes later."""
        at_once = 0 if lies_in_memory(fd) else os.RWF_NOWAIT
        self._read_flags: int | None = at_once
        self._write_flags: int | None = at_once
        """What has a system call return rather than wait; None where it cannot tell."""

    @property
    def writable(self) -> bool:
        """Writes have a chance."""
        return not self.read_only and self.lost is None

    def reader(self) -> int:
        """A new descriptor that can only read, for another process; the caller closes it.

        It is an opening of its own: a process that outlives this one by a moment keeps no lock.
        """
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Release the descriptor; calling it again does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        """Fill `views` from byte `offset` if that needs no waiting; False where it would wait.

        Raises MediaError.
        """
        flags = self._read_flags
        if flags is None or len(views) > IOV_MAX:
            return False
        try:
            return os.preadv(self.fd, views, offset, flags) == _length(views)
        except OSError as error:
            self._read_flags = _flags_after(error, flags, "reading", offset)
            return False

    def write_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        """Write `views` from byte `offset` on if that needs no waiting; False where it would wait.

        What was refused half-way has to be written again as a whole. Raises MediaError.
        """
        self._require_writable()
        flags = self._write_flags
        if flags is None or len(views) > IOV_MAX:
            return False
        try:
            return os.pwritev(self.fd, views, offset, flags) == _length(views)
        except OSError as error:
            self._write_flags = _flags_after(error, flags, "writing", offset)
            return False

    def read_into(self, views: Sequence[memoryview], offset: int) -> None:
        """Fill `views` from byte `offset`, waiting where it must. Raises MediaError."""
        for part, at in _in_calls(views, offset):
            _move_whole(os.preadv, self.fd, part, at, "reading")

    def write_from(self, views: Sequence[memoryview], offset: int) -> None:
        """Write `views` from byte `offset` on. Raises MediaError."""
        self._require_writable()
        for part, at in _in_calls(views, offset):
            _move_whole(os.pwritev, self.fd, part, at, "writing")

    def flush(self) -> None:
        """Return when everything written is on stable storage. Raises MediaError.

        Linux reports a lost write once for each opening of a file and then forgets it: the next
        fdatasync(2) succeeds although the data is gone. So the first failure is final here: this
        flush and every later one fails, and nothing more is written.
        """
        if self.lost is not None:
            raise self.lost
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            self.lost = MediaError.of(error, "flushing")
            raise self.lost from None

    def _require_writable(self) -> None:
        if self.read_only:
            raise MediaError(errno.EROFS, "the media is read-only")
        if self.lost is not None:
            raise self.lost


def _length(views: Sequence[memoryview]) -> int:
    return len(views[0]) if len(views) == 1 else sum(map(len, views))


def _flags_after(error: OSError, flags: int, doing: str, offset: int) -> int | None:
    """The flags of later calls, after one that was not to wait has failed. Raises MediaError."""
    if isinstance(error, BlockingIOError):
        return flags
    if error.errno == errno.EOPNOTSUPP:  # this file system cannot tell: always wait
        return None
    raise MediaError.of(error, doing, offset) from None


def lies_in_memory(fd: int) -> bool:
    """Whether a file is kept in memory: a memfd, or one of a tmpfs.

    No access to such a file waits for a disk (but for what was swapped out). `RWF_NOWAIT` does not
    tell, as tmpfs refuses it. That a file can be sealed does: only files in memory can, be they
    sealed or not (fcntl(2), "File Sealing").
    """
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


def _in_calls(
    views: Sequence[memoryview], offset: int
) -> Iterator[tuple[Sequence[memoryview], int]]:
    """Cut `views` into what one system call takes, each with its byte offset."""
    for first in range(0, len(views), IOV_MAX):
        part = views[first : first + IOV_MAX]
        yield part, offset
        offset += sum(map(len, part))


def _move_whole(
    move: Move,
    fd: int,
    views: Sequence[memoryview],
    offset: int,
    doing: str,
) -> None:
    """Repeat `move` until every byte has moved: the system may do less than it was asked."""
    while views:
        try:
            moved = move(fd, views, offset)
        except OSError as error:
            raise MediaError.of(error, doing, offset) from None
        if moved == 0:
            short = OSError(errno.EIO, f"it stops short at byte {offset}")
            raise MediaError.of(short, doing, offset)
        offset += moved
        views = _without(views, moved)


def _without(views: Sequence[memoryview], moved: int) -> Sequence[memoryview]:
    """What is left of `views` after their first `moved` bytes."""
    for index, view in enumerate(views):
        if moved < len(view):
            return [view[moved:], *views[index + 1 :]]
        moved -= len(view)
    return []
