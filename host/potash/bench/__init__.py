"""Benchmarks: each measures against a baseline at the same time and reports both."""
