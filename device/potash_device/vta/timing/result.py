"""The result of the timing model for a stream: times of each instruction, and totals."""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from csd_spec.reporting import Count, Key, Share
from potash_device.vta import figures
from potash_device.vta.config import Config
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Dependencies, Stage
from potash_device.vta.stream import POPS, PUSHES, TOKEN_QUEUES, TokenQueue
from potash_device.vta.timing.parameters import Parameters


class Moments(NamedTuple):
    """Cycles at which something happened to an instruction; from `free` on none is before another.

    A row of `Timing.moments`.
    """

    fetched: int
    """It waits in its module's command queue."""
    free: int
    """The module is done with the instruction before it."""
    previous: int
    """It is there and has its token from the previous module, if it needs one."""
    start: int
    """It has its token from the next module too."""
    granted: int
    """The memory channel is its own; the same as `start` plus decoding where it needs none."""
    done: int
    """Its work is done."""
    end: int
    """Its tokens are given, and the module is free."""


class Facts(NamedTuple):
    """Properties of an instruction that determine its timing. A row of `Timing.facts`."""

    stage: int
    """A `Stage`."""
    kind: int
    """A `Kind`."""
    dependencies: int
    """Its `Dependencies`."""
    cycles: int
    """Cycles from `granted` to `done`."""
    beats: int
    """Cycles that it takes of its memory channel."""
    size: int
    """Bytes that it moves."""
    products: int
    """Micro-ops that multiply."""


class Kind(IntEnum):
    """Kind of a module's work."""

    TOKENS = 0
    UOP = 1
    WGT = 2
    INP = 3
    ACC = 4
    OUT = 5
    GEMM = 6
    RESET = 7
    ALU = 8


class Stall(StrEnum):
    """Cause of a module's wait."""

    FETCH = "instruction"
    """Its next instruction has not been fetched."""
    PREVIOUS = "previous module"
    """A token from there."""
    NEXT = "next module"
    """A token from there."""
    CHANNEL = "memory channel"
    """The other module's transfer has the memory channel."""
    TOKEN_QUEUE = "full token queue"
    """The queue is full for the token that it gives."""


class ModuleTime(NamedTuple):
    """One of the core's modules."""

    busy: Annotated[Count, "Cycles in which the module executes."]
    work: Annotated[Mapping[str, Count], "The busy cycles by kind of work."]
    waits: Annotated[Mapping[Stall, Count], "Cycles in which the module waits, by cause."]
    done: Annotated[Count, "Cycles in which the module has no more instructions."]


class Wait(NamedTuple):
    """Cycles in which a module waits."""

    reason: Stall
    begin: int
    end: int


@dataclass(frozen=True)
class Timed:
    """The timing of one instruction of a stream."""

    index: int
    moments: Moments
    facts: Facts
    fetching: int
    """Cycle at which its fetch begins."""
    decoded: int
    """Cycle at which it has been decoded and requests its memory channel."""

    @property
    def waits(self) -> list[Wait]:
        """Waits of its module before it begins."""
        there = max(self.moments.fetched, self.moments.free)
        return _waits(
            (Stall.FETCH, self.moments.free, there),
            (Stall.PREVIOUS, there, self.moments.previous),
            (Stall.NEXT, self.moments.previous, self.moments.start),
        )

    @property
    def delays(self) -> list[Wait]:
        """Waits after it has begun."""
        return _waits(
            (Stall.CHANNEL, self.decoded, self.moments.granted),
            (Stall.TOKEN_QUEUE, self.moments.done, self.moments.end),
        )


