"""The fast engine: it executes streams as `simulator.Simulator` does, in compiled code.

A stream is decoded, checked and put in order once, and cached by its bytes. The elements that
micro-ops name are checked before a run, and the steps that they lead to are kept for as long as the
micro-ops are the same. Where a stream may change them itself, they are checked and become steps as
they are executed. Where a stream is refused, or traced, the readable simulator takes over.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import DRAM_BASE, Config, MemoryId
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.fast import layout, paths
from potash_device.vta.fast import steps as steps_
from potash_device.vta.fast.admission import QUEUE, STAGES, admit
from potash_device.vta.fast.binding import Bound
from potash_device.vta.fast.division import Division, divide
from potash_device.vta.fast.execution import CHANGED, LINE, NOTHING, WHOLE, Planned, Work, run
from potash_device.vta.fast.foresight import SURE, foresee, gather
from potash_device.vta.fast.lowering import lower
from potash_device.vta.fast.team import Pace, Team
from potash_device.vta.isa import Alu, Gemm
from potash_device.vta.simulator import STEP_LIMIT, Event, Simulator
from potash_device.vta.stream import Order, decode_stream

KEPT_INSTRUCTIONS = 1 << 18
"""Maximum number of instructions and steps of all cached streams: 25 MiB, plus the steps' pairs."""

MOST_STEPS = 1 << 17
MOST_PAIRS = 1 << 20
"""Maximum numbers for a stream whose steps are cached."""
STEPS_AT_ONCE, PAIRS_AT_ONCE = 1 << 12, 1 << 16
"""Maximum numbers that are lowered at a time for a stream whose steps are not cached."""


WORTH = 300_000
"""Nanoseconds that several threads have to save for a stream, at least: it takes 0.05 to 0.2 ms
until a sleeping thread begins."""


DIVIDED_AT = 5
"""The run of a stream in which it is divided. That takes as long as four runs of ResNet-18 do."""


class Plan(NamedTuple):
    """The steps of a stream with certain micro-ops, none of which leads out of its buffer."""

    loaded: NDArray[np.uint32]
    """The micro-ops that it loads, as they are in DRAM."""
    held: NDArray[np.uint32] | None
    """The micro-op buffer before the stream; None where the stream uses only what it loads."""
    steps: steps_.Sink
    after: NDArray[np.uint32]
    """The micro-op buffer afterwards, valid where `written` is True: those elements the stream
    loads."""
    written: NDArray[np.bool_]


