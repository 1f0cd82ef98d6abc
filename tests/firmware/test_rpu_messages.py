"""A host whose memory is reached by messages: queues, lists and data, and what comes in between.

`test_rpu_paths_agree` and `test_rpu_blocks_model` run over such memory, too; here is what only it
has: entries in pieces, few transfers, refusals, and commands of the host that come first.
"""

import logging
import random
import struct
from collections.abc import Iterator
from typing import cast

import pytest

from potash_device.media.store import MemoryMedia
from pyvfio_user.dma_messages import DmaMessages
from support.messages import LocalMessages
from support.nvme_host import DATA, PAGE, Cqe, Host, Queue, SlowMedia

WRITE, READ = 1, 2
IDENTIFY, DOORBELL_BUFFER_CONFIG, ASYNCHRONOUS_EVENT = 6, 0x7C, 0xC
DATA_TRANSFER_ERROR = 4
MEDIA = 1 << 20


@pytest.fixture
def media() -> MemoryMedia:
    return MemoryMedia.create(MEDIA)


@pytest.fixture
def host(media: MemoryMedia) -> Iterator[Host]:
    with Host({1: media}, by_messages=True) as host:
        host.enable()
        host.create_io_queue(size=64)
        yield host


def content(media: MemoryMedia, block: int, blocks: int = 1) -> bytes:
    """What the media hold from a block of 4096 bytes on."""
    buffer = memoryview(bytearray(blocks * PAGE))
    media.read_into([buffer], block * PAGE)
    return bytes(buffer)


def fill(media: MemoryMedia, seed: int = 0) -> bytes:
    data = random.Random(seed).randbytes(MEDIA)
    media.write_from([memoryview(data)], 0)
    return data


def place(host: Host, queue: Queue, opcode: int, cid: int, block: int, at: int) -> None:
    host.place(queue, opcode, cid, nsid=1, prp1=at, cdws=(block, 0, 0))


def run(host: Host, queue: Queue) -> list[Cqe]:
    host.ring(queue)
    host.service()
    return host.reap(queue)


def test_a_burst_takes_three_transfers(host: Host, media: MemoryMedia) -> None:
    """One for its entries, one for all of its data and one for its completions."""
    stored, queue = fill(media), host.io[1]
    for number in range(8):
        place(host, queue, READ, number, number, DATA + number * PAGE)
    host.messages.reads.clear()
    host.messages.writes.clear()
    assert [one.status for one in run(host, queue)] == [0] * 8
    assert host.data(8 * PAGE) == stored[: 8 * PAGE]
    assert host.messages.reads == [[(queue.sq, 8 * 64)]]
    assert host.messages.writes == [
        [(DATA + number * PAGE, PAGE) for number in range(8)],
        [(queue.cq, 8 * 16), (queue.cq, 8 * 16)],
    ]


def test_lists_are_fetched_and_their_pages_together(host: Host, media: MemoryMedia) -> None:
    queue, pages = host.io[1], [DATA + (2 * number + 1) * PAGE for number in range(32)]
    sent = [bytes([number + 1]) * PAGE for number in range(32)]
    for at, page in zip(pages, sent, strict=True):
        host.put(page, at)
    host.put(struct.pack("<31Q", *pages[1:]))
    host.messages.reads.clear()
    host.place(queue, WRITE, 1, nsid=1, prp1=pages[0], prp2=DATA, cdws=(4, 0, 31))
    assert [one.status for one in run(host, queue)] == [0]
    assert content(media, 4, 32) == b"".join(sent)
    assert host.messages.reads == [
        [(queue.sq, 64)], [(DATA, 31 * 8)], [(page, PAGE) for page in pages],
    ]  # fmt: skip


def test_queues_wrap(host: Host, media: MemoryMedia) -> None:
    stored, queue = fill(media), host.create_io_queue(2, size=5)
    for lap in range(40):
        for number in range(3):
            place(host, queue, READ, 3 * lap + number, lap, DATA + number * PAGE)
        found = run(host, queue)
        assert [(one.cid, one.status) for one in found] == [(3 * lap + n, 0) for n in range(3)]
        assert host.data(3 * PAGE) == 3 * stored[lap * PAGE : (lap + 1) * PAGE]


class Backwards(LocalMessages):
    """A client that copies the bytes of a message singly, the last one first."""

    def write(self, pieces: object) -> None:
        for address, data in pieces:  # type: ignore[attr-defined]  # as in the base class
            for at in reversed(range(len(data))):
                self.memory[address + at] = data[at]
                self.on_write()


