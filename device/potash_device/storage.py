"""The storage of an NVM subsystem, which the boards of its controllers share."""

from dataclasses import dataclass, field

from potash_device.media.drive import Drive
from potash_device.media.executor import MediaExecutor
from potash_device.media.flash import Flash
from potash_device.media.sidecar import Sidecar
from potash_device.media.store import Media
from potash_device.trace import Trace


@dataclass(frozen=True, eq=False)
class Storage:
    """The media of one NVM subsystem; all of them stay the caller's to close."""

    media: dict[int, Media]
    """The namespaces' blocks by namespace identifier."""
    flash: Flash
    """Holds firmware images."""
    executor: MediaExecutor
    sidecar: Sidecar
    """Holds everything small that outlives a power cycle."""
    drive: Drive
    """Holds the namespaces, and makes and deletes them."""
    trace: Trace = field(default_factory=Trace)
    """The trace of what no single controller does."""
