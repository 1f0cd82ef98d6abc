"""ADD of two int8 tensors of one shape.

The reference kernel (`tflite/kernels/add.cc`, `internal/reference/add.h`) brings both operands to
one scale, left-shifted by 20 bits, adds them, and scales the sum down to the output. An operand has
256 values only, so the host looks the scaled 32-bit ones up in a table while it packs; the sum and
its requantisation run on the VTA's ALU.

The tensors are cut into tiles that two virtual threads take in turn, each in its own half of the
accumulator memory ("VTA: An Open Hardware-Software Stack for Deep Learning", section 3, latency
hiding): one tile is stored while the next is loaded and computed, and tokens between COMPUTE and
STORE keep a tile from being overwritten before it is out.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import AluOpcode, MicroOp, Stage
from potash_firmware.tflite.capi import AddOptions, Allocation, Array, Node, TensorType
from potash_firmware.tflite.operators.requantization import (
    SCRATCH,
    Constant,
    Register,
    Requantization,
    Step,
    requantization,
)
from potash_firmware.tflite.quantization import (
    INT8_MAX,
    INT8_MIN,
    Addition,
    Multiplier,
    QuantizationError,
    activation_range,
    multiply,
    quantize_addition,
)
from potash_firmware.vta_runtime import AluKernel, Buffer, GemmKernel, Loop, Runtime

# What the operands are shifted left by before they are scaled (add.cc: left_shift, for int8).
LEFT_SHIFT = 20

THREADS = 2

# Tiles of one stream: what bounds the shared memory that an addition takes, however long it is.
STREAM_TILES = 16

Table = npt.NDArray[np.int32]


class Tile(NamedTuple):
    """A range of vectors within one stream's buffers, and the virtual thread that computes it."""

    thread: int
    first: int
    vectors: int


def scaling(node: Node) -> Addition:
    """The factors of an addition. Raises QuantizationError where TensorFlow Lite has none."""
    left, right = node.inputs
    output = node.outputs[0]
    assert left and right and output
    return quantize_addition(left.scale, right.scale, output.scale, LEFT_SHIFT)


def output_range(node: Node) -> tuple[int, int]:
    """What the output is clamped to. Raises QuantizationError for what is not a clamp."""
    output = node.outputs[0]
    assert output and node.options
    return activation_range(node.options.activation, output.scale, output.zero_point)


def supports(node: Node, config: Config) -> str | None:
    """Why the VTA does not run this addition; None when it does."""
    tensors = (*node.inputs, *node.outputs)
    if len(node.inputs) != 2 or len(node.outputs) != 1 or None in tensors:
        return "an addition has two inputs and one output"
    for tensor in tensors:
        assert tensor is not None
        if tensor.type != TensorType.INT8:
            return f"tensor {tensor.name!r} is not int8"
        if tensor.variable:
            return f"tensor {tensor.name!r} is a variable"
        if tensor.allocation == Allocation.DYNAMIC:
            return f"the shape of tensor {tensor.name!r} is not known before it runs"
        if tensor.scale == 0:
            return f"tensor {tensor.name!r} has no scale for the whole of it"
        if not INT8_MIN <= tensor.zero_point <= INT8_MAX:
            return f"the zero point of tensor {tensor.name!r} is not an int8"
    if len({tensor.shape for tensor in tensors if tensor}) != 1:
        return "the shapes differ, and broadcasting is not done"
    if not isinstance(node.options, AddOptions):
        return "the addition has no options"
    try:
        scaling(node)
        output_range(node)
    except QuantizationError as error:
        return str(error)
    if config.element_bytes(MemoryId.OUT) * 4 != config.element_bytes(MemoryId.ACC):
        return "the VTA's outputs are not 8 bits wide"
    if tile_limit(config) < 1:
        return "the VTA's accumulator memory is too small"
    return None


def tile_limit(config: Config) -> int:
    """The vectors of the longest tile: every thread has each register that long."""
    return (config.depth(MemoryId.ACC) - len(Constant)) // (THREADS * len(Register))


def operand_table(scaled: Multiplier, zero_point: int) -> Table:
    """The scaled operand for each byte that an int8 can be."""
    values = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int64)
    return multiply((values - zero_point) << LEFT_SHIFT, scaled).astype(np.int32)


