"""Errors of media."""


class MediaError(OSError):
    """A read, write or flush did not happen whole; `errno` says why.

    `at` is the byte of the media where it stopped; None where that is not known.
    """

    at: int | None = None

    @classmethod
    def of(cls, error: OSError, doing: str, at: int | None = None) -> "MediaError":
        """What the system's `error` means when it comes while `doing` something to media."""
        made = cls(error.errno, f"{doing} the media failed: {error.strerror}")
        made.at = at
        return made
