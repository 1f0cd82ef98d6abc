"""What the drive does in the background, and what goes on by time."""
