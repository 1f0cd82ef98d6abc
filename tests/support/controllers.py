"""Hosts of the controllers of one NVM subsystem, each with memory and queues of its own."""

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from potash_device.board import Board
from pyvfio_user.irqs import InterruptLines
from pyvfio_user.memory import AddressSpace
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support import vfio_user as wire
from support.nvme_host import (
    ADMIN_CQ,
    ADMIN_SQ,
    BAR2,
    CONFIG,
    CSTS,
    DOORBELLS,
    MEMORY,
    PAGE,
    Cqe,
    Host,
    Lines,
    Queue,
)


class OtherHost(Host):
    """The host of a further controller of a drive."""

    def __init__(self, first: Host, board: Board) -> None:
        self.first = first
        self.board, self.rpu, self.executor = board, first.rpu, first.executor
        self.memory = SealedMemory(MEMORY)
        self.space = AddressSpace()
        self.space.map(0, MEMORY, fd=self.memory.fd, offset=0, readable=True, writable=True)
        self.lines = Lines()
        self.css = first.css
        self.cmb_at = None
        self.admin = Queue(0, ADMIN_SQ, ADMIN_CQ, 16)
        self.io = {}
        board.attached(self.space, cast(InterruptLines, self.lines))

    @property
    def now(self) -> float:
        return self.first.now

    @now.setter
    def now(self, now: float) -> None:
        self.first.now = now

    def __exit__(self, *_: object) -> None:
        self.board.detached()
        self.space.unmap_all()
        self.memory.close()


@contextmanager
def controllers(count: int, **settings: Any) -> Iterator[list[Host]]:
    """A drive with so many controllers, and the host of each, which has enabled it."""
    with Host(controllers=count, **settings) as first:
        hosts: list[Host] = [first, *(OtherHost(first, board) for board in first.boards[1:])]
        for host in hosts:
            host.css = 6
            host.enable()
        yield hosts
        for host in hosts[1:]:
            host.__exit__()


class WireHost(Host):
    """An honest host of a running device, at the socket of one of its controllers. `step` has the
    device make a pass; no answer takes more than `PATIENCE` of them."""

    PATIENCE = 20_000

    def __init__(self, server: Server, step: Callable[[], object]) -> None:
        self._step = step
        self.client = wire.RawClient(server)
        self.memory = SealedMemory(MEMORY)
        self.css, self.cmb_at, self.executor = 6, None, None
        self.admin, self.io = Queue(0, ADMIN_SQ, ADMIN_CQ, 16), {}
        self.ask(wire.command(wire.VERSION, wire.QEMU_VERSION))
        self.ask(wire.dma_map(0, MEMORY), (self.memory.fd,))

    def __exit__(self, *_: object) -> None:
        self.client.__exit__()
        self.memory.close()

    def ask(self, frame: bytes, fds: Sequence[int] = ()) -> bytes:
        """One message and the payload of its reply."""
        self.client.send(frame, fds)
        for _ in range(self.PATIENCE):
            self._step()
            for reply in self.client.replies():
                assert not reply.failed, reply
                return reply.payload
        raise AssertionError("the device does not answer")

    def write32(self, offset: int, value: int) -> None:
        self.ask(wire.region_write(offset, struct.pack("<I", value)))

    def write64(self, offset: int, value: int) -> None:
        self.ask(wire.region_write(offset, struct.pack("<Q", value)))

    def read32(self, offset: int) -> int:
        return int(struct.unpack_from("<I", self.ask(wire.region_read(offset, 4)), 16)[0])

    def master(self, allowed: bool = True) -> None:
        self.ask(wire.region_write(4, struct.pack("<H", 2 | allowed << 2), region=CONFIG))

    def service(self) -> None:
        for _ in range(self.PATIENCE):
            if self.ready:
                return

    def command(self, queue: Queue, opcode: int, cid: int = 1, **fields: Any) -> Cqe:
        self.place(queue, opcode, cid, **fields)
        self.ring(queue)
        for _ in range(self.PATIENCE):
            for completion in self.reap(queue):
                if completion.cid == cid:
                    return completion
            self._step()
        raise AssertionError(f"command {opcode:#x} is never completed")


