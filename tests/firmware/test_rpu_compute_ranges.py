"""Memory Range Set Management, rule by rule; and log page 84h.

Expected statuses are those of the tables that implementers of the command set agree on.
"""

import struct
from collections.abc import Iterator

import pytest

from support.compute import (
    BLOCKS,
    COMPUTE,
    MEMORY,
    MEMORY_SIZE,
    OTHER_COMPUTE,
    OTHER_MEMORY,
    OTHER_SIZE,
    RANGE_SETS,
    SMALL,
    ComputeHost,
    compute_host,
    range_descriptor,
)
from support.nvme_host import PAGE, Cqe, Queue

INVALID_FIELD, INVALID_NAMESPACE = 0x002, 0x00B
INVALID_MEMORY, INVALID_SET, INVALID_ID = 0x18B, 0x18C, 0x18D
TOO_MANY_RANGES, TOO_MANY_SETS, IN_USE, OVERLAP = 0x191, 0x192, 0x195, 0x197


@pytest.fixture
def host() -> Iterator[ComputeHost]:
    with compute_host() as host:
        yield host


@pytest.fixture
def queue(host: ComputeHost) -> Queue:
    return host.create_io_queue()


def refused(completion: Cqe, status: int, *, dnr: bool = True) -> bool:
    return (completion.status, completion.dnr, completion.dw0) == (status, dnr, 0)


def created(host: ComputeHost, *ranges: tuple[int, int, int], nsid: int = COMPUTE) -> int:
    done = host.create_set(*ranges, nsid=nsid)
    assert (done.status, done.dw1) == (0, 0)
    return done.dw0


def logged(host: ComputeHost, rsid: int = 0, nsid: int = COMPUTE) -> bytes:
    words = (1023 << 16 | 0x84, rsid << 16, 0, 0, 4 << 24)
    assert host.command(host.admin, 2, nsid=nsid, cdws=words).status == 0
    return host.data(PAGE).rstrip(b"\0")


def test_sets_are_numbered_from_1_and_a_number_is_free_again(host: ComputeHost) -> None:
    assert created(host, (MEMORY, 0, PAGE)) == 1
    assert created(host, (MEMORY, 0, PAGE)) == 2
    assert created(host, (MEMORY, 0, PAGE), nsid=OTHER_COMPUTE) == 1
    assert host.delete_set(1).status == 0
    assert created(host, (MEMORY, PAGE, PAGE)) == 1


@pytest.mark.parametrize(
    "ranges",
    [
        [(MEMORY, 0, MEMORY_SIZE)],
        [(MEMORY, MEMORY_SIZE - PAGE, PAGE)],
        [(MEMORY, 0, PAGE), (MEMORY, PAGE, PAGE)],
        [(MEMORY, PAGE, PAGE), (MEMORY, 0, PAGE)],
        [(MEMORY, 0, PAGE), (OTHER_MEMORY, 0, PAGE)],
        [(MEMORY, PAGE * at, PAGE) for at in range(4)],
    ],
)
def test_what_a_set_can_be(host: ComputeHost, ranges: list[tuple[int, int, int]]) -> None:
    assert created(host, *ranges) == 1
    expected = struct.pack("<I28xHB", 1, 1, len(ranges)).ljust(64, b"\0")
    expected += b"".join(map(range_descriptor, ranges))
    assert logged(host) == expected.rstrip(b"\0")


@pytest.mark.parametrize(
    ("ranges", "status"),
    [
        ([], TOO_MANY_RANGES),
        ([(MEMORY, PAGE * at, PAGE) for at in range(5)], TOO_MANY_RANGES),
        ([(MEMORY, 1, PAGE)], INVALID_SET),
        ([(MEMORY, 512, PAGE)], INVALID_SET),
        ([(MEMORY, 0, PAGE + 4)], INVALID_SET),
        ([(MEMORY, 0, 0)], INVALID_SET),
        ([(MEMORY, MEMORY_SIZE, PAGE)], INVALID_SET),
        ([(MEMORY, 0, MEMORY_SIZE + PAGE)], INVALID_SET),
        ([(MEMORY, PAGE, MEMORY_SIZE)], INVALID_SET),
        ([(MEMORY, (1 << 64) - PAGE, PAGE)], INVALID_SET),
        ([(MEMORY, (1 << 64) - PAGE, 2 * PAGE)], INVALID_SET),
        ([(MEMORY, 0, (1 << 32) - PAGE)], INVALID_SET),
        ([(OTHER_MEMORY, OTHER_SIZE, PAGE)], INVALID_SET),
        ([(0, 0, PAGE)], INVALID_MEMORY),
        ([(BLOCKS, 0, PAGE)], INVALID_MEMORY),
        ([(COMPUTE, 0, PAGE)], INVALID_MEMORY),
        ([(9, 0, PAGE)], INVALID_MEMORY),
        ([(0xFFFF_FFFF, 0, PAGE)], INVALID_MEMORY),
        ([(MEMORY, 0, PAGE), (9, 0, PAGE)], INVALID_MEMORY),
        ([(MEMORY, 0, PAGE), (MEMORY, 0, PAGE)], OVERLAP),
        ([(MEMORY, 0, 2 * PAGE), (MEMORY, PAGE, PAGE)], OVERLAP),
        ([(MEMORY, 4 * PAGE, PAGE), (MEMORY, 0, 8 * PAGE)], OVERLAP),
        ([(MEMORY, 0, PAGE), (OTHER_MEMORY, 0, PAGE), (MEMORY, 0, PAGE)], OVERLAP),
    ],
)
def test_what_it_cannot_be(
    host: ComputeHost, ranges: list[tuple[int, int, int]], status: int
) -> None:
    assert refused(host.create_set(*ranges), status)
    assert logged(host) == b""


