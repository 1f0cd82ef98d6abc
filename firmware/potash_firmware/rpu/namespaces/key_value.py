"""A key value namespace (CSI 01h): values by key, in a store of the drive.

Source: NVM Express Key Value Command Set Specification 1.0d, section 2.1.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from nvme_spec.features import FeatureId
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.key_value import KeyValueConfiguration
from potash_device.media.shapes import NamespaceShape
from potash_device.media.values import ValueStore
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.media_work import BlocksInFlight
from potash_firmware.rpu.namespaces.value_log import ValueLog


@dataclass(eq=False)
class KeyValueNamespace:
    """Keys and values that may have `size` bytes together."""

    csi: ClassVar[CommandSet] = CommandSet.KEY_VALUE
    fast_path: ClassVar[None] = None

    nsid: int
    shape: NamespaceShape
    media: ValueStore
    features: Features
    in_flight: BlocksInFlight = field(default_factory=partial(BlocksInFlight, writes_alone=True))
    """Work of the media executor; a key has a byte for a range."""
    unformatted: int = 0
    """Per cent of a format that are still to be done."""

    log: ValueLog | None = None
    """The log on modelled flash; None before any value is in it, or without a model."""

    def erased(self) -> None:
        """There is no value any more."""
        self.log = None

    @property
    def size(self) -> int:
        """Bytes of all keys and values that it has room for."""
        return self.shape.size

    @property
    def write_through(self) -> bool:
        """Every change is to be durable when its command ends."""
        return self.features.write_through

    @property
    def absent_is_error(self) -> bool:
        """Delete of a key that does not exist is an error (EDNEK)."""
        dword = self.features.get(FeatureId.KEY_VALUE_CONFIGURATION, nsid=self.nsid)
        return bool(KeyValueConfiguration(dword).ednek)
