"""Memory of the device that a host maps as a BAR.

A host that has mapped it accesses it without the device noticing, so its contents may change
between two reads. The descriptor is sealed, so that the host cannot shrink it.
"""

from potash_device.media.store import SharedMemory
from pyvfio_user.device import Region

MIN_SIZE = 4096
MAX_SIZE = 1 << 30


class BarMemory:
    """`size` bytes: a power of two from `MIN_SIZE` to `MAX_SIZE`, all of a BAR. They are those of
    the memfd `fd`, if there is one. Raises ValueError for another size, OSError when the system has
    no memory."""

    def __init__(self, size: int, fd: int | None = None) -> None:
        require_size(size)
        self.size = size
        self.memory = SharedMemory(size, fd)

    @property
    def region(self) -> Region:
        return Region(self.size, fd=self.memory.fd)

    def read(self, offset: int, count: int) -> bytes:
        """Read for a host that has not mapped the memory."""
        return bytes(self.memory.bytes[offset : offset + count])

    def write(self, offset: int, data: bytes) -> None:
        """Write for a host that has not mapped the memory."""
        self.memory.bytes[offset : offset + len(data)] = data

    def clear(self) -> None:
        """Zeroes again, as after a reset."""
        self.memory.clear()

    def renew(self) -> None:
        """Other memory, so that who has mapped that of before sees nothing of what follows. Raises
        OSError when the system has none."""
        self.memory = SharedMemory(self.size)


def require_size(size: int) -> None:
    """Raise ValueError for a size that the memory of a BAR cannot have."""
    if size & (size - 1) or not MIN_SIZE <= size <= MAX_SIZE:
        raise ValueError(
            f"memory in a BAR has a power of two of {MIN_SIZE} to {MAX_SIZE} bytes, not {size}"
        )
