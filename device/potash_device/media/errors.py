"""What can go wrong with media."""


class MediaError(OSError):
    """A read, write or flush did not happen whole; `errno` says why."""
