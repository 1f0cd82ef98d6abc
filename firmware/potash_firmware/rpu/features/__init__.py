"""Features: their table, their values and their persistence."""
