"""Commands of the fast path that wait for modelled time: whatever ends, holds or drops them.

`test_rpu_paths_agree` compares random ones with the slow path.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import pytest

from csd_spec.traffic import CompletionKind, TimedCompletion
from potash_device.media.drive import Drive as MediaDrive
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from potash_firmware.ftl.policies import Policies, Superblocks
from potash_firmware.ftl.requests import Op
from potash_firmware.rpu.loop import SPINS
from potash_firmware.rpu.outstanding import OUTSTANDING_LIMIT
from potash_firmware.rpu.timed_fast_path import TimedCommand
from pyvfio_user.migration import State
from support.migration import finish
from support.modelled_time import PROFILE, completions, drive_of, model, modelled, timing_of
from support.namespaces import attach, create, delete
from support.nvme_host import PAGE, Cqe, Host, Queue

WRITE, READ = 1, 2
DELETE_SQ, CREATE_SQ, ABORT = 0, 1, 8
ABORT_REQUESTED, SQ_DELETION_ABORTED, CONFLICT = 0x07, 0x08, 0x03
WRITE_PROTECTED, INTERNAL_ERROR = 0x20, 0x06
START = 10**9


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(settings=modelled()) as host:
        host.enable()
        host.now = 1.0
        yield host


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.create_io_queue()


def send(host: Host, queue: Queue, *commands: tuple[int, int, int], nsid: int = 1) -> None:
    """Commands of a page: opcode, identifier and page."""
    for opcode, cid, page in commands:
        host.place(queue, opcode, cid, nsid=nsid, cdws=(page, 0, 0))
    host.ring(queue)
    host.service()


def waiting(host: Host) -> list[int]:
    """The commands of the fast path that wait; no others do."""
    tasks = list(host.rpu.controller.outstanding.all)
    assert all(isinstance(task, TimedCommand) for task in tasks)
    return [task.name for task in tasks if isinstance(task, TimedCommand)]


def pass_all(host: Host) -> None:
    """Let the time of all that wait pass."""
    host.now += 1.0
    host.service()


def said(found: Sequence[Cqe]) -> list[tuple[int, int]]:
    return [(one.cid, one.status) for one in found]


def test_commands_wait_and_say_when_they_completed(host: Host, queue: Queue) -> None:
    expected = model()
    send(host, queue, (WRITE, 1, 0), (READ, 2, 9), (WRITE, 3, 1))
    assert waiting(host) == [1, 2, 3]
    ops = {1: (Op.WRITE, 0), 2: (Op.READ, 9), 3: (Op.WRITE, 1)}
    dues = {cid: expected.submit(START, op, page, 1) for cid, (op, page) in ops.items()}
    assert completions(host, queue) == dues
    log = timing_of(host).completions
    assert list(log) == [
        TimedCompletion(
            CompletionKind.COMMAND, {1: WRITE, 2: READ, 3: WRITE}[cid], 0, queue.qid, cid, 1, 0,
            START, START, due,
        )
        for cid, due in sorted(dues.items(), key=lambda item: item[1])
    ]  # fmt: skip
    statistics = host.rpu.controller.statistics
    assert (statistics.reads.count, statistics.writes.count) == (1, 2)
    assert statistics.reads.total == dues[2] - START
    assert timing_of(host).lateness.total == 0


def test_those_that_are_due_are_answered_together_and_no_others(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0), (READ, 2, 1), (READ, 3, 2))
    dues = sorted(due for due, _, _ in host.rpu.controller.deadlines.heap)
    host.now = (dues[1] + 10) / 1e9
    host.service()
    assert said(host.reap(queue)) == [(1, 0), (2, 0)]
    assert waiting(host) == [3]
    assert timing_of(host).lateness.total == dues[1] + 10 - dues[0] + 10
    assert list(completions(host, queue)) == [3]


def test_one_that_waits_is_aborted(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0), (READ, 2, 1))
    host.place(host.admin, ABORT, 7, cdws=(1 << 16 | queue.qid,))
    host.ring(host.admin)
    host.service()
    assert [one.dw0 for one in host.reap(host.admin)] == [0]
    assert said(host.reap(queue)) == [(1, ABORT_REQUESTED)]
    assert waiting(host) == [2]
    send(host, queue, (READ, 1, 5))  # the identifier is free
    pass_all(host)
    assert sorted(said(host.reap(queue))) == [(1, 0), (2, 0)]


def test_an_identifier_that_waits_is_taken_also_within_a_burst(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0), (READ, 1, 1), (READ, 2, 2))
    assert said(host.reap(queue)) == [(1, CONFLICT)]
    assert waiting(host) == [1, 2]
    send(host, queue, (READ, 2, 2))
    assert said(host.reap(queue)) == [(2, CONFLICT)]
    pass_all(host)
    assert said(host.reap(queue)) == [(1, 0), (2, 0)]


def test_deletion_of_a_queue_ends_what_waits(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0), (WRITE, 2, 1))
    host.place(host.admin, DELETE_SQ, 7, cdws=(queue.qid,))
    host.ring(host.admin)
    host.service()
    assert said(host.reap(queue)) == [(1, SQ_DELETION_ABORTED), (2, SQ_DELETION_ABORTED)]
    assert said(host.reap(host.admin)) == [(7, 0)]
    assert not waiting(host)
    pass_all(host)
    assert not host.reap(queue)
    assert not timing_of(host).completions


@pytest.mark.parametrize("reset", ["controller", "function"])
def test_a_reset_drops_what_waits(host: Host, queue: Queue, reset: str) -> None:
    send(host, queue, (READ, 1, 0), (READ, 2, 1))
    if reset == "controller":
        host.disable()
    else:
        host.board.function_reset()
    host.enable()
    again = host.create_io_queue()
    send(host, again, (READ, 2, 3))
    assert waiting(host) == [2]
    pass_all(host)
    assert said(host.reap(again)) == [(2, 0)]
    assert timing_of(host).completion_count == 1


def test_nothing_is_answered_after_controller_fatal_status(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0))
    host.rpu.lifecycle.fail("a test")
    pass_all(host)
    assert not host.reap(queue)
    assert host.rpu.controller.statistics.reads.count == 0


def test_completions_wait_for_room(host: Host) -> None:
    queue = host.create_io_queue(size=4)
    send(host, queue, (READ, 1, 0), (READ, 2, 1), (READ, 3, 2))
    pass_all(host)  # which fill the completion queue
    send(host, queue, (READ, 4, 3), (READ, 5, 4), (READ, 6, 5))
    assert waiting(host) == [4, 5, 6]
    pass_all(host)
    assert not waiting(host)
    assert said(host.reap(queue)) == [(1, 0), (2, 0), (3, 0)]
    host.service()
    assert said(host.reap(queue)) == [(4, 0), (5, 0), (6, 0)]
    assert timing_of(host).completion_count == 6
    assert host.rpu.controller.statistics.reads.count == 6


def test_completions_of_two_queues_keep_their_order_in_one(host: Host, queue: Queue) -> None:
    other = Queue(2, queue.sq + 0x2_0000, queue.cq, 16)
    made = host.command(
        host.admin, CREATE_SQ, prp1=other.sq, cdws=(15 << 16 | 2, queue.qid << 16 | 1)
    )
    assert made.status == 0
    order = []
    for cid, one in enumerate((queue, other, other, queue, other)):
        send(host, one, (READ, cid, 0))  # the same die serves one after the other
        order.append((one.qid, cid))
    pass_all(host)
    assert [(one.sqid, one.cid) for one in host.reap(queue)] == order


def test_nothing_is_answered_while_bus_master_enable_is_off(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0), (READ, 2, 1), (READ, 3, 2))
    host.place(host.admin, ABORT, 7, cdws=(2 << 16 | queue.qid,))
    host.ring(host.admin)
    host.master(False)
    late = max(due for due, _, _ in host.rpu.controller.deadlines.heap)
    pass_all(host)
    assert not host.reap(queue)
    assert waiting(host) == [1, 2, 3]
    host.master()
    host.service()
    assert said(host.reap(queue)) == [(1, 0), (2, 0), (3, 0)]
    assert [one.dw0 for one in host.reap(host.admin)] == [1]  # not aborted: it was over
    assert timing_of(host).lateness.count == 3
    assert timing_of(host).lateness.largest >= round(host.now * 1e9) - late


def test_what_is_held_is_dropped_by_a_reset(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0))
    host.master(False)
    pass_all(host)
    host.disable()
    host.enable()
    assert not waiting(host)
    again = host.create_io_queue()
    host.service()
    assert not host.reap(again)


def test_a_migration_waits_for_what_waits(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0))
    pending = host.rpu.migration.change(State.RUNNING, State.STOP)
    assert pending is not None
    finish(host)
    assert not host.rpu.migration.stopped
    pass_all(host)
    finish(host)
    assert host.rpu.migration.stopped
    assert said(host.reap(queue)) == [(1, 0)]


def test_a_trace_that_begins_meanwhile_has_the_completions(host: Host, queue: Queue) -> None:
    send(host, queue, (READ, 1, 0), (READ, 2, 1))
    seen: list[tuple[str, object]] = []
    host.board.trace.sink = lambda point, known: seen.append((point, known.get("cid")))
    pass_all(host)
    assert seen[:2] == [("rpu.complete", 1), ("rpu.complete", 2)]
    assert timing_of(host).completion_count == 2
    send(host, queue, (READ, 3, 0))  # by the slow path, which traces the model, too
    assert {"rpu.fetch", "rpu.modelled"} <= {point for point, _ in seen}


class Waited(MemoryMedia):
    """Memory whose second page has to be waited for."""

    def read_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        return offset != PAGE and super().read_at_once(views, offset)

    def write_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        return offset != PAGE and super().write_at_once(views, offset)


@pytest.mark.parametrize(("opcode", "op"), [(READ, Op.READ), (WRITE, Op.WRITE)])
def test_the_model_is_asked_once_for_what_cannot_be_moved_at_once(opcode: int, op: Op) -> None:
    expected = model()
    with Host({1: Waited.create(1 << 20)}, settings=modelled()) as host:
        host.enable()
        queue = host.create_io_queue()
        host.now = 1.0
        send(host, queue, (opcode, 1, 0), (opcode, 2, 1), (opcode, 3, 2))
        assert len(host.executor.waiting) == 1
        dues = {cid: expected.submit(START, op, cid - 1, 1) for cid in (1, 2, 3)}
        assert completions(host, queue) == dues
        assert timing_of(host).drive.counters == expected.counters


def test_a_worn_drive_refuses_a_write_amid_a_burst_and_asks_once() -> None:
    worn = replace(PROFILE, cycles=1)
    media = MemoryMedia.create(1 << 20)
    with Host({1: media}, settings=modelled(worn)) as host:
        host.enable()
        queue = host.create_io_queue()
        drive = timing_of(host).drive
        pages = 0
        while not drive.worn:
            drive.submit(drive.now, Op.WRITE, pages % 250, 1)
            pages += 1
        host.put(b"x" * PAGE)
        before = drive.counters.core_ns
        send(host, queue, (READ, 1, 0), (WRITE, 2, 255), (READ, 3, 1))
        assert said(host.reap(queue)) == [(2, WRITE_PROTECTED)]
        assert os.pread(media.fd, PAGE, 255 * PAGE) == bytes(PAGE)
        assert waiting(host) == [1, 3]
        spent = 2 * worn.read_command_ns + worn.write_command_ns
        assert drive.counters.core_ns - before == spent
        pass_all(host)
        assert said(host.reap(queue)) == [(1, 0), (3, 0)]


def test_superblocks_that_a_burst_retires_are_reported() -> None:
    with Host(settings=modelled(replace(PROFILE, cycles=1))) as host:
        host.enable()
        queue = host.create_io_queue(size=64)
        reported: list[int] = []
        timing = timing_of(host)
        timing.on_retired = lambda: reported.append(timing.drive.good)
        for start in range(0, 2000, 40):
            send(host, queue, *((WRITE, cid, (start + cid) * 7 % 250) for cid in range(40)))
            pass_all(host)
            host.reap(queue)
        assert reported[-1] == timing.drive.good < timing.drive.profile.superblocks


class Raising:
    def victim(self, superblocks: Superblocks) -> int:
        raise RuntimeError("no idea")


@pytest.mark.filterwarnings("ignore:custom policies:DeprecationWarning")
def test_a_policy_that_fails_ends_one_command_of_a_burst() -> None:
    media = MemoryMedia.create(1 << 20)
    with Host({1: media}, settings=modelled(policies=Policies(gc=Raising()))) as host:
        host.enable()
        queue = host.create_io_queue(size=64)
        host.put(b"x" * PAGE)
        failed, done = [], 0
        for turn in range(25):
            send(host, queue, *((WRITE, cid, (40 * turn + cid) * 37 % 250) for cid in range(40)))
            pass_all(host)
            found = said(host.reap(queue))
            failed += [one for one in found if one[1]]
            done += len(found)
        assert [status for _, status in failed] == [INTERNAL_ERROR]
        assert done == 1000
        assert timing_of(host).drive.counters.erased


def test_a_namespace_in_several_pieces_is_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [NamespaceShape(1 << 18)] * 4
    with (
        MediaDrive.open(None, shapes, capacity=1 << 20) as drive,
        Host(settings=modelled(), drive=drive) as host,
    ):
        host.enable()
        queue = host.create_io_queue()
        for nsid in (1, 3):
            assert delete(host, nsid).status == 0
        assert create(host, 128).dw0 == 1
        assert attach(host, 1).status == 0
        assert timing_of(host).pieces(1) == [(0, 64), (128, 64)]
        host.now = 1.0
        send(host, queue, (WRITE, 1, 0), (WRITE, 2, 100))
        assert waiting(host) == [1, 2]
        places = drive_of(host).state.places
        assert (places >= 0).nonzero()[0].tolist() == [0, 164]
        assert set(completions(host, queue)) == {1, 2}
        clock = timing_of(host).clock
        stands, passed = clock.now, count(0, 1000)
        monkeypatch.setattr(clock, "now", lambda: stands() + next(passed))
        host.place(queue, READ, 1, nsid=2)  # which is in one piece
        host.place(queue, READ, 2, nsid=1)
        send(host, queue, (READ, 3, 0), nsid=2)
        assert waiting(host) == [1, 2, 3]
        assert not host.fatal


@pytest.mark.parametrize(("wants", "attributes"), [("data", 0), ("hints", 0), ("hints", 3)])
def test_writes_that_the_ftl_wants_described_take_the_slow_path(
    host: Host, queue: Queue, wants: str, attributes: int
) -> None:
    setattr(drive_of(host), wants, True)
    host.place(queue, READ, 1, nsid=1, cdws=(0, 0, 0, 7))
    host.place(queue, WRITE, 2, nsid=1, cdws=(1, 0, 0, attributes))
    send(host, queue, (READ, 3, 2))
    tasks = host.rpu.controller.outstanding.all
    fast = wants == "hints" and not attributes
    assert [isinstance(task, TimedCommand) for task in tasks] == [True, fast, True]


def test_no_more_wait_than_the_limit(host: Host) -> None:
    queue = host.create_io_queue(size=1024)
    outstanding = host.rpu.controller.outstanding
    cid = 0
    for _ in range(6):
        send(host, queue, *((READ, cid + number, 0) for number in range(1000)))
        cid += 1000
        assert len(outstanding) <= OUTSTANDING_LIMIT
        if len(outstanding) == OUTSTANDING_LIMIT:
            break
    assert len(outstanding) == OUTSTANDING_LIMIT


def test_a_stale_entry_in_guest_memory_changes_nothing(host: Host, queue: Queue) -> None:
    """A host may write other entries as soon as a command was fetched."""
    at = queue.sq + queue.tail * 64
    send(host, queue, (READ, 1, 0))
    host.put(b"\xff" * 64, at)
    host.place(host.admin, ABORT, 7, cdws=(1 << 16 | queue.qid,))
    host.ring(host.admin)
    host.service()
    assert said(host.reap(queue)) == [(1, ABORT_REQUESTED)]


SHADOW, EVENTS = 0x30_0000, 0x30_1000


@pytest.mark.parametrize("submission_ns", [500, 100_000])
def test_a_device_that_polls_completes_what_is_due_soon(
    submission_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not go back to its sockets for a deadline of microseconds, but for a later one."""
    with Host(settings=modelled(replace(PROFILE, submission_ns=submission_ns))) as host:
        host.enable()
        queue = host.create_io_queue()
        assert host.command(host.admin, 0x7C, prp1=SHADOW, prp2=EVENTS).status == 0
        yields = 0

        def pass_a_microsecond() -> None:
            nonlocal yields
            yields += 1
            host.now += 1e-6

        monkeypatch.setattr("os.sched_yield", pass_a_microsecond)
        host.place(queue, READ, 1, nsid=1)
        struct.pack_into("<I", host.memory.view, SHADOW + 8 * queue.qid, queue.tail)
        host.rpu.spin()
        taken = submission_ns + 2000 + 1024 + 700
        soon = submission_ns == 500
        assert said(host.reap(queue, ring=False)) == [(1, 0)] * soon
        assert yields == SPINS + (-(-taken // 1000) if soon else 0)
        assert timing_of(host).lateness.largest < 1000
