"""Reservations of a namespace that four hosts share, each by a controller of its own."""

import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nvme_spec.reservations import NotificationType, RegisterAction, ReservationType
from nvme_spec.status import NvmeError
from potash_device.media.sidecar import SIDECAR_SIZE, Sidecar
from potash_device.media.store import MemoryMedia
from potash_firmware.rpu import reservations
from support.controllers import controllers
from support.memory import MIB
from support.migration import moved
from support.modelled_time import modelled
from support.nvme_host import Host, SlowMedia
from support.reservation_model import (
    CONFLICT,
    INCONSISTENT,
    PREEMPT_ABORTED,
    REGISTRATION_PREEMPTED,
    RESERVATION_PREEMPTED,
    RESERVATION_RELEASED,
    Report,
    ReservationModel,
    acquire,
    become,
    register,
    release,
    report,
    set_host,
)

WRITE, READ = 1, 2
GET_LOG, SET_FEATURES, EVENT_REQUEST = 0x02, 0x09, 0x0C
MASK, PERSISTENCE = 0x82, 0x83
IDENTIFIERS = tuple(b"host %03d" % number for number in range(4))
EVENT = 6 | 0x80 << 16
"""Dword 0 of an event: I/O command set specific, reservation log page available."""


class Hosts:
    """Four hosts, one for each controller. A context manager."""

    def __init__(self, media: MemoryMedia, sidecar: MemoryMedia) -> None:
        self._stack = ExitStack()
        made = controllers(4, media={1: media}, sidecar=sidecar)
        self.all = tuple(self._stack.enter_context(made))
        for host, identifier in zip(self.all, IDENTIFIERS, strict=True):
            assert set_host(host, identifier) == 0
            host.create_io_queue()

    def __enter__(self) -> tuple[Host, ...]:
        return self.all

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    with Hosts(MemoryMedia.create(MIB), MemoryMedia.create(SIDECAR_SIZE)) as found:
        yield found


def notifications(host: Host) -> list[int]:
    """The types of all notifications, which are read."""
    found: list[int] = []
    while True:
        assert host.command(host.admin, GET_LOG, cdws=(15 << 16 | 0x80,)).status == 0
        number, what, left, nsid = struct.unpack_from("<QBB2xI", host.data(64))
        if not what:
            assert (number, left, nsid) == (0, 0, 0)
            return found
        assert nsid == 1
        found.append(what)


def await_event(host: Host, cid: int = 77) -> None:
    """Submit an Asynchronous Event Request."""
    host.place(host.admin, EVENT_REQUEST, cid)
    host.ring(host.admin)
    host.service()


def test_registrants_of_several_controllers_are_reported(hosts: tuple[Host, ...]) -> None:
    first, second, third, _ = hosts
    assert register(first, 0, new=1) == register(second, 0, new=2) == 0
    assert acquire(second, 0, 2, rtype=3) == 0
    listed = [(0, 0, IDENTIFIERS[0], 1), (1, 1, IDENTIFIERS[1], 2)]
    for host in hosts:
        assert report(host) == Report(2, 3, 0, listed)
    # A host with two controllers has the same rights on both, and is listed for both.
    assert set_host(third, IDENTIFIERS[1]) == 0
    assert register(third, 0, new=3) == CONFLICT
    assert register(third, 2, old=2, new=4) == 0
    assert acquire(second, 0, 2, rtype=3) == CONFLICT
    assert acquire(third, 0, 4, rtype=3) == 0
    listed = [(0, 0, IDENTIFIERS[0], 1), (1, 1, IDENTIFIERS[1], 4), (2, 1, IDENTIFIERS[1], 4)]
    assert report(first) == Report(3, 3, 0, listed)


def test_hosts_without_an_identifier_are_different_ones(hosts: tuple[Host, ...]) -> None:
    first, second, third, _ = hosts
    for host in (first, second):
        become(host, None)
        assert register(host, 0, new=5) == 0
    assert acquire(first, 0, 5, rtype=1) == 0
    listed = [(0, 1, bytes(8), 5), (1, 0, bytes(8), 5)]
    assert report(third) == Report(2, 1, 0, listed)
    assert second.command(second.io[1], WRITE, nsid=1).status == CONFLICT
    # With the reset of the holder's controller the reservation ends.
    become(first, None)
    assert report(third) == Report(2, 0, 0, [(1, 0, bytes(8), 5)])
    assert second.command(second.io[1], WRITE, nsid=1).status == 0


