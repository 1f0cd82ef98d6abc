"""The readable simulator: the function of each instruction, in plain numpy.

It is the specification of the core and the oracle that faster engines are compared with. A stream
is decoded whole, ordered (`stream`) and checked before its first instruction executes; GEMM and ALU
check again where micro-ops lead, as a stream may write those itself.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", sections 2.5 (figures 7 and 8) and
2.6 (figure 9); the platform's document, chapter "VTA accelerator"."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import DRAM_BASE, Config, MemoryId
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Alu, AluOpcode, Gemm, Instruction, Load, MemoryInstruction, Store
from potash_device.vta.stream import Order, StreamError, decode_stream, execution_order

STEP_LIMIT = 1 << 28
"""Micro-ops that one stream may execute: 2.7 s of a core at 100 MHz. The loop counters of a single
instruction reach 2^41; the limit is the watchdog that keeps such a stream from running for days."""

CHUNK_STEPS = 4096
"""Micro-ops whose indices are computed at a time, which bounds the memory that takes."""

IndexArray = NDArray[np.int64]
Accumulators = NDArray[np.int32]


@dataclass(frozen=True)
class Event:
    """An instruction that is about to execute, and its index in the stream."""

    index: int
    instruction: Instruction


class Indices(NamedTuple):
    """Element indices of successive micro-ops, in the order in which they execute."""

    dst: IndexArray
    src: IndexArray
    wgt: IndexArray


def _shift_right(value: Accumulators, amount: Accumulators) -> Accumulators:
    """Arithmetic; a negative amount shifts left. Only the low five bits of the distance count."""
    return np.where(amount >= 0, value >> (amount & 31), value << (-amount & 31))


ALU_OPERATIONS: Mapping[AluOpcode, Callable[[Accumulators, Accumulators], Accumulators]] = {
    AluOpcode.MIN: np.minimum,
    AluOpcode.MAX: np.maximum,
    AluOpcode.ADD: np.add,
    AluOpcode.SHR: _shift_right,
    AluOpcode.MUL: np.multiply,
}
"""32-bit operations; ADD and MUL keep the low 32 bits."""


class Simulator:
    """A core's buffers, and the execution of streams in `dram`.

    `dram` is writable bytes, the first of them at physical address `base`. Buffers keep their
    contents from stream to stream; tokens do not.
    """

    is_compiled = False
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
    ) -> None:
        if dram.readonly:
            raise ValueError("the VTA's DRAM must be writable")
        if not dram.nbytes:
            raise ValueError("the VTA's DRAM must have at least one byte")
        if base < 0:
            raise ValueError(f"the VTA's DRAM cannot begin at {base}")
        self.config = config
        self.base = base
        self.step_limit = step_limit
        self.order = order
        self._dram = np.frombuffer(dram.cast("B"), np.uint8)
        self._formats = _dram_formats(config)
        self.reset()

    def reset(self) -> None:
        config = self.config
        inp_type, wgt_type = (self._formats[m][0] for m in (MemoryId.INP, MemoryId.WGT))
        self.uop: NDArray[np.uint32] = np.zeros(config.depth(MemoryId.UOP), "<u4")
        self.inp: NDArray[Any] = np.zeros(
            (config.depth(MemoryId.INP), config.batch, config.block_in), inp_type
        )
        self.wgt: NDArray[Any] = np.zeros(
            (config.depth(MemoryId.WGT), config.block_out, config.block_in), wgt_type
        )
        self.acc: Accumulators = np.zeros(
            (config.depth(MemoryId.ACC), config.batch, config.block_out), "<i4"
        )
        self._buffers: Mapping[MemoryId, NDArray[Any]] = {
            MemoryId.UOP: self.uop,
            MemoryId.INP: self.inp,
            MemoryId.WGT: self.wgt,
            MemoryId.ACC: self.acc,
            MemoryId.ACC_8BIT: self.acc,
        }

    def run(self, address: int, count: int) -> None:
        """Execute the stream of `count` instructions at physical `address`. Raises StreamError."""
        self.execute(self.fetch(address, count))

    def execute(self, stream: bytes) -> None:
        """Execute a stream that was fetched already. Raises StreamError."""
        instructions = decode_stream(stream, self.config)
        order = execution_order(instructions, self.order)
        for index, instruction in enumerate(instructions):
            self._check(index, instruction)
        self._check_steps(instructions)
        self._foresee(instructions, order)
        for index in order:
            instruction = instructions[index]
            if self.trace is not None:
                self.trace(Event(index, instruction))
            match instruction:
                case Load():
                    self._load(instruction)
                case Store():
                    self._store(instruction)
                case Gemm():
                    self._gemm(index, instruction)
                case Alu():
                    self._alu(index, instruction)

    def fetch(self, address: int, count: int) -> bytes:
        """The bytes of `count` instructions at physical `address`. Raises StreamError."""
        offset = address - self.base
        size = count * INSTRUCTION_BYTES
        if address % INSTRUCTION_BYTES:
            raise StreamError(0, f"the stream's address {address:#x} is not 16-byte aligned")
        if offset < 0 or offset + size > self._dram.size:
            raise StreamError(0, f"the stream at {address:#x} is not in DRAM")
        return self._dram[offset : offset + size].tobytes()

    def _check(self, index: int, instruction: Instruction) -> None:
        """All that can be said about an instruction before any micro-op is known."""
        match instruction:
            case Load() | Store():
                # Without columns it moves nothing and only carries tokens; runtimes give such an
                # instruction whichever memory type they like.
                if instruction.x_size:
                    _check_memory_type(index, instruction)
                    self._check_rectangle(index, instruction)
            case Gemm() | Alu():
                if instruction.uop_bgn > instruction.uop_end:
                    raise StreamError(index, "uop_bgn is above uop_end")
                if instruction.uop_end > self.uop.size:
                    raise StreamError(
                        index,
                        f"uop_end {instruction.uop_end} is past the {self.uop.size} "
                        "micro-ops of the buffer",
                    )

    def _check_rectangle(self, index: int, instruction: MemoryInstruction) -> None:
        """Check that the rectangle fits into its buffer, and its rows into DRAM."""
        memory = instruction.memory_type
        width = instruction.x_pad_0 + instruction.x_size + instruction.x_pad_1
        height = instruction.y_pad_0 + instruction.y_size + instruction.y_pad_1
        end = instruction.sram_base + width * height
        if end > self.config.depth(memory):
            raise StreamError(
                index, f"element {end - 1} is past the {self.config.depth(memory)} of {memory.name}"
            )
        if instruction.y_size:
            first, end = self._reach(instruction)
            if first < 0 or end > self._dram.size:
                raise StreamError(
                    index,
                    f"physical addresses {self.base + first:#x} to {self.base + end - 1:#x} "
                    "are not in DRAM",
                )

    def _check_steps(self, instructions: Sequence[Instruction]) -> None:
        steps = 0
        for index, instruction in enumerate(instructions):
            if isinstance(instruction, Gemm | Alu):
                steps += instruction.steps
                if steps > self.step_limit:
                    raise StreamError(
                        index, f"the stream executes more than {self.step_limit} micro-ops"
                    )

    def _foresee(self, instructions: Sequence[Instruction], order: Sequence[int]) -> None:
        """Look where micro-ops lead before anything executes, as long as their loads read what no
        STORE before them may have written."""
        first, end = self._dram.size, 0  # the bytes of DRAM between which there were stores
        before = self.uop.copy()
        try:
            for index in order:
                match instructions[index]:
                    case Load(memory_type=MemoryId.UOP) as load if load.x_size:
                        low, high = self._reach(load)
                        if low < end and high > first and load.y_size:
                            return
                        self._load(load)
                    case Store() as store if store.x_size and store.y_size:
                        low, high = self._reach(store)
                        first, end = min(first, low), max(end, high)
                    case Gemm() | Alu() as loops:
                        self.check_indices(index, loops)
        finally:
            self.uop[:] = before

    def _reach(self, instruction: MemoryInstruction) -> tuple[int, int]:
        """Offsets in DRAM of a rectangle's first byte and of the byte after its last one."""
        element = self.config.element_bytes(instruction.memory_type)
        rows = (instruction.y_size - 1) * instruction.x_stride
        first = instruction.dram_base * element - self.base
        return first, first + (rows + instruction.x_size) * element

    def _load(self, load: Load) -> None:
        if load.x_size == 0:
            return
        buffer = self._buffers[load.memory_type]
        width = load.x_pad_0 + load.x_size + load.x_pad_1
        height = load.y_pad_0 + load.y_size + load.y_pad_1
        rectangle = buffer[load.sram_base : load.sram_base + width * height]
        dtype, shape = self._formats[load.memory_type]
        rectangle[...] = 0
        first = load.y_pad_0 * width + load.x_pad_0
        for row, dram in enumerate(self._dram_rows(load)):
            at = first + row * width
            rectangle[at : at + load.x_size] = dram.view(dtype).reshape(-1, *shape)

    def _store(self, store: Store) -> None:
        if store.x_size == 0:
            return
        dtype, _ = self._formats[MemoryId.OUT]
        for row, dram in enumerate(self._dram_rows(store)):
            at = store.sram_base + row * store.x_size
            dram[:] = self.acc[at : at + store.x_size].astype(dtype).reshape(-1).view(np.uint8)

    def _dram_rows(self, instruction: MemoryInstruction) -> Iterator[NDArray[np.uint8]]:
        element = self.config.element_bytes(instruction.memory_type)
        at = instruction.dram_base * element - self.base
        for _ in range(instruction.y_size):
            yield self._dram[at : at + instruction.x_size * element]
            at += instruction.x_stride * element

    def _gemm(self, index: int, gemm: Gemm) -> None:
        """acc[dst][b][o] += sum over i of inp[src][b][i] * wgt[wgt][o][i], modulo 2^32.

        Sums modulo 2^32 do not depend on their order and GEMM reads nothing that it writes, so a
        chunk of steps is computed at once.
        """
        if not gemm.steps:
            return
        self.check_indices(index, gemm)
        micro_ops = self._micro_ops(gemm)
        for step in _steps(gemm, micro_ops):
            if gemm.reset:
                self.acc[step.dst] = 0
            else:
                inp = self.inp[step.src].astype(np.int32)
                wgt = self.wgt[step.wgt].astype(np.int32)
                np.add.at(self.acc, step.dst, inp @ wgt.transpose(0, 2, 1))

    def _alu(self, index: int, alu: Alu) -> None:
        """acc[dst] = operation(acc[dst], acc[src] or the immediate), micro-op after micro-op.

        What one micro-op writes the next may read; only where none does are they computed at once.
        """
        if not alu.steps:
            return
        self.check_indices(index, alu)
        micro_ops = self._micro_ops(alu)
        operation = ALU_OPERATIONS[alu.alu_opcode]
        immediate = np.full(1, alu.imm, np.int32)
        for step in _steps(alu, micro_ops):
            src = step.dst if alu.use_imm else step.src
            for part in self._independent_parts(step.dst, src):
                dst = step.dst[part]
                operand = immediate if alu.use_imm else self.acc[src[part]]
                self.acc[dst] = operation(self.acc[dst], operand)

    def _independent_parts(self, dst: IndexArray, src: IndexArray) -> Iterator[slice]:
        """Cut successive steps into pieces in which no step touches what an earlier one wrote."""
        position = np.arange(dst.size)
        written_by = np.full(len(self.acc), dst.size)
        written_by[dst] = position
        if np.array_equal(written_by[dst], position) and not np.any(written_by[src] < position):
            yield slice(0, dst.size)
        else:
            yield from (slice(at, at + 1) for at in range(dst.size))

    def check_indices(self, index: int, instruction: Gemm | Alu) -> None:
        """Check that the elements that micro-ops name are in the buffers. Raises StreamError."""
        if not instruction.steps:
            return
        micro_ops = self._micro_ops(instruction)
        self._check_index(index, MemoryId.ACC, micro_ops.dst, instruction, "dst")
        if isinstance(instruction, Alu):
            if not instruction.use_imm:
                self._check_index(index, MemoryId.ACC, micro_ops.src, instruction, "src")
        elif not instruction.reset:
            self._check_index(index, MemoryId.INP, micro_ops.src, instruction, "src")
            self._check_index(index, MemoryId.WGT, micro_ops.wgt, instruction, "wgt")

    def _micro_ops(self, instruction: Gemm | Alu) -> Indices:
        words = self.uop[instruction.uop_bgn : instruction.uop_end].astype(np.int64)
        fields = self.config.layouts.micro_op.by_name
        return Indices(*(words >> fields[n].low & fields[n].mask for n in Indices._fields))

    def _check_index(
        self, index: int, memory: MemoryId, base: IndexArray, loops: Gemm | Alu, name: str
    ) -> None:
        """The greatest index that the loops reach: nothing in them is negative."""
        greatest = (
            int(base.max())
            + (loops.iter_out - 1) * getattr(loops, f"{name}_factor_out")
            + (loops.iter_in - 1) * getattr(loops, f"{name}_factor_in")
        )
        if greatest >= self.config.depth(memory):
            raise StreamError(
                index,
                f"{name} index {greatest} is past the {self.config.depth(memory)} "
                f"elements of {memory.name}",
            )