def plan(node: Node, config: Config) -> "AddPlan":
    """Make a node ready that `supports` has no objection to."""
    left, right = node.inputs
    output = node.outputs[0]
    assert left and right and output
    multipliers = scaling(node)
    low, high = output_range(node)
    vector = config.element_bytes(MemoryId.OUT)
    vectors = -(-output.size // vector)
    return AddPlan(
        tables=(
            operand_table(multipliers.left, left.zero_point),
            operand_table(multipliers.right, right.zero_point),
        ),
        requantization=requantization(multipliers.output, output.zero_point, low, high),
        vector=vector,
        # Both threads get work as soon as there are two vectors.
        tile=max(1, min(tile_limit(config), -(-vectors // THREADS))),
    )


@dataclass(frozen=True, slots=True)
class AddPlan:
    """An addition made ready; `vector` and `tile` count elements and vectors."""

    tables: tuple[Table, Table]
    requantization: Requantization
    vector: int
    tile: int

    def run(
        self, runtime: Runtime, inputs: Sequence[Array | None], outputs: Sequence[Array]
    ) -> None:
        """Add two int8 arrays. Raises the VTA runtime's errors."""
        left, right = (_flat(array) for array in inputs if array is not None)
        result = _flat(outputs[0])
        length = min(self.tile * STREAM_TILES, -(-result.size // self.vector)) * self.vector
        if length == 0:
            return
        with ExitStack() as buffers:

            def allocate(size: int) -> Buffer:
                buffer = runtime.alloc(size)
                buffers.callback(buffer.free)
                return buffer

            constants = allocate(len(Constant) * self.vector * 4)
            operands = allocate(length * 4), allocate(length * 4)
            sums = allocate(length)
            _as(constants, np.int32)[:] = np.repeat(self.requantization.constants, self.vector)
            for start in range(0, result.size, length):
                part = slice(start, min(start + length, result.size))
                count = part.stop - part.start
                for table, source, operand in zip(
                    self.tables, (left, right), operands, strict=True
                ):
                    _as(operand, np.int32)[:count] = table[source[part].view(np.uint8)]
                self._stream(runtime, constants, operands, sums, -(-count // self.vector))
                runtime.synchronize()
                result[part] = _as(sums, np.int8)[:count]

    def tiles(self, vectors: int) -> list[Tile]:
        """How `vectors` are cut up among the threads."""
        return [
            Tile(number % THREADS, first, min(self.tile, vectors - first))
            for number, first in enumerate(range(0, vectors, self.tile))
        ]

    def _stream(
        self,
        runtime: Runtime,
        constants: Buffer,
        operands: tuple[Buffer, Buffer],
        sums: Buffer,
        vectors: int,
    ) -> None:
        tiles = self.tiles(vectors)
        runtime.load_2d(constants, MemoryId.ACC, sram=0, offset=0, x_size=len(Constant))
        for number, tile in enumerate(tiles):
            if number >= THREADS:
                # The thread's previous tile has left the accumulator memory.
                runtime.dep_pop(Stage.STORE, Stage.COMPUTE)
            targets = (Register.VALUE, Register.HIGH)
            for operand, target in zip(operands, targets, strict=True):
                runtime.load_2d(
                    operand,
                    MemoryId.ACC,
                    sram=self._at(tile, target),
                    offset=tile.first,
                    x_size=tile.vectors,
                )
            self._compute(runtime, tile)
            runtime.dep_push(Stage.COMPUTE, Stage.STORE)
            runtime.dep_pop(Stage.COMPUTE, Stage.STORE)
            runtime.store_2d(
                sums,
                sram=self._at(tile, Register.VALUE),
                offset=tile.first,
                x_size=tile.vectors,
            )
            runtime.dep_push(Stage.STORE, Stage.COMPUTE)
        for _ in tiles[-THREADS:]:
            runtime.dep_pop(Stage.STORE, Stage.COMPUTE)

    def _compute(self, runtime: Runtime, tile: Tile) -> None:
        self._step(runtime, tile, Step(AluOpcode.ADD, Register.VALUE, Register.HIGH))
        runtime.push_gemm(
            GemmKernel(
                micro_ops=tuple(MicroOp(dst=self._at(tile, register)) for register in SCRATCH),
                loops=(Loop(tile.vectors, dst=1),),
                reset=True,
            )
        )
        for step in self.requantization.steps:
            self._step(runtime, tile, step)

    def _step(self, runtime: Runtime, tile: Tile, step: Step) -> None:
        target = self._at(tile, step.target)
        match step.operand:
            case Register() as register:
                micro_op, stride, immediate = MicroOp(target, self._at(tile, register)), 1, None
            case Constant() as constant:
                micro_op, stride, immediate = MicroOp(target, int(constant)), 0, None
            case value:
                micro_op, stride, immediate = MicroOp(target, target), 1, value
        runtime.push_alu(
            AluKernel(
                opcode=step.opcode,
                micro_ops=(micro_op,),
                loops=(Loop(tile.vectors, dst=1, src=stride),),
                immediate=immediate,
            )
        )

    def _at(self, tile: Tile, register: Register) -> int:
        """Where a thread's register begins in the accumulator memory, past the constants."""
        return len(Constant) + (tile.thread * len(Register) + register) * self.tile


def _flat(array: Array) -> Array:
    # A view, because the arrays of tensors are contiguous.
    return array.reshape(-1)


def _as(buffer: Buffer, dtype: type[np.generic]) -> Array:
    return np.frombuffer(buffer.view, dtype)
