"""ALU steps on accumulators between the last product and the store.

A step works on *planes*: pieces of ACC that are as large as a tile of the output. Plane 0 is the
tile itself; others hold tensors that were loaded, or intermediate values. A step's source is
another plane, a number, or a vector with a value for each output channel.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from potash_device.vta.config import MemoryId
from potash_device.vta.isa import AluOpcode, MicroOp
from potash_firmware.vta_runtime.kernels import AluKernel, Loop
from potash_firmware.vta_runtime.schedules.nests import nests, pieces
from potash_firmware.vta_runtime.schedules.shapes import ScheduleError

MOST_IMMEDIATE = 1 << 15


@dataclass(frozen=True)
class Plane:
    """A piece of ACC as large as a tile; number 0 is what will be stored."""

    number: int = 0


@dataclass(frozen=True)
class Channels:
    """The vector of this number: 32-bit values, one for each output channel."""

    number: int = 0


TILE = Plane(0)


@dataclass(frozen=True)
class Step:
    """`target = opcode(target, source)` for each value of a tile. A number as the source is a
    signed one of 16 bits. Raises ScheduleError for another."""

    opcode: AluOpcode
    source: Plane | Channels | int
    target: Plane = TILE

    def __post_init__(self) -> None:
        source = self.source
        if isinstance(source, int) and not -MOST_IMMEDIATE <= source < MOST_IMMEDIATE:
            raise ScheduleError(f"{source} is no number of 16 bits; it has to be in a vector")


@dataclass(frozen=True)
class Epilogue:
    """The steps, and the memory types (ACC, ACC_8BIT) of the tensors that are loaded before them,
    in the output's layout, into planes 0, 1, ….

    Raises ScheduleError for a tensor that ACC cannot be loaded from.
    """

    steps: tuple[Step, ...] = ()
    tensors: tuple[MemoryId, ...] = ()

    def __post_init__(self) -> None:
        for memory in self.tensors:
            if memory not in (MemoryId.ACC, MemoryId.ACC_8BIT):
                raise ScheduleError(f"a tensor for ALU steps is of ACC or ACC_8BIT, not {memory!r}")

    @functools.cached_property
    def planes(self) -> int:
        used = [step.target.number for step in self.steps]
        used += [step.source.number for step in self.steps if isinstance(step.source, Plane)]
        return max([0, len(self.tensors) - 1, *used]) + 1

    @functools.cached_property
    def vectors(self) -> int:
        sources = [step.source for step in self.steps]
        return max([-1, *(one.number for one in sources if isinstance(one, Channels))]) + 1


NOTHING = Epilogue()


def kernels(
    steps: Sequence[Step], plane: int, vectors: int, out_blocks: int, pixels: int, limit: int
) -> tuple[AluKernel, ...]:
    """The instructions for a tile of `out_blocks` x `pixels` elements, with contiguous planes from
    element `plane` of ACC on and contiguous vectors from `vectors` on."""
    made = []
    for step in steps:
        target = plane + step.target.number * out_blocks * pixels
        immediate, across, along = None, pixels, 1
        match step.source:
            case int(number):
                immediate, source, across, along = number, 0, 0, 0
            case Plane(number):
                source = plane + number * out_blocks * pixels
            case Channels(number):
                source, across, along = vectors + number * out_blocks, 1, 0
        for first, rows, row in pieces(pixels, limit):
            loops = (
                Loop(out_blocks, pixels, across),
                Loop(rows, row, row * along),
                Loop(row, 1, along),
            )
            for nest in nests(MicroOp(target + first, source + first * along), loops, limit):
                made.append(AluKernel(step.opcode, nest.micro_ops, nest.loops, immediate))
    return tuple(made)
