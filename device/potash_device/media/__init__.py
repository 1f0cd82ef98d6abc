"""What blocks live on, and who waits for it."""

from potash_device.media.drive import Drive
from potash_device.media.errors import MediaError
from potash_device.media.executor import MediaExecutor
from potash_device.media.file import FileMedia
from potash_device.media.flash import FLASH_SIZE, Flash
from potash_device.media.memory import MemoryMedia
from potash_device.media.shapes import (
    BLOCK_SIZES,
    DEFAULT_BLOCK_SIZE,
    DEFAULT_SIZE,
    MEMORY_UNIT,
    MOST_NAMESPACES,
    DriveError,
    NamespaceShape,
)
from potash_device.media.sidecar import SIDECAR_SIZE, Sidecar
from potash_device.media.store import Impairment, Media

__all__ = [
    "BLOCK_SIZES",
    "DEFAULT_BLOCK_SIZE",
    "DEFAULT_SIZE",
    "FLASH_SIZE",
    "MEMORY_UNIT",
    "MOST_NAMESPACES",
    "SIDECAR_SIZE",
    "Drive",
    "DriveError",
    "FileMedia",
    "Flash",
    "Impairment",
    "Media",
    "MediaError",
    "MediaExecutor",
    "MemoryMedia",
    "NamespaceShape",
    "Sidecar",
]
