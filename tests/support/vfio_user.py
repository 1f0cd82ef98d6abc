"""A recording device, a client that may say anything, and a server on a thread of its own."""

from __future__ import annotations

import array
import gc
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from pyvfio_user import descriptors
from pyvfio_user.device import Region
from pyvfio_user.irqs import InterruptLines, Irq
from pyvfio_user.memory import AddressSpace
from pyvfio_user.protocol import IrqFlags, PciIrq, PciRegion
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server

VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO = 1, 2, 3, 4, 5
GET_REGION_IO_FDS, GET_IRQ_INFO, SET_IRQS, REGION_READ, REGION_WRITE = 6, 7, 8, 9, 10
DMA_READ, DMA_WRITE, DEVICE_RESET, REGION_WRITE_MULTI, DEVICE_FEATURE = 11, 12, 13, 15, 16
MIG_DATA_READ, MIG_DATA_WRITE = 17, 18
NO_REPLY = 0x10
"""Numbers of vfio-user.rst, sections "Commands" and "Header", written out again."""

QEMU_VERSION = (
    struct.pack("<HH", 0, 0)
    + b'{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535,'
    b' "max_data_xfer_size": 1048576, "migration": {"max_bitmap_size": 268435456,'
    b' "pgsize": 4096}, "write_multiple": true}}\0'
)
"""What QEMU 11.1 proposes."""


def header(message_id: int, command: int, payload: int, flags: int = 0, error: int = 0) -> bytes:
    """A header for `payload` bytes of payload."""
    return struct.pack("<HHIII", message_id, command, 16 + payload, flags, error)


def command(number: int, payload: bytes = b"", *, message_id: int = 7, flags: int = 0) -> bytes:
    """A whole command message."""
    return header(message_id, number, len(payload), flags) + payload


def region_read(offset: int, count: int, region: int = 0) -> bytes:
    """A whole REGION_READ."""
    return command(REGION_READ, struct.pack("<QII", offset, region, count))


def region_write(offset: int, data: bytes, *, region: int = 0, flags: int = 0) -> bytes:
    """A whole REGION_WRITE."""
    return command(REGION_WRITE, struct.pack("<QII", offset, region, len(data)) + data, flags=flags)


def dma_map(address: int, size: int, *, flags: int = 3, offset: int = 0) -> bytes:
    """A whole DMA_MAP."""
    return command(DMA_MAP, struct.pack("<IIQQQ", 32, flags, offset, address, size))


def set_irqs(flags: int, index: int, start: int, count: int, data: bytes = b"") -> bytes:
    """A whole DEVICE_SET_IRQS."""
    return command(
        SET_IRQS, struct.pack("<IIIII", 20 + len(data), flags, index, start, count) + data
    )


class Recorder:
    """A device that writes down what it is told, and answers reads with its regions' bytes."""

    pci = True

    def __init__(
        self, regions: Mapping[int, Region] | None = None, irqs: Mapping[int, Irq] | None = None
    ) -> None:
        self.regions: Mapping[int, Region] = regions or {
            PciRegion.BAR0: Region(0x4000),
            PciRegion.BAR2: Region(0x1000, writable=False),
            PciRegion.CONFIG: Region(0x1000),
        }
        self.irqs: Mapping[int, Irq] = irqs or {
            PciIrq.INTX: Irq(1, IrqFlags.EVENTFD | IrqFlags.MASKABLE | IrqFlags.AUTOMASKED),
            PciIrq.MSIX: Irq(16, IrqFlags.EVENTFD | IrqFlags.NORESIZE),
            PciIrq.ERR: Irq(1),
        }
        self.bytes = {index: bytearray(region.size) for index, region in self.regions.items()}
        self.calls: list[tuple[object, ...]] = []
        self.memory: AddressSpace | None = None
        self.lines: InterruptLines | None = None
        self.fail: OSError | None = None
        """Raised by the next access, reset or change."""
        self.on_memory_changed: Callable[[], None] = lambda: None

    def _called(self, *call: object) -> None:
        self.calls.append(call)
        if self.fail is not None:
            failure, self.fail = self.fail, None
            raise failure

    def attached(self, memory: AddressSpace, lines: InterruptLines) -> None:
        self.memory, self.lines = memory, lines
        self._called("attached")

    def detached(self) -> None:
        self.calls.append(("detached",))

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        self._called("read", region, offset, count)
        return bytes(self.bytes[region][offset : offset + count])

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        self._called("write", region, offset, data)
        self.bytes[region][offset : offset + len(data)] = data

    def reset(self) -> None:
        self._called("reset")

    def memory_changed(self) -> None:
        self._called("memory_changed")
        self.on_memory_changed()

    def irqs_changed(self, index: int) -> None:
        self._called("irqs_changed", index)


