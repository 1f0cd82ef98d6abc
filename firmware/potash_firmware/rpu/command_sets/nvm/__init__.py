"""The NVM Command Set: blocks."""
