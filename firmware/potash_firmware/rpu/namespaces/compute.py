"""A compute namespace (CSI 04h): a place for programs, which run on ranges of memory namespaces.

Source: NVM Express Computational Programs Command Set Specification 1.1.
"""

from dataclasses import dataclass
from typing import ClassVar

from nvme_spec.identify.capabilities import CommandSet
from potash_firmware.rpu.settings import NamespaceSettings


@dataclass(eq=False)
class ComputeNamespace:
    """It has no size and holds no data of its own."""

    csi: ClassVar[CommandSet] = CommandSet.COMPUTE

    settings: NamespaceSettings

    @property
    def nsid(self) -> int:
        """Its identifier."""
        return self.settings.nsid
