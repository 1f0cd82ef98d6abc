"""A whole device and a client whose memory it reaches by messages, on a thread each.

The client answers while it waits for something, as QEMU's main loop does between other work, and
does what stops the device at any moment.
"""

from __future__ import annotations

import logging
import random
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from potash_device.media.flash import FLASH_SIZE
from potash_device.media.store import MemoryMedia
from potash_firmware.boot import Device
from pyvfio_user.client import Client
from support.vfio_user import leaked, open_descriptors, socket_path

BAR0, CONFIG = 0, 7
CC, CSTS, AQA, ASQ, ACQ, DOORBELLS = 0x14, 0x1C, 0x24, 0x28, 0x30, 0x1000
PAGE = 4096
RAM, SIZE = 0x100_0000, 1 << 20
SQ, CQ, IO_SQ, IO_CQ, DATA = RAM, RAM + PAGE, RAM + 2 * PAGE, RAM + 3 * PAGE, RAM + 8 * PAGE
ENTRIES = 32
READ, CREATE_SQ, CREATE_CQ = 0x02, 0x01, 0x05
MEDIA = 1 << 20
PATIENCE = 20.0
"""Seconds, of which a whole test takes a few."""


@contextmanager
def running(path: Path) -> Iterator[bytes]:
    """A device on a thread; what its media hold."""
    content = random.Random(1).randbytes(MEDIA)
    media, flash = MemoryMedia.create(MEDIA), MemoryMedia.create(FLASH_SIZE)
    media.write_from([memoryview(content)], 0)
    stop = threading.Event()
    with Device(path, {1: media}, flash) as device:

        def loop() -> None:
            while not stop.is_set():
                device.run_once(timeout=0.02)

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield content
        finally:
            stop.set()
            thread.join()
    media.close()
    flash.close()


