"""A PCI NVMe controller that a test plays: the least that a driver needs, with faults to order.

Offsets and bits are literals from the standards, apart from the driver's own tables. It runs on the
server's thread; a test looks at it when the driver waits for nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from pyvfio_user.device import Region
from pyvfio_user.irqs import InterruptLines, Irq
from pyvfio_user.memory import AddressSpace

BAR0, CONFIG, MSIX = 0, 7, 2
BAR_SIZE = 0x4000
PAGE = 4096

CAP, CC, CSTS, AQA, ASQ, ACQ = 0x00, 0x14, 0x1C, 0x24, 0x28, 0x30
RDY, CFS, SHUTDOWN_COMPLETE = 1, 2, 2 << 2

Sqe = tuple[int, ...]
SQE = struct.Struct("<BBHIIIQQQIIIIII")
OPCODE, CID, NSID, PRP1, PRP2, CDW10, CDW11, CDW12 = 0, 2, 3, 7, 8, 9, 10, 11


def config_space(*, class_code: int = 0x010802, msix_id: int = 0x11) -> bytearray:
    """A type 0 header with a 64-bit BAR 0 and two capabilities, at 50h and 40h."""
    space = bytearray(4096)
    struct.pack_into("<HH", space, 0, 0x1B96, 0x0010)
    space[0x06] = 0x10  # capabilities list
    space[0x09:0x0C] = class_code.to_bytes(3, "little")
    space[0x10] = 0x04  # 64-bit memory
    space[0x34] = 0x50
    struct.pack_into("<BB", space, 0x50, 0x01, 0x40)
    struct.pack_into("<BBHII", space, 0x40, msix_id, 0, 1, 0x2000, 0x3000)
    return space


class Ring:
    """The device's side of a queue pair."""

    def __init__(self, sq: int, cq: int, entries: int, vector: int) -> None:
        self.sq, self.cq, self.entries, self.vector = sq, cq, entries, vector
        self.head = self.tail = 0
        self.phase = 1


