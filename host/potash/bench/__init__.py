"""Benchmarks: each measures against a peer at the same time and reports both."""
