"""Background operations, and functions that depend on time."""
