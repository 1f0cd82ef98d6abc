"""Observation of a running device: its status, live in the terminal and as metrics."""
