"""A host for tests: memory, queues and doorbells, with nothing in between but the board.

Everything happens when the test says so: the firmware runs in `service`, the media executor does a
piece of work in `executor.run_next`, and the APU is whatever the test puts at the mailbox's end.
Entries are written and read with `struct` and literal offsets, apart from the
code under test.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, cast

from potash_device.board import Board
from potash_device.controller.cmb import CmbSettings
from potash_device.media.drive import Drive
from potash_device.media.executor import MediaExecutor
from potash_device.media.flash import FLASH_SIZE, Flash
from potash_device.media.shapes import NamespaceShape, first_memories
from potash_device.media.sidecar import SIDECAR_SIZE, Sidecar
from potash_device.media.store import Media, MemoryMedia
from potash_device.pcie.config_space import PciIdentity
from potash_device.pcie.peers import Peers
from potash_device.settings import BoardSettings
from potash_device.storage import Storage
from potash_device.trace import Trace
from potash_firmware.mailbox import ApuPort, ArenaPlan, SharedBuffers, pair
from potash_firmware.rpu.compute.engine import ProgramEngine
from potash_firmware.rpu.loop import Rpu
from potash_firmware.rpu.settings import RpuSettings
from pyvfio_user.dma_messages import DmaMessages
from pyvfio_user.irqs import InterruptLines
from pyvfio_user.memory import AddressSpace
from pyvfio_user.sealed_memory import SealedMemory
from support.messages import LocalMessages

BAR0 = 0
BAR2 = 2
BAR4 = 4
CONFIG = 7
MSIX = 2

CC = 0x14
CSTS = 0x1C
NSSR = 0x20
AQA = 0x24
ASQ = 0x28
ACQ = 0x30
CMBMSC = 0x50
DOORBELLS = 0x1000

MEMORY = 4 << 20
PAGE = 4096

ADMIN_SQ = 0x10_0000
ADMIN_CQ = 0x10_4000
IO_QUEUES = 0x12_0000
DATA = 0x20_0000


class Cqe(NamedTuple):
    """A completion as it lies in memory."""

    dw0: int
    sqhd: int
    sqid: int
    cid: int
    status: int
    dnr: bool
    dw1: int = 0


class SteppedExecutor:
    """A media executor whose work is done when the test says so, in the order it chooses."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._finished: deque[Future[Any]] = deque()

    def submit(self, call: Callable[[], Any], *, flushes: bool = False) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, call))
        return future

    def run_next(self, index: int = 0) -> None:
        """Do one piece of work."""
        future, call = self.waiting[index]
        del self.waiting[index]
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(call())
        except OSError as error:
            future.set_exception(error)
        except BaseException as error:
            # A mistake, which the test is to see; nobody shall wait for the work's end meanwhile.
            future.set_exception(error)
            raise
        finally:
            self._finished.append(future)

    def run_all(self) -> None:
        while self.waiting:
            self.run_next()

    def finished(self) -> Iterator[Future[Any]]:
        while self._finished:
            yield self._finished.popleft()


class SlowMedia(MemoryMedia):
    """Memory that always has to be waited for, so that everything passes the executor."""

    def read_at_once(self, views: object, offset: int) -> bool:
        return False

    def write_at_once(self, views: object, offset: int) -> bool:
        return False


class Lines:
    """Interrupt lines that remember what they were told; deaf until `listening`."""

    def __init__(self) -> None:
        self.listening = True
        self.fired: list[int] = []

    def trigger(self, index: int, vector: int) -> bool:
        assert index == MSIX
        if self.listening:
            self.fired.append(vector)
        return self.listening


class Queue:
    """One queue pair as a host keeps it."""

    def __init__(self, qid: int, sq: int, cq: int, size: int) -> None:
        self.qid = qid
        self.sq = sq
        self.cq = cq
        self.size = size
        self.tail = 0
        self.head = 0
        self.phase = 1