def test_a_host_that_looks_never_sees_half_an_entry(media: MemoryMedia) -> None:
    """Nor is it interrupted before it can see a whole one, in either phase."""
    with Host({1: media}, by_messages=True) as host:
        messages = Backwards(host.memory.view)
        host.space._messages = cast(DmaMessages, messages)
        host.enable()
        queue = host.create_io_queue(size=4)
        seen: list[tuple[int, ...]] = []

        def look() -> None:
            assert not host.lines.fired
            at = queue.cq + queue.head * 16
            dw0, dw1, _, sqid, cid, word = struct.unpack_from("<IIHHHH", host.memory.view, at)
            if word & 1 == queue.phase and (not seen or seen[-1] != (dw0, dw1, sqid, cid)):
                seen.append((dw0, dw1, sqid, cid))

        messages.on_write = look
        for cid in range(100, 112):
            host.lines.fired.clear()
            place(host, queue, READ, cid, 0, DATA)
            assert [one.cid for one in run(host, queue)] == [cid]
            assert host.lines.fired == [1]
        assert seen == [(0, 0, 1, cid) for cid in range(100, 112)]


def test_doorbells_in_memory_are_not_offered(host: Host) -> None:
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    (oacs,) = struct.unpack("<H", host.data(2, DATA + 256))
    assert not oacs >> 8 & 1
    config = host.command(host.admin, DOORBELL_BUFFER_CONFIG, prp1=DATA, prp2=DATA + PAGE)
    assert (config.status, config.dnr) == (DATA_TRANSFER_ERROR, True)
    place(host, host.io[1], READ, 1, 0, DATA)
    assert [one.status for one in run(host, host.io[1])] == [0]


def test_they_are_where_only_other_memory_is_not_mapped() -> None:
    """Such as a display's, which QEMU has beside RAM."""
    with Host() as host:
        host.space.map(1 << 32, PAGE, fd=None, offset=0, readable=True, writable=True)
        host.board.memory_changed()
        host.enable()
        assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
        (oacs,) = struct.unpack("<H", host.data(2, DATA + 256))
        assert oacs >> 8 & 1
        host.messages.memory = memoryview(bytearray(16))
        config = host.command(host.admin, DOORBELL_BUFFER_CONFIG, prp1=DATA, prp2=DATA + PAGE)
        assert config.status == 0
        assert not host.messages.writes
        assert not host.board.dma.by_messages


def test_the_log_has_it_once(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    with Host(by_messages=True) as other, caplog.at_level(logging.WARNING):
        other.enable()
        other.create_io_queue(1)
        other.disable()
        other.enable()
        assert other.board.dma.by_messages
    said = [one.getMessage() for one in caplog.records if "by messages" in one.getMessage()]
    assert len(said) == 1
    assert "without a file descriptor" in said[0]


def test_data_that_the_host_refuses_end_their_command_alone(host: Host, media: MemoryMedia) -> None:
    stored, queue, bad = fill(media), host.io[1], DATA + 2 * PAGE
    host.messages.refuses = lambda address, count: address == bad
    for number in range(8):
        opcode = WRITE if number == 5 else READ
        at = bad if number in (2, 5) else DATA + number * PAGE
        place(host, queue, opcode, number, number, at)
    found = {one.cid: (one.status, one.dnr) for one in run(host, queue)}
    assert found == {n: (DATA_TRANSFER_ERROR if n in (2, 5) else 0, False) for n in range(8)}
    assert content(media, 5) == stored[5 * PAGE : 6 * PAGE]
    for number in (0, 1, 3, 4, 6, 7):
        assert host.data(PAGE, DATA + number * PAGE) == stored[number * PAGE :][:PAGE]


@pytest.mark.parametrize("which", ["sq", "cq"])
def test_a_queue_that_the_host_refuses_is_fatal(host: Host, which: str) -> None:
    queue = host.io[1]
    base = queue.sq if which == "sq" else queue.cq
    host.messages.refuses = lambda address, count: base <= address < base + 64 * 64
    place(host, queue, READ, 1, 0, DATA)
    assert run(host, queue) == []
    assert host.fatal
    host.messages.refuses = lambda address, count: False
    host.disable()
    host.enable()
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0


def test_what_was_mapped_instead_is_used(host: Host, media: MemoryMedia) -> None:
    stored, queue = fill(media), host.io[1]
    place(host, queue, READ, 1, 0, DATA)
    assert len(run(host, queue)) == 1
    host.space.unmap(0, host.memory.size)
    fd = host.memory.fd
    host.space.map(0, host.memory.size, fd=fd, offset=0, readable=True, writable=True)
    host.board.memory_changed()
    host.messages.writes.clear()
    place(host, queue, READ, 2, 1, DATA)
    assert [one.cid for one in run(host, queue)] == [2]
    assert host.data(PAGE) == stored[PAGE : 2 * PAGE]
    assert not host.messages.writes


def test_completions_wait_while_a_command_of_the_host_comes_first(host: Host) -> None:
    queue = host.io[1]
    place(host, queue, READ, 1, 0, DATA)
    host.lines.fired.clear()
    at_completion = iter([False, False, True])  # entries, data, then this
    host.messages.interrupts = lambda: next(at_completion, False)
    assert run(host, queue) == []
    assert host.lines.fired == []
    assert not host.fatal
    host.messages.interrupted = False
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0)]
    assert host.lines.fired == [1]


