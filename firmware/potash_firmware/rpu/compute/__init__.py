"""Compute namespaces: programs, memory range sets and executions."""
