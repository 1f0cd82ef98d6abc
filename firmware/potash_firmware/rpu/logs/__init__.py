"""The contents of log pages, and asynchronous events."""
