"""The RPU: the firmware that serves NVMe, in the role of the board's real-time processor."""

from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.loop import Rpu
from potash_firmware.rpu.settings import ComputeSettings, Identity, NamespaceSettings, RpuSettings

__all__ = ["ApuLink", "ComputeSettings", "Identity", "NamespaceSettings", "Rpu", "RpuSettings"]