class Reply(NamedTuple):
    """A reply as it came: everything of its header, and its payload."""

    message_id: int
    command: int
    flags: int
    error: int
    payload: bytes

    @property
    def failed(self) -> bool:
        return self.flags == 0x21


class RawClient:
    """A client that sends whatever bytes and descriptors it is told to, without ever waiting.

    The server is stepped by hand, in the same thread.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(server.path)
        self.socket.setblocking(False)
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Put bytes into the socket, all of them."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        assert self.socket.sendmsg([data], ancillary) == len(data)

    def pump(self) -> None:
        """Let the server do all that it can."""
        while self.server.step():
            pass

    def replies(self) -> list[Reply]:
        """What has come since the last call; the last piece must be whole."""
        while True:
            try:
                piece = self.socket.recv(1 << 20)
            except (BlockingIOError, ConnectionResetError):
                break
            if not piece:
                break
            self._received += piece
        found = []
        while self._received:
            message_id, number, size, flags, error = struct.unpack_from("<HHIII", self._received)
            assert len(self._received) >= size, "a reply came in part"
            found.append(Reply(message_id, number, flags, error, bytes(self._received[16:size])))
            del self._received[:size]
        return found

    def discard(self) -> None:
        """Throw away what has come, be it in parts."""
        self._received.clear()
        try:
            while self.socket.recv(1 << 20):
                pass
        except (BlockingIOError, ConnectionResetError):
            pass

    def ask(self, data: bytes, fds: Sequence[int] = ()) -> Reply:
        """Send one command and return its one reply."""
        self.send(data, fds)
        self.pump()
        (reply,) = self.replies()
        return reply

    def ask_fds(self, data: bytes) -> tuple[Reply, list[int]]:
        """Send one command; its one reply, and the descriptors that came with its first byte."""
        self.send(data)
        self.pump()
        first, fds, flags, _ = socket.recv_fds(self.socket, 1, 64, socket.MSG_CMSG_CLOEXEC)
        assert not flags & socket.MSG_CTRUNC
        self._received += first
        (reply,) = self.replies()
        return reply, fds

    def negotiate(self) -> Reply:
        """Begin as QEMU does."""
        return self.ask(command(VERSION, QEMU_VERSION))

    @property
    def disconnected(self) -> bool:
        """Whether the server has ended the connection, and nothing is left to read."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True


@contextmanager
def negotiated(server: Server) -> Iterator[RawClient]:
    """A client that has negotiated its version."""
    with RawClient(server) as client:
        assert not client.negotiate().failed
        yield client


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Step `server` on a thread, for a client that waits for its replies."""
    stop = os.eventfd(0, os.EFD_CLOEXEC)

    def loop() -> None:
        while True:
            readers: list[Server | int] = [server, stop]
            writers = [server] if server.wants_write() else []
            ready, _, _ = select.select(readers, writers, [])
            if stop in ready:
                return
            while server.step():
                pass

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield server
    finally:
        os.eventfd_write(stop, 1)
        thread.join()
        os.close(stop)


def open_descriptors() -> dict[int, str]:
    """This process's file descriptors and what they are, but for the one that looks."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass
    return found


def mappings_of(memory: SealedMemory) -> int:
    """How often this process has a file mapped."""
    inode = os.fstat(memory.fd).st_ino
    with open("/proc/self/maps") as maps:
        return sum(line.split()[4] == str(inode) and "memfd" in line for line in maps)


def leaked(before: Mapping[int, str]) -> dict[int, str]:
    """The file descriptors that were not open before and are no garbage.

    Those of other kinds than a client has reason to send are closed in a thread, which gets a
    moment.
    """
    if open_descriptors().items() <= before.items():
        return {}
    gc.collect()
    for thread in tuple(descriptors._closing):
        thread.join(1.0)
    return dict(open_descriptors().items() - before.items())


def eventfd_value(fd: int) -> int:
    """How often a non-blocking eventfd was signalled since it was last asked."""
    try:
        return os.eventfd_read(fd)
    except BlockingIOError:
        return 0


def socket_path(folder: Path) -> Path:
    """A short path: a UNIX socket's has at most 107 bytes."""
    path = folder / "s"
    assert len(os.fsencode(path)) < 108
    return path
