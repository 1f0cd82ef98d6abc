"""A whole device and hostile clients: it neither ends, nor hangs, nor keeps anything.

`pytest -m slow tests/protocol/test_hostile_wire.py` does it with a million frames, or with
`POTASH_FUZZ_FRAMES`, from a random seed, or from `POTASH_FUZZ_SEED`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import select
import struct
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from potash_device.controller.cmb import CmbSettings
from potash_device.media.drive import Drive
from potash_device.media.flash import FLASH_SIZE
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from potash_device.settings import BoardSettings
from potash_firmware.boot import Device
from potash_firmware.settings import DeviceSettings
from pyvfio_user import dma_messages
from pyvfio_user.memory import AddressSpace
from support import vfio_user as wire
from support.hostile import DOORBELLS, Descriptors, Frame, Grammar, bend, resident, wait_until
from support.hostile_answers import Answers
from support.vfio_user import RawClient, Reply, open_descriptors

FRAMES = 10_000
MANY = int(os.environ.get("POTASH_FUZZ_FRAMES", "1000000"))
GROWTH = 24 << 20
"""Bytes that the process may grow by once it is warm: buffers that the allocator keeps."""

SHAPES = {2: NamespaceShape.memory(1 << 16), 3: NamespaceShape.compute()}

TWIN_VERSION = wire.QEMU_VERSION.replace(
    b'"write_multiple"', b'"twin_socket": {"supported": true}, "write_multiple"'
)
"""A client that takes the server's commands at a second socket."""

MEMORY = "/memfd:potash-media (deleted)"
"""What descriptors of a namespace's memory are called."""

PASSES = 100_000
"""Passes of the loop after which it is called hung."""


