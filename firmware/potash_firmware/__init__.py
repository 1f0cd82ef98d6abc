"""What runs on the board: the NVMe firmware, and the application processor's."""

__version__ = "0.1.0"
"""Version of Potash, and revision of the built-in firmware."""
