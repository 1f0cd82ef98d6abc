"""The Computational Programs command set (CSI 04h): programs, memory range sets, Execute Program."""
