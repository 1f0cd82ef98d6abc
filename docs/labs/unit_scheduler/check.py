"""The check of lab 8: four workloads of executions on compute units, in modelled time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potash_device.units import Ahead, Pool, Task

MS = 1_000_000
LEAST_SLICE = 20_000
"""ns; every change of executions costs a real core something."""


@dataclass(eq=False)
class Execution(Task):
    """An execution of known length."""

    length: int = 0

    def ahead(self) -> Ahead:
        return Ahead(self.length - self.done, True)

    def reached(self, at: int) -> int | None:
        return None


class Wrong(RuntimeError):
    """What the scheduler does wrong, as a sentence."""


class Simulation:
    """Executions on units until a time: (arrival, tenant, weight, length), in ns."""

    def __init__(
        self, make: Any, units: int, executions: Sequence[tuple[int, int, int, int]]
    ) -> None:
        scheduler = make()
        if not getattr(scheduler, "common", False):
            raise Wrong(
                "tenants are compute namespaces; set common = True, so that they share units"
            )
        if scheduler.slice is not None and scheduler.slice < LEAST_SLICE:
            raise Wrong(f"a slice of {scheduler.slice} ns is too short; {LEAST_SLICE} is the least")
        self.pool = Pool(units, scheduler)
        self.pool.complain = self.complained
        self.executions = [
            Execution(at, weight, namespace=tenant, length=length)
            for at, tenant, weight, length in sorted(executions)
        ]
        for one in self.executions:
            self.pool.arrive(one)

    def complained(self, why: str) -> None:
        raise Wrong(why.partition(" from now on: ")[2])

    def run(self, until: int) -> None:
        while (event := self.pool.following) is not None and event.at <= until:
            self.pool.take(event)
        waiting = self.pool.ready and any(unit.task is None for unit in self.pool.units)
        if waiting:
            raise Wrong("a unit is idle while executions wait")

    def served(self, tenant: int) -> int:
        """Time of units that a tenant has had."""
        return sum(one.done for one in self.executions if one.namespace == tenant)


def backlog(tenant: int, weight: int, count: int, length: int, at: int = 0) -> list[Any]:
    """Executions that arrive together."""
    return [(at, tenant, weight, length)] * count


def weighted(make: Any) -> str | None:
    """Three tenants that always have work, at many times; the lengths of executions differ."""
    work = backlog(3, 4, 400, MS // 3) + backlog(4, 2, 20, 10 * MS) + backlog(5, 1, 900, MS // 20)
    for units in (1, 2):
        simulation = Simulation(make, units, work)
        for now in range(10 * MS, 41 * MS, 5 * MS):
            simulation.run(now)
            for tenant, weight in ((3, 4), (4, 2), (5, 1)):
                share = simulation.served(tenant) / (now * units)
                if abs(share - weight / 7) > 0.1:
                    return (
                        f"a tenant of weight {weight} of 7 has {share:.0%} of {units} units after "
                        f"{now // MS} ms, and not {weight / 7:.0%}"
                    )
    return None


def counted_by_tenant(make: Any) -> str | None:
    """One tenant has thirty executions, the other one."""
    simulation = Simulation(make, 1, backlog(3, 1, 30, 10 * MS) + backlog(4, 1, 1, 100 * MS))
    simulation.run(40 * MS)
    share = simulation.served(4) / (40 * MS)
    if share < 0.4:
        return f"a tenant with one execution has {share:.0%} beside one with thirty, and not half"
    return None


def without_credit(make: Any) -> str | None:
    """A tenant comes back after it had nothing to do."""
    work = backlog(4, 1, 1, MS) + backlog(3, 1, 1, 200 * MS) + backlog(4, 1, 20, 10 * MS, 60 * MS)
    simulation = Simulation(make, 1, work)
    simulation.run(60 * MS)
    before = simulation.served(3), simulation.served(4)
    simulation.run(80 * MS)
    for tenant, already in zip((3, 4), before, strict=True):
        share = (simulation.served(tenant) - already) / (20 * MS)
        if share < 0.4:
            who = "the other one" if tenant == 3 else "it"
            return f"when a tenant comes back after a pause, {who} has {share:.0%}, and not half"
    return None


def soon(make: Any) -> str | None:
    """A short execution comes while long ones run, and all units are used."""
    work = backlog(3, 1, 4, 50 * MS) + backlog(4, 1, 1, 20_000, 5 * MS)
    simulation = Simulation(make, 2, work)
    simulation.run(300 * MS)
    short = next(one for one in simulation.executions if one.namespace == 4)
    if short.end is None or short.end > 7 * MS:
        took = "for ever" if short.end is None else f"{(short.end - 5 * MS) / MS:.1f} ms"
        return f"an execution of 20 µs takes {took} beside long ones; 2 ms are the most"
    last = max(one.end or 300 * MS for one in simulation.executions)
    if last > 101 * MS:
        return f"two units take {last // MS} ms for 200 ms of executions"
    return None


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    problems = []
    for part in (weighted, counted_by_tenant, without_credit, soon):
        try:
            if said := part(made["Mine"]):
                problems.append(said)
        except Wrong as error:
            return [str(error)]
    return problems
