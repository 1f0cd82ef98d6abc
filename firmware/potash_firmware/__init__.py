"""What runs on the board: the NVMe firmware, and the application processor's."""

__version__ = "0.1.0"
"""Of all of Potash, and the revision of the firmware that a device is made with."""
