"""Execute Program: its fields, data, ranges, statuses and return value, rule by rule.

Expected statuses are those of the tables that implementers of the command set agree on.
"""

import struct
from collections.abc import Iterator

import pytest

from potash_firmware.mailbox.messages import Outcome
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from support.compute import (
    BLOCKS,
    COMPUTE,
    EXECUTE,
    MEMORY,
    MEMORY_SIZE,
    OTHER_COMPUTE,
    OTHER_MEMORY,
    PRP2,
    SMALL,
    Asked,
    ComputeHost,
    compute_host,
    range_descriptor,
)
from support.nvme_host import DATA, PAGE, Queue

INVALID_FIELD, INVALID_NAMESPACE, INTERNAL_ERROR = 0x002, 0x00B, 0x006
INVALID_MEMORY, INVALID_SET, INVALID_ID, INVALID_DATA = 0x18B, 0x18C, 0x18D, 0x18E
INVALID_INDEX, TOO_MANY_RANGES, OVERLAP, NOT_ACTIVATED, IN_USE = 0x18F, 0x191, 0x197, 0x198, 0x199


@pytest.fixture
def host() -> Iterator[ComputeHost]:
    with compute_host() as host:
        yield host


@pytest.fixture
def queue(host: ComputeHost) -> Queue:
    return host.create_io_queue()


def seen(asked: Asked) -> list[tuple[int, int]]:
    return [(one.offset, one.length) for one in asked.ranges]


# Fields.


def test_all_that_a_program_is_given(host: ComputeHost, queue: Queue) -> None:
    rsid = host.create_set((MEMORY, PAGE, 2 * PAGE), (OTHER_MEMORY, 0, PAGE)).dw0
    host.put(b"data" * 100)
    parameters = (0x1122_3344_5566_7788, 0x99AA_BBCC_DDEE_FF00)
    host.begin(queue, 1, rsid=rsid, dlen=100, parameters=parameters)
    (asked,) = host.engine.asked
    assert (asked.nsid, asked.program, asked.parameters) == (COMPUTE, 1, parameters)
    assert asked.data == b"data" * 25
    assert seen(asked) == [(PAGE, 2 * PAGE), (0, PAGE)]
    namespaces = host.rpu.controller.namespaces
    memory = [namespaces.of_kind(MemoryNamespace, one).memory for one in (MEMORY, OTHER_MEMORY)]
    assert [one.memory.fd for one in asked.ranges] == [one.fd for one in memory]
    assert host.reap(queue) == []
    host.engine.end(value=0xFEDC_BA98_7654_3210)
    host.service()
    (done,) = host.reap(queue)
    assert (done.status, done.dw0, done.dw1) == (0, 0x7654_3210, 0xFEDC_BA98)


def test_without_ranges_and_data(host: ComputeHost, queue: Queue) -> None:
    host.begin(queue, 0, prp1=1 << 40)
    (asked,) = host.engine.asked
    assert (seen(asked), asked.data) == ([], b"")
    host.engine.end()
    assert host.answers(queue) == [(1, 0, False)]


def test_ranges_in_the_command_and_data_behind_them(host: ComputeHost, queue: Queue) -> None:
    ranges = range_descriptor((MEMORY, 0, PAGE)) + range_descriptor((MEMORY, PAGE, PAGE))
    host.put(ranges + b"data")
    host.begin(queue, 0, numr=2, dlen=68)
    (asked,) = host.engine.asked
    assert (seen(asked), asked.data) == ([(0, PAGE), (PAGE, PAGE)], b"data")
    assert host.command(host.admin, 2, nsid=COMPUTE, cdws=(7 << 16 | 0x84, 0, 0, 0)).status == 0
    assert host.data(4) == bytes(4), "ranges of one command are no set"


def test_without_dlen_the_data_are_the_ranges(host: ComputeHost, queue: Queue) -> None:
    """Linux's passthrough has no place for command dword 4."""
    host.put(range_descriptor((MEMORY, 0, PAGE)) + b"x" * 32)
    host.begin(queue, 0, numr=1)
    (asked,) = host.engine.asked
    assert (seen(asked), asked.data) == ([(0, PAGE)], b"")


def test_as_much_data_as_a_command_moves(host: ComputeHost, queue: Queue) -> None:
    """In two pages here; beyond MDTS there is nothing."""
    host.put(b"x" * 5000)
    host.begin(queue, 0, dlen=5000)
    assert host.engine.asked[0].data == b"x" * 5000
    assert host.refusal(queue, 0, cid=2, dlen=(512 << 10) + 1) == (INVALID_FIELD, True)
    assert host.refusal(queue, 0, cid=2, dlen=0xFFFF_FFFF) == (INVALID_FIELD, True)