def _check_memory_type(index: int, instruction: Load | Store) -> None:
    memory = instruction.memory_type
    if isinstance(instruction, Load):
        if memory == MemoryId.OUT:
            raise StreamError(index, "LOAD cannot write OUT")
        return
    if memory != MemoryId.OUT:
        raise StreamError(index, f"STORE cannot read {memory.name}")
    if any((instruction.y_pad_0, instruction.y_pad_1, instruction.x_pad_0, instruction.x_pad_1)):
        raise StreamError(index, "STORE cannot pad")


def _steps(loops: Gemm | Alu, micro_ops: Indices) -> Iterator[Indices]:
    """Indices of all steps, a chunk at a time: the outer loop, in it the inner loop, in it the
    micro-ops."""
    for first in range(0, loops.steps, CHUNK_STEPS):
        step = np.arange(first, min(first + CHUNK_STEPS, loops.steps))
        iteration, micro_op = np.divmod(step, micro_ops.dst.size)
        outer, inner = np.divmod(iteration, loops.iter_in)
        dst = outer * loops.dst_factor_out + inner * loops.dst_factor_in
        src = outer * loops.src_factor_out + inner * loops.src_factor_in
        wgt = micro_ops.wgt[micro_op]
        if isinstance(loops, Gemm):
            wgt = wgt + outer * loops.wgt_factor_out + inner * loops.wgt_factor_in
        yield Indices(micro_ops.dst[micro_op] + dst, micro_ops.src[micro_op] + src, wgt)


def _dram_formats(config: Config) -> Mapping[MemoryId, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Type and shape of an element of each memory in DRAM."""

    def dtype(memory: MemoryId) -> np.dtype[Any]:
        sign = "u" if memory is MemoryId.UOP else "i"
        return np.dtype(f"<{sign}{config.value_bits(memory) // 8}")

    return {memory: (dtype(memory), config.element_shape(memory)) for memory in MemoryId}