def test_a_command_whose_media_work_ends_meanwhile_goes_on_after_it() -> None:
    media = SlowMedia.create(MEDIA)
    stored = fill(media)
    with Host({1: media}, by_messages=True) as host:
        host.enable()
        queue = host.create_io_queue()
        place(host, queue, READ, 7, 3, DATA)
        assert run(host, queue) == []
        host.messages.interrupted = True
        host.executor.run_all()
        host.service()
        assert host.reap(queue) == []
        host.messages.interrupted = False
        host.service()
        assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, 0)]
        assert host.data(PAGE) == stored[3 * PAGE : 4 * PAGE]


def test_bus_mastering_that_is_switched_off_in_the_middle_loses_nothing(host: Host) -> None:
    """As the server does it: the transfer fails, then the write to configuration space comes."""
    queue = host.io[1]
    for at in range(3):  # entries, data, completions
        calls = iter([False] * at + [True])
        host.messages.interrupts = lambda calls=calls: next(calls, False)  # type: ignore[misc]
        place(host, queue, READ, at, 0, DATA)
        assert run(host, queue) == []
        host.messages.interrupted = False
        host.master(False)
        host.service()
        assert host.reap(queue) == []
        host.master(True)
        host.service()
        assert [(one.cid, one.status) for one in host.reap(queue)] == [(at, 0)]
    assert not host.fatal


@pytest.mark.parametrize("kind", ["disable", "reset", "detach"])
def test_a_reset_in_the_middle_leaves_nothing(host: Host, kind: str) -> None:
    for at in range(3):
        queue = host.io[1]
        calls = iter([False] * at + [True])
        host.messages.interrupts = lambda calls=calls: next(calls, False)  # type: ignore[misc]
        place(host, queue, READ, at, 0, DATA)
        assert run(host, queue) == []
        host.messages.interrupted = False
        if kind == "disable":
            host.disable()
        elif kind == "reset":
            host.board.reset()
        else:
            host.board.detached()
            host.board.attached(host.space, host.lines)  # type: ignore[arg-type]  # as in `Host`
        host.messages.writes.clear()
        host.service()
        assert not host.messages.writes
        host.enable()
        host.create_io_queue(size=64)
    assert host.reap(host.admin) == []


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_or_answered_twice_whatever_comes_in_between(
    media: MemoryMedia, seed: int
) -> None:
    """Commands that come first end at most the commands that they meet, which a host retries."""
    chosen = random.Random(seed)
    stored = fill(media, seed)
    with Host({1: media}, by_messages=True) as host:
        host.enable()
        queues = [host.create_io_queue(qid, size=16) for qid in (1, 2)]
        host.messages.interrupts = lambda: chosen.random() < 0.08
        asked: dict[tuple[int, int], tuple[int, int]] = {}
        answered = cid = failures = 0
        for _ in range(150):
            for queue in queues:
                for _ in range(chosen.randrange(8 - sum(one[0] == queue.qid for one in asked))):
                    cid += 1
                    block, at = chosen.randrange(256), DATA + PAGE * len(asked)
                    host.clear(at, PAGE)
                    place(host, queue, READ, cid, block, at)
                    asked[queue.qid, cid] = block, at
                host.ring(queue)
            for _ in range(40):
                host.service()
                host.messages.interrupted = False
                for queue in queues:
                    for one in host.reap(queue):
                        block, at = asked.pop((one.sqid, one.cid))
                        answered += 1
                        assert one.status in (0, DATA_TRANSFER_ERROR)
                        failures += one.status != 0
                        if one.status == 0:
                            assert host.data(PAGE, at) == stored[block * PAGE :][:PAGE]
                if not asked:
                    break
            assert not asked
        assert answered == cid > 500
        assert failures < answered // 4
        assert not host.fatal


def test_an_event_is_not_lost_to_a_command_that_comes_first(host: Host) -> None:
    host.place(host.admin, ASYNCHRONOUS_EVENT, 9)
    assert run(host, host.admin) == []
    host.messages.interrupts = lambda: True
    host.write32(0x1000 + 8 * 4, 1)  # a doorbell of no queue
    host.service()
    assert host.reap(host.admin) == []
    host.messages.interrupts = lambda: False
    host.messages.interrupted = False
    host.service()
    assert [one.cid for one in host.reap(host.admin)] == [9]
