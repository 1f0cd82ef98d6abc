"""Moving the state of a drive to another process: what is in it, and when it may be moved."""
