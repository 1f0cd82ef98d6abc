"""The interface between server and device: regions, interrupts and callbacks.

A device knows no sockets and no messages. It answers accesses to its regions, uses the client's
memory through an `AddressSpace`, and interrupts through `InterruptLines`.
"""

import os
from collections.abc import Callable, Mapping
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
    """The result of a callback whose reply waits until the device calls `finish`.

    Meanwhile the client's other messages are answered. If the client disconnects first, `finish`
    has no effect.
    """

    def __init__(self) -> None:
        self._outcome: int | None = None
        self._listener: Callable[[int], None] | None = None

    def finish(self, error: int = 0) -> None:
        """Report that the request is done, or has failed with the errno `error`; only the first
        call counts."""
        if self._outcome is None:
            self._outcome = error
            if self._listener is not None:
                self._listener(error)

    def then(self, listener: Callable[[int], None]) -> None:
        """Have `listener` called with the errno (0 for success), immediately if it is known."""
        self._listener = listener
        if self._outcome is not None:
            listener(self._outcome)


class Device(Protocol):
    """The callbacks of a device, all of which the server calls inside `Server.step`.

    Nothing is called before `attached` nor after `detached`. A callback that raises OSError makes
    the reply an error with its errno (and EIO where it has none); any other exception is the
    device's own mistake and leaves `Server.step`. No callback may block: while it runs, the client
    waits, and a virtual machine with it.

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

    def reset(self) -> Pending | None:
        """Reset the device, as DEVICE_RESET asks; memory and interrupt lines stay."""

    def memory_changed(self) -> Pending | None:
        """The client has mapped or unmapped memory and waits for the reply.

        Drop the views of what is no longer mapped before returning: the client may give that
        memory to something else once it has the reply. An OSError from here, or one that `Pending`
        is finished with, refuses a window that was mapped, which is unmapped again: keep no view of
        it. What was unmapped stays so.
        Who has work under way in that memory which cannot be recalled returns `Pending`, and keeps
        only the views of that work.
        """

    def irqs_changed(self, index: int) -> None:
        """The client has enabled, disabled or unmasked interrupts of the kind `index`.

        What the device holds back for want of an eventfd may go out now.
        """