@dataclass(frozen=True, eq=False)
class Activity:
    """The timing of some instructions of a stream."""

    config: Config
    parameters: Parameters
    moments: NDArray[np.int64]
    """A row for each instruction, with `Moments` as columns."""
    facts: NDArray[np.int64]
    """A row for each instruction, with `Facts` as columns."""

    def __len__(self) -> int:
        return len(self.moments)

    @property
    def instructions(self) -> Annotated[Count, Key()]:
        """Number of instructions."""
        return len(self)

    @functools.cached_property
    def cycles(self) -> Annotated[Count, Key()]:
        """Duration in cycles."""
        return int(self.moments[:, _MOMENT["end"]].max(initial=0))

    @property
    def seconds(self) -> Annotated[float, Key()]:
        """Duration in seconds, at the assumed clock rate."""
        return self.cycles / self.parameters.clock

    @functools.cached_property
    def products(self) -> int:
        """Micro-ops that multiply."""
        return int(self._fact("products").sum())

    @property
    def operations(self) -> int:
        """Multiplications and additions of GEMM."""
        return self.products * figures.operations_per_cycle(self.config)

    @property
    def throughput(self) -> float:
        """GEMM's operations a second."""
        return self.operations / self.seconds if self.cycles else 0.0

    @property
    def gemm_gops(self) -> Annotated[float, Key()]:
        """Throughput of the multiplier in GOP/s, including empty channels."""
        return self.throughput / 1e9

    @property
    def utilisation(self) -> Annotated[Share, Key()]:
        """Share of the cycles in which the multiplier works.

        That is the time of a GEMM core that starts one micro-op a cycle.
        """
        return self.products / self.cycles if self.cycles else 0.0

    @property
    def intensity(self) -> Annotated[float, Key("operations_per_byte")]:
        """Operations per byte of the busier memory channel."""
        return self.operations / max(self.read_bytes, self.written_bytes, 1)

    @functools.cached_property
    def read_bytes(self) -> Annotated[Count, Key()]:
        """Bytes read from DRAM."""
        return int(self._fact("size")[self._fact("kind") != Kind.OUT].sum())

    @functools.cached_property
    def written_bytes(self) -> Annotated[Count, Key()]:
        """Bytes written to DRAM."""
        return int(self._fact("size")[self._fact("kind") == Kind.OUT].sum())

    @functools.cached_property
    def busy(self) -> Mapping[Stage, int]:
        """Cycles that each module works: all that are neither stalls nor after its last
        instruction."""
        return {stage: sum(kinds.values()) for stage, kinds in self.work.items()}

    @functools.cached_property
    def work(self) -> Mapping[Stage, Mapping[Kind, int]]:
        """Cycles that each module works, by kind of work."""
        spent = self._moment("done") - self._moment("start") - self._channel_waits
        stages, kinds = self._fact("stage"), self._fact("kind")
        found = np.zeros((len(Stage), len(Kind)), np.int64)
        np.add.at(found, (stages, kinds), spent)
        return {
            stage: {kind: int(found[stage, kind]) for kind in Kind if found[stage, kind]}
            for stage in Stage
        }

    @functools.cached_property
    def stalls(self) -> Mapping[Stage, Mapping[Stall, int]]:
        """Cycles that each module waits between its instructions and in them."""
        fetched, free = self._moment("fetched"), self._moment("free")
        previous, start = self._moment("previous"), self._moment("start")
        there = np.maximum(fetched, free)
        waits = {
            Stall.FETCH: there - free,
            Stall.PREVIOUS: previous - there,
            Stall.NEXT: start - previous,
            Stall.CHANNEL: self._channel_waits,
            Stall.TOKEN_QUEUE: self._moment("end") - self._moment("done"),
        }
        stages = self._fact("stage")
        return {
            stage: {stall: int(cycles[stages == stage].sum()) for stall, cycles in waits.items()}
            for stage in Stage
        }

    @functools.cached_property
    def idle(self) -> Mapping[Stage, int]:
        """Cycles in which each module has no further instruction."""
        waits = {stage: sum(stalls.values()) for stage, stalls in self.stalls.items()}
        return {stage: self.cycles - self.busy[stage] - waits[stage] for stage in Stage}

    @property
    def bound(self) -> Annotated[str | None, Key()]:
        """The module that limits the time: the one with the most busy cycles.

        LOAD, COMPUTE or STORE; null if none is busy.
        """
        busiest = max(Stage, key=lambda stage: self.busy[stage])
        return busiest.name if self.busy[busiest] else None

    @property
    def modules(self) -> Annotated[Mapping[str, ModuleTime], Key()]:
        """Times of the modules by name: LOAD, COMPUTE, STORE."""
        return {
            stage.name: ModuleTime(
                self.busy[stage],
                {kind.name: cycles for kind, cycles in self.work[stage].items()},
                self.stalls[stage],
                self.idle[stage],
            )
            for stage in Stage
        }

    @property
    def _channel_waits(self) -> NDArray[np.int64]:
        waits = self._moment("granted") - self._moment("start") - self._decoding
        return waits.clip(0)  # less than 0 where decoding began before a part

    @property
    def _decoding(self) -> NDArray[np.int64]:
        return np.where(self._fact("kind") == Kind.TOKENS, 0, self.parameters.decode)

    def _moment(self, name: str) -> NDArray[np.int64]:
        return self.moments[:, _MOMENT[name]]

    def _fact(self, name: str) -> NDArray[np.int64]:
        return self.facts[:, _FACT[name]]


