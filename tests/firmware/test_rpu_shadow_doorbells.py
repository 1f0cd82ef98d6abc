"""Doorbells in memory: the host rings only when it passes what the device left it."""

import logging
import struct
from collections.abc import Iterator

import pytest

from csd_spec.opcodes import JOB_ENDED_EVENT
from potash_firmware.mailbox.messages import Reply, Request
from potash_firmware.rpu.arbitration import PASS_TIME
from support.nvme_host import CC, CSTS, DOORBELLS, Host, Queue

SHUT_DOWN = 4 << 20 | 6 << 16 | 1 << 14 | 1
SHADOW, EVENTS = 0x30_0000, 0x30_1000
IDLE = 1.0
"""Seconds: longer than the device looks at the page without finding work."""


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        queue = host.create_io_queue()
        host.command(queue, 0x02, nsid=1)
        config = host.command(host.admin, 0x7C, prp1=SHADOW, prp2=EVENTS)
        assert config.status == 0
        yield host


def word(host: Host, page: int, index: int) -> int:
    return int(struct.unpack_from("<I", host.memory.view, page + 4 * index)[0])


def leave_tail(host: Host, queue: Queue) -> None:
    """Store the tail in the page; nothing rings."""
    struct.pack_into("<I", host.memory.view, SHADOW + 8 * queue.qid, queue.tail)


def test_queues_that_exist_are_taken_over_with_their_tails(host: Host) -> None:
    assert word(host, SHADOW, 2) == host.io[1].tail == 1
    assert word(host, EVENTS, 2) == 1


def test_while_busy_the_device_looks_by_itself_and_is_not_rung(host: Host) -> None:
    queue = host.io[1]
    host.place(queue, 0x02, 5, nsid=1)
    leave_tail(host, queue)
    host.ring(queue)
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [5]
    assert not host.sleeps
    armed_at = word(host, EVENTS, 2)
    host.place(queue, 0x02, 6, nsid=1)
    leave_tail(host, queue)
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [6]
    assert word(host, EVENTS, 2) == armed_at != queue.tail


def test_an_idle_device_asks_to_be_rung_and_sleeps(host: Host) -> None:
    queue = host.io[1]
    host.place(queue, 0x02, 5, nsid=1)
    leave_tail(host, queue)
    host.ring(queue)
    host.service()
    host.now += 0.001
    assert not host.sleeps, "it polls for a while"
    host.now += IDLE
    host.service()
    assert word(host, EVENTS, 2) == queue.tail
    assert host.sleeps


def test_a_tail_left_while_arming_is_seen(host: Host) -> None:
    """The host stores its tail after the last poll and before the event index is there."""
    queue = host.io[1]
    host.place(queue, 0x02, 5, nsid=1)
    leave_tail(host, queue)
    host.ring(queue)
    host.service()
    host.now += IDLE
    queues = host.board.queues
    assert queues.poll() == ([], [])
    host.place(queue, 0x02, 6, nsid=1)
    leave_tail(host, queue)
    assert queues.arm()
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [5, 6]


def test_a_full_completion_queue_gets_room_through_the_page(host: Host) -> None:
    queue = host.create_io_queue(2, size=4)
    for cid in range(3):
        host.place(queue, 0x02, cid, nsid=1)
    leave_tail(host, queue)
    host.ring(queue)
    host.service()
    assert len(host.reap(queue, ring=False)) == 3
    for cid in range(3, 6):
        host.place(queue, 0x02, cid, nsid=1)
    leave_tail(host, queue)
    host.service()
    assert host.reap(queue, ring=False) == []
    struct.pack_into("<I", host.memory.view, SHADOW + 4 * (2 * queue.qid + 1), queue.head)
    host.service()
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [3, 4, 5]


