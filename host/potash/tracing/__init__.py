"""Traces of all processes of a device, on one time axis."""
