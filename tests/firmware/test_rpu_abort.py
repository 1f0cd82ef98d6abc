"""Abort: what can be recalled is, and what takes its course says so (NVMe Base 2.0, section
5.1)."""

import pytest

from support.nvme_host import DATA, PAGE, Host, Queue

DELETE_SQ, ABORT, SET_FEATURES, EVENT_REQUEST, KEEP_ALIVE = 0, 8, 9, 0xC, 0x18
FLUSH, WRITE, READ = 0, 1, 2
FUA = 1 << 30

ABORTED, NOT_ABORTED = 0, 1
ABORT_REQUESTED = 0x007


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.create_io_queue()


def send(host: Host, queue: Queue, opcode: int, cid: int, *cdws: int, nsid: int = 0) -> None:
    host.place(queue, opcode, cid, nsid=nsid, cdws=cdws)
    host.ring(queue)
    host.service()


def abort(host: Host, qid: int, cid: int) -> int:
    """Bit 0 of dword 0, from a command that itself succeeds."""
    host.place(host.admin, ABORT, 0x99, cdws=(cid << 16 | qid,))
    host.ring(host.admin)
    host.service()
    *before, own = host.reap(host.admin)
    assert (own.cid, own.status) == (0x99, 0)
    for one in before:
        assert (one.cid, one.status, one.dnr) == (cid, ABORT_REQUESTED, False)
    return own.dw0


def statuses(host: Host, queue: Queue) -> list[tuple[int, int]]:
    return [(one.cid, one.status) for one in host.reap(queue)]


def test_a_write_that_the_media_have_not_begun_is_never_made(host: Host, queue: Queue) -> None:
    host.put(b"\xaa" * PAGE)
    send(host, queue, WRITE, 1, 0, 0, FUA, nsid=1)
    assert abort(host, 1, 1) == ABORTED
    assert statuses(host, queue) == [(1, ABORT_REQUESTED)]
    host.executor.run_all()
    host.service()
    host.clear(DATA, PAGE)
    assert host.command(queue, READ, 2, nsid=1, cdws=(0, 0, 0)).status == 0
    assert host.data(PAGE) == bytes(PAGE)


def test_a_write_that_the_media_have_begun_takes_its_course(host: Host, queue: Queue) -> None:
    host.put(b"\xaa" * PAGE)
    send(host, queue, WRITE, 1, 0, 0, FUA, nsid=1)
    ((future, _),) = host.executor.waiting
    future.set_running_or_notify_cancel()
    assert abort(host, 1, 1) == NOT_ABORTED
    assert statuses(host, queue) == []


def test_a_flush_is_given_up_and_its_end_is_dropped(host: Host, queue: Queue) -> None:
    send(host, queue, FLUSH, 1, nsid=1)
    assert abort(host, 1, 1) == ABORTED
    assert statuses(host, queue) == [(1, ABORT_REQUESTED)]
    host.executor.run_all()
    host.service()
    assert statuses(host, queue) == []
    # The identifier may be used again.
    assert host.command(queue, FLUSH, 1, nsid=1).status == 0


def test_a_read_that_waits_for_a_write_of_its_blocks_is_given_up(host: Host, queue: Queue) -> None:
    send(host, queue, WRITE, 1, 0, 0, FUA, nsid=1)
    send(host, queue, READ, 2, 0, 0, 0, nsid=1)
    assert abort(host, 1, 2) == ABORTED
    assert statuses(host, queue) == [(2, ABORT_REQUESTED)]
    host.executor.run_all()
    host.service()
    assert statuses(host, queue) == [(1, 0)]


def test_a_write_that_waits_for_an_aborted_one_goes_on(host: Host, queue: Queue) -> None:
    """What stood in the way is gone, and nobody waits for ever."""
    send(host, queue, WRITE, 1, 0, 0, FUA, nsid=1)
    send(host, queue, READ, 2, 0, 0, 0, nsid=1)
    assert abort(host, 1, 1) == ABORTED
    host.executor.run_all()
    host.service()
    assert statuses(host, queue) == [(1, ABORT_REQUESTED), (2, 0)]


def test_a_command_that_waits_for_a_slot_of_the_mailbox_is_given_up(
    host: Host, queue: Queue
) -> None:
    host.connect_apu()
    for cid in range(1, 16):
        host.place(queue, 0x91, cid)
    host.ring(queue)
    host.service()
    other = host.create_io_queue(2)
    for cid in (16, 17):
        host.place(other, 0x91, cid)
    host.ring(other)
    host.service()
    assert abort(host, 1, 1) == NOT_ABORTED  # The APU has it.
    assert abort(host, 2, 17) == ABORTED
    assert statuses(host, other) == [(17, ABORT_REQUESTED)]


def test_the_accelerators_log_is_given_up_while_it_waits_for_a_slot(
    host: Host, queue: Queue
) -> None:
    host.connect_apu()
    other = host.create_io_queue(2)
    for cid in range(1, 16):
        host.place(queue, 0x91, cid)
    host.place(other, 0x91, 16)
    for one in (queue, other):
        host.ring(one)
    host.service()
    send(host, host.admin, 0x02, 17, 127 << 16 | 0xC0)
    assert abort(host, 0, 17) == ABORTED


@pytest.mark.parametrize(("qid", "cid"), [(0, 5), (1, 5), (9, 5), (0xFFFF, 0xFFFF)])
def test_what_is_not_there_is_not_aborted(host: Host, queue: Queue, qid: int, cid: int) -> None:
    assert abort(host, qid, cid) == NOT_ABORTED


def test_a_command_that_changes_the_controller_takes_its_course(host: Host, queue: Queue) -> None:
    send(host, queue, WRITE, 1, 0, 0, FUA, nsid=1)
    send(host, host.admin, DELETE_SQ, 2, 1)
    assert abort(host, 0, 2) == NOT_ABORTED
    send(host, host.admin, SET_FEATURES, 3, 1 << 31 | 6, 0)
    assert abort(host, 0, 3) == NOT_ABORTED
    host.executor.run_all()
    host.service()
    assert sorted(statuses(host, host.admin)) == [(2, 0), (3, 0)]


def test_an_event_request_that_was_aborted_makes_room(host: Host) -> None:
    for cid in range(1, 5):
        send(host, host.admin, EVENT_REQUEST, cid)
    assert abort(host, 0, 3) == ABORTED
    assert abort(host, 0, 3) == NOT_ABORTED
    send(host, host.admin, EVENT_REQUEST, 5)
    assert statuses(host, host.admin) == []


def test_aborts_without_end_are_all_answered(host: Host, queue: Queue) -> None:
    """They never wait, so that there is no limit to exceed (ACL)."""
    for cid in range(1, 13):
        host.place(host.admin, ABORT, cid, cdws=(1,))
    host.ring(host.admin)
    host.service()
    found = [(one.cid, one.status, one.dw0) for one in host.reap(host.admin)]
    assert found == [(cid, 0, NOT_ABORTED) for cid in range(1, 13)]
