"""Doorbells that the host has mapped: it stores values, and nothing else tells the device."""

import random
import struct
from collections.abc import Iterator

import pytest

from potash_device.media.store import MemoryMedia
from support.migration import moved
from support.nvme_host import CC, CSTS, DOORBELLS, PAGE, Host, Queue

IDLE = 1.0
"""Seconds: longer than the device polls often."""
READ, EVENT_REQUEST = 0x02, 0x0C
SHADOW, EVENTS = 0x30_0000, 0x30_1000


class MappedHost(Host):
    """A host that stores doorbells in the page that it was given."""

    def __init__(self) -> None:
        super().__init__({1: MemoryMedia.create(1 << 20)}, map_doorbells=True)

    def store(self, index: int, value: int) -> None:
        assert self.board.queues.page is not None
        at = DOORBELLS + 4 * index
        struct.pack_into("<I", self.board.queues.page.memory.bytes, at, value)

    def ring(self, queue: Queue) -> None:
        self.store(2 * queue.qid, queue.tail)

    def reads(self, queue: Queue, count: int) -> None:
        """Give commands, one after the other, and take their completions."""
        for cid in range(count):
            self.place(queue, READ, cid, nsid=1)
            self.ring(queue)
            self.service()
            assert [(one.cid, one.status) for one in self.reap(queue, ring=False)] == [(cid, 0)]
            self.store(2 * queue.qid + 1, queue.head)


@pytest.fixture
def host() -> Iterator[MappedHost]:
    with MappedHost() as host:
        host.enable()
        yield host


def test_a_store_is_a_ring(host: MappedHost) -> None:
    """Also of a completion queue that is full, and over several laps."""
    queue = host.create_io_queue(size=4)
    host.reads(queue, 9)
    for cid in range(3):
        host.place(queue, READ, cid, nsid=1)
    host.ring(queue)
    host.service()
    for cid in range(3, 6):
        host.place(queue, READ, cid, nsid=1)
    host.ring(queue)
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [0, 1, 2]
    host.store(2 * queue.qid + 1, queue.head)
    host.service()
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [3, 4, 5]


def test_an_idle_page_is_polled_each_millisecond(host: MappedHost) -> None:
    host.reads(host.create_io_queue(), 1)
    assert host.rpu.timeout is not None and host.rpu.timeout < 1e-3
    host.now += IDLE
    host.service()
    assert host.rpu.timeout == 1e-3
    host.write32(CC, 4 << 20 | 6 << 16 | 1 << 14 | 1)
    host.service()
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) == 2 << 2 | 1
    assert host.sleeps
    host.disable()
    assert host.sleeps


def test_a_queue_begins_anew_with_the_value_that_an_old_one_has_left(host: MappedHost) -> None:
    """A first tail of 1 is a change, though the page held 1 before."""
    for _ in range(2):
        host.reads(host.create_io_queue(), 1)
        for opcode in (0x00, 0x04):  # delete both
            assert host.command(host.admin, opcode, cdws=(1,)).status == 0
    host.disable()
    host.enable()
    host.reads(host.create_io_queue(), 1)


def test_a_value_that_cannot_be_is_an_event(host: MappedHost) -> None:
    queue = host.create_io_queue(2)
    host.place(host.admin, EVENT_REQUEST, 9)
    host.ring(host.admin)
    host.store(4, 99)
    host.service()
    assert [(one.cid, one.dw0) for one in host.reap(host.admin)] == [(9, 1 << 16 | 1 << 8)]
    host.place(host.admin, EVENT_REQUEST, 9)
    host.ring(host.admin)
    host.store(2, 1)  # of queue 1, which does not exist
    host.service()
    assert host.reap(host.admin) == []  # the first event is not cleared yet
    host.reads(queue, 1)


def test_both_kinds_of_doorbells_in_memory_work_together(host: MappedHost) -> None:
    """A host with a doorbell buffer stores in the page only what it would ring."""
    queue = host.create_io_queue()
    assert host.command(host.admin, 0x7C, prp1=SHADOW, prp2=EVENTS).status == 0
    for cid in range(3):
        host.now += IDLE
        host.service()
        host.place(queue, READ, cid, nsid=1)
        struct.pack_into("<I", host.memory.view, SHADOW + 8, queue.tail)
        if cid:
            host.ring(queue)
        host.service()
        assert [one.cid for one in host.reap(queue, ring=False)] == [cid]


def test_queues_that_are_restored_go_on_where_they_were(host: MappedHost) -> None:
    """With another page, as after a migration; a tail of 0 is a change there."""
    queue = host.create_io_queue(size=4)
    host.reads(queue, 3)
    page, queues = host.board.queues.page, host.board.queues
    assert page is not None and queue.tail == 3
    page.renew()
    restored = list(queues.completions.values()), list(queues.submissions.values())
    queues.restore(*restored, None, 0)
    host.service()
    host.reads(queue, 6)


def test_what_was_stored_last_moves_with_the_drive(host: MappedHost) -> None:
    """The other drive has another page, which begins with the values of the queues."""
    queue = host.create_io_queue(size=4)
    host.reads(queue, 3)
    host.place(queue, READ, 3, nsid=1)
    host.ring(queue)
    with MappedHost() as other:
        moved(host, other)
        other.service()
        assert [one.cid for one in other.reap(queue, ring=False)] == [3]
        other.store(2 * queue.qid + 1, queue.head)
        other.reads(queue, 6)


def test_whatever_is_stored_the_device_goes_on(host: MappedHost) -> None:
    chosen = random.Random(5)
    host.create_io_queue(1)
    host.create_io_queue(3)
    for _ in range(300):
        for _ in range(chosen.randrange(8)):
            host.store(chosen.randrange(PAGE // 4), chosen.choice([0, 1, 7, 15, 16, 0xFFFF_FFFF]))
        host.now += chosen.choice([0.0, 1e-4, IDLE])
        host.service()
    assert not host.fatal
    host.disable()
    host.enable()
    host.reads(host.create_io_queue(), 20)


def test_a_reset_function_has_an_empty_page(host: MappedHost) -> None:
    page = host.board.queues.page
    assert page is not None
    host.store(2, 5)
    host.board.reset()
    assert bytes(page.memory.bytes[DOORBELLS:]) == bytes(PAGE)
    kept = page.memory.bytes
    host.board.detached()
    kept[DOORBELLS] = 1
    assert bytes(page.memory.bytes[DOORBELLS:]) == bytes(PAGE), "the next host's is another"
    host.board.attached(host.space, host.lines)  # type: ignore[arg-type]  # as at the first time
    host.enable()
    host.reads(host.create_io_queue(), 2)
