"""The state of a drive: saved under load, and taken by another one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random

import pytest

from potash_device.media.errors import MediaError
from pyvfio_user.device import failure_of
from pyvfio_user.migration import State
from support.migration import finish, load, moved, stop, write
from support.nvme_host import DATA, DOORBELLS, MEMORY, PAGE, Cqe, Host, Queue

READ, WRITE, FLUSH = 0x02, 0x01, 0x00
SET_FEATURES, GET_FEATURES, AER, GET_LOG = 0x09, 0x0A, 0x0C, 0x02


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        yield host


def test_a_controller_that_is_disabled_is_moved(host: Host) -> None:
    with Host() as other:
        moved(host, other)
        other.enable()


def test_a_controller_that_has_failed_is_moved(host: Host) -> None:
    host.enable()
    assert host.command(host.admin, SET_FEATURES, cdws=(0x0F, 100)).status == 0  # Keep Alive
    host.now += 1
    host.service()
    assert host.ready and host.fatal
    with Host() as other:
        moved(host, other)
        assert other.ready and other.fatal
        other.disable()
        other.enable()
        assert not other.fatal


def test_queues_go_on_where_they_were(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue(1, 4)
    for cid in range(6):  # the queue has wrapped, and its phase has changed
        host.put(bytes([cid]) * PAGE)
        assert host.command(queue, WRITE, cid, nsid=1, prp1=DATA, cdws=(cid,)).status == 0
    with Host() as other:
        moved(host, other)
        for cid in range(6):
            assert other.command(queue, READ, cid, nsid=1, prp1=DATA, cdws=(cid,)).status == 0
            assert other.data(PAGE) == bytes([cid]) * PAGE
        other.create_io_queue(2)


def test_what_was_not_fetched_is_fetched_there(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    pending = host.rpu.migration.change(State.RUNNING, State.STOP)
    write(host, queue, 1, 7, b"seven")
    host.ring(queue)
    finish(host)
    assert pending is not None
    assert host.reap(queue) == []
    with Host() as other:
        moved_queue = queue
        state = b""
        host.rpu.migration.change(State.STOP, State.STOP_COPY)
        while piece := host.rpu.migration.read(1 << 16):
            state += piece
        other.memory.view[:] = host.memory.view
        load(other, state)
        other.executor.run_all()
        other.service()
        assert [one.cid for one in other.reap(moved_queue)] == [1]
        other.admin = host.admin
        assert other.command(queue, READ, 2, nsid=1, prp1=DATA, cdws=(7,)).status == 0
        assert other.data(5) == b"seven"


def test_media_work_is_finished_before_it_stops(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    host.place(queue, FLUSH, 9, nsid=1)
    host.ring(queue)
    host.service()
    pending = host.rpu.migration.change(State.RUNNING, State.STOP)
    assert pending is not None
    outcomes: list[int] = []
    pending.add_done_callback(lambda ended: outcomes.append(failure_of(ended)))
    host.service()
    assert not host.rpu.migration.stopped
    assert outcomes == []
    while host.executor.waiting:
        host.executor.run_next()
        host.service()
    assert host.rpu.migration.stopped
    assert outcomes == [0]
    assert [one.cid for one in host.reap(queue)] == [9]


def test_a_drive_that_stays_busy_goes_on(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    host.place(queue, FLUSH, 9, nsid=1)
    host.ring(queue)
    host.service()
    pending = host.rpu.migration.change(State.RUNNING, State.STOP)
    assert pending is not None
    outcomes: list[int] = []
    pending.add_done_callback(lambda ended: outcomes.append(failure_of(ended)))
    assert host.rpu.timeout == 4.0
    host.now += 4.1
    host.service()
    assert outcomes == [16], "EBUSY"
    host.executor.run_all()
    host.service()
    assert [one.cid for one in host.reap(queue)] == [9]
    assert host.command(queue, WRITE, 1, nsid=1, prp1=DATA).status == 0


def test_a_drive_that_cannot_be_flushed_is_not_stopped(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loss would be forgotten."""
    host.enable()
    queue = host.create_io_queue()
    pending = host.rpu.migration.change(State.RUNNING, State.STOP)
    assert pending is not None
    outcomes: list[int] = []
    pending.add_done_callback(lambda ended: outcomes.append(failure_of(ended)))
    monkeypatch.setattr(host.media[1], "lost", MediaError(5, "flushing failed"))
    finish(host)
    assert outcomes == [5], "EIO"
    assert host.command(queue, READ, nsid=1, prp1=DATA).status == 0


