"""The fast engine: what `simulator.Simulator` does, in compiled code.

A stream is decoded, checked and put in order once, and cached by its bytes. The elements that
micro-ops name are checked before each run and again when they are executed, as a stream may change
them in memory. Where a stream is refused, or traced, the readable simulator takes over.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import DRAM_BASE, Config, MemoryId
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.fast import layout, paths
from potash_device.vta.fast.admission import QUEUE, STAGES, admit
from potash_device.vta.fast.execution import execute
from potash_device.vta.fast.foresight import SURE, foresee, gather
from potash_device.vta.fast.positions import TABLE_PAIRS
from potash_device.vta.fast.runs import KINDS, look_ahead
from potash_device.vta.isa import Alu, Gemm
from potash_device.vta.simulator import STEP_LIMIT, Event, Simulator
from potash_device.vta.stream import Order

KEPT_INSTRUCTIONS = 1 << 17
"""Of all the streams that are kept decoded: 15 MiB."""

ROOM = 512
"""Values: how long a piece ALU works on where one element is the source of many."""


class Seen(NamedTuple):
    """Micro-ops with which a stream was checked, and stays in its buffers."""

    held: NDArray[np.uint32]
    """What the micro-op buffer held before."""
    loaded: NDArray[np.uint32]


@dataclass(slots=True)
class Program:
    """A stream that may run: its instructions, and the order in which they execute."""

    rows: NDArray[np.int64]
    order: NDArray[np.int64]
    seen: Seen | None = None

    def micro_ops(self, geometry: layout.Geometry, dram: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """Those that it loads, as they are in DRAM now."""
        rows = self.rows
        of_uop = (rows[:, layout.OPCODE] == layout.LOAD) & (
            rows[:, layout.MEMORY_TYPE] == layout.UOP
        )
        loads = np.flatnonzero(of_uop & (rows[:, layout.X_SIZE] > 0))
        sizes = rows[loads, layout.X_SIZE] * rows[loads, layout.Y_SIZE]
        words = np.empty(sizes.sum(), np.uint32)
        gather(rows, loads, geometry, dram, words)
        return words


class FastSimulator:
    """A core's buffers, and the execution of streams in `dram`.

    As `Simulator`; the attributes `uop`, `inp`, `wgt` and `acc` are copies of the buffers in its
    shapes. `path` is one of `paths.OFFERS`, by default the best one that the processor has.
    Raises ValueError for one that it has not.
    """

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
        self._table = np.zeros((config.depth(MemoryId.UOP) + TABLE_PAIRS, 2), np.int32)
        self._room = paths.aligned(ROOM, np.int32)
        self._programs: OrderedDict[bytes, Program] = OrderedDict()
        self._kept = 0
        self.reset()

    def reset(self) -> None:
        config = self.config
        lanes = config.batch * config.block_out
        self._uop = paths.aligned(config.depth(MemoryId.UOP), np.uint32)
        self._foreseen = np.zeros_like(self._uop)
        self._ahead = np.ones((KINDS, self._uop.size), np.int64)
        self._acc = paths.aligned(config.depth(MemoryId.ACC) * lanes, np.int32)
        self._buffers = paths.make(self.path, config)

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
        sure = self._look(stream, program)
        failed = execute(
            program.rows,
            program.order,
            self._geometry,
            self._dram,
            self._uop,
            self._ahead,
            self._buffers,
            self._acc,
            self._table,
            self._room,
            sure,
        )
        if failed >= 0:
            self._refuse(stream, failed, self._uop)

    def adopt(self, other: Simulator) -> None:
        """Take over the buffers' contents of another engine of the same configuration."""
        self._uop[:] = other.uop
        look_ahead(self._uop, self._geometry, 0, self._uop.size, self._ahead)
        self._acc[:] = other.acc.reshape(-1)
        paths.set_tensors(self._buffers, other.inp, other.wgt)

    def keeps(self, stream: bytes) -> bool:
        """Whether a stream is kept decoded, as one that ran is."""
        return stream in self._programs

    def forget(self) -> None:
        self._programs.clear()
        self._kept = 0

    def _look(self, stream: bytes, program: Program) -> bool:
        """Whether it is sure that all micro-ops stay in their buffers; raises StreamError for those
        that do not. With the same micro-ops as before it is not checked again."""
        loaded = program.micro_ops(self._geometry, self._dram)
        seen = program.seen
        if seen and np.array_equal(seen.loaded, loaded) and np.array_equal(seen.held, self._uop):
            return True
        self._foreseen[:] = self._uop
        failed = foresee(program.rows, program.order, self._geometry, self._dram, self._foreseen)
        if failed >= 0:
            self._refuse(stream, failed, self._foreseen)
        program.seen = Seen(self._uop.copy(), loaded) if failed == SURE else None
        return program.seen is not None

    def _refuse(self, stream: bytes, index: int, micro_ops: NDArray[np.uint32]) -> None:
        """Raise StreamError for an instruction that `micro_ops` lead out of a buffer."""
        instruction = self._readable.decode(stream)[index]
        assert isinstance(instruction, Gemm | Alu)
        self._readable.uop[:] = micro_ops
        self._readable.check_indices(index, instruction)
        raise AssertionError(f"the engines do not agree on instruction {index}")

    def _program(self, stream: bytes) -> Program | None:
        """The stream, if it may run."""
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
        self._kept += program.order.size
        while self._kept > KEPT_INSTRUCTIONS:
            _, oldest = self._programs.popitem(last=False)
            self._kept -= oldest.order.size

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
