"""Files that a command reads whole, and files that it writes whole or not at all."""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress

STREAM = Path("-")
"""Standard input or output."""

PIECE = 16 << 20
"""Bytes that are moved between two reports of progress."""

LONG = 4 * PIECE
"""Bytes from which on a file is worth reporting."""


def read_whole(path: Path, progress: Progress) -> bytearray:
    """A file's bytes. Raises OSError, and PotashError where memory has no room for them."""
    if path == STREAM:
        return bytearray(sys.stdin.buffer.read())
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            data = bytearray(size)
        except MemoryError:
            raise PotashError(f"{path}: there is no memory for its {size} bytes") from None
        done = 0
        with memoryview(data) as view:
            while done < size and (count := file.readinto(view[done : done + PIECE])):
                done += count
                if size >= LONG:
                    progress(f"reading {path}", done / size)
        del data[done:]
        # A pipe has no size, and a file may have grown.
        while more := file.read(PIECE):
            data += more
    return data


def write_whole(file: BinaryIO, data: bytearray, path: Path, progress: Progress) -> None:
    """Write it all to what `replacing` gave for `path`. Raises OSError."""
    with memoryview(data) as view:
        for at in range(0, len(view), PIECE):
            file.write(view[at : at + PIECE])
            if len(view) >= LONG:
                progress(f"writing {path}", min(1.0, (at + PIECE) / len(view)))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends without an error.

    Until then nothing has changed there, and nobody sees half a file. What is no regular file, a
    pipe or a device, or is in a folder that may not be changed, is written to as it is. Raises
    PotashError where it cannot be written.
    """
    try:
        if path == STREAM:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif path.exists() and not (
            path.is_file() and os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)
        ):
            with path.open("wb") as file:
                yield file
        else:
            with _beside(Path(os.path.realpath(path))) as file:
                yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(path, error) from None


def require_writable(path: Path) -> None:
    """Refuse, before long work, what could not be written after it. Raises PotashError."""
    place = path if path.exists() else path.absolute().parent
    if path != STREAM and not os.access(place, os.W_OK):
        number = errno.EACCES if place.exists() else errno.ENOENT
        raise unwritable(path, OSError(number, os.strerror(number)))


def unwritable(path: Path, error: OSError) -> PotashError:
    """The error for a file that cannot be written, with a remedy."""
    folder = path.absolute().parent
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and not folder.is_dir():
        reason = f"there is no folder {path.parent}; make it, or choose another place"
    elif error.errno != errno.EISDIR:
        reason = f"{reason}; choose another place"
    return PotashError(f"{path} cannot be written: {reason}")


@contextmanager
def _beside(target: Path) -> Iterator[BinaryIO]:
    scratch = target.parent / f".potash-{os.urandom(8).hex()}"
    try:
        with scratch.open("xb") as file:
            yield file
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, target)
    except BaseException:
        with suppress(FileNotFoundError):
            scratch.unlink()
        raise