def test_sets_may_overlap_each_other(host: ComputeHost) -> None:
    assert created(host, (MEMORY, 0, 2 * PAGE)) == 1
    assert created(host, (MEMORY, PAGE, 2 * PAGE)) == 2


def test_there_are_as_many_as_maxmemrs(host: ComputeHost) -> None:
    for _ in range(SMALL.range_sets):
        created(host, (MEMORY, 0, PAGE))
    assert refused(host.create_set((MEMORY, 0, PAGE)), TOO_MANY_SETS)
    created(host, (MEMORY, 0, PAGE), nsid=OTHER_COMPUTE)
    assert host.delete_set(2).status == 0
    assert created(host, (MEMORY, 0, PAGE)) == 2


def test_fields_that_make_no_sense(host: ComputeHost) -> None:
    host.put(range_descriptor((MEMORY, 0, PAGE)))
    for first in (2, 15, 5 << 16):
        done = host.command(host.admin, RANGE_SETS, nsid=COMPUTE, cdws=(first, 1))
        assert refused(done, INVALID_FIELD)
    for nsid in (0, BLOCKS, MEMORY, 0xFFFF_FFFF):
        assert refused(host.create_set((MEMORY, 0, PAGE), nsid=nsid), INVALID_NAMESPACE)
        assert refused(host.delete_set(1, nsid=nsid), INVALID_NAMESPACE)
    assert refused(host.create_set((MEMORY, 0, PAGE), numr=255), TOO_MANY_RANGES)
    done = host.command(host.admin, RANGE_SETS, nsid=COMPUTE, cdws=(0, 1), prp1=1 << 40)
    assert refused(done, 0x004, dnr=done.dnr)
    assert logged(host) == b""


def test_reserved_bytes_of_a_range_count_for_nothing(host: ComputeHost) -> None:
    host.put(range_descriptor((MEMORY, 0, PAGE))[:16] + b"\xff" * 16)
    assert host.command(host.admin, RANGE_SETS, nsid=COMPUTE, cdws=(0xFFF0, 0xFF01)).dw0 == 1
    assert logged(host)[64:] == range_descriptor((MEMORY, 0, PAGE)).rstrip(b"\0")


def test_deleting_a_set_that_is_not_there(host: ComputeHost) -> None:
    for rsid in (0, 1, 0xFFFF):
        assert refused(host.delete_set(rsid), INVALID_ID)
    created(host, (MEMORY, 0, PAGE))
    assert refused(host.delete_set(1, nsid=OTHER_COMPUTE), INVALID_ID)
    assert host.delete_set(1).status == 0
    assert refused(host.delete_set(1), INVALID_ID)


def test_a_set_that_is_used_cannot_be_deleted(host: ComputeHost, queue: Queue) -> None:
    rsid = created(host, (MEMORY, 0, PAGE))
    other = created(host, (MEMORY, 0, PAGE))
    host.begin(queue, 0, rsid=rsid)
    assert refused(host.delete_set(rsid), IN_USE, dnr=False)
    assert host.delete_set(other).status == 0
    host.engine.end()
    assert host.answers(queue) == [(1, 0, False)]
    assert host.delete_set(rsid).status == 0


def test_the_log_of_one_set(host: ComputeHost) -> None:
    created(host, (MEMORY, 0, PAGE))
    created(host, (OTHER_MEMORY, PAGE, 2 * PAGE))
    both, second = logged(host), logged(host, 2)
    assert struct.unpack_from("<I", both) == (2,)
    assert second[:4] == b"\x01\0\0\0"
    assert second[32:] == both[32 + 64 :]
    done = host.command(host.admin, 2, nsid=COMPUTE, cdws=(15 << 16 | 0x84, 3 << 16, 0, 0, 0))
    assert refused(done, INVALID_ID)


def test_memory_out_of_reach(host: ComputeHost, queue: Queue) -> None:
    rsid = created(host, (MEMORY, 0, PAGE))
    host.rpu.controller.reachability.associate(False)
    assert refused(host.create_set((MEMORY, 0, PAGE)), INVALID_MEMORY)
    assert host.refusal(queue, 0, rsid=rsid) == (INVALID_MEMORY, True)
    host.rpu.controller.reachability.associate(True)
    host.begin(queue, 0, rsid=rsid)
    assert len(host.engine.asked) == 1
