"""What becomes of programs, range sets and running commands: Abort, deleted queues and namespaces,
resets, the death of the engine, Bus Master Enable.

Whatever happens, each command is answered once, nothing that runs touches what is another's, and
the drive goes on.
"""

import struct
from collections.abc import Callable, Iterator

import pytest

from potash_firmware.mailbox.messages import Outcome
from support.compute import (
    COMPUTE,
    MEMORY,
    OTHER_COMPUTE,
    OTHER_MEMORY,
    ComputeHost,
    compute_host,
    range_descriptor,
)
from support.nvme_host import NSSR, PAGE, Queue

DELETE_SQ, ABORT, MANAGE, ATTACH, SANITIZE = 0x00, 0x08, 0x0D, 0x15, 0x84
ABORT_REQUESTED, SQ_DELETION, INTERNAL_ERROR = 0x007, 0x008, 0x006
SANITIZE_IN_PROGRESS = 0x01D
INVALID_NAMESPACE, INVALID_FIELD, INVALID_MEMORY = 0x00B, 0x002, 0x18B

PROGRAM = bytes(64)


@pytest.fixture
def host() -> Iterator[ComputeHost]:
    with compute_host() as host:
        yield host


@pytest.fixture
def queue(host: ComputeHost) -> Queue:
    return host.create_io_queue()


def submit_abort(host: ComputeHost, cid: int, own: int = 0x99, qid: int = 1) -> None:
    host.place(host.admin, ABORT, own, cdws=(cid << 16 | qid,))
    host.ring(host.admin)
    host.service()


def aborts(host: ComputeHost) -> list[tuple[int, int]]:
    """Identifiers and dword 0 of Abort commands that have ended, well."""
    host.service()
    ended = host.reap(host.admin)
    assert all(one.status == 0 for one in ended)
    return [(one.cid, one.dw0) for one in ended]


def submit_delete(host: ComputeHost, nsid: int) -> None:
    host.place(host.admin, MANAGE, 0x77, nsid=nsid, cdws=(1,))
    host.ring(host.admin)
    go_on(host)


def detach(host: ComputeHost, nsid: int, sel: int = 1) -> None:
    host.put(struct.pack("<HH", 1, 0).ljust(PAGE, b"\0"))
    host.place(host.admin, ATTACH, 0x78, nsid=nsid, cdws=(sel,))
    host.ring(host.admin)
    go_on(host)


def go_on(host: ComputeHost) -> None:
    """The media do all that they are asked."""
    host.service()
    while host.executor.waiting:
        host.executor.run_all()
        host.service()


