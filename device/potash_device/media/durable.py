"""Files and names that outlive a loss of power."""

import errno
import os
from pathlib import Path

from potash_device.media.errors import MediaError


def replace_file(path: Path, text: str) -> None:
    """Write a file, which appears complete or not at all, and which only its user may read, as the
    media. Raises MediaError."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        keep_folder(path.parent)
    except OSError as error:
        raise MediaError(error.errno, f"cannot write {path}: {error.strerror}") from None


def keep_folder(folder: Path) -> None:
    """Have the names in `folder` outlive a loss of power. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have nothing to do for a folder
            raise
    finally:
        os.close(fd)
