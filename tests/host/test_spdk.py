"""A client that does on the wire what SPDK's own initiator does, at a drive of the command line.

It connects to the socket `cntrl` of a folder, maps the doorbells and gives up where it cannot, has
memory without seals, answers no command of the device, uses an SGL of one data block for each I/O
command, and at its end completes its event requests for itself, uses their identifiers again, shuts
down with CC.EN set and takes its memory back.
"""

import errno
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from potash.vm.drive import device_process
from pyvfio_user.client import Client, VfioUserError

BAR0, CONFIG = 0, 7
CC, CSTS, AQA, ASQ, ACQ, DOORBELLS = 0x14, 0x1C, 0x24, 0x28, 0x30, 0x1000
ENABLED, SHUT_DOWN = 4 << 20 | 6 << 16 | 1, 1 << 14
PAGE = 4096
BASE, SIZE = 0x7F00_0020_0000, 2 << 20
ASQ_AT, ACQ_AT, SQ_AT, CQ_AT, SHADOW, EVENTS, DATA = (page * PAGE for page in range(7))
ENTRIES = 32
SGL = 1 << 6
LIMIT = 30.0


def until(happened: Callable[[], object]) -> None:
    limit = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < limit


class Initiator:
    """The client; `shadow` has it use a doorbell buffer."""

    def __init__(self, folder: Path, fd: int) -> None:
        self.client = Client(folder / "cntrl", timeout=LIMIT)
        self.fd = fd
        self.memory = memoryview(mmap.mmap(fd, SIZE))
        self.memory[:] = bytes(SIZE)
        self.queues = {0: [0, 0, 1], 1: [0, 0, 1]}
        """Tail, head and phase of each."""
        self.shadow = False

    def __enter__(self) -> Self:
        self.client.__enter__()
        self.client.negotiate()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def register(self, offset: int) -> int:
        return int.from_bytes(self.client.region_read(BAR0, offset, 4), "little")

    def write(self, offset: int, value: int, size: int = 4) -> None:
        self.client.region_write(BAR0, offset, value.to_bytes(size, "little"))

    def attach(self) -> None:
        self.bar = self.client.map_region(BAR0)
        self.doorbells = self.bar.view(DOORBELLS, PAGE).cast("I")
        self.client.dma_map(BASE, SIZE, self.fd)
        command = int.from_bytes(self.client.region_read(CONFIG, 4, 2), "little")
        self.client.region_write(CONFIG, 4, struct.pack("<H", command | 0x404))
        self.write(AQA, ENTRIES - 1 << 16 | ENTRIES - 1)
        self.write(ASQ, BASE + ASQ_AT, 8)
        self.write(ACQ, BASE + ACQ_AT, 8)
        self.write(CC, ENABLED)
        until(lambda: self.register(CSTS) & 1)

    def submit(
        self, qid: int, opcode: int, cid: int, low: int, *cdws: int, high: int = 0, flags: int = 0
    ) -> None:
        """Place an entry with both halves of its data pointer, and store the tail."""
        tail = self.queues[qid][0]
        at = (SQ_AT if qid else ASQ_AT) + 64 * tail
        dwords = (*cdws, *(0,) * (6 - len(cdws)))
        entry = struct.pack("<BBHI16xQQ6I", opcode, flags, cid, qid, low, high, *dwords)
        self.memory[at : at + 64] = entry
        self.queues[qid][0] = (tail + 1) % ENTRIES
        self._ring(2 * qid, tail, self.queues[qid][0])

    def _ring(self, index: int, before: int, after: int) -> None:
        if self.shadow and index > 1:
            # One store: struct clears the bytes first, and the device may look at that moment.
            self.memory[SHADOW : SHADOW + PAGE].cast("I")[index] = after
            (event,) = struct.unpack_from("<I", self.memory, EVENTS + 4 * index)
            if (after - event - 1) & 0xFFFF >= (after - before) & 0xFFFF:
                return
        self.doorbells[index] = after

    def reap(self, qid: int) -> tuple[int, int]:
        """The identifier and the status of the next completion; polled for, without interrupts."""
        queue = self.queues[qid]
        at = (CQ_AT if qid else ACQ_AT) + 16 * queue[1]
        until(lambda: self.memory[at + 14] & 1 == queue[2])
        cid, word = struct.unpack_from("<HH", self.memory, at + 12)
        before = queue[1]
        queue[1] = (before + 1) % ENTRIES
        queue[2] ^= queue[1] == 0
        self._ring(2 * qid + 1, before, queue[1])
        return cid, word >> 1 & 0x7FF

    def admin(self, opcode: int, cid: int, low: int, *cdws: int, high: int = 0) -> None:
        self.submit(0, opcode, cid, low, *cdws, high=high)
        assert self.reap(0) == (cid, 0)

    def make_queues(self) -> None:
        sizes = ENTRIES - 1 << 16 | 1
        self.admin(0x05, 20, BASE + CQ_AT, sizes, 1)
        self.admin(0x01, 21, BASE + SQ_AT, sizes, 1 << 16 | 1)

    def use_shadow(self) -> None:
        self.admin(0x7C, 22, BASE + SHADOW, high=BASE + EVENTS)
        self.shadow = True

    def move(self, opcode: int, cid: int, at: int, size: int) -> None:
        """Read or write blocks from 0 on, with an SGL of one data block."""
        cdws = (0, 0, size // PAGE - 1)
        self.submit(1, opcode, cid, BASE + at, *cdws, high=size, flags=SGL)
        assert self.reap(1) == (cid, 0)

    def detach(self) -> None:
        self.admin(0x00, 0, 0, 1)  # Delete I/O Submission Queue, with an event request's identifier
        self.admin(0x04, 1, 0, 1)
        self.write(CC, ENABLED | SHUT_DOWN)
        until(lambda: self.register(CSTS) >> 2 & 3 == 2)
        self.client.dma_unmap(BASE, SIZE)
        assert self.register(CSTS) == 2 << 2 | 1
        self.doorbells.release()
        self.bar.close()


@pytest.fixture(params=["memfd", "file"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> int:
    """The descriptor of memory without seals."""
    if request.param == "memfd":
        fd = os.memfd_create("spdk")
    else:
        fd = os.open(tmp_path / "memory", os.O_RDWR | os.O_CREAT)
    request.addfinalizer(lambda: os.close(fd))
    os.ftruncate(fd, SIZE)
    return fd


@pytest.mark.parametrize("shadow", [False, True], ids=["doorbells", "doorbell buffer"])
def test_spdk_s_initiator_can_use_the_drive(tmp_path: Path, memory: int, shadow: bool) -> None:
    """Twice, as doorbells of the first time are nothing to the second."""
    options = ("--size", "1M", "--map-doorbells", "--trust-memory")
    with device_process(tmp_path / "cntrl", *options):
        for _ in range(2):
            with Initiator(tmp_path, memory) as initiator:
                initiator.attach()
                for cid in range(4):
                    initiator.submit(0, 0x0C, cid, 0)
                initiator.admin(0x06, 10, BASE + DATA, 1)
                assert bytes(initiator.memory[DATA : DATA + 2]) == b"\x96\x1b"
                initiator.make_queues()
                if shadow:
                    initiator.use_shadow()
                content, size = os.urandom(128 << 10), 128 << 10
                initiator.memory[DATA : DATA + size] = content
                initiator.move(0x01, 5, DATA, size)
                for cid in range(2 * ENTRIES):
                    if cid % ENTRIES == 0:
                        time.sleep(0.02)  # for longer than the device polls often
                    initiator.memory[DATA + size : DATA + 2 * size] = bytes(size)
                    initiator.move(0x02, cid, DATA + size, size)
                    assert initiator.memory[DATA + size : DATA + 2 * size] == content
                initiator.detach()


@pytest.mark.parametrize("memory", ["memfd"], indirect=True)
def test_a_trusted_client_can_end_the_device_and_loses_nothing_that_was_flushed(
    tmp_path: Path, memory: int
) -> None:
    media = ("--size", "1M", "--media", str(tmp_path / "media"))
    options = (*media, "--map-doorbells", "--trust-memory")
    content = os.urandom(PAGE)
    with (
        device_process(tmp_path / "cntrl", *options) as device,
        Initiator(tmp_path, memory) as initiator,
    ):
        initiator.attach()
        initiator.make_queues()
        initiator.memory[DATA : DATA + PAGE] = content
        initiator.move(0x01, 5, DATA, PAGE)
        initiator.submit(1, 0x00, 6, 0)
        assert initiator.reap(1) == (6, 0)
        os.ftruncate(memory, 0)
        initiator.doorbells[2] = initiator.queues[1][0] + 1
        assert device.wait(LIMIT) == -signal.SIGBUS
    os.ftruncate(memory, SIZE)
    with device_process(tmp_path / "cntrl", *options), Initiator(tmp_path, memory) as initiator:
        initiator.attach()
        initiator.make_queues()
        initiator.move(0x02, 5, DATA, PAGE)
        assert initiator.memory[DATA : DATA + PAGE] == content


@pytest.mark.parametrize("memory", ["memfd"], indirect=True)
def test_doorbells_are_mapped_where_that_is_asked_for_only(tmp_path: Path, memory: int) -> None:
    with (
        device_process(tmp_path / "cntrl", "--size", "1M"),
        Initiator(tmp_path, memory) as initiator,
        pytest.raises(VfioUserError) as refused,
    ):
        initiator.attach()
    assert refused.value.errno == errno.ENODEV


@pytest.mark.parametrize("memory", ["memfd"], indirect=True)
def test_a_client_whose_memory_cannot_be_had_is_told_so(
    tmp_path: Path, memory: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its connection ends, and the log says what to do."""
    with (
        device_process(tmp_path / "cntrl", "--size", "1M", "--map-doorbells", verbose=True),
        Initiator(tmp_path, memory) as initiator,
    ):
        initiator.client._channel.windows.answer = lambda *_: b""  # type: ignore[method-assign]  # nothing
        initiator.attach()
        initiator.submit(0, 0x06, 10, BASE + DATA, 1)

        def gone() -> bool:
            try:
                initiator.register(CSTS)
            except VfioUserError as error:
                return error.errno == errno.ECONNRESET
            return False

        until(gone)
        said = ""

        def named() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return "--trust-memory" in said and said.endswith("\n")

        until(named)
    (line,) = [one for one in said.splitlines() if "--trust-memory" in one]
    assert "warning" in line.lower() and "did not answer" in line
