"""The host memory buffer of a modelled drive: memory of the host for the cache of its mapping.

The drive keeps nothing in that memory: what its model does there takes no time and no bytes of the
link, and a host may take it back at any time.

Source: NVM Express Base Specification 2.0, sections 5.27.1.11 and 8.9 (Host Memory Buffer).
"""

from __future__ import annotations

from nvme_spec.features import FeatureId, Select
from nvme_spec.host_memory import HostMemoryAttributes
from nvme_spec.words import Word, field
from potash_device.controller.dma import PAGE_SIZE
from potash_firmware.rpu.features.table import Feature
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.timing.modelled import ModelledTime


class _Enable(Word):
    ehm = field(0)


ROW = Feature(
    _Enable,
    given=lambda dword: HostMemoryAttributes.SIZE,
    values="a list of at most 256 descriptors, of as much memory as the command says",
)
"""The feature of a drive with a host memory buffer."""


class HostMemory(Part):
    """The host memory buffer of one controller, which prefers so many pages of it.

    The cache of the mapping is the drive's, and uses those of `every` controller.
    """

    def __init__(
        self, pages: int, timing: ModelledTime, features: Features, every: list[HostMemory]
    ) -> None:
        self.pages, self._timing, self._features = pages, timing, features
        self._used = 0
        self._every = every
        every.append(self)
        features.rows = dict(features.rows) | {FeatureId.HOST_MEMORY_BUFFER: ROW}

    def configure(self) -> int:
        """Use as much memory as the feature says. Returns the time at which what was cached in it
        is on flash."""
        timing = self._timing
        now = timing.clock.now()
        value = self._features.read(Select.CURRENT, FeatureId.HOST_MEMORY_BUFFER)
        used = min(HostMemoryAttributes(value.data).hsize if value.dword else 0, self.pages)
        if used == self._used:
            return now
        self._used = used
        size = sum(each._used for each in self._every) * PAGE_SIZE
        end = timing.drive.resize_cache(timing.arrival(now), size)
        return max(now, end * timing.factor)

    def reset(self, *, next_host: bool = False) -> None:
        self.configure()

    def restore(self, *, clean: bool | None = None) -> None:
        self._used = 0  # the drive may be another one now
        self.configure()
