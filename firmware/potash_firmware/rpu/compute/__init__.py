"""Compute namespaces: their programs, their memory range sets, and what runs."""
