"""Media in memory: gone when the device ends, for tests and first steps."""

import fcntl
import os
from typing import Self

from potash_device.media.store import Media


class MemoryMedia(Media):
    """`size` bytes of anonymous memory, allocated page by page as they are written."""

    @classmethod
    def create(cls, size: int) -> Self:
        """Make the memory. Raises OSError when the system has none left."""
        fd = os.memfd_create("potash-media", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return cls(fd, size)
