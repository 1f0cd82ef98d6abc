"""Several guests of one drive, with monitors that the test plays in made-up time: they are stopped
together, and the drive has one clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash.vm.standstill import Standstill
from potash.vm.stoppable import ANSWER_LIMIT, STARTED
from potash_firmware.rpu.deadlines import GuestClock
from support.played_monitor import PlayedMonitor, PlayedWatch, Wall

MS = 1_000_000


class Scene:
    """Guests with a monitor each, and a device with a socket for each."""

    def __init__(self, folder: Path, stack: ExitStack, count: int) -> None:
        self.wall = Wall()
        self.clock = GuestClock(lambda: self.wall() / 1e9)
        self.paths = [folder / f"monitor{number}" for number in range(count)]
        self.guests = [stack.enter_context(PlayedMonitor(path, self.wall)) for path in self.paths]
        self.clients: list[int | None] = [None] * count
        self.still = Standstill(
            self.paths, self.clock, wall=self.wall, realtime=lambda: self.wall.seconds
        )

    def attach(self, *numbers: int) -> None:
        """Clients of these guests come."""
        for number in numbers:
            self.clients[number] = number + 1
        self.still.attach(self.clients)
        self.settle()

    def leave(self, number: int) -> None:
        """The client of a guest leaves, which may run on."""
        self.clients[number] = None
        self.still.attach(self.clients)
        self.settle()

    def settle(self) -> None:
        """Let all talk until nobody has anything to say."""
        quiet = 0
        while quiet < 2:
            self.still.service()
            quiet = 0 if sum(guest.serve() for guest in self.guests) else quiet + 1

    def pass_ns(self, ns: int) -> None:
        self.wall.ns += ns
        self.settle()

    @property
    def run(self) -> list[bool]:
        return [guest.running for guest in self.guests]

    def commands(self) -> list[list[str]]:
        """What each guest was asked for since the last call."""
        found = [guest.commands for guest in self.guests]
        for guest in self.guests:
            guest.commands = []
        return found


@contextmanager
def scene(folder: Path, count: int = 2) -> Iterator[Scene]:
    with ExitStack() as stack:
        made = Scene(folder, stack, count)
        made.attach(*range(count))
        yield made


def test_a_stop_is_of_all_guests_and_has_begun_when_all_have_answered(tmp_path: Path) -> None:
    with scene(tmp_path, 3) as it:
        assert it.still.able and len(it.still.sources) == 3
        it.still.hold("a")
        for number, guest in enumerate(it.guests):
            assert it.still.uncertain and it.clock.frozen is not None
            for _ in range(4):  # QEMU and the device take turns
                guest.serve()
                it.still.service()
            assert it.run == [False] * (number + 1) + [True] * (2 - number)
        assert it.still.stands and not it.still.uncertain
        it.pass_ns(300 * MS)
        it.still.release("a")
        it.settle()
        assert it.run == [True] * 3 and it.clock.frozen is None
        assert it.commands() == [["stop", "cont"]] * 3


@pytest.mark.parametrize("late", [0, 5 * MS])
def test_the_clock_advances_by_the_least_of_the_guests_clocks(tmp_path: Path, late: int) -> None:
    """With each stop, so that no deadline passes too early; also where the device reads `late` that
    a guest continues, and measures its clock again."""
    with scene(tmp_path) as it:
        for _ in range(20):
            it.guests.reverse()  # the first one is served first
            slow, quick = it.guests
            began, guests = it.clock.now(), [guest.guest_ns for guest in it.guests]
            it.pass_ns(3 * MS)
            slow.latency, quick.latency = 4 * MS, 100_000
            it.still.hold(it)
            it.settle()
            slow.latency = 100_000
            it.pass_ns(50 * MS)
            it.still.release(it)
            for guest in it.guests:
                guest.serve()
            it.wall.ns += late
            it.settle()
            passed = it.clock.now() - began
            advances = [g.guest_ns - then for g, then in zip(it.guests, guests, strict=True)]
            assert max(advances) - min(advances) > MS
            assert abs(passed - min(advances)) <= 4 * STARTED


def test_who_has_no_monitor_keeps_all_guests_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those that were stopped before it came."""
    with ExitStack() as stack:
        it = Scene(tmp_path, stack, 2)
        it.still.hold(it)
        it.attach(0)
        assert it.run == [False, True]
        it.guests[1].__exit__()
        it.paths[1].unlink()
        it.attach(1)
        assert it.run == [True, True] and not it.still.able
        assert it.clock.frozen is None
        assert f"no QEMU listens at {it.paths[1]}" in caplog.text
        it.leave(1)
        assert it.run == [False, True] and it.still.able
        with PlayedMonitor(it.paths[1], it.wall) as it.guests[1]:
            it.attach(1)
            assert it.run == [False, False] and it.still.able
            it.still.release(it)
            it.settle()
            assert it.run == [True, True] and it.clock.frozen is None


