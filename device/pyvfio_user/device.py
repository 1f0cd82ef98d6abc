"""The interface between server and device: regions, interrupts and callbacks.

A device knows no sockets and no messages. It answers accesses to its regions, uses the client's
memory through an `AddressSpace`, and interrupts through `InterruptLines`.
"""

import errno
import os
import warnings
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from mmap import PAGESIZE
from typing import NamedTuple, Protocol

from pyvfio_user.irqs import InterruptLines, Irq
from pyvfio_user.memory import AddressSpace
from pyvfio_user.payloads import Area, RegionType


class IoEventFd(NamedTuple):
    """An eventfd that stands for writes of `size` bytes at `offset` of a region; 0: of any size.

    A client may have its hypervisor signal it instead of sending those writes; with `datamatch`,
    only those of that value. `pio` says that the region is one of I/O ports. The device waits for
    the eventfd itself, and handles the same write in a message too.
    """

    fd: int
    offset: int
    size: int
    datamatch: int | None = None
    pio: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """`size` bytes that a client reads and writes; for PCI a BAR, the ROM or the config space.

    With `fd` a client can map the region: the file's bytes from `fd_offset` on, all of them or only
    `areas`, in whole pages. It may do what the descriptor allows, without the device noticing, and
    still send messages. The file should be sealed against shrinking, for the client's sake. `fd`
    and those of `ioeventfds` are the device's, open as long as the server. Raises ValueError for
    what cannot be mapped, or is not in the region.
    """

    size: int
    readable: bool = True
    writable: bool = True
    fd: int | None = None
    fd_offset: int = 0
    areas: tuple[Area, ...] = ()
    ioeventfds: tuple[IoEventFd, ...] = ()
    type: RegionType | None = None
    """The purpose of a region behind those of PCI (`PciRegion`)."""

    def __post_init__(self) -> None:
        if self.areas and self.fd is None:
            raise ValueError("a region has areas to be mapped, and no file")
        if any(at % PAGESIZE for at in (self.fd_offset, *chain.from_iterable(self.areas))):
            raise ValueError("a region is mapped in whole pages only")
        parts: list[Area | IoEventFd] = [*self.areas, *self.ioeventfds]
        for part in parts:
            if min(part.offset, part.size) < 0 or part.offset + part.size > self.size:
                raise ValueError(f"{part} is not in a region of {self.size} bytes")
        for fd in (self.fd, *(one.fd for one in self.ioeventfds)):
            try:
                if fd is not None:
                    os.fstat(fd)
            except OSError:
                raise ValueError(f"{fd} is no open file descriptor") from None


class Pending:
    """An earlier form of the `Future` that a callback returns. Deprecated: return a `Future`."""

    def __init__(self) -> None:
        message = "pyvfio_user.Pending is deprecated: return a concurrent.futures.Future"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        self.future: Future[None] = Future()

    def finish(self, error: int = 0) -> None:
        """Report that the request is done, or has failed with the errno `error`; only the first
        call counts."""
        if not self.future.done():
            finish(self.future, error)

    def then(self, listener: Callable[[int], None]) -> None:
        """Have `listener` called with the errno (0 for success), immediately if it is known."""
        self.future.add_done_callback(lambda future: listener(failure_of(future)))


Operation = Future[None] | Pending
"""The result of a callback whose reply waits until the future has ended.

The device sets it in the thread that calls `Server.step`; an OSError as its exception makes the
reply an error. Meanwhile the client's other messages are answered. If the client disconnects first,
nothing happens.
"""

Waiting = Generator[Future[None], None, bytes]
"""A handler's course: it yields the operations that it waits for, and returns a payload."""


def wait_for(operation: Operation | None) -> Generator[Future[None], None, None]:
    """Yield the future of a callback's operation, unless the device has finished already."""
    if operation is not None:
        yield operation.future if isinstance(operation, Pending) else operation


def finish(operation: Future[None], error: int = 0) -> None:
    """Have the reply sent that waits for `operation`: an error where `error` is an errno."""
    if error:
        operation.set_exception(OSError(error, os.strerror(error)))
    else:
        operation.set_result(None)


def failure_of(operation: Future[None]) -> int:
    """The errno of an operation that has ended; 0 where it has succeeded."""
    if operation.cancelled():
        return errno.ECANCELED
    error = operation.exception()
    return 0 if error is None else getattr(error, "errno", None) or errno.EIO


class Device(Protocol):
    """The callbacks of a device, all of which the server calls inside `Server.step`.

    Nothing is called before `attached` nor after `detached`. A callback that raises OSError makes
    the reply an error with its errno (and EIO where it has none); any other exception is the
    device's own mistake and leaves `Server.step`, or is logged by the future that the reply waited
    for. No callback may block: while it runs, the client waits, and a virtual machine with it.

    A device that uses the client's memory outside of `Server.step`, as it should, may be called
    back from there where that memory is reached by messages: with accesses to its regions, changes
    of interrupts and of memory, but not with what stops it. An optional method of it,
    `stops_transfers(region, offset, data)`, returns whether a write does that (a function level
    reset, bus mastering switched off); without it, every write to a PCI device's configuration
    space counts as one.

    A device that can be migrated also has an attribute `migration` (`migration.Migration`).
    """

    @property
    def regions(self) -> Mapping[int, Region]:
        """Regions by index (`PciRegion` for a PCI device); what is missing has no bytes."""

    @property
    def irqs(self) -> Mapping[int, Irq]:
        """Kinds of interrupt by index (`PciIrq` for a PCI device)."""

    @property
    def pci(self) -> bool:
        """True if the indexes above are those of a PCI device."""

    def attached(self, memory: AddressSpace, lines: InterruptLines) -> None:
        """A client is there, with this memory and these interrupt lines until `detached`."""

    def detached(self) -> None:
        """The client is gone: its memory is unmapped already and its eventfds are closed.

        Drop every view of its memory here; the device's own state is the device's to keep.
        """

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        """The `count` bytes, at least one, at `offset`; they lie inside a readable region."""

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        """Write `data`, at least one byte, at `offset`; it is inside a writable region."""

    def reset(self) -> Operation | None:
        """Reset the device, as DEVICE_RESET asks; memory and interrupt lines stay."""

    def memory_changed(self) -> Operation | None:
        """The client has mapped or unmapped memory and waits for the reply.

        Drop the views of what is no longer mapped before returning: the client may give that
        memory to something else once it has the reply. An OSError, from here or in the future,
        refuses a window that was mapped, which is unmapped again: keep no view of it. What was
        unmapped stays so.
        Who has work under way in that memory which cannot be recalled returns a future, and keeps
        only the views of that work.
        """

    def irqs_changed(self, index: int) -> None:
        """The client has enabled, disabled or unmasked interrupts of the kind `index`.

        What the device holds back for want of an eventfd may go out now.
        """
