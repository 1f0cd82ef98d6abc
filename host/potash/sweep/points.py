"""The results of each core on each network, and the cores that are worth their costs.

Processes of their own schedule and time each shape of a layer on each core.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, Self

from csd_spec.reporting import Count
from potash.sdk.progress import Progress
from potash.sweep.networks import Network
from potash.sweep.space import Core
from potash.vta.scheduled import STEPS
from potash_device.vta import figures, timing
from potash_device.vta.config import Config, ReportedConfig
from potash_device.vta.timing.parameters import Parameters, ReportedParameters
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError, conv2d
from potash_firmware.vta_runtime.schedules.search import stream_of

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
"""Costs of a core: bytes of buffers, multipliers, bytes of a channel in a cycle."""


class Task(NamedTuple):
    """A shape to be cut into tiles for a core, and timed on its clock."""

    shape: Conv2d
    config: Config
    parameters: Parameters


class Outcome(NamedTuple):
    """Cycles that it takes, or why there is no schedule."""

    cycles: int | None
    reason: str = ""


def carry_out(task: Task) -> Outcome:
    """Find the best schedule and its cycles; with the shift and the clamps of a quantised layer."""
    shape, config, parameters = task
    try:
        plan = conv2d(shape, config, STEPS, parameters=parameters)
        return Outcome(timing.run(config, parameters, stream_of(plan)).cycles)
    except ScheduleError as error:
        return Outcome(None, str(error))


class Point(NamedTuple):
    """A configuration on a network."""

    core: Core
    network: Annotated[str, "The network."]
    varied: Annotated[Mapping[str, float], "The varied parameters by name."]
    config: ReportedConfig
    parameters: ReportedParameters
    feasible: Annotated[
        bool, "True if such a core is possible and every layer has a schedule on it."
    ]
    reason: Annotated[str, "The reason if it is not feasible; otherwise empty."]
    sram_bytes: Annotated[
        Count | None, "Total size of all buffers in bytes; null if no such core is possible."
    ]
    multipliers: Annotated[Count | None, "Number of multipliers."]
    bus_bytes: Annotated[Count | None, "Bytes per cycle of a memory channel."]
    cycles: Annotated[
        Count | None, "Cycles of all layers, one after the other; null if it is not feasible."
    ]
    latency_seconds: Annotated[
        float | None, "Duration of these cycles in seconds, at the assumed clock rate."
    ]
    gops: Annotated[float | None, "Throughput of the network in GOP/s."]
    peak_gops: Annotated[float | None, "Peak rate of the core in GOP/s."]
    utilisation: Annotated[float | None, "`gops` as a share of `peak_gops`."]
    front: Annotated[
        bool,
        "True if it is on the Pareto front: no other configuration is at least as good in "
        "latency and all costs, and better in one of them.",
    ] = False

    @classmethod
    def of(cls, network: Network, core: Core, cycles: int | None, reason: str = "") -> Self:
        """A core on a network. `cycles` is None where it is not feasible, and `reason` says why."""
        config, parameters, there = core.config, core.parameters, not core.reason
        latency = None if cycles is None else cycles / parameters.clock
        gops = network.operations / latency / GIGA if latency else None
        peak = figures.peak_throughput(config, parameters.clock) / GIGA
        return cls(
            core,
            network=network.name,
            varied=dict(core.varied),
            config=config.to_mapping() if there else {},
            parameters=vars(parameters) if there else {},
            feasible=cycles is not None,
            reason=reason,
            sram_bytes=sram_bytes(config) if there else None,
            multipliers=multipliers(config) if there else None,
            bus_bytes=parameters.bus_bytes if there else None,
            cycles=cycles,
            latency_seconds=latency,
            gops=gops,
            peak_gops=peak if there else None,
            utilisation=gops / peak if gops else None,
        )

    @property
    def latency(self) -> float:
        """Seconds that it takes; only of a feasible one."""
        assert self.latency_seconds is not None
        return self.latency_seconds

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
    costs = {id(one): one.costs(against) for one in points if one.feasible}

    def dominated(one: tuple[float, ...]) -> bool:
        return any(
            other != one and all(a <= b for a, b in zip(other, one, strict=True))
            for other in costs.values()
        )

    best = {name for name, one in costs.items() if not dominated(one)}
    return [one._replace(front=id(one) in best) for one in points]


def _point(network: Network, core: Core, outcomes: Mapping[Task, Outcome]) -> Point:
    if core.reason:
        return Point.of(network, core, None, core.reason)
    cycles = 0
    for shape, count in network.shapes.items():
        outcome = outcomes[Task(shape, core.config, core.parameters)]
        if outcome.cycles is None:
            return Point.of(network, core, None, outcome.reason)
        cycles += count * outcome.cycles
    return Point.of(network, core, cycles)
