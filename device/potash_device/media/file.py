"""Media in an ordinary file: sparse, and kept when the device ends."""

import fcntl
import os
from pathlib import Path
from typing import Self

from potash_device.media.errors import MediaError
from potash_device.media.store import Media


class FileMedia(Media):
    """The blocks of one file. Made by `open`, which does the work."""

    @classmethod
    def open(cls, path: Path, size: int | None = None) -> Self:
        """Open `path`, made with `size` bytes when it is new, and keep others out.

        Without `size` the file must be there and gives it; an existing file smaller than `size`
        grows, a larger one keeps its own size. Raises MediaError.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if size is not None else 0)
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise MediaError(error.errno, f"cannot open media {path}: {error.strerror}") from None
        try:
            # Two devices on one file would each believe in blocks that the other changes.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            present = os.fstat(fd).st_size
            if size is not None and present < size:
                os.ftruncate(fd, size)
                present = size
        except OSError as error:
            os.close(fd)
            why = "another device has it open" if isinstance(error, BlockingIOError) else error
            raise MediaError(error.errno, f"cannot use media {path}: {why}") from None
        return cls(fd, present)
