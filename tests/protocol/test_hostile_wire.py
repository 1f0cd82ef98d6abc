"""A whole device and hostile clients: it neither ends, nor hangs, nor keeps anything. Where it has
two controllers, the client of the other one is served as if it were alone.

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
from collections.abc import Callable, Generator, Iterable, Iterator
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
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.settings import DeviceSettings
from pyvfio_user import dma_messages
from pyvfio_user.memory import AddressSpace
from support import vfio_user as wire
from support.controllers import Neighbour
from support.hostile import (
    DOORBELLS,
    PAGE,
    Descriptors,
    Frame,
    Grammar,
    bend,
    resident,
    wait_until,
)
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

PRIVATE = 4
"""A namespace of the second controller."""

RUINOUS = (0x0D, 0x15, 0x80, 0x84)
"""Commands with which any host of a drive changes the namespaces of all: Namespace Management and
Attachment, Format NVM, Sanitize."""


class Target:
    """A controller of a running device, and all that one can see of what it holds."""

    def __init__(self, device: Device, number: int = 0) -> None:
        self.device = device
        self.board, self.server = device.boards[number], device.servers[number]
        self.controller = device.rpu.subsystem.controllers[number]
        self.neighbour: Neighbour | None = None
        """The host of the other controller."""
        self.apu = device.apu.pid
        self.spaces: list[AddressSpace] = []
        self.clients = self.asked = 0
        """Clients, and messages with which the device asked for memory, and was answered."""
        attached, replace = self.board.attached, device.apu.replace
        self.replaced = False
        """The APU gets a successor, which knows the namespaces that a client has made or removed."""

        def expect_another(*equipment: Any) -> None:
            self.replaced = True
            replace(*equipment)

        device.apu.replace = expect_another  # type: ignore  # to hear of it

        def remember(memory: AddressSpace, lines: object) -> None:
            self.spaces.append(memory)
            attached(memory, lines)  # type: ignore[arg-type]  # passed on as it came

        self.board.attached = remember  # type: ignore[method-assign]  # to see what it is given

    def step(self) -> None:
        self.device.run_once(timeout=0)
        if self.neighbour is not None:
            self.neighbour.poll()

    def pump(self) -> None:
        """Run until there is nothing more to do without the clients, the media or the APU."""
        servers = self.device.servers
        if self.neighbour is not None:
            self.neighbour.begin()
        for _ in range(PASSES):
            self.step()
            readable, _, _ = select.select([each.fileno() for each in servers], [], [], 0)
            waits = self.neighbour is not None and self.neighbour.under_way is not None
            if not (
                readable or any(each.has_message for each in servers) or self.device._busy or waits
            ):
                return
        raise AssertionError("the loop never comes to rest")

    def scribble(self, rng: random.Random) -> None:
        """Store something in the page of doorbells, as a client that has mapped it does."""
        page = self.board.queues.page
        assert page is not None
        at = DOORBELLS + 4 * rng.choice((0, 1, 2, 3, 4, 5, rng.randrange(1024)))
        value = rng.choice((0, 1, 2, 15, 16, rng.getrandbits(32)))
        struct.pack_into("<I", page.memory.bytes, at, value)

    def attack(self, grammar: Grammar, count: int) -> Generator[None, None, int]:
        """One client with about `count` frames, which pauses now and then; how many there were."""
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
        with RawClient(self.server) as client, contextlib.ExitStack() as stack:
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
                    yield
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

    def check_replies(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            assert self.neighbour is None or self.neighbour.secret not in reply.payload
            if reply.flags == 0:  # not a reply: the device asks for memory without a descriptor
                assert reply.command in (wire.DMA_READ, wire.DMA_WRITE)
                continue
            assert reply.flags in (0x01, 0x21)
            assert (reply.error != 0) == (reply.flags == 0x21)
            assert not (reply.payload and reply.error)

    def gone(self) -> bool:
        """Nobody is connected, and nothing of the last one is left."""
        return not self.server.connected and not self.controller.media_work.unfinished

    def check(self, before: dict[int, str]) -> None:
        """Nothing of the last client, which is gone, is left, and the next one is served."""
        board = self.board
        assert not board.queues.submissions and not board.queues.completions
        assert not board.registers.host_writes
        assert not any(board.interrupts.pending_bits())
        assert len(self.controller.outstanding) == 0
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
        with RawClient(self.server) as client:
            client.send(wire.command(wire.VERSION, wire.QEMU_VERSION))
            client.send(wire.command(wire.REGION_READ, struct.pack("<QII", 8, 0, 4)))
            self.pump()
            version, read = client.replies()
            assert (version.failed, read.payload[16:]) == (False, b"\x00\x00\x02\x00")
        wait_until(self.gone, self.step)
        if self.neighbour is not None:
            self.pump()
            self.neighbour.check()


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Device]]:
    """Boots a device with so many controllers, which is watched until the end."""
    mistakes: list[str] = []
    monkeypatch.setattr(
        logging.Logger, "exception", lambda *_: mistakes.append(traceback.format_exc())
    )
    monkeypatch.setattr(dma_messages, "REPLY_TIME", 0.2)  # some are never answered
    # What a million frames are worth saying would be kept for a report, and fill memory.
    logging.disable(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)

        def device(count: int) -> Device:
            media = {nsid: MemoryMedia.create(1 << 20) for nsid in (1, PRIVATE)[:count]}
            flash = MemoryMedia.create(FLASH_SIZE)
            for each in (*media.values(), flash):
                stack.callback(each.close)
            shapes = dict(SHAPES)
            if count > 1:
                shapes[PRIVATE] = NamespaceShape(1 << 20, controllers=(1,))
            board = BoardSettings(cmb=CmbSettings(1 << 16), map_doorbells=True)
            settings = DeviceSettings(board, RpuSettings(ana=count > 1))
            drive = Drive.around(media, shapes)
            sockets = [wire.socket_path(tmp_path), tmp_path / "t"][:count]
            return stack.enter_context(
                Device(sockets, drive.namespaces, flash, settings, drive=drive)
            )

        yield device
    assert mistakes == []


def run(targets: list[Target], frames: int, seed: int) -> None:
    """Attack with as many frames, all targets at once, and look after every client of each at what
    is left."""
    first = targets[0]
    with contextlib.ExitStack() as stack:
        memories = [stack.enter_context(Descriptors()) for _ in targets]
        # Garbage is collected after each client, and other tests may have left much to look at.
        gc.collect()
        gc.freeze()
        for target in targets:
            wait_until(target.gone, target.step)
            target.check(open_descriptors() | {-1: ""})
        before = open_descriptors()
        sent, clients, warm = 0, 0, 0
        while sent < frames:
            rng = random.Random(f"{seed} {clients}")
            for target in targets:
                if target.controller.ana is not None:
                    target.controller.ana.change(1, rng.choice((1, 2, 3)), rng.choice((0, 0.001)))
            attacks = [
                target.attack(Grammar(rng, memory), rng.choice((1, 5, 20, 100)))
                for target, memory in zip(targets, memories, strict=True)
            ]
            try:
                while attacks:
                    attack = rng.choice(attacks)
                    try:
                        next(attack)
                    except StopIteration as end:
                        attacks.remove(attack)
                        sent += end.value
                for target in targets:
                    wait_until(target.gone, lambda: first.device.run_once(timeout=0.01))
                for target in targets:
                    target.check(before)
                if first.neighbour is not None:
                    secret = first.neighbour.secret
                    assert all(secret not in bytes(each.memory.view) for each in memories)
            except BaseException:
                print(f"client {clients} of seed {seed}, after {sent} frames")
                raise
            clients = first.clients = clients + 1
            if not warm and sent > frames // 4:
                gc.collect()
                warm = resident()
        gc.collect()
        assert resident() - warm < GROWTH
    assert first.device.apu.pid == first.apu, "the APU was lost"


def run_beside_a_neighbour(device: Device, frames: int, seed: int) -> None:
    """Attack the first controller while an honest host uses the second one."""
    target = Target(device)
    commands = device.rpu.hosts[0].commands
    commands.admin = {key: each for key, each in commands.admin.items() if key not in RUINOUS}
    with Neighbour(device.servers[1], target.step, PRIVATE) as neighbour:
        target.neighbour = neighbour
        run([target], frames, seed)
    print(f"{neighbour.completed} commands, within {neighbour.slowest} passes,")
    print(f"and {neighbour.resets} resets of the subsystem beside {target.clients} clients")
    assert neighbour.completed > target.clients
    assert not target.asked, "others would wait for answers"


def test_thousands_of_hostile_frames_leave_a_device_that_works(
    boot: Callable[[int], Device],
) -> None:
    target = Target(boot(1))
    run([target], FRAMES, seed=1)
    assert target.asked


def test_a_host_is_served_while_that_of_another_controller_is_hostile(
    boot: Callable[[int], Device],
) -> None:
    run_beside_a_neighbour(boot(2), FRAMES // 4, seed=1)


def test_hostile_hosts_of_two_controllers_leave_a_device_that_works(
    boot: Callable[[int], Device],
) -> None:
    device = boot(2)
    run([Target(device), Target(device, 1)], FRAMES // 4, seed=1)


def test_a_host_is_served_beside_one_that_reads_no_replies(boot: Callable[[int], Device]) -> None:
    device = boot(2)
    target = Target(device)
    with Neighbour(device.servers[1], target.step, PRIVATE) as neighbour:
        target.neighbour = neighbour
        with RawClient(target.server) as client:
            client.send(wire.command(wire.VERSION, wire.QEMU_VERSION))
            for _ in range(100):
                with contextlib.suppress(OSError):  # there is no room, or no connection any more
                    for _ in range(100):
                        client.send(wire.region_read(0, PAGE))
                neighbour.begin()
                for _ in range(10):
                    target.step()
            assert neighbour.completed == 100
        neighbour.check()


def chosen_seed() -> int:
    return int(os.environ.get("POTASH_FUZZ_SEED", random.randrange(1 << 32)))


@pytest.mark.slow
def test_a_million_hostile_frames_leave_a_device_that_works(boot: Callable[[int], Device]) -> None:
    target = Target(boot(1))
    run([target], MANY, chosen_seed())
    print(f"{target.clients} clients, {target.asked} messages for memory answered")


@pytest.mark.slow
def test_a_host_is_served_beside_many_hostile_frames(boot: Callable[[int], Device]) -> None:
    run_beside_a_neighbour(boot(2), MANY // 4, chosen_seed())


@pytest.mark.slow
def test_hostile_hosts_of_two_controllers_with_many_frames(boot: Callable[[int], Device]) -> None:
    device = boot(2)
    run([Target(device), Target(device, 1)], MANY // 4, chosen_seed())