def test_all_hosts_have_identifiers_of_one_size(hosts: tuple[Host, ...]) -> None:
    assert set_host(hosts[0], bytes(range(16))) == INCONSISTENT
    for host in hosts:
        become(host, None)
    assert set_host(hosts[3], bytes(range(16))) == 0
    assert set_host(hosts[0], IDENTIFIERS[0]) == INCONSISTENT
    assert set_host(hosts[0], bytes(range(1, 17))) == 0


def test_a_host_is_notified_by_an_event_wherever_its_controller_is(
    hosts: tuple[Host, ...],
) -> None:
    for host in hosts[1:3]:
        assert register(host, 0, new=7) == 0
    for host in hosts[:3]:
        await_event(host)
    # The controller of the third host is served after that of the first, and before in a pass.
    assert register(hosts[0], 0, new=8) == register(hosts[3], 0, new=9) == 0
    assert acquire(hosts[3], 1, 9, 8) == 0
    assert [(done.cid, done.dw0) for done in hosts[0].reap(hosts[0].admin)] == [(77, EVENT)]
    assert acquire(hosts[3], 1, 9, 7) == 0
    for host in hosts[1:3]:
        assert [(done.cid, done.dw0) for done in host.reap(host.admin)] == [(77, EVENT)]
    for host in hosts[:3]:
        assert notifications(host) == [REGISTRATION_PREEMPTED]
    assert notifications(hosts[3]) == []


def test_events_wait_for_requests_and_masked_ones_are_none(hosts: tuple[Host, ...]) -> None:
    first, second, *_ = hosts
    assert second.command(second.admin, SET_FEATURES, nsid=1, cdws=(MASK, 1 << 2)).status == 0
    for number in (1, 2, 3):
        assert register(first, 0, new=1) == register(second, 0, new=2) == 0
        assert acquire(first, 0, 1, rtype=5) == 0
        if number < 3:
            assert release(first, 0, 1, rtype=5) == 0  # masked
            assert release(first, 1, 1) == 0
    await_event(second)
    assert [done.dw0 for done in second.reap(second.admin)] == [EVENT]
    assert notifications(second) == [RESERVATION_PREEMPTED] * 2
    await_event(second)
    assert second.reap(second.admin) == []


@pytest.mark.parametrize("role", ["read", "write"])
def test_commands_of_a_preempted_host_are_aborted(role: str) -> None:
    """Those of its own namespace alone; those that the media have begun end first."""
    media = {nsid: SlowMedia.create(MIB) for nsid in (1, 2)}
    with controllers(2, media=media) as (first, second):
        for host, identifier in ((first, IDENTIFIERS[0]), (second, IDENTIFIERS[1])):
            assert set_host(host, identifier) == 0
            host.create_io_queue()
            assert register(host, 0, new=identifier[-1]) == 0
        opcode = WRITE if role == "write" else READ
        for cid, nsid in ((1, 1), (2, 1), (3, 2)):
            first.place(first.io[1], opcode, cid, nsid=nsid)
        if role == "write":  # the second waits for the first, as it reads the same block
            first.place(first.io[1], READ, 4, nsid=1)
        first.ring(first.io[1])
        first.service()
        assert first.reap(first.io[1]) == []
        own = (IDENTIFIERS[1][-1], IDENTIFIERS[0][-1])
        second.put(struct.pack("<QQ", *own))
        second.place(second.io[1], 0x11, 9, nsid=1, cdws=(2 | 2 << 8,))
        second.ring(second.io[1])
        second.service()
        statuses = {done.cid: done.status for done in first.reap(first.io[1])}
        assert statuses == ({4: PREEMPT_ABORTED} if role == "write" else {})
        assert second.reap(second.io[1]) == []
        first.lines.fired.clear()
        first.executor.run_all()
        second.service()
        assert {done.cid: done.status for done in first.reap(first.io[1])} == dict.fromkeys(
            (1, 2, 3), 0
        )
        assert [(done.cid, done.status) for done in second.reap(second.io[1])] == [(9, 0)]
        assert first.lines.fired