def test_the_others_go_on_when_a_guest_is_killed_while_all_are_stopped(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.still.hold(it)
        it.pass_ns(100 * MS)
        before = it.clock.now()
        it.guests[1].vanish()
        it.settle()
        assert it.run[0] and not it.still.able
        it.pass_ns(5 * MS)
        assert before < it.clock.now() <= before + 6 * MS
        it.leave(1)
        assert not it.run[0] and it.still.able
        it.still.release(it)
        it.settle()
        assert it.run[0] and it.clock.frozen is None
        it.guests[0].vanish()
        it.attach(0)  # the next one, before the device has seen the end of the other
        assert it.still.able


def test_a_guest_without_its_drive_is_left_running(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.still.hold(it)
        it.settle()
        it.leave(1)
        assert it.run == [False, True] and it.still.able
        it.still.release(it)
        it.settle()
        it.still.hold(it)
        it.settle()
        assert it.run == [False, True]
        it.attach(1)
        assert it.run == [False, False]


def test_a_guest_that_its_user_stops_does_not_stop_the_clock_of_the_other(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        it.guests[1].stop()
        it.settle()
        before, wall = it.clock.now(), it.wall()
        it.pass_ns(100 * MS)
        assert it.clock.now() - before == it.wall() - wall
        it.still.hold(it)
        it.settle()
        assert it.commands() == [["stop"], []] and it.still.stands
        it.pass_ns(100 * MS)
        it.still.release(it)
        it.settle()
        assert it.run == [True, False] and it.clock.frozen is None
        assert it.commands() == [["cont"], []]
        it.pass_ns(100 * MS)
        guest, before = it.guests[1].guest_ns, it.clock.now()
        it.guests[1].cont()
        it.settle()
        it.still.hold(it)
        it.pass_ns(100 * MS)
        it.still.release(it)
        it.settle()
        assert it.run == [True, True]
        assert abs(it.clock.now() - before - (it.guests[1].guest_ns - guest)) < MS


def test_the_clock_stands_when_users_have_stopped_all_guests(tmp_path: Path) -> None:
    with scene(tmp_path) as it:
        for guest in it.guests:
            guest.stop()
            it.pass_ns(10 * MS)
        before = it.clock.now()
        it.pass_ns(100 * MS)
        assert it.clock.now() == before
        it.guests[0].cont()  # which was stopped first
        it.settle()
        it.pass_ns(20 * MS)
        assert before + 18 * MS < it.clock.now() <= before + 21 * MS
        it.guests[1].cont()
        it.settle()
        before = it.clock.now()
        it.pass_ns(20 * MS)
        assert it.clock.now() == before + 20 * MS


def test_a_qemu_that_hangs_does_not_keep_the_others_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with scene(tmp_path) as it:
        it.guests[1].mute = True
        it.still.hold(it)
        it.settle()
        assert it.run == [False, True] and it.still.uncertain
        limit = it.still.timeout
        assert limit == pytest.approx(ANSWER_LIMIT / 1e9, abs=0.01)
        it.pass_ns(ANSWER_LIMIT)
        assert it.run == [True, True] and not it.still.able and not it.still.uncertain
        assert it.clock.frozen is None and it.still.timeout is None
        assert caplog.messages == [f"no guest is stopped: QEMU does not answer at {it.paths[1]}"]
        it.guests[1].mute = False
        it.pass_ns(MS)
        assert it.run == [False, False] and it.still.able
        it.still.release(it)
        it.settle()
        assert it.run == [True, True] and it.clock.frozen is None


def test_several_sockets_of_one_guest_have_one_monitor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a guest with two paths; two processes would need one each."""
    with ExitStack() as stack:
        it = Scene(tmp_path, stack, 1)
        it.still.attach([7, 7])
        it.still.hold(it)
        it.settle()
        assert it.run == [False]
        it.still.attach([7, 8])
        it.settle()
        assert it.run == [True] and not it.still.able
        assert caplog.messages == [f"no guest is stopped while several use {it.paths[0]}"]
        it.still.attach([None, 8])
        it.settle()
        assert it.run == [False]


@contextmanager
def watched(folder: Path) -> Iterator[tuple[Scene, PlayedWatch]]:
    """Two guests, and the process that stops them while the device is late."""
    with scene(folder) as it:
        watch = PlayedWatch(it.wall)
        it.still._watch = watch  # type: ignore[assignment]
        for clock in (it.clock, *(guest.clock for guest in it.still._guests)):
            clock.seconds = watch.seconds
        it.attach()
        assert len(watch.monitors) == 2
        yield it, watch


@pytest.mark.parametrize("silent", [False, True])
def test_a_long_step_stops_all_guests_until_the_device_has_taken_over(
    tmp_path: Path, silent: bool
) -> None:
    """Also where one of them does not answer meanwhile, which goes on when it does."""
    with watched(tmp_path) as (it, watch):
        for _ in range(5):
            it.pass_ns(3 * MS)
            if silent:
                it.guests[1].stop()
                it.guests[1].cont()
                it.still.service()  # and asks for the guest's time
                it.guests[1].mute = True
                it.settle()
            before = it.clock.now()
            watch.stopped = it.wall()
            for guest in it.guests:
                guest.stop()
            it.wall.ns += 100 * MS
            assert it.clock.now() == before and it.still.uncertain
            it.settle()
            if silent:
                assert watch.stopped
                it.pass_ns(ANSWER_LIMIT)
                assert it.run == [True, False] and it.clock.frozen is None
                it.guests[1].mute = False
                it.settle()
            assert watch.stopped == watch.held == 0 and it.still.late_since
            assert it.run == [True, True] and it.clock.frozen is None and not it.still.uncertain


def test_a_long_step_does_not_continue_a_guest_that_its_user_has_stopped(tmp_path: Path) -> None:
    with watched(tmp_path) as (it, watch):
        it.guests[1].stop()
        it.settle()
        for _ in range(3):
            assert len(watch.monitors) == 1
            watch.stopped = it.wall()
            it.guests[0].stop()
            it.wall.ns += 100 * MS
            it.settle()
            assert it.run == [True, False] and watch.stopped == 0 and it.clock.frozen is None
        it.guests[1].cont()
        it.settle()
        assert len(watch.monitors) == 2


def test_a_guest_that_leaves_in_a_stop_is_watched_until_it_goes_on(tmp_path: Path) -> None:
    with watched(tmp_path) as (it, watch):
        it.still.expect(it.clock.now() + MS)
        it.still.hold(it)
        assert watch.held == it.wall()  # before any QEMU has the command
        it.settle()
        it.clients = [1, None]
        it.still.attach(it.clients)
        assert len(watch.monitors) == 2
        it.settle()
        assert len(watch.monitors) == 1 and it.run == [False, True] and watch.held
        assert watch.due
        it.leave(0)
        assert watch.monitors == [] and watch.due == watch.held == 0
        assert it.run == [True, True]


_STEPS = st.sampled_from(
    [*("hold", "release"), *(f"{what} {at}" for what in ("stop", "cont", "move") for at in (0, 1))]
)


@given(st.lists(st.tuples(_STEPS, st.integers(0, 20 * MS)), max_size=30))
@settings(max_examples=60)
def test_whoever_stops_comes_and_goes_the_clock_is_that_of_who_runs(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    with scene(tmp_path_factory.mktemp("scene")) as it:
        held, by_user = False, [False, False]
        for step, ns in steps:
            match step.split():
                case ["hold"]:
                    held = True
                    it.still.hold(it)
                case ["release"]:
                    held = False
                    it.still.release(it)
                case ["stop", at]:
                    by_user[int(at)] |= it.run[int(at)]
                    it.guests[int(at)].stop()
                case ["cont", at]:
                    by_user[int(at)] = False
                    it.guests[int(at)].cont()
                case ["move", at]:
                    (it.attach if it.clients[int(at)] is None else it.leave)(int(at))
            it.settle()
            stopped = [
                user or (held and client is not None)
                for user, client in zip(by_user, it.clients, strict=True)
            ]
            assert it.run == [not each for each in stopped]
            before = it.clock.now()
            it.wall.ns += ns
            if any(it.clients):
                some_run = any(
                    client and run for client, run in zip(it.clients, it.run, strict=True)
                )
                assert it.clock.now() == before + ns * some_run
            it.settle()
