"""Two untrusted hosts at the controllers of one drive: any entry in any queue of either, resets,
shutdowns and departures, in any order of the media's work.

The device must answer or fail, stay within its bounds, show neither host the other one's memory or
identity, and work again for both. Where the second host is an honest one, and the first uses none
of the commands that change what all hosts share, the second one's commands and data are as if it
were alone.
"""

import logging
import random
import struct
from collections.abc import Iterator

import pytest

from nvme_spec.registers import CmbUse
from potash_device.controller.cmb import CmbSettings
from potash_device.media.shapes import NamespaceShape
from potash_firmware.rpu.compute.runs import RUN_LIMIT
from potash_firmware.rpu.settings import RpuSettings
from support.compute import FakeEngine
from support.controllers import controllers
from support.hostile_entries import HIDDEN, MEMORY_SIZE, QUEUE_PAIRS, SHADOW, Mistakes, entry
from support.nvme_host import (
    CC,
    CMBMSC,
    CSTS,
    DATA,
    DOORBELLS,
    IO_QUEUES,
    MEMORY,
    NSSR,
    PAGE,
    Host,
    Queue,
    SlowMedia,
)

MEDIA_LIMIT, OUTSTANDING_LIMIT = 64 + 256, 4096 + 256
"""The work of a controller at most at a time; the burst of a pass comes on top."""

PRIVATE = 4
"""A namespace of the second controller."""

SHARED_OPCODES = (0x0D, 0x15, 0x80, 0x84)
"""Admin commands with which a host changes what it shares with others."""


class Hostile:
    """A host that does whatever `rng` says. One that `spares` leaves alone what hosts share."""

    def __init__(self, host: Host, rng: random.Random, engine: FakeEngine, *, spares: bool) -> None:
        self.host, self.rng, self.engine, self.spares = host, rng, engine, spares
        self.secret, self.identity = self.secrets = rng.randbytes(32), rng.randbytes(16)
        self.begin()

    def begin(self) -> None:
        """Begin a session with an identity, and with memory of which some is not the device's."""
        host = self.host
        host.space.unmap_all()
        host.space.map(
            0, MEMORY - HIDDEN, fd=host.memory.fd, offset=0, readable=True, writable=True
        )
        host.board.memory_changed()
        host.write64(CMBMSC, 0)
        host.disable()
        while host.executor.waiting:
            host.executor.run_all()
            host.service()
        self.engine.end_cancelled()
        host.service()
        host.enable()
        host.put(self.secret, MEMORY - HIDDEN)
        host.put(self.identity)
        assert host.command(host.admin, 0x09, cdws=(0x81, 1)).status in (0, 0x124)

    def entry(self, *, admin: bool) -> bytes:
        while True:
            made = entry(self.rng, admin)
            if not (self.spares and admin and made[0] in SHARED_OPCODES):
                return made

    def step(self) -> None:
        host, rng = self.host, self.rng
        match rng.randrange(20):
            case 0 | 1 | 2 | 3:
                self.submit(host.admin, rng.randrange(1, 6))
            case 4 | 5 | 6 | 7 | 8:
                queue = rng.choice([*host.io.values(), host.admin])
                self.submit(queue, rng.randrange(1, 15))
            case 9 | 10 | 11:
                if host.ready:
                    self.make_queue(rng.randrange(1, QUEUE_PAIRS + 1))
            case 12:
                host.write32(DOORBELLS + 4 * rng.randrange(12), rng.choice((0, 1, 15, 16, 1 << 31)))
            case 13:
                host.put(struct.pack("<I", rng.choice((0, 1, 15))), SHADOW + 4 * rng.randrange(9))
            case 14:
                host.put(rng.randbytes(64), rng.choice((DATA, IO_QUEUES, IO_QUEUES + 0x1_0000)))
            case 15:
                self.unusual()
            case _:
                self.reap()

    def unusual(self) -> None:
        host, rng = self.host, self.rng
        match rng.randrange(8):
            case 0 | 1:
                host.write32(CC, rng.choice((0, 1 << 14, 2 << 14, 4 << 20 | 6 << 16 | 1 << 14 | 1)))
            case 2:
                host.board.function_reset()
            case 3:
                if not self.spares:
                    host.write32(NSSR, 0x4E56_4D65)
            case 4:
                host.master(rng.random() < 0.5)
            case 5:
                host.space.unmap_all()
                host.board.memory_changed()
            case 6:
                host.board.detached()
                host.board.attached(host.space, host.lines)  # type: ignore[arg-type]
            case _:
                host.write64(CMBMSC, rng.choice((0, DATA, IO_QUEUES)) | 3)
        if rng.random() < 0.7:
            self.begin()

    def submit(self, queue: Queue, count: int) -> None:
        for _ in range(count):
            self.host.put(self.entry(admin=not queue.qid), queue.sq + queue.tail * 64)
            queue.tail = (queue.tail + 1) % queue.size
        self.host.ring(queue)

    def make_queue(self, qid: int) -> None:
        host = self.host
        sq, cq = IO_QUEUES + (qid - 1) * 0x2_0000, IO_QUEUES + qid * 0x2_0000 - 0x1_0000
        for opcode, at, word in ((5, cq, qid << 16 | 3), (1, sq, qid << 16 | 1)):
            host.place(
                host.admin, opcode, self.rng.getrandbits(15), prp1=at, cdws=(15 << 16 | qid, word)
            )
        host.ring(host.admin)
        host.io[qid] = Queue(qid, sq, cq, 16)

    def reap(self) -> None:
        for queue in (self.host.admin, *self.host.io.values()):
            self.host.reap(queue)

    def check(self) -> None:
        """The device's bounds."""
        host = self.host
        controllers = host.rpu.subsystem.controllers
        controller = next(each for each in controllers if each.board is host.board)
        assert len(controller.outstanding) <= OUTSTANDING_LIMIT
        assert len(controller.media_work.unfinished) <= MEDIA_LIMIT
        assert len(controller.outstanding.aborted) <= OUTSTANDING_LIMIT
        assert host.read32(CSTS) & ~0x1F == 0
        assert host.data(32, MEMORY - HIDDEN) == self.secret

    def works_again(self) -> None:
        """A session can be begun, in which the drive answers."""
        self.begin()
        assert self.host.command(self.host.admin, 0x06, cdws=(1,)).status == 0
        assert self.host.command(self.host.admin, 0x0A, cdws=(0x81, 1)).status == 0


