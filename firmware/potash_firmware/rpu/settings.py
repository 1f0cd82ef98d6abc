"""What the firmware of one device is configured with."""

import uuid
from dataclasses import dataclass, field

from csd_spec.faults import Fault
from potash_firmware import __version__


@dataclass(frozen=True)
class Identity:
    """What Identify Controller says of the device."""

    serial: str = "POTASH0001"
    model: str = "Potash computational storage"
    firmware_revision: str = __version__
    qualified_name: str = ""
    """The NVM subsystem's NQN; one that is unique to the serial number when empty."""

    @property
    def nqn(self) -> str:
        """The NVM subsystem's NVMe Qualified Name (Base 2.0, section 4.5)."""
        return self.qualified_name or f"nqn.2014-08.org.nvmexpress:uuid:{self.uuid('subsystem')}"

    def uuid(self, what: str) -> uuid.UUID:
        """A UUID for a part of this device, the same at every start."""
        return uuid.uuid5(uuid.NAMESPACE_OID, f"{self.model}/{self.serial}/{what}")


@dataclass(frozen=True)
class NamespaceSettings:
    """One namespace; the blocks themselves are the board's media of the same identifier."""

    nsid: int = 1
    block_size: int = 4096
    attached: bool = True
    """A host can use it; it only exists where not."""
    shared: bool = False
    """NMIC: more than one controller might have it attached."""
    uuid: str = ""
    """Its own; where empty, one that follows from the device's and `nsid`."""


@dataclass(frozen=True)
class RpuSettings:
    """Everything that the RPU is configured with."""

    identity: Identity = field(default_factory=Identity)
    namespaces: tuple[NamespaceSettings, ...] = (NamespaceSettings(),)
    faults: tuple[Fault, ...] = ()
    """Injected from the start."""
    allow_faults: bool = False
    """A host may inject faults, and clear them."""
