"""Schedules of compute units, against a simulation that looks at every nanosecond."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from potash_device.timeline import Timeline
from potash_device.units import (
    HOST,
    Ahead,
    Choice,
    Fifo,
    Grouped,
    Pool,
    Priority,
    RoundRobin,
    Task,
    Unit,
    UnitScheduler,
)


def advance(pool: Pool, now: int) -> int | None:
    """Have the pool go on until a time. Returns the time of its next step, if that is known."""
    timeline = Timeline()
    timeline.pools.append(pool)
    return timeline.advance(now)


@dataclass(eq=False)
class Known(Task):
    """A task of so many nanoseconds, of which so many are known so far."""

    length: int = 1
    shown: int = 0

    def ahead(self) -> Ahead:
        if self.shown < self.length:
            return Ahead(max(0, self.shown - self.done), is_point=False)
        return Ahead(self.length - self.done, is_point=True)

    def reached(self, at: int) -> int | None:
        return None


@dataclass
class Given:
    """The same task for the simulation."""

    arrived: int
    length: int
    priority: int
    program: int
    number: int
    namespace: int = 1
    loaded: bool = False
    left: int = field(init=False)
    end: int | None = None

    def __post_init__(self) -> None:
        self.left = self.length


@dataclass
class Place:
    task: Given | None = None
    slice_end: int | None = None


def every_nanosecond(
    tasks: Sequence[Given],
    units: int,
    choose: Callable[[list[Given], list[Place]], tuple[Given, int] | None],
    slice_ns: int | None,
    preempts: bool,
) -> list[int]:
    """The ends of tasks, by doing each nanosecond what is to be done then."""
    places, ready, time = [Place() for _ in range(units)], list[Given](), 0
    coming = list(tasks)

    def assign() -> None:
        while ready and (choice := choose(ready, places)) is not None:
            task, number = choice
            ready.remove(task)
            places[number].task = task
            places[number].slice_end = None if slice_ns is None else time + slice_ns

    while any(task.end is None for task in tasks):
        for place in places:
            if place.task is not None and place.task.left == 0:
                place.task.end, place.task = time, None
                assign()
        for place in places:
            if place.task is not None and place.slice_end == time:
                if ready:
                    ready.append(place.task)
                    place.task = None
                    assign()
                else:
                    assert slice_ns is not None
                    place.slice_end = time + slice_ns
        while coming and coming[0].arrived == time:
            task = coming.pop(0)
            ready.append(task)
            if preempts and all(place.task is not None for place in places):
                victim = min(places, key=lambda place: (
                        place.task.priority, -place.task.arrived, places.index(place)
                    ) if place.task else (0, 0, 0))  # fmt: skip
                assert victim.task is not None
                if victim.task.priority < task.priority:
                    ready.append(victim.task)
                    victim.task = None
            assign()
        for place in places:
            if place.task is not None:
                place.task.left -= 1
        time += 1
    return [task.end or 0 for task in tasks]


def first_free(places: Sequence[Place], numbers: range) -> int | None:
    return next((number for number in numbers if places[number].task is None), None)


def in_order(ready: list[Given], places: list[Place]) -> tuple[Given, int] | None:
    number = first_free(places, range(len(places)))
    return None if number is None else (ready[0], number)


def by_priority(ready: list[Given], places: list[Place]) -> tuple[Given, int] | None:
    number = first_free(places, range(len(places)))
    best = min(ready, key=lambda task: (-task.priority, task.arrived, ready.index(task)))
    return None if number is None else (best, number)


def in_groups(ready: list[Given], places: list[Place]) -> tuple[Given, int] | None:
    """The first unit is for program 1, the second for programs 2 and 3."""
    of = {1: range(1), 2: range(1, 2), 3: range(1, 2)}
    for task in ready:
        number = first_free(places, of.get(task.program, range(2, len(places))))
        if number is not None:
            return task, number
    return None


def in_mixed_groups(ready: list[Given], places: list[Place]) -> tuple[Given, int] | None:
    """The first unit is for namespace 2 and program 4, the second for programs of the host."""
    for task in ready:
        mine = range(2, len(places))
        if task.namespace == 2 or task.program == 4:
            mine = range(1)
        elif task.loaded:
            mine = range(1, 2)
        number = first_free(places, mine)
        if number is not None:
            return task, number
    return None


def drawn(source: random.Random) -> list[Given]:
    count = source.randrange(1, 9)
    arrivals = sorted(source.randrange(0, 30) for _ in range(count))
    return [
        Given(
            at,
            source.randrange(1, 25),
            source.randrange(3),
            source.randrange(5),
            number,
            source.randrange(1, 4),
            source.random() < 0.5,
        )
        for number, at in enumerate(arrivals)
    ]


def ends(source: random.Random, given: Sequence[Given], pool: Pool) -> list[int]:
    """The ends in a pool, whose tasks become known bit by bit, in any order."""
    tasks = [
        Known(
            task.arrived,
            task.priority,
            task.program,
            task.namespace,
            task.loaded,
            length=task.length,
        )
        for task in given
    ]
    coming, now = list(tasks), 0
    while any(task.end is None for task in tasks):
        now += source.randrange(12)
        while coming and coming[0].arrived <= now:
            pool.arrive(coming.pop(0))
        for task in source.sample(tasks, source.randrange(len(tasks) + 1)):
            task.shown += source.randrange(10)
        following = advance(pool, now)
        assert following is None or following > now
    return [task.end or 0 for task in tasks]


SCHEDULERS: dict[str, tuple[Callable[[int], UnitScheduler], object, bool]] = {
    "fifo": (lambda _: Fifo(), in_order, False),
    "rr": (RoundRobin, in_order, False),
    "priority": (lambda _: Priority(), by_priority, True),
    "group": (lambda _: Grouped([(frozenset({1}), 1), (frozenset({2, 3}), 1)]), in_groups, False),
    "mixed group": (
        lambda _: Grouped([(frozenset({"namespace2", 4}), 1), (frozenset({HOST}), 1)]),
        in_mixed_groups,
        False,
    ),
}


def compare(name: str, seeds: range) -> None:
    make, choose, preempts = SCHEDULERS[name]
    for seed in seeds:
        source = random.Random(f"{name}{seed}")
        given = drawn(source)
        units = source.randrange(3, 6) if "group" in name else source.randrange(1, 5)
        slice_ns = source.randrange(1, 9)
        pool = Pool(units, make(slice_ns))
        found = ends(source, given, pool)
        slices = slice_ns if name == "rr" else None
        assert found == every_nanosecond(given, units, choose, slices, preempts), (name, seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_is_that_of_a_simulation_of_every_nanosecond(name: str) -> None:
    compare(name, range(150))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULERS)
def test_two_thousand_schedules_are_those_of_a_simulation(name: str) -> None:
    compare(name, range(2000))


def queue(count: int, units: int, load: float, scheduler: UnitScheduler) -> tuple[float, float]:
    """The utilisation of units and the mean time of waiting, in services, of tasks of one length
    that arrive by chance."""
    source, service = random.Random(units), 1000
    pool, at = Pool(units, scheduler), 0.0
    tasks = []
    for _ in range(count):
        at += source.expovariate(load * units / service)
        tasks.append(Known(round(at), length=service, shown=service))
        pool.arrive(tasks[-1])
        advance(pool, round(at))
    advance(pool, 1 << 62)
    end = max(task.end or 0 for task in tasks)
    waited = sum((task.end or 0) - task.arrived - service for task in tasks) / count / service
    return count * service / (units * end), waited


@pytest.mark.parametrize(("units", "count"), [(1, 30_000), (4, 30_000)])
def test_units_are_as_busy_as_the_theory_of_queues_says(units: int, count: int) -> None:
    load = 0.6
    utilisation, waited = queue(count, units, load, Fifo())
    assert utilisation == pytest.approx(load, rel=0.01)
    if units == 1:  # Pollaczek and Khinchine, for one length
        assert waited == pytest.approx(load / (2 * (1 - load)), rel=0.05)


def test_short_slices_share_a_unit_equally() -> None:
    """In the limit each of the tasks that are there has the same part of the unit."""
    pool = Pool(1, RoundRobin(10))
    lengths = (100_000, 200_000, 300_000)
    tasks = [Known(0, length=length, shown=length) for length in lengths]
    for task in tasks:
        pool.arrive(task)
    advance(pool, 1 << 62)
    assert [task.end for task in tasks] == pytest.approx([300_000, 500_000, 600_000], abs=30)


def test_a_task_that_is_given_up_frees_its_unit_at_that_time() -> None:
    pool = Pool(1)
    first, second, third = (Known(number, length=100) for number in range(3))
    for task in (first, second, third):
        pool.arrive(task)
    assert advance(pool, 50) is None, "nothing is known of the first"
    pool.drop(second, 50)
    pool.drop(first, 60)
    advance(pool, 60)
    assert (second.start, third.start) == (None, 60)


@dataclass(eq=False)
class Reader(Known):
    """A task that waits for a device once, until a time, when it has run for 10 ns."""

    until: int | None = 0

    def ahead(self) -> Ahead:
        return Ahead(10 - self.done, is_point=True) if self.until else super().ahead()

    def reached(self, at: int) -> int | None:
        until, self.until = self.until, None
        return until


def test_a_task_that_waits_for_a_device_keeps_its_unit_for_its_slice() -> None:
    pool = Pool(1, RoundRobin(25))
    reader, other = Reader(0, length=40, shown=40, until=70), Known(0, length=30, shown=30)
    pool.arrive(reader)
    pool.arrive(other)
    advance(pool, 1 << 62)
    # The reader has the unit until the device is done, as its slice has passed then.
    assert (other.start, other.end, reader.end) == (70, 125, 130)


class Nonsense(Fifo):
    """Schedulers that are wrong in some way; `found` is what one chooses."""

    def __init__(self, found: object) -> None:
        self.found = found

    def pick(self, ready: Sequence[Task], units: Sequence[Unit], now: int) -> Choice | None:
        if isinstance(self.found, Exception):
            raise self.found
        if self.found == "busy":
            return Choice(ready[0], next(unit for unit in units if unit.task is not None))
        if self.found == "foreign":
            return Choice(Known(0), units[0])
        return self.found  # type: ignore[return-value]


@pytest.mark.parametrize(
    "found", [RuntimeError("a bug"), "busy", "foreign", None, 3, (1, 2, 3), KeyError(), "starves"]
)
def test_a_scheduler_that_is_wrong_is_replaced_and_no_task_is_lost(found: object) -> None:
    said: list[str] = []
    pool = Pool(2, Nonsense(None if found == "starves" else found))
    pool.complain = said.append
    tasks = [Known(number, length=10, shown=10) for number in range(9)]
    for task in tasks:
        pool.arrive(task)
    assert advance(pool, 1 << 62) is None
    assert [task.end for task in tasks] == [10, 11, 20, 21, 30, 31, 40, 41, 50]
    assert len(said) == 1
    assert "first come is first served" in said[0]
