"""Shares of a bandwidth, against a simulation with fractions and closed forms."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import ceil

import pytest

from potash_device.bandwidth import Bandwidth, Flow, Transfer
from potash_device.timeline import Timeline
from potash_device.units import Ahead, Pool, Task


@dataclass
class Given:
    flow: int
    at: int
    length: int


def simulated(weights: list[int], in_order: list[bool], given: list[Given]) -> list[int]:
    """The end of each transfer: all that each gets between two events, as fractions."""
    left = [Fraction(transfer.length) for transfer in given]
    ends: list[int | None] = [None] * len(given)
    now = min(transfer.at for transfer in given)
    while None in ends:
        served: dict[int, Fraction] = {}
        there = [n for n, one in enumerate(given) if one.at <= now and ends[n] is None]
        flows = {given[n].flow for n in there}
        for flow in flows:
            part = Fraction(weights[flow], sum(weights[other] for other in flows))
            mine = [n for n in there if given[n].flow == flow]
            if in_order[flow]:
                mine = [min(mine, key=lambda n: (given[n].at, n))]
            served |= {n: part / len(mine) for n in mine}
        times = [now + ceil(left[n] / rate) for n, rate in served.items()]
        times += [one.at for one in given if one.at > now]
        following = min(times)
        for n, rate in served.items():
            left[n] -= rate * (following - now)
        now = following
        for n in served:
            if left[n] <= 0:
                ends[n] = now
    return [end for end in ends if end is not None]


def random_set(source: random.Random) -> tuple[list[int], list[bool], list[Given]]:
    flows = source.randrange(1, 6)
    weights = [source.choice([1, 1, 2, 3, 7, 100]) for _ in range(flows)]
    in_order = [source.random() < 0.3 for _ in range(flows)]
    longest = source.choice([5, 50, 5000])
    given = [
        Given(source.randrange(flows), source.randrange(2 * longest), source.randrange(1, longest))
        for _ in range(source.randrange(1, 25))
    ]
    return weights, in_order, given


def shared(weights: list[int], in_order: list[bool], given: list[Given], seed: int) -> list[int]:
    """The same ends, where transfers become known at random times before they arrive."""
    source = random.Random(seed)
    bandwidth = Bandwidth()
    flows = [Flow(weight, order) for weight, order in zip(weights, in_order, strict=True)]
    found: dict[int, Transfer] = {}
    coming = sorted(range(len(given)), key=lambda n: (given[n].at, n))
    while coming or bandwidth:
        most = given[coming[0]].at if coming else None
        for n in coming[: source.randrange(4)]:
            found[n] = bandwidth.begin(flows[given[n].flow], given[n].length, given[n].at)
            coming.remove(n)
        following = bandwidth.following
        if following is not None and (most is None or following <= most):
            bandwidth.go_on(following - source.randrange(min(2, following - bandwidth.now + 1)))
    return [found[n].end or 0 for n in range(len(given))]


def compare(seeds: range) -> None:
    for seed in seeds:
        weights, in_order, given = random_set(random.Random(seed))
        expected = simulated(weights, in_order, given)
        assert shared(weights, in_order, given, seed) == expected, seed


def test_ends_are_those_of_a_simulation() -> None:
    compare(range(100))


@pytest.mark.slow
def test_two_thousand_ends_are_those_of_a_simulation() -> None:
    compare(range(2000))


@dataclass(eq=False, kw_only=True)
class Moving(Task):
    """A task that uses its core and then DRAM, of which so much of the core is known so far."""

    core: int
    dram: int
    pool: Pool
    flow: Flow
    bandwidth: Bandwidth
    shown: int = 0
    moves: bool = False

    def ahead(self) -> Ahead:
        return Ahead(max(0, min(self.shown, self.core) - self.done), self.shown > self.core)

    def reached(self, at: int) -> int | None:
        if self.moves:
            return None
        self.moves = self.waits = True
        self.bandwidth.begin(self.flow, self.dram, at, partial(self.pool.resume, self))
        return at


Job = tuple[int, int, int]
"""The arrival of a task, and the times that its core and DRAM take for it."""


def simulated_jobs(weights: list[int], jobs: list[list[Job]]) -> list[list[int]]:
    """The ends of the tasks of each pool, which run one after the other."""
    ends: list[list[int]] = [[] for _ in jobs]
    left = [[[Fraction(core), Fraction(dram)] for _, core, dram in pool] for pool in jobs]
    now = 0
    while any(len(done) < len(pool) for done, pool in zip(ends, jobs, strict=True)):
        running = [n for n, pool in enumerate(jobs)
                   if len(ends[n]) < len(pool) and pool[len(ends[n])][0] <= now]  # fmt: skip
        moving = [n for n in running if not left[n][len(ends[n])][0]]
        total = sum(weights[n] for n in moving)
        rates = {n: Fraction(weights[n], total) if n in moving else Fraction(1) for n in running}
        times = [now + ceil(left[n][len(ends[n])][n in moving] / rates[n]) for n in running]
        times += [at for pool in jobs for at, _, _ in pool if at > now]
        passed, now = min(times) - now, min(times)
        for n in running:
            of_task = left[n][len(ends[n])]
            of_task[n in moving] -= rates[n] * passed
            if n in moving and of_task[1] <= 0:
                ends[n].append(now)
    return ends


def shared_jobs(weights: list[int], jobs: list[list[Job]], seed: int) -> list[list[int]]:
    """The same ends, where it becomes known bit by bit in any order what tasks do."""
    source, timeline, bandwidth = random.Random(seed), Timeline(), Bandwidth()
    timeline.bandwidths, timeline.pools = [bandwidth], [Pool() for _ in jobs]
    flows, now = [Flow(weight) for weight in weights], 0
    tasks = [
        [Moving(at, core=core, dram=dram, pool=pool, flow=flow, bandwidth=bandwidth)
         for at, core, dram in of_pool]
        for of_pool, pool, flow in zip(jobs, timeline.pools, flows, strict=True)
    ]  # fmt: skip
    coming = sorted((task for of_pool in tasks for task in of_pool), key=lambda task: task.arrived)
    every = list(coming)
    while any(task.end is None for task in every):
        now += source.randrange(40)
        while coming and coming[0].arrived <= now:
            task = coming.pop(0)
            task.pool.arrive(task)
        for task in source.sample(every, source.randrange(len(every) + 1)):
            task.shown += source.randrange(60)
        timeline.advance(now)
    return [[task.end or 0 for task in of_pool] for of_pool in tasks]


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(2000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_tasks_share_dram_in_the_same_way_however_they_become_known(seeds: range) -> None:
    for seed in seeds:
        source = random.Random(seed)
        weights = [source.choice([1, 1, 2, 5]) for _ in range(source.randrange(1, 5))]
        jobs = [
            sorted((source.randrange(1, 200), source.randrange(1, 100), source.randrange(1, 100))
                   for _ in range(source.randrange(1, 5)))
            for _ in weights
        ]  # fmt: skip
        assert shared_jobs(weights, jobs, seed) == simulated_jobs(weights, jobs), seed


def ends(*flows: tuple[Flow, int, int]) -> list[int | None]:
    """The ends of transfers of flows, with their lengths and arrivals."""
    bandwidth = Bandwidth()
    transfers = [bandwidth.begin(flow, length, at) for flow, length, at in flows]
    while (following := bandwidth.following) is not None:
        bandwidth.go_on(following)
    return [transfer.end for transfer in transfers]


def test_a_flow_alone_has_all() -> None:
    assert ends((Flow(7), 1000, 5)) == [1005]


def test_two_equal_flows_take_twice_as_long() -> None:
    assert ends((Flow(), 1000, 5), (Flow(), 1000, 5)) == [2005, 2005]


def test_shares_of_three_to_one_hold_while_both_are_present() -> None:
    # 900 of 1200 ns are the first one's; then the other has all.
    assert ends((Flow(3), 900, 0), (Flow(1), 900, 0)) == [1200, 1800]
    assert ends((Flow(3), 900, 0), (Flow(1), 900, 60)) == [60 + 840 * 4 // 3, 1800]


def test_transfers_of_a_flow_divide_its_share_or_take_place_in_order() -> None:
    both, other = Flow(2), Flow(2)
    assert ends((both, 100, 0), (both, 100, 0), (other, 200, 0)) == [400, 400, 400]
    queue = Flow(2, in_order=True)
    assert ends((queue, 100, 0), (queue, 100, 0), (other, 200, 0)) == [200, 400, 400]


def test_a_transfer_that_is_given_up_leaves_its_share_to_others() -> None:
    bandwidth, ended = Bandwidth(), list[int]()
    first = bandwidth.begin(Flow(), 100, 0)
    second, third = (bandwidth.begin(Flow(), 100, at, ended.append) for at in (0, 150))
    second.drop(100)
    third.drop(120)
    while (following := bandwidth.following) is not None:
        bandwidth.go_on(following)
    assert (first.end, second.end, third.end) == (150, 100, 150)
    assert not bandwidth
    assert not ended
