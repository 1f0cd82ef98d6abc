"""The VTA's clock in plain Python, with which `potash_device.vta.timing.clock` is compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from potash_device.vta import stream
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import Alu, Gemm, Instruction, Load, Stage, Store
from potash_device.vta.timing.clock import LONGEST
from potash_device.vta.timing.parameters import Parameters
from potash_device.vta.timing.result import Facts, Kind, Moments, Timing, fetch_cycles

TRANSFERS: Mapping[MemoryId, Kind] = {
    MemoryId.UOP: Kind.UOP,
    MemoryId.WGT: Kind.WGT,
    MemoryId.INP: Kind.INP,
    MemoryId.ACC: Kind.ACC,
    MemoryId.ACC_8BIT: Kind.ACC,
    MemoryId.OUT: Kind.OUT,
}


def simulate(config: Config, parameters: Parameters, instructions: Sequence[Instruction]) -> Timing:
    """The timing of each instruction. Raises StreamError if the stream cannot run."""
    stream.canonical_order(instructions)
    found = [facts(config, parameters, instruction) for instruction in instructions]
    moments = _Clock(parameters, instructions, found).run()
    return Timing(
        config,
        parameters,
        np.array(moments, np.int64).reshape(-1, len(Moments._fields)),
        np.array(found, np.int64).reshape(-1, len(Facts._fields)),
    )


def facts(config: Config, parameters: Parameters, instruction: Instruction) -> Facts:
    """The facts of an instruction, without any waiting."""
    kind, cycles, beats, size, products = Kind.TOKENS, parameters.token_cycles, 0, 0, 0
    match instruction:
        case Gemm():
            kind = Kind.RESET if instruction.reset else Kind.GEMM
            products = 0 if instruction.reset else instruction.steps
            cycles = (
                instruction.steps * parameters.gemm_interval
                + instruction.iter_out * instruction.iter_in * parameters.gemm_drain
                + parameters.gemm_fill
            )
        case Alu():
            kind = Kind.ALU
            immediate, register = parameters.alu_immediate_interval, parameters.alu_interval
            cycles = (
                instruction.steps * (immediate if instruction.use_imm else register)
                + instruction.iter_out * instruction.iter_in * parameters.alu_drain
                + parameters.alu_fill
            )
        case Load() | Store() if instruction.x_size:
            kind = TRANSFERS[instruction.memory_type]
            rows = instruction.y_size
            row_bytes = instruction.x_size * config.element_bytes(instruction.memory_type)
            row_beats = -(-row_bytes // parameters.bus_bytes)
            bursts = -(-row_bytes // parameters.burst_bytes)
            across = instruction.x_pad_0 + instruction.x_pad_1
            pad_rows = instruction.y_pad_0 + instruction.y_pad_1
            cycles = (
                rows * (row_beats + bursts * parameters.burst_cycles + parameters.latency)
                + pad_rows * (instruction.x_size + across)
                + rows * across
            )
            beats, size = rows * row_beats, rows * row_bytes
    bits = int(instruction.dependencies)
    return Facts(instruction.stage, kind, bits, cycles, beats, size, products)


@dataclass
class _Module:
    """One of the three that execute: what waits for it, and until when it is busy."""

    waiting: list[int]
    """Indices of its instructions, in their order."""
    begun: list[int] = field(default_factory=list)
    """Time at which each instruction so far left the command queue."""
    free: int = 0
    unfinished: Moments | None = None
    """The instruction that has done its work and still has tokens to give."""


@dataclass
class _Tokens:
    """A token queue: when the tokens that it ever had came and went."""

    given: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)


class _Clock:
    """One run of a stream. Time only goes forward: of all instructions that can begin, the one that
    begins first does, and LOAD before COMPUTE before STORE in the same cycle."""

    def __init__(
        self, parameters: Parameters, instructions: Sequence[Instruction], found: Sequence[Facts]
    ) -> None:
        self.parameters = parameters
        self.facts = found
        self.pops = [_queues(one, stream.POPS) for one in instructions]
        self.pushes = [_queues(one, stream.PUSHES) for one in instructions]
        self.modules = {
            stage: _Module([i for i, one in enumerate(instructions) if one.stage is stage])
            for stage in Stage
        }
        self.order = [instruction.stage for instruction in instructions]
        self.tokens = {queue: _Tokens() for queue in stream.TOKEN_QUEUES.values()}
        self.fetched: list[int] = []
        self.queued = dict.fromkeys(Stage, 0)
        self.channels = {"read": 0, "write": 0}
        self.moments: list[Moments | None] = [None] * len(instructions)

    def run(self) -> list[Moments]:
        while True:
            self._fetch()
            for stage in Stage:
                self._finish(stage)
            ready = [(moments.start, stage) for stage in Stage if (moments := self._next(stage))]
            if not ready:
                break
            self._execute(min(ready)[1])
        done = [moments for moments in self.moments if moments is not None]
        if len(done) < len(self.moments):
            raise stream.StreamError(
                self.moments.index(None),
                f"deadlock: command queues of {self.parameters.command_queue} instructions and "
                f"token queues of {self.parameters.token_queue} are too short for the stream",
            )
        return done

    def _fetch(self) -> None:
        """Fetch until the next instruction's command queue is full."""
        while len(self.fetched) < len(self.order):
            stage = self.order[len(self.fetched)]
            leaver = self.queued[stage] - self.parameters.command_queue
            begun = self.modules[stage].begun
            if leaver >= len(begun):
                break
            now = self.fetched[-1] if self.fetched else self.parameters.latency
            free = begun[leaver] if leaver >= 0 else 0
            self.fetched.append(max(now, free) + fetch_cycles(self.parameters))
            self.queued[stage] += 1

    def _next(self, stage: Stage) -> Moments | None:
        """Moments of a module's next instruction, if they are known."""
        module = self.modules[stage]
        place = len(module.begun)
        if module.unfinished or place == len(module.waiting):
            return None
        index = module.waiting[place]
        if index >= len(self.fetched):
            return None
        previous = max(module.free, self.fetched[index])
        start = previous
        for queue in self.pops[index]:
            tokens = self.tokens[queue]
            if len(tokens.taken) == len(tokens.given):
                return None
            token = tokens.given[len(tokens.taken)]
            start = max(start, token)
            if queue[0] < stage:
                previous = max(previous, token)
        return Moments(self.fetched[index], module.free, previous, start, start, start, start)

    def _execute(self, stage: Stage) -> None:
        """Begin a module's next instruction and do its work; its tokens are given later."""
        module = self.modules[stage]
        begins = self._next(stage)
        assert begins is not None
        index = module.waiting[len(module.begun)]
        for queue in self.pops[index]:
            self.tokens[queue].taken.append(begins.start)
        module.begun.append(begins.start)
        fact = self.facts[index]
        granted = begins.start
        if fact.kind != Kind.TOKENS:
            granted += self.parameters.decode
        if fact.beats:
            channel = "write" if stage is Stage.STORE else "read"
            granted = max(granted, self.channels[channel])
            self.channels[channel] = granted + fact.beats
        done = granted + fact.cycles
        if done > LONGEST:
            raise stream.StreamError(index, f"the stream takes more than {LONGEST} cycles")
        module.unfinished = begins._replace(granted=granted, done=done, end=done)

    def _finish(self, stage: Stage) -> None:
        """Give the tokens of a module's instruction, once it is known when none of their queues is
        full."""
        module = self.modules[stage]
        if module.unfinished is None:
            return
        index = module.waiting[len(module.begun) - 1]
        end = module.unfinished.done
        for queue in self.pushes[index]:
            tokens = self.tokens[queue]
            leaver = len(tokens.given) - self.parameters.token_queue
            if leaver >= len(tokens.taken):
                return
            end = max(end, tokens.taken[leaver] if leaver >= 0 else 0)
        for queue in self.pushes[index]:
            self.tokens[queue].given.append(end)
        self.moments[index] = module.unfinished._replace(end=end)
        module.free = end
        module.unfinished = None


def _queues(instruction: Instruction, which: int) -> list[stream.TokenQueue]:
    return [stream.TOKEN_QUEUES[instruction.stage, bit] for bit in instruction.dependencies & which]
