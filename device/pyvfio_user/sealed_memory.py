"""Memory of a client's that a device may map."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Self


class SealedMemory:
    """`size` bytes that can be shared: a memfd that cannot change its size any more, mapped
    here."""

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("vfio-user memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
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