def test_a_command_that_waits_is_aborted_with_an_interrupt(hosts: tuple[Host, ...]) -> None:
    """The first half of a fused operation, which waits for what the host submits next."""
    for victim, other in ((hosts[0], hosts[3]), (hosts[3], hosts[0])):
        assert register(victim, 2, new=1, ignore=1) == register(other, 2, new=2, ignore=1) == 0
        victim.place(victim.io[1], 5, 1, nsid=1, flags=1)
        victim.ring(victim.io[1])
        victim.service()
        victim.lines.fired.clear()
        assert acquire(other, 2, 2, 1) == 0
        assert [done.status for done in victim.reap(victim.io[1])] == [PREEMPT_ABORTED]
        assert victim.lines.fired
        # The next command of the queue is no second half.
        assert victim.command(victim.io[1], READ, nsid=1).status == 0


def test_commands_that_wait_for_modelled_time_are_aborted() -> None:
    with controllers(2, settings=modelled()) as (first, second):
        for host, identifier in ((first, IDENTIFIERS[0]), (second, IDENTIFIERS[1])):
            assert set_host(host, identifier) == 0
            host.create_io_queue()
            assert register(host, 0, new=identifier[-1]) == 0
        for cid in (1, 2):
            first.place(first.io[1], WRITE, cid, nsid=1)
        first.ring(first.io[1])
        first.service()
        assert first.reap(first.io[1]) == []
        assert acquire(second, 2, IDENTIFIERS[1][-1], IDENTIFIERS[0][-1]) == 0
        statuses = {done.cid: done.status for done in first.reap(first.io[1])}
        assert statuses == dict.fromkeys((1, 2), PREEMPT_ABORTED)


def test_a_namespace_that_is_not_attached_causes_no_notification(hosts: tuple[Host, ...]) -> None:
    first, second, third, _ = hosts
    assert set_host(second, IDENTIFIERS[0]) == 0
    second.put(struct.pack("<HH", 1, 1) + bytes(4092))
    assert second.command(second.admin, 0x15, nsid=1, cdws=(1,)).status == 0
    assert register(first, 0, new=1) == register(third, 0, new=3) == 0
    assert acquire(third, 1, 3, 1) == 0
    assert [notifications(host) for host in (first, second)] == [[REGISTRATION_PREEMPTED], []]


def test_a_namespace_of_one_controller_is_no_business_of_another(hosts: tuple[Host, ...]) -> None:
    """The holder's host leaves: its reservation stays until it is preempted."""
    first, second, *_ = hosts
    assert register(first, 0, new=1) == acquire(first, 0, 1, rtype=2) == 0
    first.board.function_reset()
    first.service()
    assert second.command(second.io[1], WRITE, nsid=1).status == CONFLICT
    assert report(second) == Report(1, 2, 0, [(0xFFFF, 1, IDENTIFIERS[0], 1)])
    assert register(second, 0, new=2) == acquire(second, 1, 2, 1, rtype=1) == 0
    assert second.command(second.io[1], WRITE, nsid=1).status == 0


def test_a_drive_that_moves_takes_along_what_would_not_outlive_its_power() -> None:
    with Host() as source, Host() as target:
        source.enable()
        source.create_io_queue()
        assert register(source, 0, new=3) == acquire(source, 0, 3, rtype=1) == 0
        assert set_host(source, IDENTIFIERS[0]) == register(source, 0, new=4) == 0
        side = source.rpu.controller.reservations
        for what in (NotificationType.RESERVATION_RELEASED, NotificationType.RESERVATION_PREEMPTED):
            side.notify(1, what)
        before = report(source)
        moved(source, target)
        assert report(target) == before
        assert before == Report(2, 1, 0, [(0xFFFF, 1, bytes(8), 3), (0, 0, IDENTIFIERS[0], 4)])
        assert target.command(target.io[1], WRITE, nsid=1).status == CONFLICT
        assert notifications(target) == [RESERVATION_RELEASED, RESERVATION_PREEMPTED]


@pytest.mark.parametrize(
    "section",
    [
        "none",
        [[1, 0, True, 1, 0, [["c2l4", 0xFFFF, 1]]]],
        [[1, 0, True, 7, 0, [["aG9zdCAwMDA=", 0xFFFF, 1]]]],
        [[1, 0, True, 1, 0, [["aG9zdCAwMDA=", 0xFFFF, 1 << 64]]]],
        [[9, 0, True, 1, 0, [["aG9zdCAwMDA=", 0xFFFF, 1]]]],
        [[1, -1, True, 1, 0, []]],
    ],
)
def test_reservations_that_cannot_be_are_left_out(section: object) -> None:
    """Whoever has written the sidecar; the last is one of a namespace that there is not."""
    media = MemoryMedia.create(SIDECAR_SIZE)
    before = Sidecar(media)
    before.load()
    before.put("reservations", section)
    before.save()
    with Host(sidecar=media) as host:
        host.enable()
        host.create_io_queue()
        assert report(host) == Report(0, 0, 0, [])
        assert host.command(host.io[1], WRITE, nsid=1).status == 0


