"""When a job or a command holds the guest: a made-up clock, and an emulation that takes what a test
says."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from potash_firmware.rpu.deadlines import Deadlines, GuestClock
from potash_firmware.rpu.scheduler import Scheduler, Signal
from potash_firmware.rpu.timing import holding
from potash_firmware.rpu.timing.holding import LEAST, MARGIN, POLL, QUANTUM, Holding, Running
from support.nvme_host import Host

MS = 1_000_000


class Stopping:
    """A guest that stops and goes on at once, and the time that it does not see."""

    able = True
    sources = ()
    timeout = None
    uncertain = False

    def __init__(self) -> None:
        self.wall = 1000 * MS
        self.clock = GuestClock(lambda: self.wall / 1e9)
        self.over = False
        self.held: set[Hashable] = set()
        self.stops = self.late_since = 0
        self.attached: list[Sequence[Hashable | None]] = []
        self.expected: int | None = None

    def expect(self, due: int | None) -> None:
        self.expected = due

    def attach(self, clients: Sequence[Hashable | None]) -> None:
        self.attached.append(clients)

    def hold(self, holder: Hashable) -> None:
        self.stops += not self.held
        self.held.add(holder)
        self.clock.freeze()

    def release(self, holder: Hashable) -> None:
        self.held.discard(holder)
        if not self.held:
            self.over = False
            self.clock.thaw()

    def service(self) -> None: ...

    def close(self) -> None: ...


class Scene:
    def __init__(self) -> None:
        self.still = Stopping()
        self.jobs: dict[str, Running] = {}
        self.failed = 0
        self.scheduler = Scheduler(Deadlines(self.still.clock), lambda _: Future())
        self.holding = Holding(
            self.still, self.still.clock, lambda: self.jobs.values(), self.fail, self.scheduler
        )

    def fail(self) -> None:
        self.failed += 1

    def pass_ns(self, wall: int, *, busy: bool = False) -> None:
        """Time passes, and the loop makes a pass."""
        self.still.wall += wall
        self.holding.service([1], busy=busy)
        self.scheduler.time_passes()

    def command(self, modelled: int, *waits: object) -> list[int]:
        """Begin a command that waits for these things; the guest times at which it ends."""
        ended: list[int] = []
        steps = self.scheduler.not_before(self.now + modelled, (wait for wait in waits))
        self.scheduler.start(steps, lambda *_: ended.append(self.now))
        return ended

    def end(self, future: Future[None]) -> None:
        """The media have ended their work."""
        future.set_result(None)
        self.scheduler.ended(future)
        self.scheduler.run()

    @property
    def now(self) -> int:
        return self.still.clock.now()

    def emulate(self, key: str, modelled: int, wall: int, step: int = 100_000) -> int:
        """Run a job at an even pace; the guest time that it took."""
        start, began = self.now, self.still.wall
        while self.still.wall - began < wall:
            done = modelled * (self.still.wall - began) // wall
            self.jobs[key] = Running(key, start, done)
            self.holding.service([1])
            self.still.wall += step
        del self.jobs[key]
        self.holding.service([1])
        return self.now - start


@pytest.mark.parametrize(("modelled", "wall"), [(20, 300), (5, 50), (2, 300), (173, 200), (40, 41)])
def test_a_guest_sees_no_more_of_a_job_than_its_modelled_time(modelled: int, wall: int) -> None:
    it = Scene()
    seen = it.emulate("a", modelled * MS, wall * MS)
    assert seen <= modelled * MS
    assert it.still.clock.offset >= (wall - modelled) * MS
    assert it.still.held == set()
    assert it.still.stops <= 1 + modelled * MS // (QUANTUM - MARGIN)


def test_a_job_that_is_emulated_faster_than_modelled_stops_nobody() -> None:
    it = Scene()
    assert it.emulate("a", 173 * MS, 13 * MS) == 13 * MS
    assert it.still.stops == 0


def test_a_job_of_less_than_a_stop_takes_stops_nobody() -> None:
    it = Scene()
    assert it.emulate("a", 20_000, LEAST - 100_000) < LEAST
    assert it.still.stops == 0
    it.emulate("b", 20_000, 10 * MS)
    assert it.still.stops == 1


def test_each_of_several_jobs_holds_the_guest_for_itself() -> None:
    it = Scene()
    start = it.now
    it.jobs = {"a": Running("a", start, 0), "b": Running("b", start, 50 * MS)}
    it.still.wall += LEAST
    it.holding.service([1])
    assert it.still.held == {"a"}
    it.jobs["a"] = Running("a", start, 60 * MS)
    it.holding.service([1])
    assert it.still.held == set()
    assert it.holding.timeout == pytest.approx((50 * MS - LEAST - MARGIN) / 1e9)
    it.still.wall += 60 * MS
    it.holding.service([1])
    assert it.still.held == {"a", "b"}
    assert it.holding.timeout == POLL
    with Host() as host:
        host.rpu.holding = it.holding
        assert host.rpu.timeout == POLL
    del it.jobs["a"]
    it.holding.service([1])
    assert it.still.held == {"b"}


def test_jobs_for_which_a_guest_stands_too_long_fail_and_hold_it_no_more() -> None:
    it = Scene()
    it.jobs["a"] = Running("a", it.now, 0)
    it.still.wall += LEAST
    it.holding.service([1])
    it.still.over = True
    it.holding.service([1])
    assert it.failed == 1 and it.still.held == set()
    it.holding.service([1])
    assert it.still.held == set()
    del it.jobs["a"]
    it.holding.service([1])
    it.jobs["a"] = Running("a", it.now - LEAST, 0)
    it.holding.service([1])
    assert it.still.held == {"a"} and it.failed == 1


@pytest.mark.parametrize(("modelled", "held"), [(10 * MS, 8 * MS), (MS, LEAST), (0, LEAST)])
def test_a_command_on_which_the_media_work_too_long_holds_the_guest(
    modelled: int, held: int
) -> None:
    it, media = Scene(), Future[None]()
    began = it.now
    ended = it.command(modelled, media)
    it.holding.service([1])
    assert it.holding.timeout == pytest.approx(held / 1e9)
    it.pass_ns(held - 1)
    assert it.still.held == set()
    it.pass_ns(1)
    assert it.still.stops == 1
    it.pass_ns(300 * MS)
    assert it.now == began + held and ended == []
    it.end(media)
    it.pass_ns(0)
    assert it.still.held == set()
    it.pass_ns(max(0, modelled - held))
    assert ended == [began + max(modelled, held)]
    assert (it.holding.commands.stops, it.holding.jobs.stops) == (1, 0)
    assert it.holding.commands.stopped > 0 == it.holding.jobs.stopped


def test_a_command_that_waits_for_the_guest_does_not_hold_it() -> None:
    it = Scene()
    ended = it.command(MS, Signal())
    it.pass_ns(100 * MS)
    other = it.command(MS, it.now + 50 * MS)
    it.pass_ns(49 * MS)
    assert (it.still.stops, ended, other) == (0, [], [])
    it.pass_ns(MS)
    assert other == [it.now]


def test_an_aborted_command_holds_the_guest_no_more() -> None:
    it, media = Scene(), Future[None]()
    task = it.scheduler.start(it.scheduler.not_before(it.now, (wait for wait in [media])))
    it.pass_ns(LEAST)
    assert it.still.held
    task.close()
    it.pass_ns(0)
    assert not it.still.held and it.scheduler.emulated == {}


def test_queues_that_the_loop_does_not_come_up_with_hold_the_guest() -> None:
    it = Scene()
    it.pass_ns(5 * MS, busy=True)  # one pass alone may have waited for a processor
    it.pass_ns(LEAST - 1, busy=True)
    it.pass_ns(LEAST)
    it.pass_ns(0, busy=True)
    assert it.still.stops == 0
    it.pass_ns(LEAST, busy=True)
    assert it.still.held
    it.pass_ns(MS)
    assert not it.still.held


def test_rounds_of_the_queues_that_take_long_hold_the_guest_from_their_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = Scene()
    monkeypatch.setattr(holding, "time", SimpleNamespace(monotonic_ns=lambda: it.still.wall))

    def round_of(wall: int) -> bool:
        def serve() -> int:
            it.still.wall += wall
            return len(it.still.held)

        held = it.holding.serve(serve)
        it.holding.service([1])
        assert not it.still.held
        return bool(held)

    slow, quick = LEAST + 1, LEAST
    found = [round_of(wall) for wall in (slow, quick, slow, slow, slow, quick, slow)]
    assert found == [False, False, False, False, True, True, False]
    assert it.holding.commands.stopped == slow + quick


def test_the_loop_is_late_a_millisecond_after_a_deadline_and_in_a_round_of_the_queues() -> None:
    it = Scene()
    it.pass_ns(MS)
    assert it.still.expected is None
    began = it.now
    it.command(7 * MS)
    it.command(3 * MS)
    it.pass_ns(0)
    assert it.still.expected == began + 3 * MS + LEAST

    def round_of_queues() -> int:
        it.still.wall += 100 * MS
        return it.still.expected or 0

    assert it.holding.serve(round_of_queues) == began + LEAST
    assert it.still.expected == began + 3 * MS + LEAST
    it.pass_ns(0)
    it.pass_ns(0)
    assert it.still.expected is None  # both have ended
    it.still.hold("user")
    it.command(3 * MS)
    it.pass_ns(0)
    assert it.still.expected is None


def test_a_stop_that_began_as_the_loop_was_late_is_counted_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = Scene()
    monkeypatch.setattr(holding, "time", SimpleNamespace(monotonic_ns=lambda: it.still.wall))
    it.still.late_since = it.still.wall
    it.pass_ns(100 * MS)
    assert it.still.late_since == 0 and it.still.held == set()
    assert it.holding.commands.stops == 1
    assert it.holding.commands.stopped == 100 * MS


def test_commands_for_which_a_guest_stands_too_long_are_late_and_hold_it_no_more() -> None:
    it, media = Scene(), Future[None]()
    ended = it.command(MS, media)
    it.pass_ns(MS)
    it.still.over = True
    it.pass_ns(0)
    it.pass_ns(MS)
    assert it.still.held == set() and it.failed == 0 and ended == []
    it.end(media)
    assert ended == [it.now]


def test_commands_are_not_fetched_while_it_is_not_known_when_they_have_come() -> None:
    it = Scene()
    with Host() as host:
        host.enable()
        queue = host.create_io_queue()
        host.rpu.holding = it.holding
        it.still.uncertain = True
        host.place(queue, 0x7F, 1)
        host.ring(queue)
        host.service()
        assert host.reap(queue) == []
        it.still.uncertain = False
        host.service()
        assert [one.cid for one in host.reap(queue)] == [1]


def test_the_monitor_of_each_guest_that_comes_is_looked_for() -> None:
    it = Scene()
    clients = [None, None], [1, None], [1, None], [1, 2], [None, 2], [1, 2]
    for each in clients:
        it.holding.service(each)
    assert it.still.attached == [each for at, each in enumerate(clients) if at != 2]


def test_no_guest_stands_still_while_one_cannot_be_stopped() -> None:
    """Neither for jobs nor for commands, nor by whoever looks at the device from outside."""
    it = Scene()
    it.jobs["a"] = Running("a", it.now, 0)
    it.pass_ns(LEAST)
    assert it.still.held == {"a"}
    it.still.able, it.still.expected = False, None
    it.holding.service([1, 2], busy=True)
    assert it.still.held == set() and it.still.expected is None
    it.command(MS, Future())
    for _ in range(3):
        it.still.wall += 10 * MS
        it.holding.serve(lambda: 1)
        it.holding.service([1, 2], busy=True)
        assert it.still.held == set() and it.still.expected is None
    it.still.able = True
    it.holding.service([1, 2])
    assert "a" in it.still.held