def test_nonsense_in_the_page_is_an_event_and_nothing_else(host: Host) -> None:
    host.place(host.admin, 0x0C, 9)
    host.ring(host.admin)
    queue = host.io[1]
    struct.pack_into("<I", host.memory.view, SHADOW + 8 * queue.qid, 0xFFFF_FFFF)
    host.service()
    assert [(one.cid, one.dw0) for one in host.reap(host.admin)] == [(9, 1 << 16 | 1 << 8)]
    host.place(queue, 0x02, 5, nsid=1)
    leave_tail(host, queue)
    host.ring(queue)
    host.service()
    assert [one.cid for one in host.reap(queue)] == [5]


def test_a_reset_ends_the_use_of_the_pages(host: Host) -> None:
    host.disable()
    struct.pack_into("<I", host.memory.view, SHADOW + 8, 7)
    host.enable()
    queue = host.create_io_queue()
    assert host.command(queue, 0x02, nsid=1).status == 0
    assert host.sleeps


def test_a_tail_that_cannot_be_is_told_once_and_stops_no_other_queue(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = host.io[1], host.create_io_queue(2)
    struct.pack_into("<I", host.memory.view, SHADOW + 8 * bad.qid, 9999)
    host.place(good, 0x02, 5, nsid=1)
    leave_tail(host, good)
    host.ring(good)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            host.now += IDLE
            host.service()
    assert [one.cid for one in host.reap(good, ring=False)] == [5]
    assert len(caplog.records) == 1
    assert host.sleeps
    host.place(bad, 0x02, 6, nsid=1)
    leave_tail(host, bad)
    host.ring(bad)
    host.service()
    assert [one.cid for one in host.reap(bad, ring=False)] == [6]


def test_a_shutdown_leaves_no_completion_behind_in_a_full_queue(host: Host) -> None:
    """Command 3 was done and waits for room: it is owed, though no further one is taken, until the
    shutdown is complete."""
    queue = host.create_io_queue(2, size=4)
    for cid in range(3):
        host.place(queue, 0x02, cid, nsid=1)
    leave_tail(host, queue)
    host.ring(queue)
    host.service()
    assert len(host.reap(queue, ring=False)) == 3
    for cid in range(3, 6):
        host.place(queue, 0x02, cid, nsid=1)
    leave_tail(host, queue)
    host.service()
    host.write32(CC, SHUT_DOWN)
    host.service()
    assert host.read32(CSTS) == 1 << 2 | 1
    assert not host.sleeps
    assert host.reap(queue, ring=False) == []
    struct.pack_into("<I", host.memory.view, SHADOW + 4 * (2 * queue.qid + 1), queue.head)
    host.lines.fired.clear()
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [3]
    assert host.lines.fired == [2]
    host.place(queue, 0x02, 6, nsid=1)
    leave_tail(host, queue)
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) == 2 << 2 | 1
    assert host.reap(queue, ring=False) == []
    assert host.sleeps


def test_a_drive_that_is_shut_down_leaves_memory_alone(host: Host) -> None:
    """Also with a full queue, an event to report, and room that is made; and without that
    memory, which the host takes back."""
    apu = host.connect_apu()
    queue, other = host.create_io_queue(2, size=2), host.io[1]
    host.place(host.admin, 0x0C, 9)
    host.ring(host.admin)
    host.place(other, 0x91, 7)
    for cid in (0, 1, 0):
        host.place(queue, 0x02, cid, nsid=1)
        leave_tail(host, queue)
        leave_tail(host, other)
        host.ring(queue)
        host.service()
    host.write32(CC, SHUT_DOWN)
    host.service()
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) == 2 << 2 | 1
    struct.pack_into("<I", host.memory.view, SHADOW + 4 * (2 * queue.qid + 1), 1)
    memory = bytes(host.memory.view)

    def goes_on() -> None:
        host.write32(DOORBELLS + 8 * queue.qid + 4, 1)
        host.write32(DOORBELLS, 0)
        host.now += IDLE
        host.service()
        assert host.sleeps

    goes_on()
    request = apu.receive()
    assert isinstance(request, Request)
    apu.send(Reply(request.tag, 0))
    host.rpu.controller.alerts.vendor(JOB_ENDED_EVENT, 0xC1)
    goes_on()
    assert bytes(host.memory.view) == memory
    host.space.unmap_all()
    host.board.memory_changed()
    goes_on()
    assert host.read32(CSTS) == 2 << 2 | 1
    host.space.map(0, len(memory), fd=host.memory.fd, offset=0, readable=True, writable=True)
    host.board.memory_changed()
    host.disable()
    assert host.read32(CSTS) == 0
    host.enable()
    assert host.command(host.create_io_queue(1), 0x02, nsid=1).status == 0


