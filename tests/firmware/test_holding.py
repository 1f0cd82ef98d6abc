"""When a job holds the guest: a made-up clock, and jobs whose emulation takes what a test says."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.rpu.timing.holding import LEAST, MARGIN, POLL, QUANTUM, Holding, RunningJob
from support.nvme_host import Host

MS = 1_000_000


class Stopping:
    """A guest that stops and goes on at once, and the time that it does not see."""

    source = None
    timeout = None

    def __init__(self) -> None:
        self.wall = 1000 * MS
        self.clock = GuestClock(lambda: self.wall / 1e9)
        self.over = False
        self.held: set[Hashable] = set()
        self.attached = self.stops = 0

    def attach(self) -> None:
        self.attached += 1

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
        self.jobs: dict[str, RunningJob] = {}
        self.failed = 0
        self.holding = Holding(self.still, self.still.clock, lambda: self.jobs.values(), self.fail)

    def fail(self) -> None:
        self.failed += 1

    @property
    def now(self) -> int:
        return self.still.clock.now()

    def emulate(self, key: str, modelled: int, wall: int, step: int = 100_000) -> int:
        """Run a job at an even pace; the guest time that it took."""
        start, began = self.now, self.still.wall
        while self.still.wall - began < wall:
            done = modelled * (self.still.wall - began) // wall
            self.jobs[key] = RunningJob(key, start, done)
            self.holding.service(connected=True)
            self.still.wall += step
        del self.jobs[key]
        self.holding.service(connected=True)
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
    it.jobs = {"a": RunningJob("a", start, 0), "b": RunningJob("b", start, 50 * MS)}
    it.still.wall += LEAST
    it.holding.service(connected=True)
    assert it.still.held == {"a"}
    it.jobs["a"] = RunningJob("a", start, 60 * MS)
    it.holding.service(connected=True)
    assert it.still.held == set()
    assert it.holding.timeout == pytest.approx((50 * MS - LEAST - MARGIN) / 1e9)
    it.still.wall += 60 * MS
    it.holding.service(connected=True)
    assert it.still.held == {"a", "b"}
    assert it.holding.timeout == POLL
    with Host() as host:
        host.rpu.holding = it.holding
        assert host.rpu.timeout == POLL
    del it.jobs["a"]
    it.holding.service(connected=True)
    assert it.still.held == {"b"}


def test_jobs_for_which_a_guest_stands_too_long_fail_and_hold_it_no_more() -> None:
    it = Scene()
    it.jobs["a"] = RunningJob("a", it.now, 0)
    it.still.wall += LEAST
    it.holding.service(connected=True)
    it.still.over = True
    it.holding.service(connected=True)
    assert it.failed == 1 and it.still.held == set()
    it.holding.service(connected=True)
    assert it.still.held == set()
    del it.jobs["a"]
    it.holding.service(connected=True)
    it.jobs["a"] = RunningJob("a", it.now - LEAST, 0)
    it.holding.service(connected=True)
    assert it.still.held == {"a"} and it.failed == 1


def test_the_monitor_of_each_guest_that_comes_is_looked_for() -> None:
    it = Scene()
    for connected in (False, True, True, False, True):
        it.holding.service(connected=connected)
    assert it.still.attached == 2