@dataclass(slots=True)
class Program:
    """A stream that may run: its instructions, and the order in which they execute."""

    rows: NDArray[np.int64]
    order: NDArray[np.int64]
    plan: Plan | None = None
    is_long: bool = False
    """It has too many steps to cache them."""
    division: Division | None = None
    """The plan's division among threads, once it has run `divided_at` times."""
    shares: tuple[Bound, ...] = ()
    """The execution of each part of the division, by the team's threads."""
    alone: Bound | None = None
    """The execution of the plan in one thread."""
    runs: int = 0
    """Runs of the plan."""
    pace: Pace = field(default_factory=Pace)
    loads: NDArray[np.int64] | None = None
    """The numbers of its loads of micro-ops, without duplicates."""

    @property
    def size(self) -> int:
        """Instructions and steps."""
        steps = self.plan.steps.steps.shape[0] if self.plan else 0
        return self.order.size + steps + (self.division.size if self.division else 0)

    def micro_ops(self, geometry: layout.Geometry, dram: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """The micro-ops that it loads, as they are in DRAM now."""
        rows = self.rows
        if self.loads is None:
            of_uop = (rows[:, layout.OPCODE] == layout.LOAD) & (
                rows[:, layout.MEMORY_TYPE] == layout.UOP
            )
            loads = np.flatnonzero(of_uop & (rows[:, layout.X_SIZE] > 0))
            places = rows[loads, layout.DRAM_BASE : layout.X_STRIDE + 1]
            self.loads = loads[np.unique(places, axis=0, return_index=True)[1]]
        sizes = rows[self.loads, layout.X_SIZE] * rows[self.loads, layout.Y_SIZE]
        words = np.empty(sizes.sum(), np.uint32)
        gather(rows, self.loads, geometry, dram, words)
        return words


class FastSimulator:
    """A core's buffers, and the execution of streams in `dram`.

    It has the interface of `Simulator`; the attributes `uop`, `inp`, `wgt` and `acc` are copies of
    the buffers in the same shapes. `path` is one of `paths.OFFERS`, by default the best one that
    the processor has. A stream that is executed again and again is divided among `threads`, unless
    it was slower so. Raises ValueError for a path that the processor has not.
    """

    worth, divided_at = WORTH, DIVIDED_AT
    """Tests change these to divide any stream immediately."""

    is_compiled = True
    trace: Callable[[Event], None] | None = None
    """Called before each instruction, when set."""

    def __init__(
        self,
        config: Config,
        dram: memoryview,
        base: int = DRAM_BASE,
        *,
        step_limit: int = STEP_LIMIT,
        order: Order = Order.TOKENS,
        path: str | None = None,
        threads: int = 1,
    ) -> None:
        self._readable = Simulator(config, dram, base, step_limit=step_limit, order=order)
        self.config = config
        offered = paths.available(config)
        if path is not None and path not in offered:
            raise ValueError(
                f"this processor and core have no VTA path {path!r}; there is {', '.join(offered)}"
            )
        self.path = path or offered[0]
        self._dram = np.frombuffer(dram.cast("B"), np.uint8)
        self._fields = layout.fields(config)
        self._geometry = layout.geometry(config, base, step_limit)
        self._in_order = order is Order.PROGRAM
        self._sink = steps_.sink(config, STEPS_AT_ONCE, PAIRS_AT_ONCE)
        self._programs: OrderedDict[bytes, Program] = OrderedDict()
        self._kept = 0
        self.threads = threads
        self._team: Team | None = None
        self._progress = np.zeros(LINE, np.int64)
        self.reset()

    def reset(self) -> None:
        config = self.config
        lanes = config.batch * config.block_out
        self._uop = paths.aligned(config.depth(MemoryId.UOP), np.uint32)
        self._foreseen = np.zeros_like(self._uop)
        self._acc = paths.aligned(config.depth(MemoryId.ACC) * lanes, np.int32)
        self._buffers = paths.make(self.path, config)
        self.forget()  # their steps are bound to the buffers before

    @property
    def uop(self) -> NDArray[np.uint32]:
        return self._uop.copy()

    @property
    def inp(self) -> NDArray[Any]:
        """INP, of shape (elements, batch, block_in)."""
        return paths.inp_of(self._buffers, self.config)

    @property
    def wgt(self) -> NDArray[Any]:
        """WGT, of shape (elements, block_out, block_in)."""
        return paths.wgt_of(self._buffers, self.config)

    @property
    def acc(self) -> NDArray[np.int32]:
        """ACC, of shape (elements, batch, block_out)."""
        return self._acc.reshape(-1, self.config.batch, self.config.block_out).copy()

    def run(self, address: int, count: int) -> None:
        self.execute(self._readable.fetch(address, count))

    def execute(self, stream: bytes) -> None:
        program = self._program(stream)
        if program is None or self.trace is not None:
            self._execute_readable(stream)
            return
        alone = program.alone
        if alone is None or self._may_divide(program) or alone(0, 0) == CHANGED:
            self._execute_anew(stream, program)

    def _may_divide(self, program: Program) -> bool:
        """False where a stream is executed in one thread from now on."""
        undecided = program.division is not None or program.runs < self.divided_at
        return self.threads > 1 and undecided

    def _execute_anew(self, stream: bytes, program: Program) -> None:
        """Execute a stream whose steps may not be those of its micro-ops now."""
        plan = self._plan(stream, program)
        if plan is None or program.alone is None:
            self._interpret(stream, program)
            return
        began = time.perf_counter()
        divided = self.threads > 1 and self._execute_divided(stream, program, plan)
        if divided:
            np.copyto(self._uop, plan.after, where=plan.written)
        else:
            program.alone(0, 0)
        program.pace.took(time.perf_counter() - began, divided=divided)

    def adopt(self, other: Simulator) -> None:
        """Take over the buffers' contents of another engine of the same configuration."""
        self._uop[:] = other.uop
        self._acc[:] = other.acc.reshape(-1)
        paths.set_tensors(self._buffers, other.inp, other.wgt)

    def keeps(self, stream: bytes) -> bool:
        """True for a stream that is cached decoded, as one that has run."""
        return stream in self._programs

    def forget(self) -> None:
        self._programs.clear()
        self._kept = 0

    def _plan(self, stream: bytes, program: Program) -> Plan | None:
        """The steps of a stream, cached or computed; None where they depend on micro-ops that it
        writes itself, or are too many. Raises StreamError for micro-ops that lead out of their
        buffers."""
        loaded = program.micro_ops(self._geometry, self._dram)
        plan = program.plan
        if (
            plan
            and np.array_equal(plan.loaded, loaded)
            and (plan.held is None or np.array_equal(plan.held, self._uop))
        ):
            return plan
        self._foreseen[:] = self._uop
        failed = foresee(program.rows, program.order, self._geometry, self._dram, self._foreseen)
        if failed >= 0:
            self._refuse(stream, failed, self._foreseen)
        plan = self._record(program, loaded) if failed == SURE and not program.is_long else None
        before = program.size
        program.plan, program.division, program.runs = plan, None, 0
        program.shares, program.alone = (), None
        if plan is not None:
            held = NOTHING.held if plan.held is None else plan.held
            loads = program.rows[program.loads], loaded.view(np.uint8)
            written = np.where(plan.written, ~np.uint32(0), np.uint32(0))
            planned = Planned(*loads, held, plan.after, written)
            program.alone = Bound(run, self._work(plan.steps, planned))
        self._grow(stream, program.size - before)
        return plan

    def _work(self, sink: steps_.Sink, planned: Planned = NOTHING) -> Work:
        return Work(
            sink,
            self._geometry,
            self._dram,
            self._uop,
            self._buffers,
            self._acc,
            WHOLE,
            self._progress,
            planned,
        )

    def _grow(self, stream: bytes, by: int) -> None:
        """Account for a change in the number of steps of a stream, if it is cached."""
        if self.keeps(stream):
            self._kept += by
            self._drop()

    def _record(self, program: Program, loaded: NDArray[np.uint32]) -> Plan | None:
        """The steps of a stream whose micro-ops are known."""
        sink = steps_.sink(self.config, MOST_STEPS, MOST_PAIRS)
        after, written = self._uop.copy(), np.zeros(self._uop.size, np.bool_)
        place = self._lower(program, 0, after, written, sink, recording=True)
        if place < program.order.size:
            program.is_long = True
            return None
        steps = sink.steps[: sink.filled[steps_.STEPS]].copy()
        pairs = sink.pairs[: sink.filled[steps_.FILLED_PAIRS]].copy()
        held = self._uop.copy() if sink.filled[steps_.OTHERS] else None
        return Plan(loaded, held, sink._replace(steps=steps, pairs=pairs), after, written)

    def _interpret(self, stream: bytes, program: Program) -> None:
        """Execute a stream whose steps are not kept. Raises StreamError where micro-ops lead out of
        their buffer; the instructions before these have been executed."""
        sink, place = self._sink, 0
        sink.zeroed[:] = 0
        sink.filled[steps_.ITERATION] = 0
        written = np.zeros(self._uop.size, np.bool_)
        execute = Bound(run, self._work(sink))
        while place < program.order.size:
            steps_.clear(sink)
            place = self._lower(program, place, self._uop, written, sink, recording=False)
            execute(0, 0)
            if sink.filled[steps_.FAILED]:
                self._refuse(stream, int(program.order[place]), self._uop)

    def _lower(
        self,
        program: Program,
        place: int,
        uop: NDArray[np.uint32],
        written: NDArray[np.bool_],
        sink: steps_.Sink,
        *,
        recording: bool,
    ) -> int:
        where = self._geometry, self._dram
        done: int = lower(program.rows, program.order, place, *where, uop, written, recording, sink)
        return done

    def _execute_divided(self, stream: bytes, program: Program, plan: Plan) -> bool:
        """Execute a stream's steps in several threads. False, with nothing done, where that is not
        worth it."""
        program.runs += 1
        if program.runs == self.divided_at:
            program.division = divide(
                plan.steps, self._geometry, self.config, self.threads, self.worth
            )
            self._grow(stream, program.division.size if program.division else 0)
        if program.division is None or (program.pace.rests() and self.worth > 0):
            return False
        if self._team is None or not self._team.is_whole:
            try:
                self._team = Team(self.threads, self.path, self.config)
            except RuntimeError:
                self.threads = 1
                return False
            for other in self._programs.values():
                other.shares = ()
        team, self._team = self._team, None
        if not program.shares:
            program.shares = team.shares(program.division, self._work(plan.steps))
        team.execute(program.division, program.shares, self._buffers, self._acc)
        self._team = team  # but where it was interrupted
        return True

    def _refuse(self, stream: bytes, index: int, micro_ops: NDArray[np.uint32]) -> None:
        """Raise StreamError for an instruction whose `micro_ops` lead out of a buffer."""
        instruction = decode_stream(stream, self.config)[index]
        assert isinstance(instruction, Gemm | Alu)
        self._readable.uop[:] = micro_ops
        self._readable.check_indices(index, instruction)
        raise AssertionError(f"the engines do not agree on instruction {index}")

    def _program(self, stream: bytes) -> Program | None:
        """The decoded stream; None where it may not run."""
        found = self._programs.get(stream)
        if found is not None:
            self._programs.move_to_end(stream)
            return found
        count, rest = divmod(len(stream), INSTRUCTION_BYTES)
        if rest:
            return None
        words = np.frombuffer(stream, "<u8").reshape(-1, 2)
        program = Program(np.zeros((count, layout.COLUMNS), np.int64), np.zeros(count, np.int64))
        admitted = admit(
            words,
            self._fields,
            self._geometry,
            self._dram.size,
            self._in_order,
            program.rows,
            program.order,
            np.zeros((STAGES, QUEUE + count), np.int64),
        )
        if not admitted:
            return None
        self._keep(stream, program)
        return program

    def _keep(self, stream: bytes, program: Program) -> None:
        self._programs[stream] = program
        self._kept += program.size
        self._drop()

    def _drop(self) -> None:
        """Drop the least recently used streams while there are too many."""
        while self._kept > KEPT_INSTRUCTIONS:
            _, oldest = self._programs.popitem(last=False)
            self._kept -= oldest.size

    def _execute_readable(self, stream: bytes) -> None:
        readable = self._readable
        readable.uop[:] = self._uop
        readable.inp[:] = self.inp
        readable.wgt[:] = self.wgt
        readable.acc[:] = self.acc
        readable.trace = self.trace
        try:
            readable.execute(stream)
        finally:
            self.adopt(readable)
