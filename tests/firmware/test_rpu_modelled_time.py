"""A drive whose time is modelled: commands complete when the model says, and not before.

Expected times are those of a second drive of the same profile, which is asked directly.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from potash.timing import closed_loop, precondition
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import REQUEST, Op
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support.modelled_time import PROFILE, completions, modelled, timing_of
from support.nvme_host import DATA, PAGE, Host, Queue

WRITE, READ = 1, 2


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(settings=modelled()) as host:
        host.enable()
        yield host


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.create_io_queue()


def ns(host: Host) -> int:
    return round(host.now * 1e9)


def send(host: Host, queue: Queue, opcode: int, cid: int, page: int, count: int = 1) -> None:
    host.place(queue, opcode, cid, nsid=1, prp2=DATA + PAGE, cdws=(page, 0, count - 1))
    host.ring(queue)
    host.service()


def test_commands_complete_at_the_times_of_the_model(host: Host, queue: Queue) -> None:
    model = Drive(PROFILE)
    host.now = 1.0
    send(host, queue, WRITE, 1, page=0, count=2)
    send(host, queue, WRITE, 2, page=2)
    expected = {1: model.submit(10**9, Op.WRITE, 0, 2), 2: model.submit(10**9, Op.WRITE, 2, 1)}
    assert completions(host, queue) == expected
    # By now the pages are programmed; two reads share a die, the third one has its own.
    host.now = 2.0
    for cid, page in enumerate((0, 0, 1), start=3):
        send(host, queue, READ, cid, page)
        expected[cid] = model.submit(2 * 10**9, Op.READ, page, 1)
    assert completions(host, queue) == {cid: expected[cid] for cid in (3, 4, 5)}
    # Submission, command, tR, bus, link, completion: 10.24 µs for 4 KiB on the bus, 1.024 on PCIe.
    assert expected[3] - 2 * 10**9 == 500 + 2000 + 50_000 + 10_240 + 1024 + 700


def test_what_is_written_is_there_before_the_write_completes(host: Host, queue: Queue) -> None:
    host.put(b"\xaa" * PAGE)
    send(host, queue, WRITE, 1, page=5)
    host.clear(DATA, PAGE)
    send(host, queue, READ, 2, page=5)
    assert not host.reap(queue)
    assert host.data(PAGE) == b"\xaa" * PAGE


def test_a_factor_multiplies_every_time() -> None:
    model = Drive(PROFILE)
    with Host(settings=modelled(factor=10)) as host:
        host.enable()
        queue = host.create_io_queue()
        host.now = 3.0
        send(host, queue, WRITE, 1, page=0)
        send(host, queue, READ, 2, page=7)
        expected = (
            10 * model.submit(3 * 10**8, Op.WRITE, 0, 1),
            10 * model.submit(3 * 10**8, Op.READ, 7, 1),
        )
        assert completions(host, queue) == dict(zip((1, 2), expected, strict=True))


def test_the_loop_sleeps_until_it_has_to_poll(host: Host, queue: Queue) -> None:
    host.now = 1.0
    send(host, queue, WRITE, 1, page=0)
    assert host.rpu.timeout == 0.0  # a deadline of microseconds
    completions(host, queue)
    slow = replace(PROFILE, submission_ns=10_000_000)
    with Host(settings=modelled(slow)) as other:
        other.enable()
        queue = other.create_io_queue()
        send(other, queue, WRITE, 1, page=0)
        due = other.deadline
        assert due is not None
        timeout = other.rpu.timeout
        assert timeout == pytest.approx((due - 300_000 - ns(other)) / 1e9)


def test_lateness_is_counted(host: Host, queue: Queue) -> None:
    timing = timing_of(host)
    send(host, queue, READ, 1, page=0)
    due = host.deadline
    assert due is not None
    host.now = (due + 40_000) / 1e9
    host.service()
    assert len(host.reap(queue)) == 1
    assert (timing.lateness.count, timing.lateness.largest) == (1, 40_000)
    assert timing.lateness.percentile(0.5) == 40_000


def test_a_command_that_is_refused_is_not_kept(host: Host, queue: Queue) -> None:
    send(host, queue, READ, 1, page=256)
    assert [one.status for one in host.reap(queue)] == [0x80]


def test_a_drive_that_has_no_room_for_the_namespaces_is_refused() -> None:
    with pytest.raises(ValueError, match="no room for 256 pages"):
        Host(settings=modelled(replace(PROFILE, capacity=1 << 19)))


@pytest.mark.parametrize("depth", [1, 4, 32])
def test_a_host_that_keeps_commands_in_flight_is_as_fast_as_predicted(depth: int) -> None:
    """As fio does: each completion is followed by another command at once."""
    pages, count = 256, 600
    random = np.random.default_rng(depth)
    requests = np.zeros(count, REQUEST)
    requests["op"] = np.where(random.random(count) < 0.7, Op.READ, Op.WRITE)
    requests["first"], requests["count"] = random.integers(0, pages, count), 1
    drive, expected = Drive(PROFILE), Drive(PROFILE)
    for one in (drive, expected):
        precondition(one, fill=1.0)
    with Host(settings=RpuSettings(time=TimeSettings(drive))) as host:
        host.enable()
        queue = host.create_io_queue(size=64)
        waiting, taken = iter(range(count)), dict[int, int]()

        def submit() -> None:
            index = next(waiting, None)
            if index is not None:
                opcode = READ if requests["op"][index] == Op.READ else WRITE
                host.place(queue, opcode, index, nsid=1, cdws=(int(requests["first"][index]), 0, 0))
                host.ring(queue)

        start = ns(host)
        for _ in range(depth):
            submit()
        host.service()
        while (due := host.deadline) is not None:
            host.now = due / 1e9
            host.service()
            for done in host.reap(queue):
                taken[done.cid] = due - start
                submit()
            host.service()
        predicted = closed_loop(expected, requests, depth)
        assert [taken[index] for index in range(count)] == predicted.tolist()


def advance(host: Host, cid: int, queue: Queue, until: int = 0) -> None:
    """Advance Clock by a host that has taken what it has taken."""
    heads = host.admin.head | queue.head << 16
    host.place(host.admin, 0xF4, cid, cdws=(until & 0xFFFF_FFFF, until >> 32, heads))
    host.ring(host.admin)
    for _ in range(6):
        host.service()


def test_a_stepped_clock_goes_from_completion_to_completion_or_to_a_time() -> None:
    settings = replace(modelled(), time=TimeSettings(Drive(PROFILE), stepped=True))
    model = Drive(PROFILE)
    with Host(settings=settings) as host:
        host.enable()
        queue = host.create_io_queue()
        host.now = 5.0  # the machine's time, which counts for nothing
        send(host, queue, WRITE, 1, page=0)
        send(host, queue, WRITE, 2, page=1, count=4)
        first, second = model.submit(0, Op.WRITE, 0, 1), model.submit(0, Op.WRITE, 1, 4)
        assert first < second
        assert not host.reap(queue)
        for cid, due in ((1, first), (2, second)):
            advance(host, 10 + cid, queue)
            ((ended, now),) = [(one.cid, one.dw0) for one in host.reap(host.admin)]
            assert (ended, now) == (10 + cid, due)
            if cid == 1:  # a completion that the host has not taken: no time passes
                advance(host, 20, queue)
                assert [one.dw0 for one in host.reap(host.admin)] == [first]
            assert [one.cid for one in host.reap(queue)] == [cid]
        advance(host, 3, queue)  # nothing is in flight
        assert [one.dw0 for one in host.reap(host.admin)] == [second]
        for wrong in ((1 << 62) + 1, (1 << 64) - 1):
            advance(host, 6, queue, wrong)
            assert [one.status for one in host.reap(host.admin)] == [2]
        until = (7 << 32) + 5
        send(host, queue, READ, 4, page=0)
        advance(host, 5, queue, until)
        assert [(one.dw0, one.dw1) for one in host.reap(host.admin)] == [(5, 7)]
        assert [one.cid for one in host.reap(queue)] == [4]
        read = host.rpu.controller.timing
        assert read is not None
        assert read.completions[-1].completed == model.submit(second, Op.READ, 0, 1)


def test_a_stepped_clock_rests_while_its_command_cannot_end() -> None:
    settings = replace(modelled(), time=TimeSettings(Drive(PROFILE), stepped=True))
    with Host(settings=settings) as host:
        host.enable()
        host.place(host.admin, 0xF4, 1, cdws=(5,))
        host.ring(host.admin)
        host.rpu.service()
        host.master(False)
        host.service()
        assert not host.reap(host.admin)
        host.master(True)
        host.service()
        assert [(one.cid, one.dw0) for one in host.reap(host.admin)] == [(1, 5)]