class Host:
    """A board with firmware, and this end's memory and queues. A context manager."""

    def __init__(
        self,
        media: Mapping[int, Media] | None = None,
        settings: RpuSettings | None = None,
        queue_pairs: int = 4,
        executor: Any = None,
        sidecar: Media | None = None,
        memory: int = MEMORY,
        drive: Drive | None = None,
        identity: PciIdentity | None = None,
        engine: ProgramEngine | None = None,
        cmb: CmbSettings | None = None,
        memory_bar: int = 0,
        *,
        by_messages: bool = False,
        map_doorbells: bool = False,
        peers: Peers | None = None,
        window: int = 0,
        shapes: Mapping[int, NamespaceShape] | None = None,
        controllers: int = 1,
    ) -> None:
        """`shapes` are those of namespaces that are not plain blocks. `memory_bar` is the identifier
        of a memory namespace of `drive` that is in BAR 4. Memory is reached `by_messages` where it
        is not mapped. With `window` it is in windows of so many bytes. The subsystem has so many
        `controllers`; `support.controllers` has the hosts of the others."""
        if drive is not None:
            media, sidecar = drive.namespaces, drive.sidecar
        self.memory = SealedMemory(memory)
        self.messages = LocalMessages(self.memory.view)
        self.space = AddressSpace(messages=cast(DmaMessages, self.messages))
        fd = None if by_messages else self.memory.fd
        for at in range(0, memory, window or memory):
            size = min(window or memory, memory - at)
            self.space.map(at, size, fd=fd, offset=at, readable=True, writable=True)
        self.lines = Lines()
        self.executor = SteppedExecutor() if executor is None else executor
        self.media: dict[int, Media] = {}
        self.media |= {1: MemoryMedia.create(1 << 20)} if media is None else media
        self.sidecar = Sidecar(MemoryMedia.create(SIDECAR_SIZE) if sidecar is None else sidecar)
        self.sidecar.load()
        self.flash = Flash(MemoryMedia.create(FLASH_SIZE), self.sidecar)
        self.buffers = SharedBuffers.create({0: ArenaPlan(1 << 20, 1 << 20, 4096, 4096)})
        self.now = 0.0
        self.css = 0
        """CC.CSS from the next enable on: 0 is the NVM command set, 6 all that there are."""
        self.apu: ApuPort | None = None
        drive = drive or Drive.around(self.media, shapes)
        self.board = Board(
            BoardSettings(
                identity or PciIdentity(),
                queue_pairs,
                cmb=cmb,
                map_doorbells=map_doorbells,
                peers=peers,
                memory_bar=drive.shapes[memory_bar].size if memory_bar else 0,
            ),
            Storage(
                self.media, self.flash, cast(MediaExecutor, self.executor), self.sidecar, drive
            ),
        )
        self.boards = [self.board]
        bars = first_memories(drive.shapes, controllers) if memory_bar else {}
        for number in range(1, controllers):
            settings_of_others = BoardSettings(
                identity or PciIdentity(), queue_pairs, memory_bar=bars.get(number, 0)
            )
            self.boards.append(Board(settings_of_others, self.board.storage, Trace()))
        self.rpu = Rpu(
            self.boards,
            RpuSettings() if settings is None else settings,
            self.buffers,
            clock=lambda: self.now,
            engine=engine,
        )
        self.link = self.rpu.controller.apu
        self.rpu.power_on()
        self.board.attached(self.space, cast(InterruptLines, self.lines))
        self.admin = Queue(0, ADMIN_SQ, ADMIN_CQ, 16)
        self.io: dict[int, Queue] = {}
        self.cmb_at: int | None = None
        """Where commands name the controller memory buffer, once `place_cmb` has said it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.board.detached()
        if self.apu is not None:
            self.apu.close()
        self.link.disconnect()
        self.rpu.subsystem.inventory.close()
        if isinstance(self.executor, SteppedExecutor):
            self.executor.waiting.clear()
        self.buffers.close()
        for media in (*self.media.values(), self.flash.media, self.sidecar.media):
            media.close()
        self.space.unmap_all()
        self.memory.close()

    def connect_apu(self) -> ApuPort:
        """Put the test at the APU's end of a mailbox."""
        rpu_port, apu_port = pair()
        self.rpu.apu_started(rpu_port)
        self.apu = apu_port
        return apu_port

    # Registers.

    def write32(self, offset: int, value: int) -> None:
        self.board.region_write(BAR0, offset, struct.pack("<I", value))

    def write64(self, offset: int, value: int) -> None:
        self.board.region_write(BAR0, offset, struct.pack("<Q", value))

    def read32(self, offset: int) -> int:
        return int(struct.unpack("<I", self.board.region_read(BAR0, offset, 4))[0])

    @property
    def ready(self) -> bool:
        return bool(self.read32(CSTS) & 1)

    @property
    def fatal(self) -> bool:
        return bool(self.read32(CSTS) & 2)

    @property
    def sleeps(self) -> bool:
        """The firmware has nothing to do for a second, after which only counters are recorded."""
        timeout = self.rpu.timeout
        return timeout is None or timeout >= 1.0

    @property
    def deadline(self) -> int | None:
        """The earliest deadline of commands and operations, in nanoseconds of guest time."""
        heap = self.rpu.controller.deadlines.heap
        return min((due for due, _, waiter in heap if not waiter.over), default=None)

    def goes_on(self) -> bool:
        """The drive has something to do: on the media, or once a time has come, which comes now."""
        if isinstance(self.executor, SteppedExecutor) and self.executor.waiting:
            return True
        deadline = self.deadline
        if deadline is None:
            return False
        self.now = max(self.now, deadline / 1e9) + 1e-6
        self.service()
        return True

    def service(self) -> None:
        """Run the firmware until it has nothing more to do by itself."""
        for _ in range(1000):
            if not self.rpu.service():
                return
        raise AssertionError("the firmware never comes to rest")

    def master(self, allowed: bool = True) -> None:
        """Let the function answer, and reach memory or not: the Command register."""
        self.board.region_write(CONFIG, 4, struct.pack("<H", 2 | allowed << 2))

    # The controller's life.

    def begin_enable(self) -> None:
        """Set the admin queues up and CC.EN; RDY follows with the firmware."""
        self.admin = Queue(0, ADMIN_SQ, ADMIN_CQ, 16)
        self.io.clear()
        self.clear(ADMIN_CQ, 16 * 16)
        self.master()
        self.write32(AQA, 15 << 16 | 15)
        self.write64(ASQ, ADMIN_SQ)
        self.write64(ACQ, ADMIN_CQ)
        self.write32(CC, 4 << 20 | 6 << 16 | self.css << 4 | 1)

    def enable(self) -> None:
        self.begin_enable()
        self.service()
        assert self.ready

    def disable(self) -> None:
        self.write32(CC, 4 << 20 | 6 << 16)
        self.service()

    def clear(self, address: int, size: int) -> None:
        self.put(bytes(size), address)

    def place_cmb(self, address: int) -> None:
        """Have commands name the controller memory buffer by addresses from `address` on."""
        self.write64(CMBMSC, address | 3)
        self.cmb_at = address

    # Commands.

    def place(
        self,
        queue: Queue,
        opcode: int,
        cid: int,
        *,
        nsid: int = 0,
        prp1: int = DATA,
        prp2: int = 0,
        cdws: tuple[int, ...] = (),
        flags: int = 0,
        first: tuple[int, ...] = (),
    ) -> None:
        """Write an entry at the tail; `ring` tells the controller.

        `cdws` are command dwords from 10 on, `first` those from 2 on.
        """
        head = (opcode, flags, cid, nsid, *first, *(0,) * (4 - len(first)))
        dwords = (*cdws, *(0,) * (6 - len(cdws)))
        entry = struct.pack("<BBHI4IQQ6I", *head, prp1, prp2, *dwords)
        self.put(entry, queue.sq + queue.tail * 64)
        queue.tail = (queue.tail + 1) % queue.size

    def ring(self, queue: Queue) -> None:
        self.write32(DOORBELLS + 8 * queue.qid, queue.tail)

    def reap(self, queue: Queue, *, ring: bool = True) -> list[Cqe]:
        """Take every completion that is there."""
        found: list[Cqe] = []
        while True:
            at = queue.cq + queue.head * 16
            dw0, dw1, sqhd, sqid, cid, word = struct.unpack("<IIHHHH", self.data(16, at))
            if word & 1 != queue.phase:
                break
            found.append(Cqe(dw0, sqhd, sqid, cid, word >> 1 & 0x7FF, bool(word >> 15), dw1))
            queue.head += 1
            if queue.head == queue.size:
                queue.head = 0
                queue.phase ^= 1
        if found and ring:
            self.write32(DOORBELLS + 8 * queue.qid + 4, queue.head)
        return found

    def command(self, queue: Queue, opcode: int, cid: int = 1, **fields: Any) -> Cqe:
        """One command from entry to completion; the media does all that it is asked."""
        self.place(queue, opcode, cid, **fields)
        self.ring(queue)
        self.service()
        while isinstance(self.executor, SteppedExecutor) and self.goes_on():
            self.executor.run_all()
            self.service()
        self.service()
        (completion,) = self.reap(queue)
        assert completion.cid == cid
        return completion

    def create_io_queue(
        self, qid: int = 1, size: int = 16, vector: int | None = None, base: int | None = None
    ) -> Queue:
        """Make a completion and a submission queue of the same identifier, one behind the other."""
        if base is None:
            base = IO_QUEUES + (qid - 1) * 0x2_0000
        queue = Queue(qid, base, base + max(0x1_0000, size * 64), size)
        self.clear(queue.cq, size * 16)
        iv = qid if vector is None else vector
        size_z = (size - 1) << 16
        created = self.command(
            self.admin, 0x05, 0x501, prp1=queue.cq, cdws=(size_z | qid, iv << 16 | 3)
        )
        assert created.status == 0, hex(created.status)
        created = self.command(
            self.admin, 0x01, 0x101, prp1=queue.sq, cdws=(size_z | qid, qid << 16 | 1)
        )
        assert created.status == 0, hex(created.status)
        self.io[qid] = queue
        return queue

    def data(self, size: int, address: int = DATA) -> bytes:
        """What is in memory; the controller memory buffer is read through its BAR."""
        if self.cmb_at is not None and address >= self.cmb_at:
            return self.board.region_read(BAR2, address - self.cmb_at, size)
        return bytes(self.memory.view[address : address + size])

    def put(self, content: bytes, address: int = DATA) -> None:
        if self.cmb_at is not None and address >= self.cmb_at:
            self.board.region_write(BAR2, address - self.cmb_at, content)
        else:
            self.memory.view[address : address + len(content)] = content
