"""A hostile client: frames and file descriptors of every wrong kind, from one seed.

Frames come from a grammar of what the specification allows, with values chosen near the edges, and
are then bent: cut, joined, repeated, reordered, with bits flipped and other descriptors attached.
Numbers are written out again, apart from the code under test.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Self

from pyvfio_user.sealed_memory import SealedMemory
from support import vfio_user as wire

MEMORY = 1 << 20
PAGE = 4096
BAR0, CMB, CONFIG = 0, 2, 7
CC, AQA, ASQ, ACQ, NSSR, DOORBELLS = 0x14, 0x24, 0x28, 0x30, 0x20, 0x1000
NO_REPLY = wire.NO_REPLY


class Frame(NamedTuple):
    """A message and the descriptors that go with it."""

    data: bytes
    fds: tuple[int, ...] = ()


class Descriptors:
    """File descriptors of many kinds, by name; a context manager that owns them."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.by_name: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.memory = self._stack.enter_context(SealedMemory(MEMORY))
        self.other = self._stack.enter_context(SealedMemory(4 * PAGE))
        self.by_name |= {"sealed": self.memory.fd, "small sealed": self.other.fd}
        self._keep("unsealed", _memfd(MEMORY))
        self._keep("sealed against growing only", _memfd(MEMORY, fcntl.F_SEAL_GROW))
        self._keep("write-sealed", _memfd(MEMORY, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE))
        self._keep("growing", _memfd(PAGE, fcntl.F_SEAL_SHRINK))
        self._keep("empty", _memfd(0, fcntl.F_SEAL_SHRINK))
        self._keep("huge", _memfd(1 << 55, fcntl.F_SEAL_SHRINK))
        read_only = os.open(f"/proc/self/fd/{self.memory.fd}", os.O_RDONLY | os.O_CLOEXEC)
        self._keep("read-only", read_only)
        self._keep("write-only", os.open(f"/proc/self/fd/{self.memory.fd}", os.O_WRONLY))
        self._keep("eventfd", os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._keep("blocking eventfd", os.eventfd(0, os.EFD_CLOEXEC))
        self._keep("full eventfd", os.eventfd(0, os.EFD_CLOEXEC))
        os.eventfd_write(self.by_name["full eventfd"], 0xFFFF_FFFF_FFFF_FFFE)
        self._keep("/dev/null", os.open("/dev/null", os.O_RDWR))
        self._keep("/dev/zero", os.open("/dev/zero", os.O_RDWR))
        self._keep("folder", os.open("/", os.O_RDONLY | os.O_DIRECTORY))
        self._keep("path", os.open("/", os.O_PATH))
        for name, pair in (("pipe", os.pipe()), ("socket", _sockets())):
            self._keep(f"{name}'s one end", pair[0])
            self._keep(f"{name}'s other end", pair[1])
        self._stack.callback(self._poll.close) if self._make_poll() else None
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make_poll(self) -> bool:
        self._poll = select.epoll()
        self.by_name["epoll"] = self._poll.fileno()
        return True

    def _keep(self, name: str, fd: int) -> None:
        self._stack.callback(os.close, fd)
        self.by_name[name] = fd

    @property
    def all(self) -> list[int]:
        return list(self.by_name.values())


def _memfd(size: int, seals: int = 0) -> int:
    fd = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _sockets() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


class Grammar:
    """Frames of one random sequence."""

    def __init__(self, rng: random.Random, descriptors: Descriptors) -> None:
        self.rng = rng
        self.descriptors = descriptors
        self._makers: list[tuple[int, Callable[[], Frame]]] = [
            (6, self.dma_map),
            (3, self.dma_unmap),
            (1, self.info),
            (1, self.io_fds),
            (1, self.feature),
            (1, self.migration_data),
            (1, self.reply),
            (4, self.set_irqs),
            (4, self.region_read),
            (12, self.region_write),
            (3, self.region_write_multi),
            (1, self.reset),
            (1, self.version),
            (2, self.unknown),
            (1, self.noise),
        ]
        self._weights = [weight for weight, _ in self._makers]

    # Values near the edges.

    def number(self) -> int:
        rng = self.rng
        kind = rng.random()
        if kind < 0.6:
            return rng.choice((0, 1, 2, 3, 4, 7, 8, 15, 16, 32, 64, 65, 0x1000, 0x4000))
        if kind < 0.8:
            return (1 << rng.randrange(33)) - rng.randrange(2)
        return rng.getrandbits(32)

    def u32(self) -> int:
        return self.number() & 0xFFFF_FFFF

    def u64(self) -> int:
        rng = self.rng
        kind = rng.random()
        if kind < 0.7:
            return rng.randrange(0, 2 * MEMORY, PAGE)
        if kind < 0.85:
            return ((1 << rng.randrange(65)) - rng.randrange(2)) & ((1 << 64) - 1)
        return rng.getrandbits(64)

    def fds(self, usual: Sequence[int], chance: float = 0.7) -> tuple[int, ...]:
        """Mostly what a frame should have."""
        rng = self.rng
        if rng.random() < chance:
            return tuple(usual)
        return tuple(rng.choices(self.descriptors.all, k=rng.choice((0, 1, 1, 2, 8, 9, 16))))

    # Frames.

    def frame(self) -> Frame:
        (maker,) = self.rng.choices(self._makers, self._weights)
        return maker[1]()

    def command(self, number: int, payload: bytes, fds: Sequence[int] = ()) -> Frame:
        rng = self.rng
        flags = NO_REPLY if rng.random() < 0.3 else 0
        if rng.random() < 0.02:
            flags = rng.getrandbits(6)
        data = wire.command(number, payload, message_id=rng.getrandbits(16), flags=flags)
        return Frame(data, tuple(fds) if fds else self.fds((), 0.97))

    def version(self) -> Frame:
        rng = self.rng
        bodies = (
            wire.QEMU_VERSION,
            struct.pack("<HH", 0, 1),
            struct.pack("<HH", rng.getrandbits(2), 0) + b"{}\0",
            struct.pack("<HH", 0, 1) + b"[" * rng.choice((10, 5000)) + b"\0",
            struct.pack("<HH", 0, 1) + b'{"capabilities": {"max_msg_fds": -1}}\0',
            struct.pack("<HH", 0, 1) + b'{"capabilities": {"twin_socket": {"supported": true}}}\0',
            struct.pack("<HH", 0, 1) + rng.randbytes(20),
            b"",
        )
        return self.command(wire.VERSION, rng.choice(bodies))

    def dma_map(self) -> Frame:
        rng = self.rng
        if rng.random() < 0.5:
            address, offset = rng.randrange(0, MEMORY, PAGE), rng.randrange(0, MEMORY, PAGE)
            size = rng.randrange(PAGE, MEMORY + PAGE, PAGE)
        else:
            address, offset, size = self.u64(), self.u64(), self.u64()
        flags = rng.choice((3, 3, 3, 1, 2, 0, self.u32()))
        fields = struct.pack("<IIQQQ", rng.choice((32, self.u32())), flags, offset, address, size)
        return self.command(wire.DMA_MAP, fields, self.fds((self.descriptors.memory.fd,)))

    def dma_unmap(self) -> Frame:
        rng = self.rng
        flags, address, size = rng.choice(
            (
                *((2, 0, 0), (0, 0, MEMORY), (0, self.u64(), self.u64())),
                *((self.u32(), 0, self.u64()), (1, 0, MEMORY)),
            )
        )
        body = struct.pack("<IIQQ", rng.choice((24, 72, self.u32())), flags, address, size)
        if flags == 1:
            body += struct.pack("<QQ", rng.choice((PAGE, self.u64())), rng.choice((32, self.u64())))
        return self.command(wire.DMA_UNMAP, body)

    def info(self) -> Frame:
        rng = self.rng
        number = rng.choice((wire.GET_INFO, wire.GET_REGION_INFO, wire.GET_IRQ_INFO))
        size = rng.choice((16, 32))
        index = rng.choice((BAR0, CMB, CONFIG, self.u32()))
        body = struct.pack("<III", rng.choice((size, 64, self.u32())), self.u32(), index)
        return self.command(number, body.ljust(rng.choice((size, 16, 32, 12, 80)), b"\0"))

    def io_fds(self) -> Frame:
        rng = self.rng
        index = rng.choice((BAR0, CMB, CONFIG, self.u32()))
        flags, count = rng.choice(((0, 0), (0, 0), (self.u32(), self.u32())))
        body = struct.pack("<IIII", rng.choice((16, 56, 4096, self.u32())), flags, index, count)
        return self.command(wire.GET_REGION_IO_FDS, body)

    def feature(self) -> Frame:
        """Probe, get or set what there is for migration (1, 2) and the log of writes (6 to 8)."""
        rng = self.rng
        number = rng.choice((1, 2, 2, 2, 6, 7, 8, rng.randrange(16)))
        method = rng.choice((1 << 16, 1 << 17, 1 << 18, 3 << 16, 5 << 16, 6 << 16, 0))
        if number == 2:
            data = struct.pack("<II", rng.choice((1, 2, 3, 4, 6, rng.randrange(9))), 0)
        elif number == 6:
            ranges = rng.choice((0, 0, 1, 3))
            data = struct.pack("<QII", rng.choice((PAGE, self.u64())), ranges, 0)
            data += b"".join(struct.pack("<QQ", 0, self.u64()) for _ in range(ranges))
        elif number == 8:
            page_size = rng.choice((PAGE, 2 * PAGE, 512, self.u64()))
            data = struct.pack("<QQQ", self.u64(), rng.choice((MEMORY, self.u64())), page_size)
        else:
            data = rng.randbytes(rng.choice((0, 0, 8)))
        argsz = rng.choice((8 + len(data), 16, 4096, self.u32()))
        return self.command(wire.DEVICE_FEATURE, struct.pack("<II", argsz, method | number) + data)

    def migration_data(self) -> Frame:
        rng = self.rng
        if rng.random() < 0.5:
            size = rng.choice((1, 64, 1 << 20, self.u32()))
            argsz = rng.choice(((8 + size) & 0xFFFF_FFFF, self.u32()))
            return self.command(wire.MIG_DATA_READ, struct.pack("<II", argsz, size))
        data = rng.randbytes(rng.choice((0, 1, 64, 4096)))
        size = rng.choice((len(data), len(data), self.u32()))
        return self.command(wire.MIG_DATA_WRITE, struct.pack("<II", 8 + len(data), size) + data)

    def reply(self) -> Frame:
        """An answer to a question of the server, which it has asked or not."""
        rng = self.rng
        number, count = rng.choice((wire.DMA_READ, wire.DMA_WRITE)), rng.choice((64, PAGE))
        address = self.u64()
        data = struct.pack("<QQ", address, count) + rng.randbytes(rng.choice((0, count)))
        error = rng.choice((0, 0, self.u32()))
        flags = 1 | (0x20 if error else 0)
        identity = rng.choice((0, 1, 2, rng.getrandbits(16)))
        return Frame(wire.header(identity, number, len(data), flags, error) + data)

    def set_irqs(self) -> Frame:
        rng = self.rng
        if rng.random() < 0.5:
            count = rng.choice((1, 2, 8))
            start, index, flags = rng.randrange(66), 2, 0x24
            fds = self.fds((self.descriptors.by_name["eventfd"],) * count)
        else:
            flags = rng.choice((0x21, 0x22, 0x24, 0x09, 0x11, 0x3F, self.u32()))
            index, start, count = rng.choice((2, 2, self.u32())), self.u32(), self.u32()
            fds = self.fds((), 0.5)
        data = rng.randbytes(min(count, 100)) if flags & 2 and rng.random() < 0.8 else b""
        body = struct.pack("<IIIII", 20 + len(data), flags, index, start, count) + data
        return self.command(wire.SET_IRQS, body, fds)

    def place(self) -> tuple[int, int]:
        """A region and an offset in it, mostly where something is."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            return BAR0, DOORBELLS + 4 * rng.randrange(12)
        if kind < 0.6:
            return BAR0, rng.choice((0, 8, 0xC, 0x10, CC, 0x1C, NSSR, AQA, ASQ, ASQ + 4, ACQ))
        if kind < 0.63:
            return BAR0, 0x50  # CMBMSC
        if kind < 0.66:
            return CMB, rng.choice((0, rng.randrange(0x1_1000)))
        if kind < 0.75:
            return CONFIG, rng.choice((0, 4, 0x10, 0x14, 0x34, 0x42, 0x52, 0x88, 0xFFC, 0x1000))
        if kind < 0.9:
            return BAR0, rng.randrange(0, 0x4100)
        return self.u32(), self.u64()

    def word(self) -> bytes:
        rng = self.rng
        values = (
            self.u32(),
            rng.randrange(64),
            4 << 20 | 6 << 16 | 1,
            0,
            4 << 20 | 6 << 16 | 1 | rng.randrange(4) << 14,
            0x4E564D65,
            15 << 16 | 15,
            rng.randrange(0, MEMORY, PAGE),
            1 << 15,
        )
        return struct.pack("<I", rng.choice(values) & 0xFFFF_FFFF)

    def region_write(self) -> Frame:
        rng = self.rng
        region, offset = self.place()
        size = rng.choice((1, 1, 1, 1, 2, 16, 200, 0x1000))
        words = b"".join(self.word() for _ in range(min(size, 16)))
        data = (words * -(-size // 16))[: 4 * size]
        if rng.random() < 0.1:
            data = data[: rng.randrange(len(data) + 1)]
        count = len(data) if rng.random() < 0.98 else self.u32()
        body = struct.pack("<QII", offset, region & 0xFFFF_FFFF, count) + data
        return self.command(wire.REGION_WRITE, body)

    def region_read(self) -> Frame:
        region, offset = self.place()
        count = self.rng.choice((1, 2, 4, 4, 4, 8, 0x1000, self.u32()))
        return self.command(wire.REGION_READ, struct.pack("<QII", offset, region, count))

    def region_write_multi(self) -> Frame:
        rng = self.rng
        count = rng.choice((0, 1, 2, 200, 201))
        writes = []
        for _ in range(count):
            region, offset = self.place()
            size = rng.choice((4, 4, 4, 8, 1, 9, self.u32()) if rng.random() < 0.05 else (4, 8))
            writes.append(struct.pack("<QII8s", offset, region, size, self.word() * 2))
        claimed = count if rng.random() < 0.95 else self.u64()
        return self.command(wire.REGION_WRITE_MULTI, struct.pack("<Q", claimed) + b"".join(writes))

    def reset(self) -> Frame:
        return self.command(wire.DEVICE_RESET, b"" if self.rng.random() < 0.9 else b"x")

    def unknown(self) -> Frame:
        rng = self.rng
        number = rng.choice((0, wire.DMA_READ, wire.DMA_WRITE, 14, 19, 99, 0xFFFF))
        return self.command(number, rng.randbytes(rng.choice((0, 16, 100))))

    def noise(self) -> Frame:
        rng = self.rng
        if rng.random() < 0.7:  # a whole frame with any payload
            return self.command(rng.randrange(20), rng.randbytes(rng.randrange(64)))
        return Frame(rng.randbytes(rng.randrange(1, 64)), self.fds((), 0.9))

    def rewrite(self) -> None:
        """Change the memory under the device, where queues and lists may lie."""
        for _ in range(4):
            at = self.rng.randrange(0, MEMORY - 64, 64)
            self.descriptors.memory.view[at : at + 64] = self.entry()

    # The way to a controller that works, so that what follows meets something.

    def bring_up(self, *, by_messages: bool = False) -> list[Frame]:
        """Map the memory, put hostile entries into it, and enable a controller in it.

        `by_messages` maps it without a descriptor, so that the device has to ask for its bytes.
        """
        rng = self.rng
        memory = self.descriptors.memory
        pages = rng.sample(range(MEMORY // PAGE), 2)
        for _ in range(8):
            at = rng.randrange(0, MEMORY - 64, 64)
            memory.view[at : at + 64] = self.entry()
        for page in pages:
            for slot in range(rng.choice((1, 4, 64))):
                at = page * PAGE + 64 * slot
                memory.view[at : at + 64] = self.entry()
        base = struct.pack("<IIQQQ", 32, 3, 0, 0, MEMORY)
        frames = [Frame(wire.command(wire.DMA_MAP, base), () if by_messages else (memory.fd,))]
        if rng.random() < 0.9:
            frames.append(Frame(wire.region_write(4, b"\6\0", region=CONFIG, flags=NO_REPLY)))
        if rng.random() < 0.7:
            eventfds = (self.descriptors.by_name[rng.choice(("eventfd", "full eventfd"))],) * 2
            body = struct.pack("<IIIII", 20, 0x24, 2, 0, 2)
            frames.append(Frame(wire.command(wire.SET_IRQS, body), eventfds))
        entries = rng.choice((1, 3, 15, 63))
        ring = rng.randrange(entries + 1)
        if rng.random() < 0.5:
            # A queue pair that works, full of entries, before the rest comes.
            sq, cq = (PAGE * page for page in rng.sample(range(MEMORY // PAGE), 2))
            for slot, opcode, address, word in ((0, 5, cq, 1 << 16 | 3), (1, 1, sq, 1 << 16 | 1)):
                made = struct.pack(
                    "<BBHI16xQQ6I", opcode, 0, slot, 0, address, 0, 63 << 16 | 1, word, 0, 0, 0, 0
                )
                at = pages[0] * PAGE + 64 * slot
                memory.view[at : at + 64] = made
            for at in range(sq, sq + PAGE, 64):
                memory.view[at : at + 64] = self.entry()
            entries, ring = 15, 2
        for offset, value in (
            (AQA, entries << 16 | entries),
            (ASQ, pages[0] * PAGE),
            (ASQ + 4, 0),
            (ACQ, pages[1] * PAGE),
            (ACQ + 4, 0),
            (CC, 4 << 20 | 6 << 16 | rng.choice((0, 6, 6)) << 4 | 1),
            (DOORBELLS, ring),
        ):
            frames.append(_posted(offset, value))
        return frames

    def ring_io(self) -> Frame:
        """Submit what lies in the first I/O queue, should there be one."""
        return _posted(DOORBELLS + 8, self.rng.randrange(64))

    def entry(self) -> bytes:
        """A submission entry: a command that there is, with values near the edges."""
        rng = self.rng
        opcode = rng.choice(
            (0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x10, 0x11, 0x7C)
            + (0x81, 0x82, 0x85, 0x86, 0x88, 0x89, 0x91, 0xC0, 0xC2, 0xC6, rng.getrandbits(8))
        )
        flags = rng.choice((0, 0, 0, 0x40, 0x80, 0xC0, rng.getrandbits(8)))
        nsid = rng.choice((0, 1, 1, 2, 3, 3, 0xFFFF_FFFF))
        first = [rng.choice((0, 1, 32, 1 << 16, self.u32())) if nsid == 3 else 0 for _ in range(4)]
        prps = [rng.choice((rng.randrange(0, MEMORY, 4), self.u64())) for _ in range(2)]
        if flags & 0xC0:
            kind = rng.choice((0x00, 0x10, 0x20, 0x30, 0x40, 0x01))
            prps[1] = kind << 56 | self.u32()
        words = [rng.choice((0, 1, 3 << 16 | 1, 0xFFFF_FFFF, self.u32())) for _ in range(6)]
        return struct.pack(
            "<BBHI4IQQ6I", opcode, flags, rng.getrandbits(6), nsid, *first, *prps, *words
        )


def _posted(offset: int, value: int) -> Frame:
    return Frame(wire.region_write(offset, struct.pack("<I", value), flags=NO_REPLY))


def bend(rng: random.Random, frames: list[Frame]) -> list[Frame]:
    """Cut, join, repeat and reorder frames, or flip a bit of one."""
    kind = rng.random()
    if kind < 0.75 or not frames:
        return frames
    at = rng.randrange(len(frames))
    frame = frames[at]
    if kind < 0.80:
        frames[at : at + 1] = [frame] * 3
    elif kind < 0.85:
        rng.shuffle(frames)
    elif kind < 0.90:
        cut = rng.randrange(len(frame.data) + 1)
        pieces = [Frame(frame.data[:cut], frame.fds), Frame(frame.data[cut:])]
        frames[at : at + 1] = [piece for piece in pieces if piece.data]
    elif kind < 0.94:
        joined = Frame(b"".join(one.data for one in frames[at : at + 3]), frame.fds)
        frames[at : at + 3] = [joined]
    elif kind < 0.97 and frame.data:
        data = bytearray(frame.data)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        frames[at] = Frame(bytes(data), frame.fds)
    else:
        frames[at] = Frame(frame.data[: rng.randrange(1, len(frame.data) + 1)], frame.fds)
    return frames


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def wait_until(
    condition: Callable[[], bool], step: Callable[[], object], limit: float = 30.0
) -> None:
    """Step until something holds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it never comes to that"
        step()
