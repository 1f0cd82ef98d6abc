"""The firmware of the board: the NVMe firmware, and that of the application processor."""

__version__ = "1.0.0"
"""Version of Potash, and revision of the built-in firmware."""
