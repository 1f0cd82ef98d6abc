"""Transport of commands to a device: the interface that the SDK needs.

There are two: the kernel's driver through ioctl (`potash.sdk.ioctl`) and a driver in this process
that speaks vfio-user (`potash.sdk.vfio_user`).
"""

from typing import NamedTuple, Protocol

from nvme_spec.identify.capabilities import CommandSet

Buffer = bytes | bytearray | memoryview
Cdws = tuple[int, int, int, int, int, int]
"""Command dwords 10 to 15."""

NO_CDWS: Cdws = (0, 0, 0, 0, 0, 0)
MAX_QUEUE_DEPTH = 1023


class Request(NamedTuple):
    """One command. Data goes out (`data_out`) or comes in (`data_in_length` bytes), never both."""

    admin: bool
    opcode: int
    nsid: int = 0
    cdws: Cdws = NO_CDWS
    data_out: Buffer | None = None
    data_in_length: int = 0
    cdw2: int = 0
    cdw3: int = 0
    cdw4: int = 0
    csi: int = CommandSet.NVM
    """The command set of an I/O command, for messages."""


class Completion(NamedTuple):
    """A command that succeeded: dwords 0 and 1 of its completion and the data that came in."""

    result: int
    data: bytes = b""


class PendingCommand(Protocol):
    """A command in flight, like a `concurrent.futures.Future`."""

    def done(self) -> bool:
        """True if `result` returns or raises without waiting."""

    def result(self) -> Completion:
        """Wait for the command to complete; a second call gives the same again. Raises
        CommandFailed for an error status, CommandTimeout, and DeviceGone when the device is
        lost."""


class Ended(NamedTuple):
    """A `PendingCommand` that has completed already."""

    outcome: Completion | Exception

    def done(self) -> bool:
        return True

    def result(self) -> Completion:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class HostClock:
    """A host's clock in modelled time, with any number of drives of `potash serve --clock stepped`.

    Attributes:
        now: nanoseconds. Commands advance it while the host waits for them; a program adds to it
            what its own processor takes.
    """

    def __init__(self) -> None:
        self.now = 0


class Transport(Protocol):
    """An open connection to one controller."""

    @property
    def max_transfer(self) -> int:
        """Maximum bytes that one command can move here, whatever the controller's own limit."""

    @property
    def queue_depth(self) -> int:
        """Maximum number of commands in flight."""

    @property
    def nsid(self) -> int | None:
        """The namespace that was opened; None when it was the controller."""

    @property
    def block_device(self) -> int | None:
        """The number (`st_rdev`) of the block device that was opened; None when it was none."""

    @property
    def carries_cdw4(self) -> bool:
        """True if a command can have a dword 4; Linux has no field for it."""

    @property
    def reports_events(self) -> bool:
        """True if asynchronous events can be received."""

    def submit(self, request: Request, timeout: float) -> PendingCommand:
        """Start one command, which may take `timeout` seconds.

        `request` moves no more than `max_transfer` bytes; its `data_out` is copied. Waits first
        if `queue_depth` commands are in flight.
        """

    def await_event(self, timeout: float) -> int | None:
        """Dword 0 of the next asynchronous event; None when none has come after `timeout` seconds.
        Raises the errors of commands. Only if `reports_events`."""

    def reset(self) -> None:
        """Reset the controller and make it ready again."""

    def close(self) -> None:
        """Release what was opened; a second call does nothing."""
