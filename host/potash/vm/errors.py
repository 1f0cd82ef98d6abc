"""Errors of a guest."""

from potash.sdk.errors import PotashError


class PackagesUnavailable(PotashError):
    """The guest's packages cannot be downloaded to this machine."""


class GuestError(PotashError):
    """The guest, or the QEMU that it runs in, does not do what it should. The message ends with
    `console`, the last lines of its console."""

    def __init__(self, reason: str, console: str = "") -> None:
        self.reason = reason
        self.console = console
        super().__init__(f"{reason}; its console ends with:\n{console}" if console else reason)


class GuestTimeout(GuestError):
    """A command, or the guest as a whole, took longer than it was given."""