class Neighbour(WireHost):
    """A host that uses a namespace of its own while another client attacks the drive.

    One command is under way whenever the device runs: `begin` submits it, and `poll`, after each
    pass, takes its completion, which is never more than `PASSES` late.
    """

    PASSES = 200

    def __init__(self, server: Server, step: Callable[[], object], nsid: int) -> None:
        super().__init__(server, step)
        self.nsid, self.rng = nsid, random.Random(nsid)
        self.secret = self.rng.randbytes(16)
        self.contents: dict[int, bytes] = {}
        self.under_way: tuple[int, int, bytes] | None = None
        """Opcode, block and content of the command whose completion is awaited."""
        self.completed = self.resets = self.slowest = self.passes = 0
        self.start()

    def start(self) -> None:
        """Begin a session, with secrets in the features and in the controller memory buffer."""
        self.under_way = None
        self.enable()
        self.put(self.secret)
        assert self.command(self.admin, 0x09, cdws=(0x81, 1)).status == 0
        self.ask(wire.region_write(0, self.secret, region=BAR2))
        self.create_io_queue()

    def content(self) -> bytes:
        """A block that has the secret at the beginning and differs from all others."""
        return (self.secret + self.rng.randbytes(16)) * (PAGE // 32)

    def begin(self) -> None:
        """Submit a write of new content, or a read of what was written."""
        if self.under_way is not None:
            return
        lba = self.rng.randrange(64)
        writes = lba not in self.contents or self.rng.random() < 0.5
        content = self.content() if writes else self.contents[lba]
        self.put(content if writes else bytes(PAGE))
        queue = self.io[1]
        self.place(queue, 0x01 if writes else 0x02, 7, nsid=self.nsid, cdws=(lba,))
        self.post(DOORBELLS + 8, queue.tail)
        self.under_way, self.passes = (0x01 if writes else 0x02, lba, content), 0

    def post(self, offset: int, value: int) -> None:
        """Write a register without waiting for a reply."""
        frame = wire.region_write(offset, struct.pack("<I", value), flags=wire.NO_REPLY)
        self.client.send(frame)

    def poll(self) -> None:
        """A pass is over."""
        if self.under_way is None:
            return
        self.passes += 1
        opcode, lba, content = self.under_way
        for completion in self.reap(self.io[1], ring=False):
            assert (completion.cid, completion.status) == (7, 0), completion
            if opcode == 0x02:
                assert self.data(PAGE) == content, f"block {lba} has other content"
            self.contents[lba] = content
            self.completed += 1
            self.slowest = max(self.slowest, self.passes)
            self.under_way = None
            self.post(DOORBELLS + 12, self.io[1].head)
            return
        if self.passes > self.PASSES:
            self.under_way = None  # and what was written is not known
            self.contents.pop(lba, None)
            self.recover()

    def recover(self) -> None:
        """Begin anew after an NVM subsystem reset, which the other host may ask for."""
        assert self.read32(CSTS) & 0x11 == 0x10, "no completion, though nothing was reset"
        self.resets += 1
        self.start()

    def check(self) -> None:
        """Its events, its buffer and its identity are what they should be."""
        if self.read32(CSTS) & 1 == 0:
            self.recover()
        assert self.ask(wire.region_read(0, 16, region=BAR2))[16:] == self.secret
        self.place(self.admin, 0x0C, 0x99)
        self.ring(self.admin)
        self.write32(DOORBELLS + 8 * 3, 1)  # of a queue that is not there
        for _ in range(self.PATIENCE):
            self._step()
            if any(each.cid == 0x99 and each.dw0 & 7 == 0 for each in self.reap(self.admin)):
                break
        else:
            raise AssertionError("the event never comes")
        assert self.command(self.admin, 0x02, cdws=(15 << 16 | 1,)).status == 0
        assert self.command(self.admin, 0x0A, cdws=(0x81, 1)).status == 0
        assert self.data(16) == self.secret


def active(host: Host) -> list[int]:
    """The active namespaces (CNS 02h)."""
    assert host.command(host.admin, 0x06, cdws=(2,)).status == 0
    return [nsid for nsid in struct.unpack("<1024I", host.data(PAGE)) if nsid]


def attach(host: Host, *identifiers: int, nsid: int = 1, sel: int = 0) -> int:
    """Namespace Attachment with a controller list; the status."""
    host.put(
        struct.pack(f"<H{len(identifiers)}H", len(identifiers), *identifiers).ljust(PAGE, b"\0")
    )
    return host.command(host.admin, 0x15, nsid=nsid, cdws=(sel,)).status


def queues(hosts: list[Host]) -> list[Queue]:
    return [host.create_io_queue(1) for host in hosts]


def write(host: Host, queue: Queue, content: bytes, lba: int = 0) -> int:
    host.put(content.ljust(PAGE, b"\0"))
    return host.command(queue, 0x01, nsid=1, cdws=(lba, 0, 0)).status


def read(host: Host, queue: Queue, lba: int = 0) -> bytes:
    host.put(bytes(PAGE))
    assert host.command(queue, 0x02, nsid=1, cdws=(lba, 0, 0)).status == 0
    return host.data(PAGE)


def changed(host: Host) -> list[int]:
    """The Changed Namespace List log page, which reading clears."""
    assert host.command(host.admin, 0x02, cdws=(1023 << 16 | 4,)).status == 0
    return [nsid for nsid in struct.unpack("<1024I", host.data(PAGE)) if nsid]


def watch(host: Host) -> None:
    """Have one event request wait."""
    host.place(host.admin, 0x0C, 0x99)
    host.ring(host.admin)
    host.service()


def end_media_work(host: Host) -> None:
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
