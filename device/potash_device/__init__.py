"""The board: the hardware of a Potash drive."""
