"""As many queues as there are, as deep as they get, and transfers as long as they may be."""

import os
import random
import struct

import pytest

from potash_device.media.shapes import NamespaceShape
from support.nvme_host import DATA, DOORBELLS, PAGE, Cqe, Host, Queue

WRITE, READ, FLUSH = 1, 2, 0
IDENTIFY, GET_LOG, DOORBELL_BUFFERS = 0x06, 0x02, 0x7C

QUEUES = 64
DEPTH = 4096
MDTS = 512 << 10

FAR = 0x40_0000
"""Where the queues of these tests lie, behind all that the other ones use."""


def finished(host: Host, queue: Queue, count: int) -> list[Cqe]:
    """Let everybody work until `count` completions have come."""
    found: list[Cqe] = []
    for _ in range(10_000):
        host.service()
        host.executor.run_all()
        found += host.reap(queue)
        if len(found) >= count:
            return found
    raise AssertionError(f"only {len(found)} of {count} commands were answered")


def test_every_queue_of_64_has_its_doorbells_its_vector_and_its_commands() -> None:
    with Host(queue_pairs=QUEUES, memory=FAR + QUEUES * 0x1_4000) as host:
        host.enable()
        assert host.command(host.admin, 0x09, cdws=(7, 0x00FF_00FF)).dw0 == 63 << 16 | 63
        queues = [
            host.create_io_queue(qid, 64, base=FAR + (qid - 1) * 0x1_4000)
            for qid in range(1, QUEUES + 1)
        ]
        # One more is refused: there is no such queue, and no such vector.
        refused = host.command(host.admin, 0x05, prp1=FAR, cdws=(63 << 16 | 65, 65 << 16 | 3))
        assert refused.status == 0x101
        host.lines.fired.clear()
        for queue in queues:
            for cid in range(queue.qid % 7 + 1):
                host.place(queue, READ, cid, nsid=1, prp1=DATA)
        for queue in random.Random(1).sample(queues, QUEUES):
            host.ring(queue)
        host.service()
        for queue in queues:
            completions = host.reap(queue)
            assert [one.cid for one in completions] == list(range(queue.qid % 7 + 1))
            assert {(one.sqid, one.status) for one in completions} == {(queue.qid, 0)}
        assert sorted(set(host.lines.fired)) == [queue.qid for queue in queues]
        host.service()
        for queue in queues:
            assert host.command(queue, FLUSH, 77, nsid=1).status == 0


