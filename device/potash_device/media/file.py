"""Media in an ordinary file: sparse, and kept when the device ends."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from potash_device.media.durable import keep_folder
from potash_device.media.errors import MediaError
from potash_device.media.store import Media

_UNITS = ((40, "TiB"), (30, "GiB"), (0, "bytes"))
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class FileMedia(Media):
    """The blocks of one file. Made by `open`, which does the work."""

    @classmethod
    def open(
        cls, path: Path, size: int | None = None, *, read_only: bool = False, locked: bool = True
    ) -> Self:
        """Open `path`, made with `size` bytes when it is new, and keep others out if `locked`.

        Without `size` the file must be there. One that holds anything keeps its own size, so that
        nobody's image grows because it was looked at. A file that may not be written is read-only
        media; to root, who may do everything, that is one without any write permission. Raises
        MediaError.
        """
        new = not path.exists()
        if not new and not path.is_file():
            raise MediaError(errno.EINVAL, f"cannot use media {path}: it is not a regular file")
        try:
            fd, read_only = _open(path, create=size is not None, read_only=read_only)
        except OSError as error:
            reason = error.strerror
            if error.errno == errno.ENOENT and size is not None:
                reason = f"there is no folder {path.parent}; make it, or choose another place"
            raise MediaError(error.errno, f"cannot open media {path}: {reason}") from None
        try:
            if locked:
                _lock(fd)
            present = os.fstat(fd).st_size
            if size is not None and not present and not read_only:
                _extend(fd, size)
                _keep_entry(fd, path)
                present = size
            if not present:
                raise OSError(errno.EINVAL, "it is empty")
        except OSError as error:
            if new and not isinstance(error, BlockingIOError):
                path.unlink(missing_ok=True)
            os.close(fd)
            raise MediaError(error.errno, f"cannot use media {path}: {error.strerror}") from None
        return cls(fd, present, read_only=read_only)

    def lock(self) -> None:
        try:
            _lock(self.fd)
        except OSError as error:
            raise MediaError(error.errno, str(error.strerror)) from None

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)


def _lock(fd: int) -> None:
    """Two devices on one file would each believe in blocks that the other changes. Raises
    OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(error.errno, "another device has it open") from None


def _open(path: Path, *, create: bool, read_only: bool) -> tuple[int, bool]:
    """A descriptor, and whether it can only read. Raises OSError."""
    if not read_only:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not path.is_file():
                raise
        else:
            if os.fstat(fd).st_mode & _WRITABLE:
                return fd, False
            os.close(fd)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), True


def _extend(fd: int, size: int) -> None:
    """Give an empty file that many bytes. Raises OSError, which names the limit of files."""
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        most = 1
        with suppress(OSError):
            while True:
                os.ftruncate(fd, most)
                most *= 2
        os.ftruncate(fd, 0)
        shift, unit = next(one for one in _UNITS if most >> one[0])
        said = f"a file there has to be below {most >> shift} {unit} (file system, or ulimit -f)"
        raise OSError(errno.EFBIG, f"{said}; choose a smaller size") from None


def _keep_entry(fd: int, path: Path) -> None:
    """Have a new file's name and size outlive a loss of power, as flushing its blocks does not."""
    os.fsync(fd)
    keep_folder(path.parent)
