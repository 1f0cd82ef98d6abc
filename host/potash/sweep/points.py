"""What becomes of each core on each network, and which cores are worth what they cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from potash.sdk.progress import Progress
from potash.sweep.networks import Network
from potash.sweep.space import Core
from potash.sweep.work import Outcome, Task
from potash_device.vta import figures
from potash_device.vta.config import Config
from potash_device.vta.timing.parameters import Parameters

GIGA = 1e9


def sram_bytes(config: Config) -> int:
    """Bytes of all buffers on the chip."""
    return sum(config.depth(one) * config.element_bytes(one) for one in figures.BUFFERS)


def multipliers(config: Config) -> int:
    """Multipliers that work in a cycle."""
    return figures.operations_per_cycle(config) // 2


COSTS: Mapping[str, Callable[[Config, Parameters], int]] = {
    "sram": lambda config, _: sram_bytes(config),
    "multipliers": lambda config, _: multipliers(config),
    "bandwidth": lambda _, parameters: parameters.bus_bytes,
}
"""What a core may cost: bytes of buffers, multipliers, bytes of a channel in a cycle."""


@dataclass(frozen=True)
class Point:
    """A core on a network. `cycles` is None where it is not feasible, and `reason` says why."""

    network: Network
    core: Core
    cycles: int | None
    reason: str = ""
    front: bool = False

    @property
    def latency(self) -> float:
        """Seconds for the whole network, one layer after the other."""
        assert self.cycles is not None
        return self.cycles / self.core.parameters.clock

    @property
    def gops(self) -> float:
        return self.network.operations / self.latency / GIGA

    @property
    def peak_gops(self) -> float:
        """The same of a core that never waits."""
        return figures.peak_throughput(self.core.config, self.core.parameters.clock) / GIGA

    def costs(self, against: Sequence[str]) -> tuple[float, ...]:
        """Latency and costs, all of which had better be small."""
        core = self.core
        return (self.latency, *(COSTS[name](core.config, core.parameters) for name in against))


def swept(
    cores: Sequence[Core],
    networks: Sequence[Network],
    against: Sequence[str],
    work: Callable[[Sequence[Task]], Iterable[tuple[int, Outcome]]],
    progress: Progress,
) -> list[Point]:
    """Every core on every network, with the front of each network marked."""
    tasks = list(
        dict.fromkeys(
            Task(shape, core.config, core.parameters)
            for core in cores
            if not core.reason
            for one in networks
            for shape in one.shapes
        )
    )
    outcomes: dict[Task, Outcome] = {}
    label = f"scheduling {len(tasks)} layers on {len(cores)} cores"
    for number, outcome in work(tasks):
        outcomes[tasks[number]] = outcome
        progress(label, len(outcomes) / len(tasks))
    found = []
    for one in networks:
        found += marked([_point(one, core, outcomes) for core in cores], against)
    return found


def marked(points: Sequence[Point], against: Sequence[str]) -> list[Point]:
    """The points of one network, those of the front marked: no other is as good in everything and
    better in something."""
    feasible = [point for point in points if point.cycles is not None]
    costs = {id(point): point.costs(against) for point in feasible}

    def dominated(one: tuple[float, ...]) -> bool:
        return any(
            other != one and all(a <= b for a, b in zip(other, one, strict=True))
            for other in costs.values()
        )

    best = {name for name, one in costs.items() if not dominated(one)}
    return [replace(one, front=id(one) in best) for one in points]


def _point(network: Network, core: Core, outcomes: Mapping[Task, Outcome]) -> Point:
    if core.reason:
        return Point(network, core, None, core.reason)
    cycles = 0
    for shape, count in network.shapes.items():
        outcome = outcomes[Task(shape, core.config, core.parameters)]
        if outcome.cycles is None:
            return Point(network, core, None, outcome.reason)
        cycles += count * outcome.cycles
    return Point(network, core, cycles)
