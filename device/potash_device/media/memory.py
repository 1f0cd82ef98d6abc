"""Media in memory: gone when the device ends, for tests and first steps."""

import mmap
import os
from typing import Self
from weakref import finalize

from potash_device.media.store import Media
from pyvfio_user.sealed_memory import sealed_memfd


class MemoryMedia(Media):
    """`size` bytes of anonymous memory, allocated page by page as they are written."""

    @classmethod
    def create(cls, size: int) -> Self:
        """Make the memory. Raises OSError when the system has none left."""
        return cls(sealed_memfd(size, "potash-media"), size)


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
