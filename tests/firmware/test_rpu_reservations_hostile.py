"""Reservations against hosts that mean harm, or leave: room for registrants, identifiers that several
hosts have, controllers that are gone while they hold, and event requests at their limit."""

import struct
from collections.abc import Callable, Iterator

import pytest

from nvme_spec.reservations import NO_CONTROLLER
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_device.media.store import MemoryMedia
from support.controllers import attach, controllers, end_media_work
from support.nvme_host import Host, SlowMedia
from support.reservation_model import Report, acquire, become, register, release, report, set_host

WRITE, READ, GET_LOG, EVENT_REQUEST = 0x01, 0x02, 0x02, 0x0C
CONFLICT, AER_LIMIT, PREEMPT_ABORTED, NO_ROOM = 0x083, 0x105, 0x01B, 0x006
WRITE_EXCLUSIVE, EXCLUSIVE_ACCESS, DETACH = 1, 2, 1
A, B = b"host   A", b"host   B"
LARGEST_KEY = (1 << 64) - 1
MIB = 1 << 20


@pytest.fixture
def pair() -> Iterator[list[Host]]:
    """Two hosts, whose media always have to be waited for."""
    with controllers(2, media={1: SlowMedia.create(MIB)}) as hosts:
        for host, identifier in zip(hosts, (A, B), strict=True):
            assert set_host(host, identifier) == 0
            host.create_io_queue()
        yield hosts


def register_as_many(host: Host, first: int, persistence: int = 0) -> int:
    """Register under one identifier after the other until there is no room; their number."""
    for count in range(200):
        assert set_host(host, struct.pack("<Q", first + count)) == 0
        status = register(host, 0, new=1, persistence=persistence)
        if status:
            assert status == NO_ROOM
            return count
    raise AssertionError("there is always room")


@pytest.mark.parametrize("persists", [False, True])
def test_a_host_with_many_identifiers_leaves_the_others_room(persists: bool) -> None:
    """128 registrants, a limit of this drive: each of four controllers has a share of 16."""
    media, sidecar = MemoryMedia.create(MIB), MemoryMedia.create(SIDECAR_SIZE)
    with controllers(4, media={1: media}, sidecar=sidecar) as hosts:
        for host in hosts:
            host.create_io_queue()
        assert register_as_many(hosts[2], 1000, 3 if persists else 0) == 128 - 3 * 16
        if not persists:
            found = [register_as_many(hosts[n], 2000 + 100 * n) for n in (0, 1, 3)]
            assert found == [16] * 3
            # Who goes makes room again, for its own controller or for all.
            assert release(hosts[3], 1, 1) == CONFLICT, "no registrant"
            assert set_host(hosts[3], struct.pack("<Q", 2300)) == 0
            assert release(hosts[3], 1, 1) == 0
            assert register_as_many(hosts[2], 3000) == 128 - 3 * 16
            return
        with controllers(4, media={1: media}, sidecar=sidecar) as again:  # after a power cycle
            for host in again:
                host.create_io_queue()
            assert register_as_many(again[2], 2000) == 0
            assert register_as_many(again[3], 3000) == 16


def test_a_drive_without_shares_before_leaves_what_is_free_for_all() -> None:
    """It had one controller, or a version that kept no record of controllers has written it."""
    media, sidecar = MemoryMedia.create(MIB), MemoryMedia.create(SIDECAR_SIZE)
    with controllers(1, media={1: media}, sidecar=sidecar) as (host,):
        host.create_io_queue()
        assert register_as_many(host, 1000, 3) == 128
        section = host.sidecar._sections["reservations"]
        for registrant in section[0][-1]:
            registrant[1] = NO_CONTROLLER
        host.sidecar.put("reservations", section)
        host.sidecar.save()
        with controllers(2, media={1: media}, sidecar=sidecar) as (first, second):
            for each in (first, second):
                each.create_io_queue()
            assert register_as_many(second, 5000) == 0
            assert set_host(first, struct.pack("<Q", 1001)) == 0
            assert register(first, 1, old=1) == 0
            assert register_as_many(second, 5000) == 1


def test_hosts_with_the_same_identifier_are_one(pair: list[Host]) -> None:
    """Whoever has the holder's identifier is the holder, and loses that with it."""
    first, second = pair
    assert register(first, 0, new=LARGEST_KEY) == acquire(first, 0, LARGEST_KEY, 0, 2) == 0
    assert second.command(second.io[1], READ, nsid=1).status == CONFLICT
    assert set_host(second, A) == 0
    assert second.command(second.io[1], WRITE, nsid=1).status == 0
    assert register(second, 0, new=1) == CONFLICT, "it is registered with another key"
    assert register(second, 0, new=LARGEST_KEY) == 0
    listed = [(0, 1, A, LARGEST_KEY), (1, 1, A, LARGEST_KEY)]
    assert report(second) == Report(2, EXCLUSIVE_ACCESS, 0, listed)
    first.disable()
    assert report(second) == Report(2, EXCLUSIVE_ACCESS, 0, [(1, 1, A, LARGEST_KEY)])
    assert set_host(second, B) == 0
    assert second.command(second.io[1], READ, nsid=1).status == CONFLICT
    assert report(second) == Report(2, EXCLUSIVE_ACCESS, 0, [(NO_CONTROLLER, 1, A, LARGEST_KEY)])


