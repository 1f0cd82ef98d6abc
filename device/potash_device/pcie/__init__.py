"""The PCI Express side of the board: its configuration space."""