class Driver:
    """A host with one I/O queue pair."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.memory = bytearray(SIZE)
        self.map()
        self.queues: dict[int, list[int]] = {}
        """Tail, head and phase."""

    def map(self) -> None:
        self.client.dma_map(RAM, SIZE, None, memory=memoryview(self.memory))

    def write(self, offset: int, value: int, size: int = 4) -> None:
        self.client.region_write(BAR0, offset, value.to_bytes(size, "little"), posted=True)

    def master(self, allowed: bool) -> None:
        self.client.region_write(CONFIG, 4, struct.pack("<H", 2 | allowed << 2))

    def wait(self, status: int) -> None:
        until = time.monotonic() + PATIENCE
        while int.from_bytes(self.client.region_read(BAR0, CSTS, 4), "little") & 3 != status:
            assert time.monotonic() < until
            self.client.answer(0.001)

    def enable(self) -> None:
        self.master(True)
        self.write(CC, 0)
        self.wait(0)
        self.queues = {0: [0, 0, 1], 1: [0, 0, 1]}
        self.memory[: 8 * PAGE] = bytes(8 * PAGE)
        self.write(AQA, (ENTRIES - 1) << 16 | ENTRIES - 1)
        self.write(ASQ, SQ, 8)
        self.write(ACQ, CQ, 8)
        self.write(CC, 4 << 20 | 6 << 16 | 1)
        self.wait(1)
        size = (ENTRIES - 1) << 16 | 1
        self.place(0, CREATE_CQ, 1, IO_CQ, (size, 1))
        self.place(0, CREATE_SQ, 2, IO_SQ, (size, 1 << 16 | 1))
        self.ring(0)
        assert self.reap(0, 2) == {1: 0, 2: 0}

    def place(self, qid: int, opcode: int, cid: int, prp1: int, cdws: tuple[int, ...]) -> None:
        queue = self.queues[qid]
        dwords = (*cdws, *(0,) * (6 - len(cdws)))
        at = (IO_SQ if qid else SQ) - RAM + queue[0] * 64
        entry = struct.pack("<BBHI16xQQ6I", opcode, 0, cid, qid, prp1, 0, *dwords)
        self.memory[at : at + 64] = entry
        queue[0] = (queue[0] + 1) % ENTRIES

    def ring(self, qid: int) -> None:
        self.write(DOORBELLS + 8 * qid, self.queues[qid][0])

    def reap(self, qid: int, count: int) -> dict[int, int]:
        """The statuses of so many completions."""
        found: dict[int, int] = {}
        queue, base = self.queues[qid], (IO_CQ if qid else CQ) - RAM
        until = time.monotonic() + PATIENCE
        while len(found) < count:
            cid, word = struct.unpack_from("<HH", self.memory, base + queue[1] * 16 + 12)
            if word & 1 != queue[2]:
                assert time.monotonic() < until, found
                self.client.answer(0.002)
                continue
            assert cid not in found
            found[cid] = word >> 1 & 0x7FF
            queue[1] = (queue[1] + 1) % ENTRIES
            queue[2] ^= queue[1] == 0
            self.write(DOORBELLS + 8 * qid + 4, queue[1])
        return found

    def submit(self, first: int, blocks: list[int]) -> None:
        for number, block in enumerate(blocks):
            self.place(1, READ, first + number, DATA + number * PAGE, (block, 0, 0))
        self.ring(1)

    def verify(self, content: bytes, blocks: list[int]) -> None:
        """What is read is what the media hold."""
        self.memory[DATA - RAM :] = bytes(SIZE - (DATA - RAM))
        self.submit(100, blocks)
        assert self.reap(1, len(blocks)) == dict.fromkeys(range(100, 100 + len(blocks)), 0)
        for number, block in enumerate(blocks):
            at = DATA - RAM + number * PAGE
            assert self.memory[at : at + PAGE] == content[block * PAGE : (block + 1) * PAGE]


@pytest.mark.parametrize("twin_socket", [False, True], ids=["one socket", "two sockets"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_stops_the_device_it_goes_on(
    tmp_path: Path, twin_socket: bool, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that resets, unmaps, switches bus mastering off or leaves, with reads under way."""
    caplog.set_level(logging.ERROR)
    chosen = random.Random(seed)
    path = socket_path(tmp_path)
    with running(path) as content:
        before = open_descriptors()
        for _ in range(4):
            with Client(path, twin_socket=twin_socket) as client:
                client.negotiate()
                driver = Driver(client)
                for _ in range(6):
                    driver.enable()
                    driver.verify(content, chosen.sample(range(MEDIA // PAGE), 16))
                    blocks = chosen.sample(range(MEDIA // PAGE), 12)
                    driver.submit(200, blocks)
                    client.answer(chosen.choice([0.0, 0.0005, 0.002]))
                    what = chosen.choice(["reset", "flr", "unmap", "all", "master", "disable"])
                    if what == "reset":
                        client.device_reset()
                    elif what == "flr":
                        client.region_write(CONFIG, 0x88, struct.pack("<H", 1 << 15))
                    elif what == "unmap":
                        client.dma_unmap(RAM, SIZE)
                        driver.map()
                    elif what == "all":
                        client.dma_unmap_all()
                        driver.map()
                    elif what == "master":
                        driver.master(False)
                        client.answer(0.002)
                        driver.master(True)
                        found = driver.reap(1, len(blocks))
                        assert set(found.values()) <= {0, 4}
                    else:
                        driver.write(CC, 0)
                driver.submit(300, [0, 1, 2])
                client.answer(chosen.choice([0.0, 0.0005]))
        with Client(path) as client:
            client.negotiate()
            driver = Driver(client)
            driver.enable()
            driver.verify(content, list(range(16)))
        until = time.monotonic() + PATIENCE
        while leaked(before) and time.monotonic() < until:
            time.sleep(0.01)  # the device has yet to notice that its client has left
        assert leaked(before) == {}
    assert not [one for one in caplog.records if "mistake" in one.getMessage()]


def test_a_client_that_never_answers_loses_its_connection_and_the_next_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyvfio_user.dma_messages.REPLY_TIME", 0.2)
    path = socket_path(tmp_path)
    with running(path) as content:
        with Client(path) as client:
            client.negotiate()
            driver = Driver(client)
            driver.enable()
            driver.submit(1, [0])
            until = time.monotonic() + PATIENCE
            with pytest.raises(OSError):
                while time.monotonic() < until:
                    time.sleep(0.05)  # without a look at its socket
                    driver.write(AQA, 0)
        with Client(path) as client:
            client.negotiate()
            driver = Driver(client)
            driver.enable()
            driver.verify(content, [3, 5])