class Honest:
    """A host that writes and reads a namespace of its own."""

    def __init__(self, host: Host, rng: random.Random) -> None:
        self.host, self.rng = host, rng
        self.secrets = [rng.randbytes(32)]
        self.contents: dict[int, bytes] = {}
        self.queue = host.create_io_queue()

    def step(self) -> None:
        lba = self.rng.randrange(16)
        if lba in self.contents and self.rng.random() < 0.5:
            self.host.put(bytes(PAGE))
            assert self.host.command(self.queue, 0x02, nsid=PRIVATE, cdws=(lba,)).status == 0
            assert self.host.data(PAGE) == self.contents[lba]
        else:
            self.contents[lba] = (self.secrets[0] + self.rng.randbytes(32)) * (PAGE // 64)
            self.host.put(self.contents[lba])
            assert self.host.command(self.queue, 0x01, nsid=PRIVATE, cdws=(lba,)).status == 0

    def check(self) -> None:
        assert self.host.read32(CSTS) == 1

    def works_again(self) -> None:
        for _ in range(8):
            self.step()


def play(seed: int, steps: int, *, honest: bool) -> None:
    rng, mistakes = random.Random(seed), Mistakes()
    logger = logging.getLogger("potash_firmware")
    logger.addHandler(mistakes)
    logger.propagate = False
    engine = FakeEngine()
    shapes = {
        2: NamespaceShape.memory(MEMORY_SIZE),
        3: NamespaceShape.compute(),
        PRIVATE: NamespaceShape(1 << 20, controllers=(1,)),
    }
    try:
        with controllers(
            2,
            media={nsid: SlowMedia.create(1 << 20) for nsid in (1, PRIVATE)},
            shapes=shapes,
            settings=RpuSettings(ana=True),
            queue_pairs=QUEUE_PAIRS,
            engine=engine,
            cmb=CmbSettings(0x8000, CmbUse.SQS | CmbUse.CQS | CmbUse.RDS),
        ) as (one, two):
            first = Hostile(one, rng, engine, spares=honest)
            second = Honest(two, rng) if honest else Hostile(two, rng, engine, spares=False)
            for _ in range(steps):
                rng.choice((first, second)).step()
                for _ in range(rng.randrange(3)):
                    if one.executor.waiting:
                        one.executor.run_next(rng.randrange(len(one.executor.waiting)))
                if engine.asked and rng.random() < 0.3:
                    engine.end(rng.choice(engine.asked))
                if rng.random() < 0.8:
                    one.service()
                first.check()
                second.check()
                assert len(engine.asked) <= RUN_LIMIT
            for host, other in ((one, second), (two, first)):
                assert all(secret not in bytes(host.memory.view) for secret in other.secrets)
            first.works_again()
            second.works_again()
    finally:
        logger.removeHandler(mistakes)
        logger.propagate = True
    assert mistakes.found == []


@pytest.mark.parametrize("seed", range(4))
def test_an_honest_host_beside_a_hostile_one(seed: int) -> None:
    play(seed, 150, honest=True)


@pytest.mark.parametrize("seed", range(4))
def test_two_hostile_hosts(seed: int) -> None:
    play(seed, 150, honest=False)


@pytest.mark.slow
@pytest.mark.parametrize("honest", [True, False])
def test_hostile_hosts_for_long(honest: bool) -> None:
    for seed in range(1000, 1300):
        try:
            play(seed, 300, honest=honest)
        except BaseException:
            print(f"seed {seed}")
            raise


# Hosts that are in each other's way.


@pytest.fixture
def pair() -> Iterator[list[Host]]:
    """Two hosts with a queue pair each, on media that always have to be waited for."""
    with controllers(2, media={1: SlowMedia.create(1 << 20)}) as hosts:
        for host in hosts:
            host.create_io_queue()
        yield hosts


def settle(host: Host) -> None:
    """Have the drive do all that it has to do."""
    host.service()
    while host.executor.waiting:
        host.executor.run_all()
        host.service()


def register(host: Host, key: int) -> None:
    """Be a host with an identity, and a registrant of namespace 1."""
    host.put(b"identifier %5d" % key)
    assert host.command(host.admin, 0x09, cdws=(0x81, 1)).status == 0
    host.put(struct.pack("<QQ", 0, key))
    assert host.command(host.io[1], 0x0D, nsid=1).status == 0


@pytest.mark.parametrize("pause", ["bus master", "shutdown", "memory"])
@pytest.mark.parametrize("what", ["detach", "delete", "format", "sanitize", "preempt"])
def test_a_host_that_takes_no_completions_keeps_no_other_waiting(
    pair: list[Host], what: str, pause: str
) -> None:
    first, second = pair
    for number, host in enumerate(pair):
        register(host, number + 1)
    second.put(struct.pack("<QQ", 2, 0))
    acquired = second.command(second.io[1], 0x11, nsid=1, cdws=(3 << 8,))  # for registrants
    assert acquired.status == 0
    for cid in range(4):
        second.place(second.io[1], 1 + cid % 2, cid, nsid=1, cdws=(cid % 2, 0, 3))
    second.ring(second.io[1])
    second.service()
    match pause:
        case "bus master":
            second.master(False)
        case "shutdown":
            second.write32(CC, 4 << 20 | 6 << 16 | 1 << 14 | 6 << 4 | 1)
        case "memory":
            second.space.unmap_all()
            second.board.memory_changed()
    settle(second)
    first.put(struct.pack("<QQ", 1, 2) if what == "preempt" else struct.pack("<HH", 1, 1))
    queue, opcode, nsid, dword10 = {
        "detach": (first.admin, 0x15, 1, 1),
        "delete": (first.admin, 0x0D, 1, 1),
        "format": (first.admin, 0x80, 1, 0),
        "sanitize": (first.admin, 0x84, 0, 2),
        "preempt": (first.io[1], 0x11, 1, 3 << 8 | 2),
    }[what]
    assert first.command(queue, opcode, nsid=nsid, cdws=(dword10,)).status == 0
    settle(first)
    if what == "sanitize":
        assert first.command(first.admin, 0x02, cdws=(127 << 16 | 0x81,)).status == 0
        assert first.data(3)[2] & 7 == 1, "it has ended"
    second.space.unmap_all()
    second.space.map(0, MEMORY, fd=second.memory.fd, offset=0, readable=True, writable=True)
    second.board.memory_changed()
    second.disable()
    second.enable()


@pytest.mark.parametrize("opcode", [0x80, 0x84])
@pytest.mark.parametrize("steps", range(5))
def test_the_subsystem_is_reset_while_the_other_host_erases_it(
    pair: list[Host], opcode: int, steps: int
) -> None:
    """Format and Sanitize go on, and nothing is as before when both can be used again."""
    first, second = pair
    first.put(b"A" * PAGE)
    assert first.command(first.io[1], 0x01, nsid=1).status == 0
    nsid, dword10 = (1, 0) if opcode == 0x80 else (0, 2)
    first.place(first.admin, opcode, 9, nsid=nsid, cdws=(dword10,))
    first.ring(first.admin)
    first.service()
    for _ in range(steps):
        if first.executor.waiting:
            first.executor.run_next()
        first.service()
    second.write32(NSSR, 0x4E56_4D65)
    second.service()
    for host in pair:
        assert host.read32(CSTS) == 1 << 4  # CSTS.NSSRO
        host.begin_enable()
    settle(first)
    for host in pair:
        assert host.ready
        host.put(bytes(PAGE))
        queue = host.create_io_queue()
        assert host.command(queue, 0x02, nsid=1).status == 0
        assert host.data(PAGE) == bytes(PAGE)


def test_event_requests_of_one_host_take_none_of_the_other(pair: list[Host]) -> None:
    for host in pair:
        for cid in range(4):
            host.place(host.admin, 0x0C, 0x90 + cid)
        host.ring(host.admin)
        host.service()
        assert host.command(host.admin, 0x0C, 0x77).status == 0x105, "limit exceeded"
    first, second = pair
    first.write32(DOORBELLS + 8 * 3, 1)  # of a queue that is not there
    first.service()
    assert [each.cid for each in first.reap(first.admin)] == [0x90]
    assert second.reap(second.admin) == []
