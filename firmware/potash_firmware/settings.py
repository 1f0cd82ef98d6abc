"""The settings of a device, and its named profiles. Nothing here loads the firmware."""

from dataclasses import dataclass, field

from potash_device.pcie.config_space import PciIdentity
from potash_device.settings import BoardSettings
from potash_firmware.apu import config
from potash_firmware.bpf.engine_names import Engine
from potash_firmware.log_components import LogSettings
from potash_firmware.rpu.settings import Identity, RpuSettings

MIB = 1 << 20


@dataclass(frozen=True)
class DeviceSettings:
    board: BoardSettings = field(default_factory=BoardSettings)
    rpu: RpuSettings = field(default_factory=RpuSettings)
    accelerators: tuple[config.AcceleratorConfig, ...] = (
        config.AcceleratorConfig(0, 64 * MIB, 64 * MIB),
    )
    engine: Engine = Engine.NATIVE
    """The engine that runs programs."""
    range_blocks: config.RangeBlocks = field(default_factory=config.RangeBlocks)
    """The way in which local storage commands count blocks."""
    log: LogSettings = field(default_factory=LogSettings)
    """Log settings of the APU and its workers; those of this process are its owner's."""
    platform_status: bool = False
    """True if an accelerator is done after a failed job, as on the original platform."""
    limits: config.Limits = field(default_factory=config.Limits)
    """Limits of programs and models."""
    vta_threads: int | None = None
    """Threads that execute a stream of the tensor accelerator; by default, as many as the number of
    processors suggests."""
    trust_memory: bool = False
    """True if a client's memory is mapped even if it is not sealed, or is in huge pages."""
    count_cycles: bool = False
    """True if the tensor accelerator's cycles are modelled, for the counters."""


ALKALI = DeviceSettings(
    board=BoardSettings(identity=PciIdentity(device_id=0x0001, msi_vectors=32)),
    rpu=RpuSettings(
        identity=Identity(
            serial="0123456789",
            model="DEADBEEF",
            firmware_revision="12.34",
            qualified_name="NVMe Open Source Controller",
        )
    ),
    platform_status=True,
)
"""Settings for the scripts and programs that were published for the original platform."""

PROFILES = {"potash": DeviceSettings(), "alkali": ALKALI}
"""Whole devices by name."""