def test_what_a_host_without_an_identifier_holds_ends_with_the_power() -> None:
    """Its registration as well, also if the namespace persists; those of other hosts stay."""
    machine = FourHosts()
    first, second, _, last = machine.hosts.all
    become(first, None)
    assert register(first, 0, new=1, persistence=3) == 0
    assert acquire(first, 0, 1, rtype=3) == 0
    assert register(second, 0, new=2) == 0
    assert report(last) == Report(2, 3, 1, [(0, 1, bytes(8), 1), (1, 0, IDENTIFIERS[1], 2)])
    machine.power_loss()
    assert report(machine.hosts.all[0]) == Report(2, 0, 1, [(1, 0, IDENTIFIERS[1], 2)])
    machine.teardown()


def test_a_holder_that_is_no_registrant_holds_nothing() -> None:
    media = MemoryMedia.create(SIDECAR_SIZE)
    before = Sidecar(media)
    before.load()
    before.put("reservations", [[1, 5, True, 1, 1, [["aG9zdCAwMDA=", 0xFFFF, 1]]]])
    before.save()
    with Host(sidecar=media) as host:
        host.enable()
        host.create_io_queue()
        assert report(host) == Report(5, 0, 1, [(0xFFFF, 0, IDENTIFIERS[0], 1)])


# Against the model.

keys = st.sampled_from([0, 1, 1, 2, 2, (1 << 64) - 1])
numbers = st.integers(0, 3)
types = st.integers(0, 7)