@dataclass(frozen=True, eq=False)
class Timing(Activity):
    """The timing of a stream."""

    def interval(self, first: int, end: int) -> tuple[int, int]:
        """The cycles of the instructions from `first` on, before `end`: from the end of all before
        `first` to the end of all before `end`."""
        ends = self._moment("end")
        return int(ends[:first].max(initial=0)), int(ends[:end].max(initial=0))

    def part(self, first: int, end: int) -> Activity:
        """The timing of the instructions from `first` on, before `end`, in their `interval`."""
        moments = np.maximum(self.moments[first:end] - self.interval(first, end)[0], 0)
        return Activity(self.config, self.parameters, moments, self.facts[first:end])

    def __iter__(self) -> Iterator[Timed]:
        """Each instruction, in the order of the stream."""
        decoded = (self._moment("start") + self._decoding).tolist()
        rows = zip(self.moments.tolist(), self.facts.tolist(), decoded, strict=True)
        for index, (moments, facts, ready) in enumerate(rows):
            fetching = moments[0] - fetch_cycles(self.parameters)
            yield Timed(index, Moments(*moments), Facts(*facts), fetching, ready)

    @functools.cached_property
    def fetch_stall(self) -> Annotated[Count, Key("fetch_waits", before="modules")]:
        """Cycles in which instruction fetch is stalled.

        The command queue is full then.
        """
        if not len(self.moments):
            return 0
        last = int(self._moment("fetched")[-1])
        needed = fetch_cycles(self.parameters)
        return last - self.parameters.latency - needed * len(self.moments)


def joined(parts: Sequence[Activity], config: Config, parameters: Parameters) -> Activity:
    """Parts as one, one after the other; there may be none."""
    starts = itertools.accumulate((one.cycles for one in parts), initial=0)
    moments = [one.moments + start for one, start in zip(parts, starts, strict=False)]
    return Activity(
        config,
        parameters,
        np.concatenate([np.zeros((0, len(Moments._fields)), np.int64), *moments]),
        np.concatenate([np.zeros((0, len(Facts._fields)), np.int64), *(p.facts for p in parts)]),
    )


def _waits(*found: tuple[Stall, int, int]) -> list[Wait]:
    return [Wait(*one) for one in found if one[1] < one[2]]


_MOMENT = {name: column for column, name in enumerate(Moments._fields)}
_FACT = {name: column for column, name in enumerate(Facts._fields)}


def fetch_cycles(parameters: Parameters) -> int:
    """Cycles that the fetch of one instruction takes."""
    return -(-INSTRUCTION_BYTES // parameters.bus_bytes)


QUEUES: Sequence[TokenQueue] = tuple(dict.fromkeys(TOKEN_QUEUES.values()))
"""The four of them."""


class Token(NamedTuple):
    """A token, and the instructions (their indices) that gave and took it."""

    queue: TokenQueue
    giver: int
    given: int
    """The cycle in which it was given."""
    taker: int | None
    """The instruction that took it; None if it is left over."""
    taken: int


def tokens(timing: Timing) -> list[Token]:
    """Every token, queue after queue, in the order in which they go through it."""
    given: dict[TokenQueue, list[tuple[int, int]]] = {queue: [] for queue in QUEUES}
    taken: dict[TokenQueue, list[tuple[int, int]]] = {queue: [] for queue in QUEUES}
    for one in timing:
        stage = Stage(one.facts.stage)
        for bit in Dependencies(one.facts.dependencies):
            queue = TOKEN_QUEUES[stage, bit]
            if bit & PUSHES:
                given[queue].append((one.index, one.moments.end))
            elif bit & POPS:
                taken[queue].append((one.index, one.moments.start))
    found = []
    for queue in QUEUES:
        for place, (giver, when) in enumerate(given[queue]):
            if place < len(taken[queue]):
                found.append(Token(queue, giver, when, *taken[queue][place]))
            else:
                found.append(Token(queue, giver, when, None, 0))
    return found