def test_a_stopped_drive_does_nothing_until_it_goes_on(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    stop(host)
    write(host, queue, 1, 0, b"x")
    host.ring(queue)
    before = bytes(host.memory.view)
    host.now += 1e6
    host.service()
    assert host.rpu.timeout is None
    assert bytes(host.memory.view) == before
    host.rpu.migration.change(State.STOP, State.RUNNING)
    host.ring(queue)  # what was rung meanwhile is not heard
    finish(host)
    assert [one.cid for one in host.reap(queue)] == [1]


def test_a_stopped_drive_does_not_take_its_host_for_dead(host: Host) -> None:
    host.enable()
    completion = host.command(host.admin, SET_FEATURES, cdws=(0x0F, 5000))  # Keep Alive Timer
    assert completion.status == 0
    host.now += 2.0
    stop(host)
    host.now += 3600.0
    host.rpu.migration.change(State.STOP, State.RUNNING)
    host.now += 2.5
    host.service()
    assert not host.fatal
    host.now += 1.0
    host.service()
    assert host.fatal


def test_a_reset_sets_a_stopped_drive_going(host: Host) -> None:
    host.enable()
    stop(host)
    host.board.reset()
    host.enable()


def test_completions_that_wait_for_room_are_moved(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue(1, 16)
    small = Queue(2, queue.sq + 0x8_0000, queue.cq + 0x8_0000, 16)
    for opcode, address, size, rest in (
        (5, small.cq, 3, 2 << 16 | 3),
        (1, small.sq, 16, 2 << 16 | 1),
    ):
        cdws = ((size - 1) << 16 | 2, rest)
        assert host.command(host.admin, opcode, prp1=address, cdws=cdws).status == 0
    for cid in range(5):
        write(host, small, cid, cid, bytes([65 + cid]))
    host.ring(small)
    finish(host)
    with Host() as other:
        moved(host, other)
        small.size = 3
        found: list[Cqe] = []
        for _ in range(5):
            found += other.reap(small)
            finish(other)
        assert [one.cid for one in found] == [0, 1, 2, 3, 4]


def test_events_that_are_waited_for_come_there(host: Host) -> None:
    host.enable()
    host.place(host.admin, AER, 0x55)
    host.ring(host.admin)
    host.service()
    with Host() as other:
        moved(host, other)
        assert other.reap(other.admin) == []
        other.write32(DOORBELLS + 8 * 3, 5)  # of a queue that does not exist
        other.service()
        (event,) = other.reap(other.admin)
        # Type 0 (error), information 0 (invalid doorbell register), log page 1.
        assert (event.cid, event.dw0) == (0x55, 0x01_00_00)
        assert host.reap(host.admin) == [], "nothing is answered twice"


def test_features_are_moved(host: Host) -> None:
    host.enable()
    for fid, value in ((0x01, 5), (0x0B, 0x11F), (0x07, 3 << 16 | 3), (0x0E, 0)):
        host.put(struct.pack("<Q", 0x1234_5678))
        completion = host.command(host.admin, SET_FEATURES, prp1=DATA, cdws=(fid, value))
        assert completion.status == 0, hex(fid)
    host.now += 2.0
    with Host() as other:
        other.now = 500.0
        moved(host, other)
        for fid, value in ((0x01, 5), (0x0B, 0x11F)):
            assert other.command(other.admin, GET_FEATURES, cdws=(fid,)).dw0 == value
        other.now += 1.0
        assert other.command(other.admin, GET_FEATURES, prp1=DATA, cdws=(0x0E,)).status == 0
        assert struct.unpack("<Q", other.data(8))[0] & (1 << 48) - 1 == 0x1234_5678 + 3000


def test_health_and_errors_are_moved(host: Host) -> None:
    def log(host: Host, page: int) -> bytes:
        cdws = (127 << 16 | page,)
        assert host.command(host.admin, GET_LOG, nsid=2**32 - 1, prp1=DATA, cdws=cdws).status == 0
        return host.data(512)

    host.enable()
    queue = host.create_io_queue()
    for _ in range(3):
        assert host.command(queue, WRITE, nsid=1, prp1=DATA).status == 0
    assert host.command(queue, READ, nsid=1, prp1=DATA, cdws=(1 << 20,)).status == 0x80
    before = log(host, 1), log(host, 2)
    with Host() as other:
        moved(host, other)
        assert (log(other, 1), log(other, 2)) == before


def test_shadow_doorbells_are_moved(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    shadow, events = 0x30_0000, 0x30_1000
    assert host.command(host.admin, 0x7C, prp1=shadow, prp2=events).status == 0

    def tail(host: Host) -> None:
        struct.pack_into("<I", host.memory.view, shadow + 8, queue.tail)

    write(host, queue, 1, 3, b"three")
    tail(host)
    finish(host)
    with Host() as other:
        moved(host, other)
        write(other, queue, 2, 4, b"four")
        tail(other)
        finish(other)
        assert [one.cid for one in other.reap(queue, ring=False)] == [1, 2]


def test_interrupts_that_were_not_heard_come_there(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    host.lines.listening = False
    assert host.command(queue, FLUSH, nsid=1).status == 0
    with Host() as other:
        other.lines.fired.clear()
        moved(host, other)
        assert 1 in other.lines.fired


def test_half_of_a_fused_operation_is_moved(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    host.place(queue, 0x05, 1, nsid=1, prp1=DATA, flags=1)
    host.ring(queue)
    host.service()
    with Host() as other:
        moved(host, other)
        write(other, queue, 2, 0, b"written")
        at = queue.sq + 64 * ((queue.tail - 1) % queue.size)
        other.memory.view[at + 1] = 2  # the second half
        other.ring(queue)
        finish(other)
        assert [(one.cid, one.status) for one in other.reap(queue)] == [(1, 0), (2, 0)]


# The log of writes.


@pytest.mark.parametrize("shadow", [False, True])
def test_every_page_that_the_drive_writes_is_logged(host: Host, shadow: bool) -> None:
    """Compared with the memory itself, of which the host's own writes are left out."""
    random = Random(shadow)
    host.enable()
    queue = host.create_io_queue()
    if shadow:
        host.clear(0x30_0000, 2 * PAGE)
        assert host.command(host.admin, 0x7C, prp1=0x30_0000, prp2=0x30_1000).status == 0
    host.media[1].write_from([memoryview(random.randbytes(1 << 20))], 0)
    host.space.start_logging()
    host.board.memory_changed()
    logged = changed = 0
    for turn in range(40):
        host.memory.view[DATA : DATA + 64 * PAGE] = bytes(64 * PAGE)
        for cid in range(random.randrange(1, 8)):
            # Reads of one page, of two, and of a PRP list; writes between them; a flush.
            opcode = random.choice((READ, READ, WRITE, FLUSH))
            blocks = random.choice((1, 2, 3))
            pages = [DATA + PAGE * (4 * cid + one) for one in range(3)]
            second = pages[1]
            if blocks == 3:
                second = 0x2F_0000 + cid * PAGE
                struct.pack_into("<QQ", host.memory.view, second, *pages[1:])
            lba = cid + 100 * (opcode == READ)
            host.place(
                queue, opcode, cid, nsid=1, prp1=pages[0], prp2=second, cdws=(lba, 0, blocks - 1)
            )
        if shadow:
            struct.pack_into("<I", host.memory.view, 0x30_0000 + 8, queue.tail)
        before = bytes(host.memory.view)
        host.ring(queue)
        if turn % 2:
            host.service()
            host.board.memory_changed()  # a report while media work is under way
            found = set(host.space.take_written(0, MEMORY))
        else:
            found = set()
        finish(host)
        host.board.memory_changed()
        found |= set(host.space.take_written(0, MEMORY))
        after = bytes(host.memory.view)
        different = {
            at for at in range(0, MEMORY, PAGE) if before[at : at + PAGE] != after[at : at + PAGE]
        }
        assert different <= found
        changed, logged = changed + len(different), logged + len(found)
        host.reap(queue, ring=not shadow)
        if shadow:
            struct.pack_into("<I", host.memory.view, 0x30_0000 + 12, queue.head)
    assert changed > 80, "completions and what was read"
    assert logged < 40 * 64, "not simply everything"
