"""Commands that wait for their deadline: what ends them before it, and how they end at it."""

from collections.abc import Iterator

import pytest

from potash_firmware.rpu.deadlines import Deadlines, GuestClock
from support.modelled_time import completions, modelled, timing_of
from support.nvme_host import DOORBELLS, NSSR, Host, Queue

WRITE, READ = 1, 2
DELETE_SQ, DELETE_CQ, ABORT, SET_FEATURES = 0, 4, 8, 9
ABORT_REQUESTED, SQ_DELETED, ID_CONFLICT = 0x07, 0x08, 0x03
MILLISECOND = 1e-3
LONG = 1.0
"""A second, in which every command here completes."""


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(settings=modelled()) as host:
        host.enable()
        host.create_io_queue()
        host.now = 1.0
        yield host


def send(host: Host, queue: Queue, *cids: int, opcode: int = READ) -> None:
    for cid in cids:
        host.place(queue, opcode, cid, nsid=1, cdws=(cid, 0, 0))
    host.ring(queue)
    host.service()


def pass_time(host: Host, seconds: float = LONG) -> None:
    host.now += seconds
    host.service()


def statuses(host: Host, queue: Queue) -> list[tuple[int, int]]:
    return [(one.cid, one.status) for one in host.reap(queue)]


def test_an_abort_ends_it_at_once_and_once(host: Host, queue: Queue) -> None:
    send(host, queue, 1, 2)
    aborted = host.command(host.admin, ABORT, cdws=(1 << 16 | 1,))
    assert (aborted.status, aborted.dw0) == (0, 0)
    pass_time(host)
    assert statuses(host, queue) == [(1, ABORT_REQUESTED), (2, 0)]
    send(host, queue, 1)
    assert list(completions(host, queue)) == [1]


def test_an_identifier_is_taken_until_then(host: Host, queue: Queue) -> None:
    send(host, queue, 1)
    send(host, queue, 1)
    assert statuses(host, queue) == [(1, ID_CONFLICT)]
    pass_time(host)
    assert statuses(host, queue) == [(1, 0)]


@pytest.mark.parametrize("reset", ["controller", "subsystem", "function"])
def test_a_reset_drops_it(host: Host, queue: Queue, reset: str) -> None:
    send(host, queue, 1, 2)
    if reset == "controller":
        host.disable()
    elif reset == "subsystem":
        host.write32(NSSR, 0x4E564D65)
        host.service()
    else:
        host.board.reset()
    memory = bytes(host.memory.view)
    pass_time(host)
    assert bytes(host.memory.view) == memory
    assert host.deadline is None
    host.enable()
    again = host.create_io_queue()
    send(host, again, 1)
    assert list(completions(host, again)) == [1]


def test_the_deletion_of_its_queue_ends_it(host: Host, queue: Queue) -> None:
    send(host, queue, 1, 2)
    assert host.command(host.admin, DELETE_SQ, 9, cdws=(1,)).status == 0
    assert statuses(host, queue) == [(1, SQ_DELETED), (2, SQ_DELETED)]
    assert host.command(host.admin, DELETE_CQ, 9, cdws=(1,)).status == 0
    pass_time(host)
    again = host.create_io_queue()
    pass_time(host)
    assert not host.reap(again)


def test_a_full_completion_queue_keeps_it_until_there_is_room(host: Host) -> None:
    small = host.create_io_queue(2, size=3)
    deep = Queue(3, 0x1A_0000, small.cq, 16)
    created = host.command(host.admin, 1, prp1=deep.sq, cdws=(15 << 16 | 3, 2 << 16 | 1))
    assert created.status == 0
    send(host, deep, 1, 2, 3, 4)
    pass_time(host)
    first = host.reap(small, ring=False)
    assert len(first) == 2
    pass_time(host)
    assert not host.reap(small)
    host.write32(DOORBELLS + 8 * 2 + 4, small.head)
    host.service()
    assert sorted(one.cid for one in (*first, *host.reap(small))) == [1, 2, 3, 4]


