"""Blocks behind one file descriptor.

A file is never mapped, because one that shrinks, or a full disk under it, ends the process with
SIGBUS where a system call returns an error. Memory that nobody can shrink is (`MemoryMedia`).
Deallocated blocks are holes of the file; the file system is the only record of them."""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from os import preadv, pwritev
from typing import Protocol, Self
from weakref import finalize

from potash_device.media.errors import MediaError
from pyvfio_user.sealed_memory import sealed_memfd

IOV_MAX = os.sysconf("SC_IOV_MAX")
"""Views that one system call takes (POSIX `{IOV_MAX}`)."""

Move = Callable[..., int]
"""`os.preadv` or `os.pwritev`."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_FALLOC_FL_KEEP_SIZE = 0x01
_FALLOC_FL_PUNCH_HOLE = 0x02
"""fallocate(2), which Python knows without its mode only."""

_CHUNK = 1 << 20
"""Bytes that are zeroed or verified in one go."""
_ZEROES = memoryview(bytes(_CHUNK))

_IN_PAGE = mmap.PAGESIZE - 1
_PAGE_SHIFT = _IN_PAGE.bit_length()
_NOTHING = memoryview(b"")


class Impairment(Protocol):
    """Fault injection between media and their users."""

    def before(self, offset: int, length: int, *, writes: bool) -> None:
        """These bytes are about to be read or written; may wait. Raises MediaError."""


class Beside(Protocol):
    """Data stored for each block in another file, with the lifetime of the block."""

    def punch(self, offset: int, length: int) -> None:
        """These bytes are about to be deallocated. Raises MediaError."""

    def flush(self) -> None:
        """Do what `Media.flush` does."""

    def close(self) -> None:
        """Do what `Media.close` does."""


class Media:
    """`size` bytes of non-volatile memory behind the descriptor `fd`, which this object owns."""

    def __init__(self, fd: int, size: int, *, read_only: bool = False) -> None:
        self.fd = fd
        self.size = size
        self.read_only = read_only
        self.protected = False
        """The host has asked for no writes, so it is no fault that there are none."""
        self.lost: MediaError | None = None
        """The error of a failed flush or a truncated file: blocks are lost from then on."""
        self._least = 0 if _never_shrinks(fd) else size
        """Bytes that the file has unless somebody else has truncated it."""
        self.self_checking = False
        """Its user notices lost bytes by their checksums, so it may be extended after a loss."""
        self.beside: Beside | None = None
        self._impairment: Impairment | None = None
        self._read_flags: int | None = None
        self._write_flags: int | None = None
        """Flags with which a system call returns instead of waiting; None if there are none."""
        self._mapped = _NOTHING
        """The bytes, of media in memory."""
        self._present = bytearray()
        """For each page of these 1 if `write_at_once` has written to it, and it was not punched
        since."""
        self.impair(None)

    @property
    def writable(self) -> bool:
        """Writes have a chance."""
        return not (self.read_only or self.protected) and self.lost is None

    def impair(self, impairment: Impairment | None) -> None:
        """Have `impairment` asked before any block is touched; None for nobody.

        While there is one, nothing is read or written at once: it may have whoever asks wait.
        """
        self._impairment = impairment
        at_once = 0 if is_in_memory(self.fd) else os.RWF_NOWAIT
        self._read_flags = self._write_flags = at_once if impairment is None else None

    def lock(self) -> None:
        """Keep others out, as `unlock` has let them in. Raises MediaError where somebody is."""

    def unlock(self) -> None:
        """Let another process have the blocks, which this one does not touch meanwhile."""

    def reader(self) -> int:
        """A new descriptor that can only read, for another process; the caller closes it.

        It is an opening of its own: a process that outlives this one by a moment keeps no lock.
        """
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self.beside is not None:
            self.beside.close()
        self._mapped = _NOTHING  # which gives memory back, as closing its file alone does not
        descriptor, self.fd = self.fd, -1  # first, for other threads
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def never_waits(self) -> bool:
        """True if no nonblocking access ever has to wait."""
        return self._write_flags == 0

    def read_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        """Fill `views` from byte `offset` if that needs no waiting; False where it would wait.
        Raises MediaError."""
        flags, content, count = self._read_flags, self._mapped, len(views)
        if flags is None or count > IOV_MAX:
            return False
        length = len(views[0]) if count == 1 else _length(views)
        end = offset + length
        if (
            end <= len(content)
            and self._present.find(0, offset >> _PAGE_SHIFT, (end + _IN_PAGE) >> _PAGE_SHIFT) < 0
        ):
            for view in views:
                end = offset + len(view)
                view[:] = content[offset:end]
                offset = end
            return True
        try:
            return preadv(self.fd, views, offset, flags) == length
        except OSError as error:
            self._read_flags = _flags_after(error, flags, "reading", offset)
            return False

    def write_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        """Write `views` from byte `offset` on if that needs no waiting; False where it would wait.

        What was refused half-way has to be written again as a whole. That the file is whole is the
        caller's to see, once for all that it writes in a row. Raises MediaError.
        """
        self.require_writable()
        flags, content, count = self._write_flags, self._mapped, len(views)
        if flags is None or count > IOV_MAX:
            return False
        length = len(views[0]) if count == 1 else _length(views)
        end = offset + length
        first, after = offset >> _PAGE_SHIFT, (end + _IN_PAGE) >> _PAGE_SHIFT
        if end <= len(content) and self._present.find(0, first, after) < 0:
            for view in views:
                end = offset + len(view)
                content[offset:end] = view
                offset = end
            return True
        try:
            done = pwritev(self.fd, views, offset, flags) == length
        except OSError as error:
            self._write_flags = _flags_after(error, flags, "writing", offset)
            return False
        if done and content:
            self._present[first:after] = b"\1" * (after - first)
        return done

    def read_into(self, views: Sequence[memoryview], offset: int) -> None:
        """Fill `views` from byte `offset`, waiting where it must. Raises MediaError."""
        self._before(offset, _length(views), writes=False)
        try:
            for part, at in _in_calls(views, offset):
                _move_whole(os.preadv, self.fd, part, at, "reading")
        except MediaError:
            with suppress(MediaError):
                self.require_whole()
            raise

    def write_from(self, views: Sequence[memoryview], offset: int) -> None:
        """Write `views` from byte `offset` on. Raises MediaError."""
        self.require_writable()
        self.require_whole()
        self._before(offset, _length(views), writes=True)
        for part, at in _in_calls(views, offset):
            _move_whole(os.pwritev, self.fd, part, at, "writing")

    def flush(self) -> None:
        """Return when everything written is on stable storage. Raises MediaError.

        Linux reports a lost write once for each opening of a file and then forgets it: the next
        fdatasync(2) succeeds although the data is gone. So the first failure is final here: this
        flush and every later one fails, and nothing more is written. A store that was closed in the
        meantime, as of a namespace that is deleted while a flush waits, has nothing to flush.
        """
        if self.lost is not None:
            raise self.lost
        descriptor = self.fd
        if descriptor < 0:
            return
        self.require_whole()
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            if self.fd < 0:  # by another thread, since it was looked at
                return
            self.lost = MediaError.of(error, "flushing")
            raise self.lost from None
        beside = self.beside  # which another thread may take away
        if beside is not None:
            try:
                beside.flush()
            except MediaError as error:
                self.lost = error
                raise

    def write_zeroes(self, offset: int, length: int) -> None:
        """Write `length` zero bytes from byte `offset` on: they are there, not a hole. Raises
        MediaError."""
        for at in range(offset, offset + length, _CHUNK):
            self.write_from([_ZEROES[: offset + length - at]], at)

    def punch(self, offset: int, length: int) -> None:
        """Have `length` bytes from byte `offset` read as zeroes and take no room, as far as whole
        units of the file system go. One that has no holes gets zeroes. Raises MediaError."""
        self.require_writable()
        self.require_whole()
        self._before(offset, length, writes=True)
        if self.beside is not None:
            self.beside.punch(offset, length)
        try:
            _punch_hole(self.fd, offset, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise MediaError.of(error, "deallocating", offset) from None
            self.write_zeroes(offset, length)

    def reports_holes(self, block_size: int) -> bool:
        """True if a block of that size can be a hole next to one that is not."""
        return os.fstat(self.fd).st_blksize <= block_size

    def data_ranges(self, offset: int, length: int) -> list[tuple[int, int]]:
        """First byte and length of each part of a range that is no hole. Raises MediaError."""
        at, end = offset, offset + length
        found: list[tuple[int, int]] = []
        while at < end:
            try:
                first = os.lseek(self.fd, at, os.SEEK_DATA)
                if first >= end:
                    break
                at = min(os.lseek(self.fd, first, os.SEEK_HOLE), end)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end of the file
                    break
                raise MediaError.of(error, "reading", at) from None
            found.append((first, at - first))
        return found

    def verify(self, offset: int, length: int) -> None:
        """Read every byte of a range and keep none. Raises MediaError."""
        present = os.fstat(self.fd).st_size
        if present < offset + length:
            raise _stops_short(max(present, offset), "reading")
        # A hole cannot be damaged; but what is impaired is not asked of the file system.
        whole = [(offset, length)]
        parts = whole if self._impairment is not None else self.data_ranges(offset, length)
        buffer = memoryview(bytearray(min(length, _CHUNK)))
        for first, size in parts:
            for at in range(first, first + size, _CHUNK):
                self.read_into([buffer[: first + size - at]], at)

    def _before(self, offset: int, length: int, *, writes: bool) -> None:
        """Ask the impairment, if there is one. Raises MediaError."""
        impairment = self._impairment
        if impairment is not None:
            impairment.before(offset, length, writes=writes)

    def require_writable(self) -> None:
        """Raise MediaError when no write has a chance."""
        if self.read_only:
            raise MediaError(errno.EROFS, "the media is read-only")
        if self.protected:
            raise MediaError(errno.EROFS, "the host has write-protected the media")
        if self.lost is not None:
            raise self.lost

    def require_whole(self) -> None:
        """Raise MediaError when somebody has truncated the file, now or before.

        A write would extend it, and the blocks that are gone would read as zeroes. So that is
        final, as a flush that fails is.
        """
        least = 0 if self.self_checking else self._least
        if least and self.fd >= 0 and (present := os.lseek(self.fd, 0, os.SEEK_END)) < least:
            self.truncated(present)
        if self.lost is not None:
            raise self.lost

    def truncated(self, present: int) -> None:
        """The file has no more than `present` bytes: nothing is written any more."""
        why = f"the media was truncated to {present} of {self.size} bytes"
        self.lost = self.lost or MediaError(errno.EIO, why)


class MemoryMedia(Media):
    """`size` bytes of anonymous memory, allocated page by page as they are written.

    It is sealed against shrinking, so it is mapped: to copy a page that is there takes half as long
    as a system call. Others are left to system calls, as a read through the mapping would allocate
    them, and a write end the process where no memory is left.
    """

    def __init__(self, fd: int, size: int, *, read_only: bool = False) -> None:
        super().__init__(fd, size, read_only=read_only)
        if self._least:
            raise ValueError("memory that can shrink is not mapped")
        self._mapped = memoryview(mmap.mmap(fd, size))
        self._present = bytearray(-(-size // mmap.PAGESIZE))

    @classmethod
    def create(cls, size: int) -> Self:
        """Make the memory. Raises OSError when the system has none left."""
        return cls(sealed_memfd(size, "potash-media"), size)

    @property
    def bytes(self) -> memoryview:
        """All of it, mapped; empty once it is closed."""
        return self._mapped

    def punch(self, offset: int, length: int) -> None:
        first, after = (offset + _IN_PAGE) >> _PAGE_SHIFT, (offset + length) >> _PAGE_SHIFT
        if after - first == len(self._present):
            self._present = bytearray(after)  # which takes no memory
        elif first < after:
            self._present[first:after] = bytes(after - first)
        super().punch(offset, length)


class SharedMemory:
    """`size` bytes of zeroes, mapped here, which others may map too: those of a sealed memfd, whose
    descriptor is owned from then on, or new ones. Raises OSError without memory.

    They last as long as anybody refers to them, or works on `bytes`: nobody closes them.
    """

    def __init__(self, size: int, fd: int | None = None) -> None:
        self.media = MemoryMedia.create(size) if fd is None else MemoryMedia(fd, size)
        finalize(self.media, os.close, self.media.fd).atexit = False
        self.bytes = self.media.bytes

    @property
    def fd(self) -> int:
        """The memfd; whoever sends it away sends a duplicate."""
        return self.media.fd

    def clear(self) -> None:
        """Zeroes again, for everybody who has mapped them."""
        self.media.punch(0, self.media.size)


def _never_shrinks(fd: int) -> bool:
    """True if the file is sealed against shrinking (fcntl(2), "File Sealing")."""
    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


def _length(views: Sequence[memoryview]) -> int:
    return len(views[0]) if len(views) == 1 else sum(map(len, views))


def _flags_after(error: OSError, flags: int, doing: str, offset: int) -> int | None:
    """The flags of later calls, after one that was not to wait has failed. Raises MediaError."""
    if isinstance(error, BlockingIOError):
        return flags
    if error.errno == errno.EOPNOTSUPP:  # this file system cannot tell: always wait
        return None
    raise MediaError.of(error, doing, offset) from None


def is_in_memory(fd: int) -> bool:
    """True if a file is in memory: a memfd, or a file of a tmpfs.

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


def _move_whole(move: Move, fd: int, views: Sequence[memoryview], offset: int, doing: str) -> None:
    """Repeat `move` until every byte has moved: the system may do less than it was asked."""
    while views:
        try:
            moved = move(fd, views, offset)
        except OSError as error:
            raise MediaError.of(error, doing, offset) from None
        if moved == 0:
            raise _stops_short(offset, doing)
        offset += moved
        views = _without(views, moved)


def _stops_short(at: int, doing: str) -> MediaError:
    return MediaError.of(OSError(errno.EIO, f"it stops short at byte {at}"), doing, at)


def _punch_hole(fd: int, offset: int, length: int) -> None:
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    while _libc.fallocate(fd, mode, offset, length):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _without(views: Sequence[memoryview], moved: int) -> Sequence[memoryview]:
    """The rest of `views` after their first `moved` bytes."""
    for index, view in enumerate(views):
        if moved < len(view):
            return [view[moved:], *views[index + 1 :]]
        moved -= len(view)
    return []
