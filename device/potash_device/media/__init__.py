"""What blocks live on, and who waits for it."""

from potash_device.media.errors import MediaError
from potash_device.media.executor import MediaExecutor
from potash_device.media.file import FileMedia
from potash_device.media.flash import FLASH_SIZE, Flash
from potash_device.media.memory import MemoryMedia
from potash_device.media.store import Media

__all__ = [
    "FLASH_SIZE",
    "FileMedia",
    "Flash",
    "Media",
    "MediaError",
    "MediaExecutor",
    "MemoryMedia",
]
