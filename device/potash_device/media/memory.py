"""Media in memory: gone when the device ends, for tests and first steps."""

import fcntl
import mmap
import os
from typing import Self
from weakref import finalize

from potash_device.media.store import Media

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""The last one, too: who is given the memory could else have it refuse what clears it."""


class MemoryMedia(Media):
    """`size` bytes of anonymous memory, allocated page by page as they are written."""

    @classmethod
    def create(cls, size: int) -> Self:
        """Make the memory. Raises OSError when the system has none left."""
        fd = os.memfd_create("potash-media", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd, size)


class SharedMemory:
    """`size` bytes of zeroes, mapped here, which others may map too. Raises OSError without memory.

    They last as long as anybody refers to them, or works on `bytes`: nobody closes them.
    """

    def __init__(self, size: int) -> None:
        self.media = MemoryMedia.create(size)
        finalize(self.media, os.close, self.media.fd).atexit = False
        self.bytes = memoryview(mmap.mmap(self.media.fd, size))

    @property
    def fd(self) -> int:
        """The memfd; whoever sends it away sends a duplicate."""
        return self.media.fd

    def clear(self) -> None:
        """Zeroes again, for everybody who has mapped them."""
        self.media.punch(0, self.media.size)
