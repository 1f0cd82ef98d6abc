"""Namespaces of each command set, and their inventory."""