def occupancy(host: ComputeHost, nsid: int = COMPUTE) -> list[int]:
    """The first byte of each program descriptor: occupancy, activation."""
    words = ((64 + 8 * 64) // 4 - 1 << 16 | 0x82, 0, 0, 0)
    assert host.command(host.admin, 2, nsid=nsid, cdws=words).status == 0
    return list(host.data(64 + 8 * 64)[64::64])


def sets(host: ComputeHost, nsid: int = COMPUTE) -> int:
    words = (1023 << 16 | 0x84, 0, 0, 0)
    assert host.command(host.admin, 2, nsid=nsid, cdws=words).status == 0
    return int.from_bytes(host.data(4), "little")


def prepare(host: ComputeHost) -> None:
    """A program at index 2, activated, and one range set."""
    assert host.load(2, PROGRAM).status == 0
    assert host.activate(2).status == 0
    assert host.create_set((MEMORY, 0, PAGE)).dw0 == 1


START, PREPARED = [6, 6, 0, 0, 0, 0, 0, 0], [6, 6, 5, 0, 0, 0, 0, 0]


# Abort.


def test_a_running_program_is_stopped_before_its_abort_ends(
    host: ComputeHost, queue: Queue
) -> None:
    host.begin(queue, 0, 5)
    submit_abort(host, 5)
    (asked,) = host.engine.asked
    assert asked.cancelled
    assert host.answers(queue) == []
    assert aborts(host) == []
    host.engine.end_cancelled()
    assert host.answers(queue) == [(5, ABORT_REQUESTED, False)]
    assert aborts(host) == [(0x99, 0)]


def test_a_program_that_ends_before_it_is_stopped(host: ComputeHost, queue: Queue) -> None:
    host.begin(queue, 0, 5)
    submit_abort(host, 5)
    host.engine.end(value=3)
    assert host.answers(queue) == [(5, 0, False)]
    assert aborts(host) == [(0x99, 1)], "not aborted"


def test_two_aborts_of_one_command(host: ComputeHost, queue: Queue) -> None:
    host.begin(queue, 0, 5)
    submit_abort(host, 5)
    submit_abort(host, 5, 0x9A)
    host.engine.end_cancelled()
    assert host.answers(queue) == [(5, ABORT_REQUESTED, False)]
    assert sorted(aborts(host)) == [(0x99, 0), (0x9A, 0)]


def test_one_that_waits_is_aborted_at_once(host: ComputeHost, queue: Queue) -> None:
    for cid in range(6):
        host.begin(queue, 0, cid)
    submit_abort(host, 4)
    assert host.answers(queue) == [(4, ABORT_REQUESTED, False)]
    assert aborts(host) == [(0x99, 0)]
    for _ in range(5):
        host.engine.end()
        host.service()
    assert sorted(host.answers(queue)) == [(cid, 0, False) for cid in (0, 1, 2, 3, 5)]
    assert host.engine.asked == []


# Deleted queues.


def test_a_queue_is_gone_when_its_programs_have_stopped(host: ComputeHost, queue: Queue) -> None:
    other = host.create_io_queue(2)
    for cid in range(6):
        host.begin(queue, 0, cid)
    host.begin(other, 0, 8)
    host.place(host.admin, DELETE_SQ, 0x66, cdws=(1,))
    host.ring(host.admin)
    assert host.answers(host.admin) == []
    host.engine.end(value=1)
    host.engine.end_cancelled()
    assert host.answers(host.admin) == [(0x66, 0, False)]
    assert sorted((cid, status) for cid, status, _ in host.answers(queue)) == [
        (0, 0),
        *((cid, SQ_DELETION) for cid in range(1, 6)),
    ]
    assert len(host.engine.asked) == 1, "the other queue's turn has come"
    host.engine.end()
    assert host.answers(other) == [(8, 0, False)]


# Resets.


def test_a_controller_reset_keeps_programs_and_sets(host: ComputeHost, queue: Queue) -> None:
    prepare(host)
    assert host.load(3, PROGRAM, psize=128).status == 0
    host.disable()
    host.enable()
    assert occupancy(host) == [6, 6, 5, 1, 0, 0, 0, 0]
    assert sets(host) == 1
    assert host.load(3, PROGRAM, psize=128, loff=64).status == 0
    queue = host.create_io_queue()
    host.begin(queue, 2, rsid=1)
    host.engine.end(value=7)
    assert host.answers(queue) == [(1, 0, False)]


def test_the_next_session_begins_when_programs_have_stopped(
    host: ComputeHost, queue: Queue
) -> None:
    prepare(host)
    for cid in range(6):
        host.begin(queue, 2, cid, rsid=1)
    host.disable()
    assert all(one.cancelled for one in host.engine.asked)
    host.begin_enable()
    host.service()
    assert not host.ready
    host.engine.end(host.engine.asked[-1], value=9)
    host.service()
    assert not host.ready
    host.engine.end_cancelled()
    host.service()
    assert host.ready
    assert host.engine.asked == [], "those that waited never began"
    assert host.answers(host.admin) == []
    assert host.delete_set(1).status == 0
    assert host.deactivate(2).status == 0


RESETS: dict[str, Callable[[ComputeHost], None]] = {
    "subsystem": lambda host: host.write32(NSSR, 0x4E56_4D65),
    "function": lambda host: host.board.function_reset(),
}


@pytest.mark.parametrize("kind", RESETS)
def test_a_reset_that_may_bring_another_host_clears_all(
    host: ComputeHost, queue: Queue, kind: str
) -> None:
    prepare(host)
    host.load(3, PROGRAM, psize=128)
    host.deactivate(1)
    host.begin(queue, 2, rsid=1)
    (program,) = {one.program for one in host.engine.asked}
    RESETS[kind](host)
    host.service()
    host.begin_enable()
    host.service()
    assert not host.ready
    host.engine.end_cancelled()
    host.service()
    assert host.ready
    assert occupancy(host) == START
    assert sets(host) == 0
    assert not isinstance(program, int)
    assert program.handle in host.engine.forgotten


def test_abort_in_the_middle_of_a_reset(host: ComputeHost, queue: Queue) -> None:
    """The task of an Abort that waits is over with its execution, whoever asked."""
    host.begin(queue, 0, 5)
    submit_abort(host, 5)
    host.disable()
    host.begin_enable()
    host.service()
    host.engine.end_cancelled()
    host.service()
    assert host.ready
    assert aborts(host) == []
    queue = host.create_io_queue()
    host.begin(queue, 0, 5)
    host.engine.end()
    assert host.answers(queue) == [(5, 0, False)]


# Namespaces that go.


def test_a_compute_namespace_is_deleted_while_it_runs(host: ComputeHost, queue: Queue) -> None:
    prepare(host)
    for cid in range(6):
        host.begin(queue, 2, cid, rsid=1)
    host.begin(queue, 0, 9, nsid=OTHER_COMPUTE)
    submit_delete(host, COMPUTE)
    assert host.answers(host.admin) == []
    assert host.answers(queue) == [(4, INVALID_NAMESPACE, True), (5, INVALID_NAMESPACE, True)]
    host.begin(queue, 0, 10)
    assert host.answers(queue) == [(10, INVALID_FIELD, True)], "it is not attached any more"
    host.engine.end_cancelled()
    go_on(host)
    assert host.answers(host.admin) == [(0x77, 0, False)]
    ended = host.answers(queue)
    assert ended == [(cid, INVALID_NAMESPACE, True) for cid in range(4)]
    assert host.engine.closed == [COMPUTE]
    assert len(host.engine.forgotten) == 1
    host.engine.end()
    assert host.answers(queue) == [(9, 0, False)]


def test_a_new_compute_namespace_begins_empty(host: ComputeHost) -> None:
    prepare(host)
    submit_delete(host, COMPUTE)
    assert host.answers(host.admin) == [(0x77, 0, False)]
    host.put(bytes(PAGE))
    assert host.command(host.admin, MANAGE, cdws=(0, 4 << 24)).dw0 == COMPUTE
    detach(host, COMPUTE, 0)
    assert host.answers(host.admin) == [(0x78, 0, False)]
    assert occupancy(host) == START
    assert sets(host) == 0


def test_a_compute_namespace_is_detached_and_keeps_its_programs(
    host: ComputeHost, queue: Queue
) -> None:
    prepare(host)
    host.begin(queue, 2, rsid=1)
    detach(host, COMPUTE)
    assert host.answers(host.admin) == []
    host.engine.end_cancelled()
    go_on(host)
    assert host.answers(queue) == [(1, INVALID_NAMESPACE, True)]
    assert host.answers(host.admin) == [(0x78, 0, False)]
    assert host.activate(2).status == INVALID_FIELD
    detach(host, COMPUTE, 0)
    assert host.answers(host.admin) == [(0x78, 0, False)]
    assert occupancy(host) == PREPARED
    assert sets(host) == 1


@pytest.mark.parametrize("how", [submit_delete, detach])
def test_memory_goes_while_it_is_used(
    host: ComputeHost, queue: Queue, how: Callable[[ComputeHost, int], None]
) -> None:
    prepare(host)
    host.begin(queue, 2, 1, rsid=1)
    host.put(range_descriptor((OTHER_MEMORY, 0, PAGE)))
    host.begin(queue, 0, 2, numr=1)
    host.begin(queue, 0, 3, nsid=OTHER_COMPUTE)
    how(host, MEMORY)
    assert host.answers(host.admin) == []
    assert host.refusal(queue, 2, cid=4, rsid=1) == (INVALID_MEMORY, True)
    host.engine.end_cancelled()
    go_on(host)
    assert host.answers(queue) == [(1, INVALID_MEMORY, True)]
    assert [status for _, status, _ in host.answers(host.admin)] == [0]
    assert sets(host) == 1, "a set outlives the memory that it names"
    assert len(host.engine.asked) == 2, "what uses other memory goes on"
    assert host.refusal(queue, 2, cid=4, rsid=1) == (INVALID_MEMORY, True)


def test_those_that_wait_for_their_turn_lose_their_memory(host: ComputeHost, queue: Queue) -> None:
    prepare(host)
    for cid in range(4):
        host.begin(queue, 0, cid)
    host.begin(queue, 2, 4, rsid=1)
    host.begin(queue, 0, 5)
    host.place(host.admin, MANAGE, 0x77, nsid=MEMORY, cdws=(1,))
    host.ring(host.admin)
    host.service()
    (done,) = host.reap(queue)  # nothing else has to happen for that
    assert (done.cid, done.status, done.dnr) == (4, INVALID_MEMORY, True)
    go_on(host)
    assert host.answers(host.admin) == [(0x77, 0, False)]
    host.engine.end()
    assert host.answers(queue) == [(0, 0, False)]
    assert len(host.engine.asked) == 4


def test_programs_end_when_a_sanitize_operation_begins(host: ComputeHost, queue: Queue) -> None:
    prepare(host)
    for cid in range(4):
        host.begin(queue, 0, cid)
    host.begin(queue, 2, 4, rsid=1)
    host.begin(queue, 0, 5, nsid=OTHER_COMPUTE)
    host.place(host.admin, SANITIZE, 0x77, cdws=(2,))
    host.ring(host.admin)
    go_on(host)
    assert host.answers(queue) == [(4, SANITIZE_IN_PROGRESS, False)]
    host.engine.end_cancelled()
    go_on(host)
    ended = sorted(host.answers(queue))
    assert ended == [(cid, SANITIZE_IN_PROGRESS, False) for cid in (0, 1, 2, 3, 5)]
    assert host.engine.asked == []
    assert host.answers(host.admin) == [(0x77, 0, False)]
    assert occupancy(host) == PREPARED


# The engine.


def test_an_engine_that_is_lost_loses_no_state(host: ComputeHost, queue: Queue) -> None:
    prepare(host)
    for cid in range(6):
        host.begin(queue, 2, cid, rsid=1)
    while host.engine.asked:
        host.engine.end(outcome=Outcome.LOST)
    ended = host.answers(queue)
    assert ended == [(cid, INTERNAL_ERROR, False) for cid in range(4)]
    assert len(host.engine.asked) == 2, "the others run on the next one"
    assert occupancy(host) == PREPARED
    assert sets(host) == 1


def test_a_drive_without_an_engine_answers(host: ComputeHost) -> None:
    """As while an APU does not start."""
    host.engine.verdict = Outcome.LOST
    assert host.load(2, PROGRAM).status == 0
    assert host.activate(2).status == INTERNAL_ERROR
    assert host.unload(2).status == 0


# Bus Master Enable.


def test_nothing_moves_while_the_device_may_not_reach_memory(
    host: ComputeHost, queue: Queue
) -> None:
    for cid in range(6):
        host.begin(queue, 0, cid, dlen=4)
    host.master(allowed=False)
    host.engine.end(value=1)
    host.service()
    assert host.reap(queue) == []
    assert len(host.engine.asked) == 3, "the data of the next one cannot be read"
    host.master()
    assert host.answers(queue) == [(0, 0, False)]
    assert len(host.engine.asked) == 4
    while host.engine.asked:
        host.engine.end()
        host.service()
    assert [cid for cid, _, _ in host.answers(queue)] == [1, 2, 3, 4, 5]


def test_a_reset_while_the_device_may_not_reach_memory(host: ComputeHost, queue: Queue) -> None:
    for cid in range(6):
        host.begin(queue, 0, cid, dlen=4)
    host.master(allowed=False)
    host.engine.end(value=1)
    host.service()
    host.disable()
    host.engine.end_cancelled()
    host.enable()
    assert host.rpu.controller.compute.of(COMPUTE).runs.running == set()
    queue = host.create_io_queue()
    host.begin(queue, 0, 5)
    host.engine.end()
    assert host.answers(queue) == [(5, 0, False)]
