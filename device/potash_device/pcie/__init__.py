"""The PCI Express side of the board: its configuration space."""

from potash_device.pcie.config_space import ConfigSpace, PciIdentity
from potash_device.pcie.layout import CONFIG_SPACE_SIZE

__all__ = ["CONFIG_SPACE_SIZE", "ConfigSpace", "PciIdentity"]
