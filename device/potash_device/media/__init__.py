"""What blocks live on, and who waits for it."""
