"""Four tenants that share a compute unit, or DRAM.

Published: the mean time in the system of a queue with Poisson arrivals, by L. Kleinrock, "Queueing
Systems", volume 2 (1976): first come first served (Pollaczek and Khinchine), processor sharing,
and priorities with preemption; shares of a backlogged server, by A. Parekh and R. Gallager, "A
Generalized Processor Sharing Approach to Flow Control", IEEE/ACM ToN 1(3), 1993.
"""

import math
from typing import NamedTuple

from potash.experiment import Point
from potash.sdk.memory_namespace import Bytes

PAGE, PAGES = 4096, (10, 20, 40, 80)
"""Bytes, which take as many ns; pages of an execution of each tenant on average."""
LOAD = 0.15
"""Share of the unit that each tenant needs."""
SUM, FIRST, MOST = 3, 10, 1024
"""The device-defined program that reads DRAM, the first of `tenants.py`, and pages of memory."""
WEIGHTS = (8, 4, 2, 1)


class Job(NamedTuple):
    """An execution: when it arrives, in ns, whose it is, and its pages."""

    at: int
    tenant: int
    pages: int


def measured(point: Point) -> list[dict[str, float]]:
    """Mean time of each tenant's executions, divided by that of the same alone."""
    tenants = range(len(PAGES))
    if point["shared"] == "DRAM":
        return [
            {"tenant": tenant, "slowdown": slower} for tenant, slower in enumerate(share(point))
        ]
    done = [one for _ in range(int(point["batches"])) for one in batch(point)]
    spent = [sum(time for job, time in done if job.tenant == tenant) for tenant in tenants]
    alone = [sum(job.pages * PAGE for job, _ in done if job.tenant == tenant) for tenant in tenants]
    return [{"tenant": number, "slowdown": spent[number] / alone[number]} for number in tenants]


def published(point: Point) -> list[dict[str, float]]:
    """The same by theory."""
    # Pages are geometrically distributed; half the mean square, by the rate of arrivals.
    means = [pages * PAGE for pages in PAGES]
    waiting = [LOAD / mean * (2 * mean - PAGE) * mean / 2 for mean in means]
    rows, load = [], LOAD * len(PAGES)
    for tenant, own in enumerate(means):
        before, after = 1 - LOAD * tenant, 1 - LOAD * (tenant + 1)
        if point["shared"] == "DRAM":
            slower = sum(WEIGHTS) / WEIGHTS[tenant]
        elif point["scheduler"] == "fifo":
            slower = 1 + sum(waiting) / (1 - load) / own
        elif point["scheduler"] == "priority":
            slower = 1 / before + sum(waiting[: tenant + 1]) / (before * after) / own
        else:
            slower = 1 / (1 - load)
        rows.append({"tenant": tenant, "slowdown": slower})
    return rows


def jobs(point: Point) -> list[Job]:
    """Executions that arrive at random, of random lengths."""
    random, count, found = point.random, int(point["jobs"]), []
    for tenant, pages in enumerate(PAGES):
        at = 0.0
        for _ in range(count * PAGES[0] // pages):
            at += random.expovariate(LOAD / (pages * PAGE))
            length = 1 + int(math.log(1 - random.random()) / math.log(1 - 1 / pages))
            found.append(Job(round(at), tenant, min(length, MOST)))
    return sorted(found)[:count]


def batch(point: Point) -> list[tuple[Job, int]]:
    """A batch of executions, each with its time until it has completed, in ns."""
    (drive,), began = point.drives, point.now
    unit, memory = drive.compute_namespace(), drive.memory_namespace().nsid
    before, running, arrivals = drive.traffic(), [], {}
    for job in jobs(point):
        point.compute(max(0, began + job.at - point.now))
        arrivals[point.now] = job
        ranges = [Bytes(memory, 0, job.pages * PAGE)]
        running.append(unit.submit(FIRST + job.tenant, ranges, timeout=60))
    for one in running:
        one.result()
    done = drive.traffic(before).completions
    return [(arrivals[one.arrived], one.completed - one.arrived) for one in done]


def share(point: Point) -> list[float]:
    """How much longer executions take while all tenants read DRAM, as often as they can."""
    (drive,) = point.drives
    ranges = [Bytes(drive.memory_namespace().nsid, 0, MOST * PAGE)]
    units = [drive.compute_namespace(nsid) for nsid in range(3, 7)]
    began = point.now
    units[0].execute(SUM, ranges)
    alone, before = point.now - began, drive.traffic()
    running = [
        unit.submit(SUM, ranges, timeout=60)
        for unit, weight in zip(units, WEIGHTS, strict=True)
        for _ in range(4 * weight)
    ]
    for one in running:
        one.result()
    found = []
    for unit in units:
        done = [one for one in drive.traffic(before).completions if one.nsid == unit.nsid]
        took = max(one.completed for one in done) - done[0].arrived
        found.append(took / len(done) / alone)
    return found
