"""The settings of a device, and its named profiles. Nothing here loads the firmware."""

from dataclasses import dataclass, field

from potash_device.pcie.config_space import PciIdentity
from potash_device.settings import BoardSettings
from potash_firmware.apu import config
from potash_firmware.bpf.engine import Engine
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
    """What runs programs."""
    range_blocks: config.RangeBlocks = field(default_factory=config.RangeBlocks)
    """How local storage commands count."""
    log: LogSettings = field(default_factory=LogSettings)
    """What the APU and its workers say of themselves; this process's own log is its owner's."""
    platform_status: bool = False
    """Whether an accelerator is done after a job that failed, as the platform has it."""
    limits: config.Limits = field(default_factory=config.Limits)
    """What programs and models may take."""
    vta_threads: int | None = None
    """Threads that execute a stream of the tensor accelerator; by default, as many as the number of
    processors suggests."""
    trust_memory: bool = False
    """Whether a client's memory is mapped that is not sealed, or is in huge pages."""
    count_cycles: bool = False
    """Whether the counters have the cycles of the tensor accelerator, which have to be modelled."""


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
"""What the scripts and programs that were published for the original platform look for."""

PROFILES = {"potash": DeviceSettings(), "alkali": ALKALI}
"""Whole devices by name."""
