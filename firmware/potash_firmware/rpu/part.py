"""The interface by which resets, power cycles and records reach every part of a controller."""


class Part:
    """A part of a controller. What it does not override changes nothing."""

    @property
    def changes(self) -> int:
        """Grows with each change that is worth a record."""
        return 0

    def reset(self, *, next_host: bool = False) -> None:
        """The host's session has ended.

        The `next_host`, if it may be another one, must find nothing of this one's.
        """

    def restore(self, *, clean: bool | None = None) -> None:
        """Read what was recorded, which may wait.

        After a power cycle, `clean` says whether the drive was shut down before; it is None if
        another process has used the drive meanwhile.
        """

    def record(self) -> None:
        """Put the current state into the sidecar, for its next write."""
