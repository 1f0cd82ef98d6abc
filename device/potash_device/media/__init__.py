"""Media: where blocks are stored, and the executor that waits for them."""
