"""How commands reach a device: the one thing that the SDK asks of a transport.

Two are here: the kernel's driver through ioctl (`potash.sdk.ioctl`) and a driver in this process
that speaks vfio-user (`potash.sdk.vfio_user`). A test brings its own.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from potash.sdk.errors import InvalidRequest

Buffer = bytes | bytearray | memoryview
Cdws = tuple[int, int, int, int, int, int]
"""Command dwords 10 to 15."""

NO_CDWS: Cdws = (0, 0, 0, 0, 0, 0)


class Layout(Protocol):
    """What a command carries in its dwords, as `nvme_spec.commands` and `csd_spec.fields` have it."""

    def encode(self) -> Cdws: ...


def encoded(layout: Layout) -> Cdws:
    """A layout's dwords. Raises InvalidRequest for a value that does not fit."""
    try:
        return layout.encode()
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


class Request(NamedTuple):
    """One command. Data goes out (`data_out`) or comes in (`data_in_length` bytes), never both."""

    admin: bool
    opcode: int
    nsid: int = 0
    cdws: Cdws = NO_CDWS
    data_out: Buffer | None = None
    data_in_length: int = 0


class Completion(NamedTuple):
    """A command that succeeded: dword 0 of its completion and the data that came in."""

    result: int
    data: bytes = b""


class Transport(Protocol):
    """An open way to one controller."""

    @property
    def max_transfer(self) -> int:
        """The most bytes that one command can move here; the controller's own limit is apart."""

    @property
    def nsid(self) -> int | None:
        """The namespace that was opened; None when it was the controller."""

    @property
    def block_device(self) -> int | None:
        """The number (`st_rdev`) of the block device that was opened; None when it was none."""

    @property
    def tells_events(self) -> bool:
        """Whether asynchronous events come this way."""

    def submit(self, request: Request, timeout: float) -> Completion:
        """Carry out one command and wait for it, at most `timeout` seconds.

        Raises CommandFailed for an error status, CommandTimeout, and DeviceGone when the device
        is lost; `request` moves no more than `max_transfer` bytes.
        """

    def await_event(self, timeout: float) -> int | None:
        """Dword 0 of the next asynchronous event; None when none has come after `timeout` seconds.

        Raises as `submit` does. Only where `tells_events`.
        """

    def reset(self) -> None:
        """Reset the controller and make it ready again."""

    def close(self) -> None:
        """Release what was opened; a second call does nothing."""