def test_a_controller_that_was_shut_down_looks_for_nothing(host: Host) -> None:
    """Linux leaves it so when its driver is unbound, and the machine may run for long."""
    queue = host.io[1]
    host.place(queue, 0x02, 5, nsid=1)
    leave_tail(host, queue)
    host.ring(queue)
    host.service()
    assert not host.sleeps
    host.write32(CC, SHUT_DOWN)
    host.service()
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) == 2 << 2 | 1
    assert host.sleeps


def test_a_ring_that_comes_late_does_not_take_the_tail_back(host: Host) -> None:
    """The host rings, goes on, and the device sees the page before it gets the ring."""
    queue = host.io[1]
    host.place(queue, 0x02, 5, nsid=1)
    late = queue.tail
    for cid in (6, 7):
        host.place(queue, 0x02, cid, nsid=1)
    leave_tail(host, queue)
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [5, 6, 7]
    host.write32(DOORBELLS + 8 * queue.qid, late)
    host.service()
    assert host.reap(queue, ring=False) == []
    assert host.board.queues.submissions[1].head == queue.tail


class EagerHost:
    """One that stores its next command, up to `commands`, as soon as it is interrupted, which takes
    it `pause` seconds."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch, commands: int) -> None:
        self.host, self.queue, self.left = host, host.io[1], commands
        self.answered: list[int] = []
        self.pause = 0.0
        trigger = host.lines.trigger

        def interrupted(index: int, vector: int) -> bool:
            self.answered += [one.cid for one in host.reap(self.queue, ring=False)]
            host.now += self.pause
            self.store()
            return trigger(index, vector)

        monkeypatch.setattr(host.lines, "trigger", interrupted)

    def store(self) -> None:
        if self.left:
            self.host.place(self.queue, 0x02, self.left, nsid=1)
            leave_tail(self.host, self.queue)
            self.left -= 1


def test_commands_that_come_while_the_device_waits_awake_are_executed_at_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = EagerHost(host, monkeypatch, 3)
    eager.store()
    host.rpu.spin()
    assert eager.answered == [3, 2, 1]
    host.service()
    assert eager.answered == [3, 2, 1]


def test_a_host_that_always_has_another_command_keeps_the_device_for_a_pass_at_most(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other queues, its registers and everybody else's messages would wait for it."""
    eager = EagerHost(host, monkeypatch, 100)
    eager.pause = PASS_TIME / 4
    eager.store()
    host.rpu.spin()
    assert eager.answered == [100, 99, 98, 97]


def test_what_has_to_wait_ends_the_waiting_awake(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush is the media executor's, whose end no look at the shadow page finds."""
    queue = host.io[1]
    host.place(queue, 0x00, 5, nsid=1)
    leave_tail(host, queue)
    monkeypatch.setattr("os.sched_yield", lambda: pytest.fail("it waits for the host"))
    host.rpu.spin()
    host.executor.run_all()
    host.service()
    assert [one.cid for one in host.reap(queue, ring=False)] == [5]


def test_a_mistake_while_the_device_waits_awake_ends_the_session_and_not_the_device(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.rpu.arbiter, "serve", lambda: 1 // 0)
    host.place(host.io[1], 0x02, 5, nsid=1)
    leave_tail(host, host.io[1])
    host.rpu.spin()
    assert host.fatal
