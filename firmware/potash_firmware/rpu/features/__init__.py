"""Features: what there are, their values, and what outlives a power cycle."""