def test_data_that_is_not_there(host: ComputeHost, queue: Queue) -> None:
    assert host.refusal(queue, 0, dlen=4, prp1=1 << 40)[0] == 0x004
    assert host.refusal(queue, 0, numr=1, prp1=1 << 40)[0] == 0x004
    assert host.engine.asked == []


def test_data_by_an_sgl(host: ComputeHost, queue: Queue) -> None:
    """One data block: address, length, type 0."""
    host.put(range_descriptor((MEMORY, 0, PAGE)) + b"data")
    host.place(queue, EXECUTE, 1, nsid=COMPUTE, first=(0, 1, 36), flags=0x40, prp1=DATA, prp2=36)
    host.ring(queue)
    host.service()
    (asked,) = host.engine.asked
    assert (seen(asked), asked.data) == ([(0, PAGE)], b"data")
    host.place(queue, EXECUTE, 2, nsid=COMPUTE, first=(0, 1, 37), flags=0x40, prp1=DATA, prp2=36)
    host.ring(queue)
    assert host.answers(queue) == [(2, 0x00F, True)], "a transfer shorter than DLEN"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"index": 2}, INVALID_INDEX),
        ({"index": SMALL.programs}, INVALID_INDEX),
        ({"index": 0xFFFF}, INVALID_INDEX),
        ({"rsid": 1}, INVALID_ID),
        ({"rsid": 0xFFFF}, INVALID_ID),
        ({"rsid": 1, "numr": 1}, INVALID_FIELD),
        ({"numr": 1, "dlen": 31}, INVALID_FIELD),
        ({"numr": 4, "dlen": 32}, INVALID_FIELD),
        ({"numr": 5}, TOO_MANY_RANGES),
        ({"numr": 5, "dlen": 160}, TOO_MANY_RANGES),
        ({"numr": 0xFFFF_FFFF}, TOO_MANY_RANGES),
        ({"numr": 0x0800_0001, "dlen": 32}, TOO_MANY_RANGES),
        ({"nsid": 9}, INVALID_FIELD),
    ],
)
def test_fields_that_are_refused(
    host: ComputeHost, queue: Queue, fields: dict[str, int], status: int
) -> None:
    arguments = {"index": 0, **fields}
    assert host.refusal(queue, **arguments) == (status, True)
    assert host.engine.asked == []


@pytest.mark.parametrize("nsid", [BLOCKS, MEMORY])
def test_another_command_set_has_other_commands(host: ComputeHost, queue: Queue, nsid: int) -> None:
    """01h is Write, or Memory Copy, there: nothing runs."""
    host.begin(queue, 0, nsid=nsid, dlen=4)
    host.answers(queue)
    assert host.engine.asked == []


@pytest.mark.parametrize(
    ("ranges", "status"),
    [
        ([(MEMORY, 4, PAGE)], INVALID_SET),
        ([(MEMORY, 0, 4)], INVALID_SET),
        ([(MEMORY, MEMORY_SIZE, PAGE)], INVALID_SET),
        ([(MEMORY, (1 << 64) - PAGE, PAGE)], INVALID_SET),
        ([(BLOCKS, 0, PAGE)], INVALID_MEMORY),
        ([(COMPUTE, 0, PAGE)], INVALID_MEMORY),
        ([(77, 0, PAGE)], INVALID_MEMORY),
        ([(MEMORY, 0, PAGE), (MEMORY, 0, PAGE)], OVERLAP),
    ],
)
def test_ranges_in_the_command_are_checked_as_those_of_a_set(
    host: ComputeHost, queue: Queue, ranges: list[tuple[int, int, int]], status: int
) -> None:
    host.put(b"".join(map(range_descriptor, ranges)))
    assert host.refusal(queue, 0, numr=len(ranges)) == (status, True)
    assert host.engine.asked == []


def test_a_program_that_is_not_activated(host: ComputeHost, queue: Queue) -> None:
    assert host.load(2, bytes(16), psize=24).status == 0
    assert host.refusal(queue, 2) == (NOT_ACTIVATED, True)
    assert host.load(2, bytes(8), psize=24, loff=16).status == 0
    assert host.refusal(queue, 2) == (NOT_ACTIVATED, True)
    assert host.activate(2).status == 0
    host.begin(queue, 2)
    assert len(host.engine.asked) == 1
    assert host.deactivate(0).status == 0
    assert host.refusal(queue, 0, cid=2) == (NOT_ACTIVATED, True)


# Outcomes.