def test_preempt_and_abort_reaches_all_controllers_of_a_host() -> None:
    with controllers(3, media={1: SlowMedia.create(MIB)}) as hosts:
        for host, identifier in zip(hosts, (A, A, B), strict=True):
            assert set_host(host, identifier) == 0
            host.create_io_queue()
        assert register(hosts[0], 0, new=1) == register(hosts[2], 0, new=2) == 0
        assert acquire(hosts[0], 0, 1, 0, 5) == 0
        for host in hosts[:2]:  # the first one's is begun, the second one's waits for it
            host.place(host.io[1], WRITE if host is hosts[1] else READ, 7, nsid=1)
            host.ring(host.io[1])
            host.service()
        hosts[2].put(struct.pack("<QQ", 2, 1))
        hosts[2].place(hosts[2].io[1], 0x11, 9, nsid=1, cdws=(2 | 1 << 8,))
        hosts[2].ring(hosts[2].io[1])
        hosts[2].service()
        end_media_work(hosts[2])
        ended = [[(each.cid, each.status) for each in host.reap(host.io[1])] for host in hosts]
        assert ended == [[(7, 0)], [(7, PREEMPT_ABORTED)], [(9, 0)]]
        for host in hosts[:2]:
            assert host.command(host.io[1], WRITE, nsid=1).status == CONFLICT


GOES: dict[str, Callable[[Host], object]] = {
    "controller reset": Host.disable,
    "function level reset": lambda host: host.board.function_reset(),
    "client leaves": lambda host: host.board.detached(),
    "namespace detached": lambda host: attach(host, 0, sel=DETACH),
}


@pytest.mark.parametrize("how", GOES)
def test_a_controller_that_is_gone_while_its_host_holds(pair: list[Host], how: str) -> None:
    """The reservation stays until another host takes it over; what was in flight harms nobody."""
    first, second = pair
    assert register(first, 0, new=1) == register(second, 0, new=2) == 0
    assert acquire(first, 0, 1, 0, WRITE_EXCLUSIVE) == 0
    if how != "namespace detached":  # which waits for them
        first.place(first.io[1], WRITE, 7, nsid=1)
        first.ring(first.io[1])
        first.service()
    GOES[how](first)
    first.service()
    assert second.command(second.io[1], WRITE, nsid=1).status == CONFLICT
    listed = report(second)
    assert isinstance(listed, Report) and [each[1:] for each in listed.listed] == [
        (1, A, 1),
        (0, B, 2),
    ]
    assert acquire(second, 2, 2, 1, WRITE_EXCLUSIVE) == 0  # Preempt and Abort
    assert second.command(second.io[1], WRITE, nsid=1).status == 0
    if how == "controller reset":
        become(first, A)
        assert first.command(first.io[1], WRITE, nsid=1).status == CONFLICT
        assert acquire(first, 0, 1, 0, WRITE_EXCLUSIVE) == CONFLICT


def test_event_requests_at_their_limit_bring_one_event_for_each_reading(pair: list[Host]) -> None:
    first, second = pair
    for cid in range(0x90, 0x95):
        second.place(second.admin, EVENT_REQUEST, cid)
    second.ring(second.admin)
    second.service()
    assert [(each.cid, each.status) for each in second.reap(second.admin)] == [(0x94, AER_LIMIT)]

    def preempt() -> list[int]:
        """Have the second host be preempted; the event requests that it completes."""
        assert register(first, 0, new=1) in (0, CONFLICT) and register(second, 0, new=2) == 0
        assert acquire(first, 0, 1, 0, 3) == 0
        assert acquire(first, 1, 1, 2, 3) == 0
        assert release(first, 0, 1, 3) == 0
        second.service()
        return [each.cid for each in second.reap(second.admin)]

    def kind() -> int:
        """The type of the oldest notification, which is read."""
        assert second.command(second.admin, GET_LOG, cdws=(15 << 16 | 0x80,)).status == 0
        return second.data(16)[8]

    assert preempt() == [0x90]
    assert preempt() == [], "the first one was not read"
    assert kind() == 1, "Registration Preempted"
    assert preempt() == [0x91]
    assert [kind() for _ in range(3)] == [1, 1, 0]


def test_without_event_requests_notifications_wait_and_are_limited(pair: list[Host]) -> None:
    first, second = pair
    assert register(first, 0, new=1) == 0
    for _ in range(70):  # 64 are kept
        assert register(second, 0, new=2) == 0
        assert acquire(first, 0, 1, 0, 3) == acquire(first, 1, 1, 2, 3) == 0
        assert release(first, 0, 1, 3) == 0
    side = second.rpu.subsystem.controllers[1].reservations
    assert len(side.notifications) == 64
    second.place(second.admin, EVENT_REQUEST, 0x90)
    second.ring(second.admin)
    second.service()
    assert [each.dw0 for each in second.reap(second.admin)] == [6 | 0x80 << 16]
    assert second.command(second.admin, GET_LOG, cdws=(15 << 16 | 0x80,)).status == 0
    assert struct.unpack_from("<QBB", second.data(16)) == (1, 1, 63)
