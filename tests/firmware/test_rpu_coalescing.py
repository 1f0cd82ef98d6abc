"""Interrupt Coalescing and Arbitration as a host sets them: features 08h, 09h and 01h."""

import pytest

from support.nvme_host import Host, Queue

SET_FEATURES, GET_FEATURES = 0x09, 0x0A
READ = 0x02


def set_feature(host: Host, fid: int, value: int) -> None:
    assert host.command(host.admin, SET_FEATURES, cdws=(fid, value)).status == 0


def read(host: Host, queue: Queue, cid: int, flags: int = 0) -> None:
    host.place(queue, READ, cid, nsid=1, flags=flags)
    host.ring(queue)
    host.service()


def test_completions_are_told_of_when_there_are_as_many_as_was_asked(host: Host) -> None:
    queue = host.create_io_queue()
    set_feature(host, 0x08, 10 << 8 | 2)  # three completions, 1 ms
    host.lines.fired.clear()
    for cid in (1, 2):
        read(host, queue, cid)
    assert host.lines.fired == []
    assert len(host.reap(queue)) == 2
    read(host, queue, 3)
    assert host.lines.fired == [1]


def test_or_when_the_time_is_over(host: Host) -> None:
    queue = host.create_io_queue()
    set_feature(host, 0x08, 10 << 8 | 200)
    host.lines.fired.clear()
    read(host, queue, 1)
    assert host.rpu.timeout == pytest.approx(1e-3)
    host.now += 0.9e-3
    host.service()
    assert host.lines.fired == []
    host.now += 0.2e-3
    host.service()
    assert host.lines.fired == [1]
    assert host.sleeps


def test_admin_completions_and_errors_are_told_of_at_once(host: Host) -> None:
    queue = host.create_io_queue()
    set_feature(host, 0x08, 255 << 8 | 255)
    host.lines.fired.clear()
    host.command(host.admin, 0x06, cdws=(1,))
    assert host.lines.fired == [0]
    read(host, queue, 1, flags=0x03)
    assert host.lines.fired == [0, 1]


def test_a_vector_may_be_left_out(host: Host) -> None:
    queues = [host.create_io_queue(1), host.create_io_queue(2)]
    set_feature(host, 0x09, 1 << 16 | 2)
    set_feature(host, 0x08, 255 << 8 | 255)
    host.lines.fired.clear()
    for queue in queues:
        read(host, queue, 1)
    assert host.lines.fired == [2]


def test_a_reset_brings_undelayed_interrupts_back(host: Host) -> None:
    set_feature(host, 0x08, 255 << 8 | 255)
    queue = host.create_io_queue()
    read(host, queue, 1)
    host.disable()
    host.lines.fired.clear()
    host.enable()
    queue = host.create_io_queue()
    host.now += 1.0
    host.service()
    host.lines.fired.clear()
    read(host, queue, 1)
    assert host.lines.fired == [1]


def test_the_host_is_interrupted_once_for_a_queue_and_before_the_bookkeeping(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = host.create_io_queue(size=64)
    health, counted = host.rpu.controller.health, []

    def trigger(index: int, vector: int) -> bool:
        counted.append(health.reads)
        return True

    monkeypatch.setattr(host.lines, "trigger", trigger)
    read(host, queue, 1)
    assert (counted, health.reads) == ([0], 1)
    for cid in range(40):  # more than are completed together
        host.place(queue, READ, cid, nsid=1)
    host.ring(queue)
    host.service()
    assert len(host.reap(queue)) == 41
    assert (len(counted), health.reads) == (2, 41)


def test_the_feature_reads_back_as_it_was_set(host: Host) -> None:
    assert host.command(host.admin, GET_FEATURES, cdws=(0x08,)).dw0 == 0
    set_feature(host, 0x08, 3 << 8 | 7)
    assert host.command(host.admin, GET_FEATURES, cdws=(0x08,)).dw0 == 3 << 8 | 7


def order(host: Host, burst: int, each: int) -> list[int]:
    """In which order commands of two queues are executed: by the queue of each completion.

    Both have one completion queue, so that it tells the order.
    """
    set_feature(host, 0x01, burst)
    first = host.create_io_queue(1, size=64)
    second = Queue(2, 0x16_0000, first.cq, 64)
    created = host.command(host.admin, 0x01, prp1=second.sq, cdws=(63 << 16 | 2, 1 << 16 | 1))
    assert created.status == 0
    for queue in (first, second):
        for cid in range(each):
            host.place(queue, READ, cid, nsid=1)
        host.ring(queue)
    host.service()
    return [completion.sqid for completion in host.reap(first)]


def test_queues_take_turns_of_the_length_that_was_set(host: Host) -> None:
    assert order(host, 1, 4) == [1, 1, 2, 2, 1, 1, 2, 2]


def test_without_a_limit_a_queue_is_served_until_it_is_empty(host: Host) -> None:
    assert order(host, 7, 30) == [1] * 30 + [2] * 30


def test_a_round_is_as_long_on_the_slow_path(host: Host) -> None:
    host.board.trace.sink = lambda *_: None
    assert order(host, 0, 3) == [1, 2, 1, 2, 1, 2]