def test_completions_of_one_deadline_share_an_interrupt(host: Host, queue: Queue) -> None:
    host.lines.fired.clear()
    send(host, queue, 1, 2, 3)
    assert host.lines.fired == []
    pass_time(host)
    assert len(host.reap(queue)) == 3
    assert host.lines.fired == [1]


def test_coalescing_counts_them_when_they_are_posted(host: Host, queue: Queue) -> None:
    coalesced = 10 << 8 | 1  # two completions, 1 ms
    assert host.command(host.admin, SET_FEATURES, cdws=(8, coalesced)).status == 0
    host.lines.fired.clear()
    send(host, queue, 1)
    due = host.deadline
    assert due is not None
    host.now = due / 1e9
    host.service()
    assert host.lines.fired == []
    assert host.rpu.timeout == pytest.approx(MILLISECOND)
    pass_time(host, 1.1 * MILLISECOND)
    assert host.lines.fired == [1]


def test_bus_master_enable_has_it_wait(host: Host, queue: Queue) -> None:
    send(host, queue, 1)
    host.master(False)
    host.lines.fired.clear()
    memory = bytes(host.memory.view)
    pass_time(host)
    assert bytes(host.memory.view) == memory
    assert host.lines.fired == []
    host.master()
    host.service()
    assert statuses(host, queue) == [(1, 0)]
    assert 1 in host.lines.fired


def test_a_drive_is_moved_when_they_have_ended(host: Host, queue: Queue) -> None:
    send(host, queue, 1)
    pending = host.rpu.migration.stop()
    assert pending is not None
    host.service()
    assert not host.rpu.migration.stopped
    timeout = host.rpu.timeout
    assert timeout is not None and timeout < MILLISECOND
    pass_time(host, MILLISECOND)
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    assert host.rpu.migration.stopped
    assert statuses(host, queue) == [(1, 0)]


def test_no_time_passes_in_a_frozen_guest(host: Host, queue: Queue) -> None:
    clock = timing_of(host).clock
    send(host, queue, 1)
    clock.freeze()
    pass_time(host)
    assert not host.reap(queue)
    assert host.sleeps
    clock.thaw()
    host.service()
    assert not host.reap(queue)
    assert host.rpu.timeout == 0.0
    pass_time(host, MILLISECOND)
    assert statuses(host, queue) == [(1, 0)]
    assert clock.offset == round(LONG * 1e9)


def test_a_clock_never_goes_back() -> None:
    times = iter([100, 250, 250, 300, 400, 400, 500])
    clock = GuestClock(lambda: next(times) / 1e9)
    clock.freeze()
    assert clock.now() == 100
    clock.thaw(160)  # would be 90
    assert clock.now() == 100
    clock.freeze()
    clock.thaw(120)
    assert clock.offset == 120
    assert clock.now() == 280
    clock.thaw(7)
    assert clock.offset == 120, "it was not frozen"


def test_what_nobody_waits_for_any_more_takes_no_memory() -> None:
    deadlines = Deadlines(GuestClock(lambda: 0))
    for number in range(10_000):
        timer = deadlines.call(number + 1, lambda: None)
        if number % 100:
            timer.cancel()
    assert len(deadlines.heap) < 2000
    assert deadlines.timeout(polls=False) == 1e-9


def test_the_loop_sleeps_up_to_a_deadline_where_it_does_not_poll() -> None:
    now = 0
    deadlines = Deadlines(GuestClock(lambda: now / 1e9))
    assert deadlines.timeout() is None
    deadlines.call(1_000_000, lambda: None)
    assert deadlines.timeout() == 700e-6
    assert deadlines.timeout(polls=False) == 1000e-6
    now = 900_000
    assert deadlines.timeout() == 0.0
    assert deadlines.timeout(polls=False) == 100e-6
    now = 1_100_000
    assert deadlines.timeout(polls=False) == 0.0
    assert deadlines.due


def test_a_timer_ends_no_sooner_than_it_was_asked_to() -> None:
    deadlines = Deadlines(GuestClock(lambda: 5.0))
    deadlines.after(1e-10)
    assert not list(deadlines.passed())
