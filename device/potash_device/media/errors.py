"""Errors of media."""


class MediaError(OSError):
    """A read, write or flush did not happen whole; `errno` says why.

    `at` is the byte of the media where it stopped; None where that is not known.
    """

    at: int | None = None

    @classmethod
    def of(cls, error: OSError, doing: str, at: int | None = None) -> "MediaError":
        """The media error for the system's `error` while `doing` something."""
        made = cls(error.errno, f"{doing} the media failed: {error.strerror}")
        made.at = at
        return made