class PlayedController:
    """`silent` opcodes are never completed, `failing` ones end with the status given."""

    pci = True

    def __init__(self, config: bytearray | None = None, *, entries: int = 8, vectors: int = 2):
        self.regions: Mapping[int, Region] = {BAR0: Region(BAR_SIZE), CONFIG: Region(4096)}
        self.irqs: Mapping[int, Irq] = {MSIX: Irq(vectors)}
        self.config = config or config_space()
        self.bar_mask = ~(BAR_SIZE - 1) & (1 << 64) - 1
        self.cap = entries - 1 | 1 << 24 | 1 << 37  # MQES, TO of 500 ms, NVM command set
        self.never_ready = False
        self.fatal = False
        self.wrong_cid = False
        self.silent: set[int] = set()
        self.failing: dict[int, int] = {}
        self.entries_seen: list[Sqe] = []
        self.written: list[bytes] = []
        self.content = b""
        self.pieces: list[tuple[int, int]] = []
        self.log: list[tuple[str, int, int]] = []
        self.resets = 0
        self._registers = bytearray(0x1000)
        self._rings: dict[int, Ring] = {}
        self._completion_queues: dict[int, tuple[int, int]] = {}

    def attached(self, memory: AddressSpace, lines: InterruptLines) -> None:
        self.memory, self.lines = memory, lines

    def detached(self) -> None:
        self._rings.clear()
        self.log.append(("detached", 0, 0))

    def reset(self) -> None:
        self.resets += 1

    def memory_changed(self) -> None:
        pass

    def irqs_changed(self, index: int) -> None:
        pass

    def register(self, offset: int, width: int = 4) -> int:
        return int.from_bytes(self._registers[offset : offset + width], "little")

    def complete(self, qid: int, command: Sqe, result: int) -> None:
        """Complete a silent command, such as an event request."""
        self._complete(self._rings[qid], qid, command[CID], 0, result)

    def fail(self) -> None:
        """Report a fatal status from now on."""
        self._registers[CSTS] |= CFS

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        if region == CONFIG:
            return bytes(self.config[offset : offset + count])
        self._registers[CAP : CAP + 8] = self.cap.to_bytes(8, "little")
        return bytes(self._registers[offset : offset + count])

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        value = int.from_bytes(data, "little")
        self.log.append(("config" if region == CONFIG else "bar", offset, value))
        if region == CONFIG:
            if offset == 0x10:
                data = (value & self.bar_mask | 0x04).to_bytes(8, "little")
            self.config[offset : offset + len(data)] = data
        elif offset >= 0x1000:
            self._doorbell((offset - 0x1000) // 4, value)
        else:
            self._registers[offset : offset + len(data)] = data
            if offset == CC:
                self._configure(value)

    def _configure(self, cc: int) -> None:
        status = 0
        if cc & 1:
            status = CFS if self.fatal else 0 if self.never_ready else RDY
        if cc >> 14 & 3:
            status |= SHUTDOWN_COMPLETE
        elif cc & 1:
            aqa = self.register(AQA)
            entries = (aqa & 0xFFF) + 1
            self._rings = {0: Ring(self.register(ASQ, 8), self.register(ACQ, 8), entries, 0)}
        self._registers[CSTS] = status

    def _doorbell(self, index: int, value: int) -> None:
        ring = self._rings[index // 2]
        if index % 2:
            return
        while ring.head != value:
            raw = self.memory.view(ring.sq + 64 * ring.head, 64, write=False)
            ring.head = (ring.head + 1) % ring.entries
            self._handle(index // 2, ring, SQE.unpack(raw))

    def _handle(self, qid: int, ring: Ring, sqe: Sqe) -> None:
        self.entries_seen.append(sqe)
        opcode, status = sqe[OPCODE], self.failing.get(sqe[OPCODE], 0)
        if opcode in self.silent:
            return
        if qid == 0 and opcode == 0x05:
            self._completion_queues[sqe[CDW10] & 0xFFFF] = (sqe[PRP1], sqe[CDW11] >> 16)
        elif qid == 0 and opcode == 0x01:
            cq, vector = self._completion_queues[sqe[CDW11] >> 16]
            made = Ring(sqe[PRP1], cq, (sqe[CDW10] >> 16) + 1, vector)
            self._rings[sqe[CDW10] & 0xFFFF] = made
        elif qid == 1 and opcode == 0x01:
            self.written.append(b"".join(self._views(sqe, write=False)))
        elif qid == 1 and opcode == 0x02:
            at = 0
            for view in self._views(sqe, write=True):
                view[:] = self.content[at : at + len(view)]
                at += len(view)
        cid = sqe[CID] ^ 1 if self.wrong_cid else sqe[CID]
        self._complete(ring, qid, cid, status)

    def _complete(self, ring: Ring, qid: int, cid: int, status: int, result: int = 0xC0DE) -> None:
        entry = self.memory.view(ring.cq + 16 * ring.tail, 16, write=True)
        word = status << 1 | ring.phase
        entry[:] = struct.pack("<IIHHHH", result, 0, ring.head, qid, cid, word)
        ring.tail = (ring.tail + 1) % ring.entries
        ring.phase ^= ring.tail == 0
        self.lines.trigger(MSIX, ring.vector)

    def _views(self, sqe: Sqe, *, write: bool) -> list[memoryview]:
        """The pieces of a Read or Write of blocks of 4096 bytes, all of them whole pages."""
        pages = (sqe[CDW12] & 0xFFFF) + 1
        addresses = [sqe[PRP1]]
        if pages == 2:
            addresses.append(sqe[PRP2])
        elif pages > 2:
            size = 8 * (pages - 1)
            listed = self.memory.view(sqe[PRP2], size, write=False)
            addresses += struct.unpack(f"<{pages - 1}Q", listed)
        assert not any(address % PAGE for address in addresses)
        return [self.memory.view(address, PAGE, write=write) for address in addresses]
