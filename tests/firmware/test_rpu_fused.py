"""Compare and Write as one: what each half is answered, wherever and whenever the halves come."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from csd_spec.faults import Fault, FaultFlags, FaultKind
from potash_device.media.file import FileMedia
from support.nvme_host import DATA, PAGE, Host, Queue

WRITE, READ, COMPARE, VERIFY = 1, 2, 5, 12
FIRST, SECOND = 1, 2
FUA = 1 << 30
OLD, NEW, OTHER = b"o" * PAGE, b"n" * PAGE, b"x" * PAGE


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        host.create_io_queue()
        os.pwrite(host.media[1].fd, OLD, 0)
        host.put(OLD, DATA)
        host.put(NEW, DATA + PAGE)
        yield host


def block(host: Host, lba: int = 0) -> bytes:
    return os.pread(host.media[1].fd, PAGE, lba * PAGE)


def place_first(host: Host, queue: Queue, cid: int = 1, **fields: Any) -> None:
    known: dict[str, Any] = {"opcode": COMPARE, "nsid": 1, "flags": FIRST} | fields
    host.place(queue, cid=cid, **known)


def place_second(host: Host, queue: Queue, cid: int = 2, **fields: Any) -> None:
    known: dict[str, Any] = {
        "opcode": WRITE,
        "nsid": 1,
        "flags": SECOND,
        "prp1": DATA + PAGE,
    } | fields
    host.place(queue, cid=cid, **known)


def run(host: Host, queue: Queue) -> list[tuple[int, int]]:
    """Let the drive do all that it can; identifiers and statuses in the order of answers."""
    host.ring(queue)
    host.service()
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    return [(one.cid, one.status) for one in host.reap(queue)]


def test_equal_blocks_are_written(host: Host, queue: Queue) -> None:
    place_first(host, queue)
    place_second(host, queue)
    assert run(host, queue) == [(1, 0), (2, 0)]
    assert block(host) == NEW


def test_different_blocks_are_left_and_the_second_half_says_why(host: Host, queue: Queue) -> None:
    host.put(OTHER)
    place_first(host, queue)
    place_second(host, queue)
    assert run(host, queue) == [(1, 0x285), (2, 0x009)]
    assert block(host) == OLD


@pytest.mark.parametrize("before", range(15))
def test_the_pair_may_lie_anywhere_in_the_ring(host: Host, queue: Queue, before: int) -> None:
    """At 15 the halves are at both ends of it."""
    for cid in range(before):
        host.place(queue, READ, cid, nsid=1, prp1=DATA + 2 * PAGE)
        run(host, queue)
    for turn in range(2):
        place_first(host, queue, cid=100)
        place_second(host, queue, cid=101)
        assert run(host, queue) == [(100, 0), (101, 0)], turn
        os.pwrite(host.media[1].fd, OLD, 0)


def test_the_second_half_may_come_late(host: Host, queue: Queue) -> None:
    place_first(host, queue)
    assert run(host, queue) == []
    place_second(host, queue)
    assert run(host, queue) == [(1, 0), (2, 0)]
    assert block(host) == NEW


@pytest.mark.parametrize(
    ("entries", "answers"),
    [
        ([(READ, 0)], [0]),
        ([(COMPARE, FIRST), (READ, 0)], [0x00A, 0]),
        ([(COMPARE, FIRST), (WRITE, 0)], [0x00A, 0]),
        ([(COMPARE, 0), (WRITE, SECOND)], [0, 0x00A]),
        ([(WRITE, SECOND), (READ, 0)], [0x00A, 0]),
        ([(COMPARE, FIRST), (COMPARE, FIRST), (WRITE, SECOND)], [0x00A, 0, 0]),
        ([(COMPARE, FIRST), (WRITE, SECOND), (WRITE, SECOND)], [0, 0, 0x00A]),
        ([(COMPARE, FIRST), (READ, SECOND)], [0x00A, 0x00A]),
        ([(WRITE, FIRST), (WRITE, SECOND)], [0x00A, 0x00A]),
        ([(WRITE, FIRST), (COMPARE, SECOND)], [0x00A, 0x00A]),
        ([(0x7F, FIRST), (WRITE, SECOND)], [0x00A, 0x00A]),
        ([(COMPARE, 3), (WRITE, SECOND)], [0x002, 0x00A]),
        ([(COMPARE, FIRST), (WRITE, 3)], [0x00A, 0x002]),
    ],
)
def test_a_half_that_stands_alone_is_aborted(
    host: Host, queue: Queue, entries: list[tuple[int, int]], answers: list[int]
) -> None:
    for cid, (opcode, fuse) in enumerate(entries):
        host.place(queue, opcode, cid, nsid=1, flags=fuse)
    assert dict(run(host, queue)) == dict(enumerate(answers))
    assert block(host) == OLD


def test_each_queue_has_halves_of_its_own(host: Host, queue: Queue) -> None:
    other = host.create_io_queue(2)
    place_first(host, queue)
    assert run(host, queue) == []
    place_second(host, other)
    assert run(host, other) == [(2, 0x00A)]
    place_second(host, queue)
    assert run(host, queue) == [(1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("first", "second", "answers"),
    [
        ({"cdws": (1, 0, 0)}, {}, (0x002, 0x002)),
        ({"cdws": (0, 1, 0)}, {}, (0x002, 0x002)),
        ({}, {"cdws": (0, 0, 1)}, (0x002, 0x002)),
        ({"nsid": 2}, {}, (0x002, 0x002)),
        ({"nsid": 65}, {"nsid": 65}, (0x00B, 0x009)),
        ({"cdws": (256, 0, 0)}, {"cdws": (256, 0, 0)}, (0x080, 0x009)),
        ({"cdws": (0, 0, 1)}, {"cdws": (0, 0, 1)}, (0x014, 0x009)),
        ({"prp1": 1 << 40}, {}, (0x004, 0x009)),
        ({"prp1": DATA + 2}, {}, (0x013, 0x009)),
        ({"flags": FIRST | 3 << 6}, {}, (0x002, 0x009)),
        ({}, {"prp1": 1 << 40}, (0, 0x004)),
        ({}, {"prp1": DATA + 2}, (0, 0x013)),
        ({}, {"flags": SECOND | 3 << 6}, (0, 0x002)),
        ({}, {"cdws": (0, 0, 1 << 20)}, (0, 0x002)),
        ({"prp1": DATA + PAGE}, {"prp1": 1 << 40}, (0x285, 0x009)),
    ],
)
def test_a_half_that_is_wrong_takes_nothing_with_it_that_it_need_not(
    host: Host,
    queue: Queue,
    first: dict[str, Any],
    second: dict[str, Any],
    answers: tuple[int, int],
) -> None:
    place_first(host, queue, **first)
    place_second(host, queue, **second)
    assert run(host, queue) == [(1, answers[0]), (2, answers[1])]
    assert block(host) == OLD


def test_halves_with_one_identifier_conflict(host: Host, queue: Queue) -> None:
    place_first(host, queue, cid=7)
    place_second(host, queue, cid=7)
    assert run(host, queue) == [(7, 0x009), (7, 0x003)]
    assert block(host) == OLD


def test_an_identifier_in_use_conflicts_with_a_half(host: Host, queue: Queue) -> None:
    host.place(queue, WRITE, 7, nsid=1, prp1=DATA, cdws=(5, 0, FUA))
    place_first(host, queue, cid=7)
    place_second(host, queue, cid=8)
    assert sorted(run(host, queue)) == [(7, 0), (7, 0x003), (8, 0x00A)]


def test_uncorrectable_blocks_cannot_be_compared(host: Host, queue: Queue) -> None:
    assert host.command(queue, 4, nsid=1).status == 0
    place_first(host, queue)
    place_second(host, queue)
    assert run(host, queue) == [(1, 0x281), (2, 0x009)]
    assert host.command(queue, READ, nsid=1).status == 0x281


def test_a_write_that_the_media_refuse_leaves_the_comparison_successful(tmp_path: Path) -> None:
    path = tmp_path / "media"
    path.write_bytes(OLD * 4)
    with Host({1: FileMedia.open(path, read_only=True)}) as host:
        host.enable()
        queue = host.create_io_queue()
        host.put(OLD)
        place_first(host, queue)
        place_second(host, queue)
        assert run(host, queue) == [(1, 0), (2, 0x020)]


def test_nothing_comes_between_the_halves(host: Host, queue: Queue) -> None:
    """Everything else that touches the block waits, writes included."""
    other = host.create_io_queue(2)
    host.put(OTHER, DATA + 2 * PAGE)
    place_first(host, queue)
    place_second(host, queue)
    host.ring(queue)
    host.service()
    host.place(other, WRITE, 3, nsid=1, prp1=DATA + 2 * PAGE, cdws=(0, 0, FUA))
    host.place(other, READ, 4, nsid=1, prp1=DATA + 3 * PAGE)
    host.place(other, VERIFY, 5, nsid=1)
    host.place(other, READ, 6, nsid=1, prp1=DATA + 4 * PAGE, cdws=(9, 0, 0))
    host.ring(other)
    host.service()
    assert len(host.executor.waiting) == 1
    assert [one.cid for one in host.reap(other)] == [6]
    host.executor.run_next()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0), (2, 0)]
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    assert sorted((one.cid, one.status) for one in host.reap(other)) == [(3, 0), (4, 0), (5, 0)]
    assert block(host) == OTHER


def test_a_pair_waits_for_whatever_touches_its_block(host: Host, queue: Queue) -> None:
    host.put(OTHER, DATA + 2 * PAGE)
    host.place(queue, WRITE, 9, nsid=1, prp1=DATA + 2 * PAGE, cdws=(0, 0, FUA))
    place_first(host, queue)
    place_second(host, queue)
    assert run(host, queue) == [(9, 0), (1, 0x285), (2, 0x009)]
    assert block(host) == OTHER


def test_a_write_with_fua_is_flushed() -> None:
    class Flushing(FileMedia):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    media = Flushing(os.memfd_create("media"), 1 << 20)
    os.ftruncate(media.fd, 1 << 20)
    with Host({1: media}) as host:
        host.enable()
        queue = host.create_io_queue()
        place_first(host, queue)
        place_second(host, queue, cdws=(0, 0, FUA))
        assert run(host, queue) == [(1, 0), (2, 0)]
        assert media.flushes == 1


def test_a_queue_that_is_deleted_takes_a_lone_half_with_it(host: Host, queue: Queue) -> None:
    place_first(host, queue)
    assert run(host, queue) == []
    assert host.command(host.admin, 0x00, cdws=(1,)).status == 0
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(1, 0x008)]
    assert host.command(host.admin, 0x04, cdws=(1,)).status == 0
    queue = host.create_io_queue()
    place_second(host, queue)
    assert run(host, queue) == [(2, 0x00A)]


def test_a_reset_forgets_a_lone_half(host: Host, queue: Queue) -> None:
    place_first(host, queue)
    assert run(host, queue) == []
    host.disable()
    host.enable()
    queue = host.create_io_queue()
    place_second(host, queue)
    assert run(host, queue) == [(2, 0x00A)]
    host.place(queue, READ, 3, nsid=1)
    assert run(host, queue) == [(3, 0)]


def test_the_admin_queue_has_no_fused_operations(host: Host) -> None:
    for fuse in (1, 2, 3):
        assert host.command(host.admin, 0x06, cdws=(1,), flags=fuse).status == 0x002


def test_a_first_half_rung_with_its_queues_deletion_is_not_left_behind(host: Host) -> None:
    """Whichever queue comes first in the round, a queue that is deleted in it is not served."""
    for _ in range(2):
        queue = host.io[1]
        place_first(host, queue)
        host.place(host.admin, 0x00, 0x42, cdws=(1,))
        host.ring(host.admin)
        host.ring(queue)
        host.service()
        assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(0x42, 0)]
        assert not host.rpu.controller.outstanding.fused
        assert host.command(host.admin, 0x04, cdws=(1,)).status == 0
        queue = host.create_io_queue()
        place_second(host, queue)
        assert run(host, queue) == [(2, 0x00A)]


# Aborts and injected faults.


def abort(host: Host, cid: int) -> int:
    """Bit 0 of dword 0: 0 where the command was aborted."""
    host.place(host.admin, 0x08, 0x99, cdws=(cid << 16 | 1,))
    host.ring(host.admin)
    host.service()
    (own,) = host.reap(host.admin)
    assert own.status == 0
    return own.dw0


def test_a_write_whose_waiting_compare_is_aborted_fails_with_it(host: Host, queue: Queue) -> None:
    host.put(OTHER, DATA + 2 * PAGE)
    host.place(queue, WRITE, 9, nsid=1, prp1=DATA + 2 * PAGE, cdws=(0, 0, FUA))
    place_first(host, queue)
    place_second(host, queue)
    host.ring(queue)
    host.service()
    assert abort(host, 1) == 0
    assert sorted(run(host, queue)) == [(1, 0x007), (2, 0x009), (9, 0)]
    assert block(host) == OTHER
    assert not host.rpu.controller.outstanding


def fault(host: Host, kind: FaultKind, opcode: int, **fields: int) -> None:
    host.rpu.controller.faults.add(Fault(kind, FaultFlags(0), opcode=opcode, times=1, **fields))


@pytest.mark.parametrize(
    ("opcode", "answers", "left"),
    [(COMPARE, [(1, 0x006), (2, 0x009)], OLD), (WRITE, [(1, 0), (2, 0x006)], OLD)],
)
def test_an_injected_status_strikes_the_half_that_it_names(
    host: Host, queue: Queue, opcode: int, answers: list[tuple[int, int]], left: bytes
) -> None:
    fault(host, FaultKind.STATUS, opcode, status=0x006)
    place_first(host, queue)
    place_second(host, queue)
    assert run(host, queue) == answers
    assert block(host) == left
    assert [one.triggered for one in host.rpu.controller.faults.listed()] == [1]


@pytest.mark.parametrize(("opcode", "answers"), [(COMPARE, []), (WRITE, [(1, 0)])])
def test_a_half_that_an_injected_fault_loses_writes_nothing(
    host: Host, queue: Queue, opcode: int, answers: list[tuple[int, int]]
) -> None:
    fault(host, FaultKind.LOST, opcode)
    place_first(host, queue)
    place_second(host, queue)
    assert run(host, queue) == answers
    host.place(queue, READ, 3, nsid=1, prp1=DATA + 2 * PAGE)
    assert run(host, queue) == [(3, 0)]
    assert block(host) == OLD


@pytest.mark.parametrize("opcode", [COMPARE, WRITE])
def test_an_injected_delay_of_one_half_delays_both(host: Host, queue: Queue, opcode: int) -> None:
    fault(host, FaultKind.DELAY, opcode, delay=1_000_000)
    place_first(host, queue)
    place_second(host, queue)
    assert run(host, queue) == []
    host.now += 1.1
    assert run(host, queue) == [(1, 0), (2, 0)]
    assert block(host) == NEW


def test_a_delayed_compare_that_is_aborted_takes_its_write_with_it(
    host: Host, queue: Queue
) -> None:
    fault(host, FaultKind.DELAY, COMPARE, delay=1_000_000)
    place_first(host, queue)
    place_second(host, queue)
    assert run(host, queue) == []
    assert abort(host, 1) == 0
    host.now += 1.1
    assert run(host, queue) == [(1, 0x007), (2, 0x009)]
    assert block(host) == OLD
