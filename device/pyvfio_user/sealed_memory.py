"""Memory that processes share by its descriptor: a memfd of a size that nobody can change."""

import fcntl
import mmap
import os
from typing import Self

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""The last one, too: who is given the memory could else have it refuse what clears it."""


def sealed_memfd(size: int, name: str) -> int:
    """A memfd of `size` zeroes; the caller closes it. Raises OSError when there is no memory."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            fix_size(fd, size)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:  # the kernel names no file
        raise OSError(error.errno, error.strerror, f"shared memory of {size} bytes") from None
    return fd


def fix_size(fd: int, size: int) -> None:
    """Give a memfd its final size. Raises OSError."""
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)


class SealedMemory:
    """`size` bytes, mapped here: those of the memfd `fd`, which is owned from then on, or new
    ones."""

    def __init__(self, size: int, name: str = "vfio-user memory", *, fd: int | None = None) -> None:
        self.fd = sealed_memfd(size, name) if fd is None else fd
        try:
            self._mapped = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise
        self.size = size
        self.view = memoryview(self._mapped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the bytes go with the last view of them."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self.view.release()
        try:
            self._mapped.close()
        except BufferError:
            pass  # Somebody holds a slice of the view: garbage collection unmaps behind the last.