@pytest.mark.parametrize(
    ("outcome", "status", "dnr"),
    [
        (Outcome.FAULTED, INTERNAL_ERROR, True),
        (Outcome.EXPIRED, INTERNAL_ERROR, True),
        (Outcome.REFUSED, INVALID_FIELD, True),
        (Outcome.LOST, INTERNAL_ERROR, False),
        (Outcome.CANCELLED, INTERNAL_ERROR, False),
    ],
)
def test_how_an_execution_can_end(
    host: ComputeHost, queue: Queue, outcome: Outcome, status: int, dnr: bool
) -> None:
    host.begin(queue, 0)
    host.engine.end(outcome=outcome)
    assert host.answers(queue) == [(1, status, dnr)]
    host.begin(queue, 0)
    host.engine.end()
    assert host.answers(queue) == [(1, 0, False)], "the next one runs"


def test_a_program_that_cannot_run_after_all(host: ComputeHost, queue: Queue) -> None:
    """A device-defined one is sound: there it is the ranges or the parameters."""
    assert host.load(2, bytes(8)).status == 0
    assert host.activate(2).status == 0
    host.begin(queue, 2)
    host.engine.end(outcome=Outcome.REFUSED)
    assert host.answers(queue) == [(1, INVALID_DATA, True)]


@pytest.mark.parametrize("value", [0, 1, 0xFFFF_FFFF, 1 << 32, (1 << 64) - 1])
def test_a_return_value_is_no_status(host: ComputeHost, queue: Queue, value: int) -> None:
    host.begin(queue, 0)
    host.engine.end(value=value)
    host.service()
    (done,) = host.reap(queue)
    assert (done.status, done.dw1 << 32 | done.dw0) == (0, value)


def test_a_program_that_runs_stays(host: ComputeHost, queue: Queue) -> None:
    assert host.load(2, bytes(8)).status == 0
    assert host.activate(2).status == 0
    host.begin(queue, 2)
    for refused in (host.deactivate(2),):
        assert (refused.status, refused.dnr) == (IN_USE, False)
    assert host.unload(2).status == IN_USE
    assert host.activate(2).status == 0
    host.engine.end()
    assert host.answers(queue) == [(1, 0, False)]
    assert host.deactivate(2).status == 0


# Several at once.


def test_several_queues_and_namespaces_at_once(host: ComputeHost) -> None:
    queues = [host.create_io_queue(qid) for qid in (1, 2, 3)]
    rsid = host.create_set((MEMORY, 0, PAGE)).dw0
    for cid, queue in enumerate(queues):
        host.begin(queue, 0, cid, rsid=rsid)  # ranges may overlap those of others that run
        host.begin(queue, 1, cid + 8, nsid=OTHER_COMPUTE)
    assert [one.nsid for one in host.engine.asked].count(OTHER_COMPUTE) == 3
    assert len(host.engine.asked) == 6
    for asked in reversed(list(host.engine.asked)):
        host.engine.end(asked)
    host.service()
    for cid, queue in enumerate(queues):
        assert sorted(host.answers(queue)) == [(cid, 0, False), (cid + 8, 0, False)]


def test_a_few_run_and_the_rest_wait_in_their_order(host: ComputeHost, queue: Queue) -> None:
    for cid in range(10):
        host.begin(queue, 0, cid, parameters=(cid, 0))
    assert [one.parameters[0] for one in host.engine.asked] == [0, 1, 2, 3]
    host.begin(queue, 0, 10, parameters=(99, 0), nsid=OTHER_COMPUTE)
    assert host.engine.asked[-1].parameters[0] == 99, "another namespace has turns of its own"
    ended = []
    while host.engine.asked:
        ended.append(host.engine.asked[0].parameters[0])
        host.engine.end()
        host.service()
    assert ended == [0, 1, 2, 3, 99, 4, 5, 6, 7, 8, 9]
    assert sorted(host.answers(queue)) == [(cid, 0, False) for cid in range(11)]


def test_data_of_one_that_waits_is_taken_when_it_begins(host: ComputeHost, queue: Queue) -> None:
    for cid in range(4):
        host.begin(queue, 0, cid)
    ranges = range_descriptor((MEMORY, 0, PAGE))
    host.put(ranges + b"early")
    host.begin(queue, 0, 4, numr=1, dlen=37)
    host.put(range_descriptor((9, 0, PAGE)) + b"later")
    host.engine.end()
    host.service()
    asked = host.engine.asked[-1]
    assert (seen(asked), asked.data) == ([(0, PAGE)], b"later"), "the ranges were checked before"


def test_one_that_waits_and_cannot_begin_makes_room(host: ComputeHost, queue: Queue) -> None:
    for cid in range(4):
        host.begin(queue, 0, cid)
    host.put(struct.pack("<2Q", DATA, DATA), PRP2)  # a PRP list, of three pages' data
    host.begin(queue, 0, 4, dlen=3 * PAGE)
    host.begin(queue, 0, 5)
    host.put(struct.pack("<2Q", DATA, 1 << 40), PRP2)
    host.engine.end()
    assert host.answers(queue) == [(0, 0, False), (4, 0x004, False)]
    assert len(host.engine.asked) == 4