class FourHosts(RuleBasedStateMachine):
    """Four hosts at random; each takes its commands from the same small sets of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.sidecar, self.media = MemoryMedia.create(SIDECAR_SIZE), MemoryMedia.create(MIB)
        self.hosts = Hosts(self.media, self.sidecar)
        self.model = ReservationModel()

    @rule(
        number=numbers,
        action=numbers,
        old=keys,
        new=keys,
        ignore=st.integers(0, 1),
        persistence=st.sampled_from([0, 0, 0, 1, 2, 3]),
    )
    def register(
        self, number: int, action: int, old: int, new: int, ignore: int, persistence: int
    ) -> None:
        expected = self.model.register(number, action, old, new, ignore, persistence)
        assert register(self.hosts.all[number], action, old, new, ignore, persistence) == expected

    @rule(number=numbers, new=st.sampled_from([0, 1, 2]))
    def register_anew(self, number: int, new: int) -> None:
        self.register(number, 0, 0, new, 0, 0)

    @rule(number=numbers, action=numbers, own=keys, other=keys, rtype=types)
    def acquire(self, number: int, action: int, own: int, other: int, rtype: int) -> None:
        expected = self.model.acquire(number, action, own, other, rtype)
        assert acquire(self.hosts.all[number], action, own, other, rtype) == expected

    @precondition(lambda self: self.model.keys)
    @rule(which=numbers, action=st.integers(0, 2), other=keys, rtype=st.integers(1, 6))
    def acquire_with_the_key(self, which: int, action: int, other: int, rtype: int) -> None:
        number = sorted(self.model.keys)[which % len(self.model.keys)]
        self.acquire(number, action, self.model.keys[number], other, rtype)

    @rule(number=numbers, action=numbers, own=keys, rtype=types)
    def release(self, number: int, action: int, own: int, rtype: int) -> None:
        expected = self.model.release(number, action, own, rtype)
        assert release(self.hosts.all[number], action, own, rtype) == expected

    @precondition(lambda self: self.model.keys)
    @rule(which=numbers)
    def release_with_the_key(self, which: int) -> None:
        number = sorted(self.model.keys)[which % len(self.model.keys)]
        self.release(number, 0, self.model.keys[number], self.model.type)

    @rule(number=numbers, value=st.integers(0, 1))
    def persistence(self, number: int, value: int) -> None:
        host = self.hosts.all[number]
        done = host.command(host.admin, SET_FEATURES, nsid=1, cdws=(PERSISTENCE, value))
        assert done.status == 0
        self.model.persists = value

    @rule(number=numbers)
    def reset(self, number: int) -> None:
        """Registrations outlive it, and unread notifications do not."""
        become(self.hosts.all[number], IDENTIFIERS[number])
        self.model.told.pop(number, None)

    @rule()
    def power_loss(self) -> None:
        """The device is gone between two commands, as nothing is written when it ends."""
        kept = [bytearray(media.size) for media in (self.sidecar, self.media)]
        for content, media in zip(kept, (self.sidecar, self.media), strict=True):
            media.read_into([memoryview(content)], 0)
        self.teardown()
        self.sidecar, self.media = (MemoryMedia.create(len(content)) for content in kept)
        for content, media in zip(kept, (self.sidecar, self.media), strict=True):
            media.write_from([memoryview(content)], 0)
        self.hosts = Hosts(self.media, self.sidecar)
        self.model.power_loss()
        self.model.told.clear()

    @rule(number=numbers, opcode=st.sampled_from([READ, WRITE]))
    def access(self, number: int, opcode: int) -> None:
        host = self.hosts.all[number]
        conflict = self.model.conflicts(number, "read" if opcode == READ else "write")
        assert host.command(host.io[1], opcode, nsid=1).status == (CONFLICT if conflict else 0)

    @rule(number=numbers)
    def notifications(self, number: int) -> None:
        assert notifications(self.hosts.all[number]) == self.model.told.pop(number, [])

    @invariant()
    def the_report_is_that_of_the_model(self) -> None:
        model = self.model
        found = report(self.hosts.all[model.generation % 4])
        assert isinstance(found, Report)
        assert (found.generation, found.type, found.persists) == (
            model.generation,
            model.type,
            model.persists,
        )
        assert sorted(found.listed) == [
            (each, int(each in model.holders()), IDENTIFIERS[each], key)
            for each, key in sorted(model.keys.items())
        ]

    def teardown(self) -> None:
        self.hosts.__exit__()


TestFourHosts = FourHosts.TestCase
TestFourHosts.settings = settings(max_examples=settings().max_examples // 3)


@pytest.mark.parametrize("seed", range(20))
def test_many_changes_agree_with_the_model(seed: int) -> None:
    """The state alone, without the firmware around it, which takes longer; at times from what
    is saved of it."""
    chance = random.Random(seed)
    every = reservations.Reservations(Sidecar(MemoryMedia.create(SIDECAR_SIZE)), exists=bool)
    model, state = ReservationModel(), every[1]
    hosts = [reservations.Host(identifier) for identifier in IDENTIFIERS]

    def status(call: object, *arguments: object, **options: object) -> tuple[int, dict[int, int]]:
        try:
            told = call(*arguments, **options)  # type: ignore[operator]
        except NvmeError as error:
            return error.status, {}
        return 0, {hosts.index(host): int(what) for host, what in told.items()}

    for _ in range(2000):
        number, host = (found := chance.randrange(4)), hosts[found]
        old, new = chance.choices((0, 1, 2, 3), k=2)
        own = model.keys.get(number, old) if chance.random() < 0.8 else old
        rtype = ReservationType(chance.randrange(1, 7))
        if chance.random() < 0.3:
            action, ignore = chance.randrange(3), chance.random() < 0.3
            expected = model.register(number, action, own, new, ignore)
            given = RegisterAction(action), own, new
            got = status(state.register, host, *given, ignores_key=ignore, controller=number)
        elif chance.random() < 0.4:
            expected = model.acquire(number, 0, own, 0, rtype)
            got = status(state.acquire, host, own, rtype)
        elif chance.random() < 0.6:
            expected = model.acquire(number, 1, own, new, rtype)
            got = status(state.preempt, host, own, new, rtype)
        elif chance.random() < 0.9:
            rtype = ReservationType(model.type) if model.type else rtype
            expected = model.release(number, 0, own, rtype)
            got = status(state.release, host, own, rtype)
        else:
            expected = model.release(number, 1, own, 0)
            got = status(state.clear, host, own)
        if chance.random() < 0.1:
            every.load(every.save(lasting=True))
            state = every[1]
        told = {each: what for each, (what,) in model.told.items()}
        model.told.clear()
        assert got == (expected, told)
        assert {hosts.index(each): key for each, key in state.registrants.items()} == model.keys
        assert (state.type or 0, state.generation) == (model.type, model.generation)
        assert [each for each in range(4) if state.holds(hosts[each])] == sorted(model.holders())
        for each in range(4):
            denied = state.denied(hosts[each])
            assert (reservations.Access.READ in denied) == model.conflicts(each, "read")
            assert (reservations.Access.WRITE in denied) == model.conflicts(each, "write")
