"""The settings of one device's firmware."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from csd_spec.faults import Fault
from potash_firmware import __version__
from potash_firmware.rpu.placement import PlacementSettings

if TYPE_CHECKING:
    from potash_firmware.extension_registry import Extensions
    from potash_firmware.rpu.timing.modelled import TimeSettings


@dataclass(frozen=True)
class Identity:
    """The identity of the device in Identify Controller."""

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
class ComputeSettings:
    """The limits of a compute namespace (CNS 05h, CSI 04h)."""

    programs: int = 64
    """Program indexes, those of device-defined programs included."""
    activated: int = 64
    """Programs that can be activated at once."""
    program_memory: int = 16
    """MiB of all programs that are loaded."""
    range_sets: int = 64
    ranges: int = 16
    """Ranges in a set."""
    units: int = 1
    """Compute units, where time is modelled."""
    scheduler: str = "fifo"
    """The scheduler of these, as `rpu.timing.schedulers` names them."""


@dataclass(frozen=True)
class RpuSettings:
    identity: Identity = field(default_factory=Identity)
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    copy_formats_enabled: bool = True
    """Copy takes every descriptor format that there is. Else a host has to enable it before (CDFE
    of Host Behavior Support), which stock Linux lets nobody do."""
    append_limit: int = 0
    """Bytes of a Zone Append (ZASL), a power of two of pages; 0 for as many as MDTS allows."""
    faults: tuple[Fault, ...] = ()
    """Injected from the start."""
    allow_faults: bool = False
    """A host may inject faults, and clear them."""
    placement: PlacementSettings | None = None
    """The settings of a drive with flexible data placement."""
    host_memory: int = 0
    """Bytes of host memory that the cache of the modelled drive's mapping would use."""
    nguid: bool = False
    """Namespaces have an NGUID and an EUI-64 beside their UUID."""
    power_states: bool = False
    """The drive has power states; its time is modelled."""
    ana: bool = False
    """The drive reports asymmetric namespace access."""
    ocp: bool = False
    """The drive has log pages of the Open Compute Project; its time is modelled."""
    accelerators: Mapping[int, int] = field(default_factory=dict)
    """The controllers that have accelerators, by the identifiers of these; those that are not
    listed are the first one's."""
    time: TimeSettings | None = None
    """The drive whose time is modelled; without one, commands end as soon as they can."""
    extensions: Extensions | None = None
    """Extensions that are loaded for the drive."""