def test_64_queues_live_by_the_shadow_page_too() -> None:
    shadow, events = FAR - 2 * PAGE, FAR - PAGE
    with Host(queue_pairs=QUEUES, memory=FAR + QUEUES * 0x1_4000) as host:
        host.enable()
        assert host.command(host.admin, DOORBELL_BUFFERS, prp1=shadow, prp2=events).status == 0
        queues = [
            host.create_io_queue(qid, 64, base=FAR + (qid - 1) * 0x1_4000)
            for qid in range(1, QUEUES + 1)
        ]
        for queue in queues:
            host.place(queue, READ, queue.qid, nsid=1, prp1=DATA)
            struct.pack_into("<I", host.memory.view, shadow + 8 * queue.qid, queue.tail)
        host.ring(queues[-1])
        host.service()
        assert [[one.cid for one in host.reap(queue)] for queue in queues] == [
            [queue.qid] for queue in queues
        ]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_queue_of_4096_entries_is_filled_and_emptied_whole(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Host(memory=FAR + 0x6_0000) as host:
        if not at_once:
            monkeypatch.setattr(host.media[1], "read_at_once", lambda views, offset: False)
        host.enable()
        too_many = host.command(host.admin, 0x05, prp1=FAR, cdws=(DEPTH << 16 | 1, 1 << 16 | 3))
        assert too_many.status == 0x102
        queue = host.create_io_queue(size=DEPTH, base=FAR)
        for lap in range(3):
            cids = [(lap * DEPTH + number) % 0x1_0000 for number in range(DEPTH - 1)]
            for cid in cids:
                host.place(queue, READ, cid, nsid=1, prp1=DATA)
            host.ring(queue)
            completions = finished(host, queue, DEPTH - 1)
            assert sorted(one.cid for one in completions) == sorted(cids)
            assert {one.status for one in completions} == {0}


def test_a_completion_queue_shared_by_full_ones_loses_nothing() -> None:
    """Three submission queues of 256 entries end in a completion queue of 2."""
    with Host(memory=FAR + 0x10_0000) as host:
        host.enable()
        small = Queue(1, 0, FAR, 2)
        assert host.command(host.admin, 5, prp1=FAR, cdws=(1 << 16 | 1, 1 << 16 | 3)).status == 0
        expected = set()
        for qid in (1, 2, 3):
            base = FAR + qid * 0x1_0000
            made = host.command(host.admin, 1, prp1=base, cdws=(255 << 16 | qid, 1 << 16 | 1))
            assert made.status == 0
            queue = Queue(qid, base, 0, 256)
            for cid in range(255):
                host.place(queue, FLUSH if cid % 2 else READ, cid, nsid=1)
                expected.add((qid, cid))
            host.ring(queue)
        found = [(one.sqid, one.cid) for one in finished(host, small, 3 * 255)]
        assert len(found) == len(expected) and set(found) == expected


def prp_list(host: Host, address: int, pages: list[int]) -> int:
    """Store a PRP list, chained where a page is full; gives its address."""
    start = address
    while len(pages) > 512:
        host.put(struct.pack("<512Q", *pages[:511], address + PAGE), address)
        pages, address = pages[511:], address + PAGE
    host.put(struct.pack(f"<{len(pages)}Q", *pages), address)
    return start


@pytest.mark.parametrize("block_size", [512, 4096])
@pytest.mark.parametrize("first", [0, 4, 2048, 4092])
def test_a_transfer_of_exactly_mdts_moves_and_one_block_more_does_not(
    block_size: int, first: int
) -> None:
    shapes = {1: NamespaceShape(1 << 20, block_size)}
    with Host(shapes=shapes, memory=FAR + (2 << 20)) as host:
        host.enable()
        queue = host.create_io_queue()
        content = os.urandom(MDTS)
        host.put(content, FAR + first)
        pages = [FAR + PAGE * number for number in range(1, MDTS // PAGE + 2)]
        where = {"prp1": FAR + first, "prp2": prp_list(host, FAR + (1 << 20), pages)}
        count = MDTS // block_size
        done = host.command(queue, WRITE, nsid=1, cdws=(1, 0, count - 1), **where)
        assert done.status == 0
        assert os.pread(host.media[1].fd, MDTS, block_size) == content
        host.clear(FAR, 1 << 20)
        assert host.command(queue, READ, nsid=1, cdws=(1, 0, count - 1), **where).status == 0
        assert host.data(MDTS, FAR + first) == content
        host.clear(FAR, 1 << 20)
        for opcode in (READ, WRITE):
            done = host.command(queue, opcode, nsid=1, cdws=(1, 0, count), **where)
            assert (done.status, done.dnr) == (0x002, True)
        assert host.data(1 << 20, FAR) == bytes(1 << 20)
        assert os.pread(host.media[1].fd, MDTS, block_size) == content


@pytest.mark.parametrize(
    ("opcode", "cdws"),
    [
        (GET_LOG, ((MDTS // 4 & 0xFFFF) << 16 | 2, MDTS // 4 >> 16)),  # 0's based: one dword more
        (GET_LOG, (0xFFFF << 16 | 2, 0xFFFF)),
        (0x11, (MDTS // 4, 0)),
        (0x11, (0xFFFF_FFFF, 0)),
        (0xC6, (MDTS // 4 + 1,)),
        (0xC6, (0xFFFF_FFFF,)),
    ],
)
def test_an_admin_command_that_moves_more_than_mdts_is_refused(
    opcode: int, cdws: tuple[int, ...]
) -> None:
    with Host() as host:
        host.enable()
        assert host.command(host.admin, opcode, cdws=cdws).status == 0x002


def test_admin_commands_that_wait_are_as_many_as_is_sensible() -> None:
    with Host() as host:
        host.connect_apu()
        host.enable()
        for cid in range(600):
            host.place(host.admin, 0xC6, cid, cdws=(8,))
            if cid % 15 == 14:
                host.ring(host.admin)
                host.service()
        assert len(host.rpu.controller.outstanding) == 256
        host.disable()
        assert len(host.rpu.controller.outstanding) == 0
        host.enable()
        assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0


def test_a_doorbell_beyond_the_last_queue_pair_is_none() -> None:
    with Host(queue_pairs=QUEUES) as host:
        host.enable()
        host.write32(DOORBELLS + 8 * (QUEUES + 1), 1)
        host.service()
        assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
