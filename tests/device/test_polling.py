"""When the device polls and when it sleeps, against a guest that is simulated."""

from collections.abc import Callable
from heapq import heappop, heappush

import pytest

from potash_device.controller.polling import IDLE, PAUSE, SPIN, TICKS, Polling, Tuner

US = 1e-6


class Clock:
    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


class Guest:
    """One processor that submits, and that every interrupt takes from its work.

    `depth` commands at a time, `per_command` and `per_interrupt` seconds of its time each.
    """

    def __init__(self, depth: int, per_command: float, per_interrupt: float) -> None:
        self.per_command = per_command
        self.per_interrupt = per_interrupt
        self.free_at = 0.0
        self.submitted: list[float] = [0.0] * depth

    def complete(self, now: float) -> int:
        """The device polls: what was submitted by now is done, and the guest goes on with it."""
        done = 0
        while self.submitted and self.submitted[0] <= now:
            heappop(self.submitted)
            done += 1
        if done:
            self.free_at = max(self.free_at, now) + self.per_interrupt
            for _ in range(done):
                self.free_at += self.per_command
                heappush(self.submitted, self.free_at)
        return done


LOOK = 5 * US


def run(tick: Callable[[], float], worked: Callable[[int, float], None], guest: Guest) -> int:
    """One second of a guest and a device that polls once a tick; how many commands there were."""
    now = total = 0.0
    while now < 1.0:
        done = guest.complete(now)
        total += done
        if done:
            worked(done, now)
        now += tick() + LOOK
    return int(total)


@pytest.mark.parametrize(
    ("guest", "best"),
    [
        (lambda: Guest(1, 40 * US, 20 * US), 20 * US),
        (lambda: Guest(32, 10 * US, 100 * US), 400 * US),
    ],
    ids=["one at a time", "interrupts are dear"],
)
def test_the_tuner_finds_the_tick_that_suits_the_load(
    guest: Callable[[], Guest], best: float
) -> None:
    ticks = (20 * US, 200 * US, 400 * US)
    tuner = Tuner(ticks)
    tuned = run(lambda: tuner.tick, tuner.executed, guest())
    fixed = {
        tick: run(lambda tick=tick: tick, lambda *_: None, guest())  # type: ignore[misc]  # bound now
        for tick in ticks
    }
    assert max(fixed, key=lambda tick: fixed[tick]) == best
    assert tuned > 0.75 * fixed[best]
    assert tuned > min(fixed.values())


def test_a_longer_tick_that_gains_nothing_is_given_up() -> None:
    tuner = Tuner((20 * US, 200 * US))
    seen = set()
    for window in range(100):
        tuner.executed(1000, 0.025 * (window + 1))
        seen.add(tuner.tick)
    assert seen == {20 * US, 200 * US}
    steady = Tuner((20 * US, 200 * US))
    ticks = []
    for window in range(100):
        steady.executed(1000, 0.025 * (window + 1))
        ticks.append(steady.tick)
    assert ticks.count(200 * US) < 25


@pytest.mark.parametrize("commands", [(0, 0), (7, 0), (0, 7)], ids=["none", "tried", "stayed"])
def test_windows_without_any_command_can_be_compared(commands: tuple[int, int]) -> None:
    """As when the host leaves its completion queue full: each poll is for nothing."""
    tuner = Tuner((20 * US, 200 * US))
    ticks = set()
    for window in range(100):
        tuner.executed(commands[tuner.tick == 20 * US], 0.025 * (window + 1))
        ticks.add(tuner.tick)
    assert ticks == {20 * US, 200 * US}


def test_while_there_is_work_it_ticks_and_after_a_while_without_it_may_arm() -> None:
    clock = Clock()
    polling = Polling(clock)
    assert polling.timeout is None and not polling.may_arm
    polling.worked(1)
    assert polling.timeout == 0.0
    clock.now += SPIN
    assert polling.timeout == TICKS[1]
    assert not polling.may_arm
    clock.now += IDLE
    assert polling.may_arm
    polling.armed()
    assert not polling.ticking
    assert polling.timeout is None and not polling.may_arm


def test_where_others_want_the_processor_it_rests_between_polls() -> None:
    clock = Clock()
    polling = Polling(clock)
    polling.worked(1)
    polling.yielded(5 * US)
    assert polling.timeout == 0.0
    polling.yielded(3e-3)
    assert polling.timeout == TICKS[1]
    for _ in range(100):
        clock.now += 200 * US
        polling.worked(1)
    assert polling.timeout == 0.0


def climbed(clock: Clock, polling: Polling) -> None:
    """Load the device so that longer ticks pay."""
    while polling._tuner._level != len(TICKS) - 1:
        clock.now += 1e-3
        polling.worked(10 + int(polling.tick / US))


def test_what_was_found_out_outlives_a_short_pause_and_not_a_long_one() -> None:
    clock = Clock()
    polling = Polling(clock)
    climbed(clock, polling)
    clock.now += 2 * IDLE
    assert polling.may_arm
    polling.armed()
    polling.worked(1)
    assert polling.tick == TICKS[-1]
    clock.now += IDLE + 2 * PAUSE
    polling.armed()
    polling.worked(1)
    assert polling.tick == 0.0


def test_a_host_that_sets_coalescing_has_the_shortest_tick() -> None:
    clock = Clock()
    polling = Polling(clock)
    climbed(clock, polling)
    polling.tuned = False
    assert polling.tick == 0.0


def test_a_crowded_processor_is_not_waited_on_for_a_second() -> None:
    now = 5.0
    polling = Polling(lambda: now)
    polling.yielded(100e-6)
    assert polling.may_wait
    polling.yielded(3e-3)
    assert not polling.may_wait
    now += 0.999
    assert not polling.may_wait
    now += 0.002
    assert polling.may_wait