class Target:
    """A running device, and all that one can see of what it holds."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.apu = device.apu.pid
        self.spaces: list[AddressSpace] = []
        self.clients = self.asked = 0
        """Clients, and messages with which the device asked for memory, and was answered."""
        attached, replace = device.board.attached, device.apu.replace
        self.replaced = False
        """The APU gets a successor, which knows the namespaces that a client has made or removed."""

        def expect_another(*equipment: Any) -> None:
            self.replaced = True
            replace(*equipment)

        device.apu.replace = expect_another  # type: ignore  # to hear of it

        def remember(memory: AddressSpace, lines: object) -> None:
            self.spaces.append(memory)
            attached(memory, lines)  # type: ignore[arg-type]  # passed on as it came

        device.board.attached = remember  # type: ignore[method-assign]  # to see what it is given

    def step(self) -> None:
        self.device.run_once(timeout=0)

    def pump(self) -> None:
        """Run until there is nothing more to do without the client, the media or the APU."""
        for _ in range(PASSES):
            self.step()
            server = self.device.server
            readable, _, _ = select.select([server.fileno()], [], [], 0)
            if not (readable or server.has_message or self.device._busy):
                return
        raise AssertionError("the loop never comes to rest")

    def scribble(self, rng: random.Random) -> None:
        """Store something in the page of doorbells, as a client that has mapped it does."""
        page = self.device.board.queues.page
        assert page is not None
        at = DOORBELLS + 4 * rng.choice((0, 1, 2, 3, 4, 5, rng.randrange(1024)))
        value = rng.choice((0, 1, 2, 15, 16, rng.getrandbits(32)))
        struct.pack_into("<I", page.memory.bytes, at, value)

    def attack(self, grammar: Grammar, count: int) -> int:
        """One client with about `count` frames; how many there were."""
        rng = grammar.rng
        frames: list[Frame] = []
        by_messages = rng.random() < 0.3
        if rng.random() < 0.95:
            proposal = TWIN_VERSION if by_messages and rng.random() < 0.5 else wire.QEMU_VERSION
            frames.append(Frame(wire.command(wire.VERSION, proposal)))
        if rng.random() < (0.9 if by_messages else 0.6):
            frames += grammar.bring_up(by_messages=by_messages)
        opening = len(frames)
        if opening > 1:
            frames.append(grammar.ring_io())
        frames += [grammar.frame() for _ in range(count)]
        if rng.random() < 0.4:
            frames[opening:] = bend(rng, frames[opening:])
        reads = rng.random() < 0.9
        with RawClient(self.device.server) as client, contextlib.ExitStack() as stack:
            answers: Answers | None = None
            if by_messages:
                memory = grammar.descriptors.memory.view
                answers = stack.enter_context(Answers(client, rng, memory))
            for number, frame in enumerate(frames):
                if not self.send(client, frame, discard=not by_messages):
                    break
                if number % 8 == 0 or number == opening - 1:
                    grammar.rewrite()
                    self.scribble(rng)
                    self.pump()
                    if reads and not by_messages:
                        self.check_replies(client.replies())
            self.pump()
            if answers is not None:
                self.asked += answers.answered
                self.check_replies(answers.replies)
            elif reads:
                self.check_replies(client.replies())
        return len(frames)

    def send(self, client: RawClient, frame: Frame, *, discard: bool) -> bool:
        """Put a frame into the socket; False when the connection is over."""
        for _ in range(PASSES):
            try:
                client.send(frame.data, frame.fds)
            except BlockingIOError:
                self.pump()
                if discard:
                    client.discard()
            except OSError:
                return False
            else:
                return True
        raise AssertionError("the device does not read any more")

    @staticmethod
    def check_replies(replies: Iterable[Reply]) -> None:
        for reply in replies:
            if reply.flags == 0:  # not a reply: the device asks for memory without a descriptor
                assert reply.command in (wire.DMA_READ, wire.DMA_WRITE)
                continue
            assert reply.flags in (0x01, 0x21)
            assert (reply.error != 0) == (reply.flags == 0x21)
            assert not (reply.payload and reply.error)

    def gone(self) -> bool:
        """Nobody is connected, and nothing of the last one is left."""
        device = self.device
        return not device.server.connected and not device.rpu.controller.media_work.unfinished

    def check(self, before: dict[int, str]) -> None:
        """Nothing of the last client is left, and the next one is served."""
        wait_until(self.gone, lambda: self.device.run_once(timeout=0.01))
        board, rpu = self.device.board, self.device.rpu
        assert not board.queues.submissions and not board.queues.completions
        assert not board.registers.host_writes
        assert not any(board.interrupts.pending_bits())
        assert len(rpu.controller.outstanding) == 0
        assert not any(len(space._windows) or space._files for space in self.spaces)
        self.spaces.clear()
        if self.replaced:
            wait_until(lambda: self.device.link.port is not None, self.step)
            self.replaced, self.apu = False, self.device.apu.pid
            before.clear()
            before.update(open_descriptors())
        # A memory namespace has other memory for the next client, but as much.
        leaked = wire.leaked(before).values()
        assert [one for one in leaked if one != MEMORY] == []
        most = list(before.values()).count(MEMORY)
        wait_until(lambda: list(open_descriptors().values()).count(MEMORY) <= most, self.step)
        with RawClient(self.device.server) as client:
            client.send(wire.command(wire.VERSION, wire.QEMU_VERSION))
            client.send(wire.command(wire.REGION_READ, struct.pack("<QII", 8, 0, 4)))
            self.pump()
            version, read = client.replies()
            assert (version.failed, read.payload[16:]) == (False, b"\x00\x00\x02\x00")
        wait_until(self.gone, self.step)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    mistakes: list[str] = []
    monkeypatch.setattr(
        logging.Logger, "exception", lambda *_: mistakes.append(traceback.format_exc())
    )
    monkeypatch.setattr(dma_messages, "REPLY_TIME", 0.2)  # some are never answered
    # What a million frames are worth saying would be kept for a report, and fill memory.
    logging.disable(logging.CRITICAL)
    media, flash = MemoryMedia.create(1 << 20), MemoryMedia.create(FLASH_SIZE)
    try:
        board = BoardSettings(cmb=CmbSettings(1 << 16), map_doorbells=True)
        settings, drive = DeviceSettings(board), Drive.around({1: media}, SHAPES)
        with Device(
            wire.socket_path(tmp_path), drive.namespaces, flash, settings, drive=drive
        ) as device:
            target = Target(device)
            yield target
            assert device.apu.pid == target.apu, "the APU was lost"
    finally:
        logging.disable(logging.NOTSET)
        media.close()
        flash.close()
    assert mistakes == []


def run(target: Target, frames: int, seed: int) -> None:
    """Attack with as many frames, and look after every client at what is left."""
    with Descriptors() as descriptors:
        # Garbage is collected after each client, and other tests may have left much to look at.
        gc.collect()
        gc.freeze()
        target.check(open_descriptors() | {-1: ""})
        before = open_descriptors()
        sent, clients, warm = 0, 0, 0
        while sent < frames:
            rng = random.Random(f"{seed} {clients}")
            try:
                sent += target.attack(Grammar(rng, descriptors), rng.choice((1, 5, 20, 100)))
                target.check(before)
            except BaseException:
                print(f"client {clients} of seed {seed}, after {sent} frames")
                raise
            clients = target.clients = clients + 1
            if not warm and sent > frames // 4:
                gc.collect()
                warm = resident()
        gc.collect()
        assert resident() - warm < GROWTH


def test_thousands_of_hostile_frames_leave_a_device_that_works(target: Target) -> None:
    run(target, FRAMES, seed=1)
    assert target.asked


@pytest.mark.slow
def test_a_million_hostile_frames_leave_a_device_that_works(target: Target) -> None:
    run(target, MANY, seed=int(os.environ.get("POTASH_FUZZ_SEED", random.randrange(1 << 32))))
    print(f"{target.clients} clients, {target.asked} messages for memory answered")
