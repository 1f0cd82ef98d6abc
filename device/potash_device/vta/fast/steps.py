"""Steps: the work of GEMM and ALU instructions, once their micro-ops are known.

A step is a row of numbers, whose meaning depends on its kind. The steps of a whole stream are kept
with it; where micro-ops cannot be known in advance, an instruction is lowered to steps just before
it is executed, and they are not cached.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import Number, compiled

TABLE_PAIRS = 1 << 14
"""Maximum number of pairs of an instruction, besides those of its micro-ops."""
PAIR_INP, PAIR_WGT = range(2)
"""Columns of `Sink.pairs`: the INP and the WGT element that are multiplied."""

COLUMNS = 19
KIND, COUNT, TARGET = range(3)
TRANSFER, ZERO, PRODUCTS, ELEMENTWISE = range(4)
"""Kinds of steps. All but a TRANSFER have as target the first of `COUNT` elements of ACC."""

ROW = 1
"""First column of a TRANSFER's instruction, a copy of its `layout` row: steps are read in order,
which hides the time that memory takes, and instructions are not."""
NARROW = ROW + layout.COLUMNS
"""Column of a TRANSFER: 1 for a STORE whose elements are in the narrow memory (`narrowing`)."""

DST_STEP, BLOCK_STEP, SRC, SRC_STEP, SRC_BLOCK, WGT, WGT_STEP = range(3, 10)
PAIR, PAIRS, BLOCKS, TOGETHER, FRESH, CONSECUTIVE = range(10, 16)
LINES, LINE_STEP, SRC_LINE = range(16, 19)
"""Columns of PRODUCTS: for COUNT positions and BLOCKS blocks, the PAIRS pairs of INP and WGT
elements from number PAIR on are multiplied. Two blocks may be multiplied TOGETHER. FRESH
accumulators count as zero, whatever they hold. The WGT elements of CONSECUTIVE pairs follow each
other. There are LINES lines of positions, such as the rows of an image, LINE_STEP apart in ACC and
SRC_LINE in INP."""

OPCODE, IMMEDIATE, OPERAND, STRIDE, CUT, JUMP, MEMBERS, PIECES, SIMPLE, NARROWED, LIVE = range(
    3, 14
)
"""Columns of ELEMENTWISE: the operand is the number itself where it is IMMEDIATE, else an element
of ACC, which advances by STRIDE for each element of the target, and by JUMP from each CUT elements
to the next. The first of several steps that can be executed piece by piece has their number,
MEMBERS, and the maximum size of a piece, PIECES. SIMPLE: no element of the target is an operand of
another one. NARROWED: the first step of a group whose last target is put into the narrow memory,
too. LIVE: what the group writes to ACC may be needed there."""

STEPS, FILLED_PAIRS, GROUP, ZEROED, ITERATION, STORES, OTHERS, FAILED, OVERFLOW = range(9)
"""Columns of `Sink.filled`: numbers of steps and pairs; the first step of the last group, or -1;
number of accumulators that wait to be zeroed; iterations of an instruction that are lowered, where
it has more steps than there is room for; flags: there is a STORE, the stream uses micro-ops that it
has not loaded, those of an instruction lead out of a buffer, there was no room for a step."""


class Sink(NamedTuple):
    """Memory for steps and their pairs, and the state of lowering."""

    steps: NDArray[np.int32]
    pairs: NDArray[np.int32]
    filled: NDArray[np.int64]
    zeroed: NDArray[np.uint8]
    """WAITING for each accumulator that a GEMM has reset, but no step has zeroed yet."""
    writer: NDArray[np.int32]
    """The group that wrote each accumulator last (`narrowing`)."""
    row: NDArray[np.int64]
    words: NDArray[np.uint32]
    """An iteration of an instruction, and its micro-ops."""


def sink(config: Config, steps: int, pairs: int) -> Sink:
    """An empty sink, with room for `steps` and `pairs`, for those of one more iteration, and for
    zeroing. The kernel allocates its memory as it is filled."""
    accumulators, micro_ops = config.depth(MemoryId.ACC), config.depth(MemoryId.UOP)
    made = Sink(
        np.empty((steps + accumulators + micro_ops, COLUMNS), np.int32),
        np.empty((pairs + micro_ops + TABLE_PAIRS, 2), np.int32),
        np.zeros(OVERFLOW + 1, np.int64),
        np.zeros(accumulators, np.uint8),
        np.empty(accumulators, np.int32),
        np.zeros(layout.COLUMNS, np.int64),
        np.zeros(micro_ops, np.uint32),
    )
    clear(made)
    return made


def clear(sink: Sink) -> None:
    """Remove all steps, but remember which iteration of an instruction is next."""
    iteration = sink.filled[ITERATION]
    sink.filled[:] = 0
    sink.filled[GROUP] = -1
    sink.filled[ITERATION] = iteration


@compiled
def room(sink: Sink) -> Number:
    """Number of steps that there is room for, besides those that zero waiting accumulators."""
    return sink.steps.shape[0] - sink.zeroed.size - sink.filled[STEPS]


@compiled
def new_step(sink: Sink, kind: Number) -> Number:
    """The number of a new step of this kind. It ends the current group."""
    if sink.filled[STEPS] == sink.steps.shape[0]:
        sink.filled[OVERFLOW] = 1
        sink.filled[STEPS] = 0
    at = sink.filled[STEPS]
    sink.filled[STEPS] = at + 1
    sink.filled[GROUP] = -1
    sink.steps[at, KIND] = kind
    return at


@compiled
def zero_waiting(sink: Sink) -> None:
    """Add steps that zero all accumulators that wait to be zeroed."""
    begin = 0
    while sink.filled[ZEROED]:
        while not sink.zeroed[begin]:
            begin += 1
        end = begin
        while end < sink.zeroed.size and sink.zeroed[end]:
            sink.zeroed[end] = 0
            end += 1
        at = new_step(sink, ZERO)
        sink.steps[at, TARGET] = begin
        sink.steps[at, COUNT] = end - begin
        sink.filled[ZEROED] -= end - begin
        begin = end


NONE, SOME, ALL = range(3)
"""Numbers of accumulators that `take_zeroed` returns."""
WAITING, TAKEN = 1, 2


@compiled
def take_zeroed(
    sink: Sink, first: Number, step: Number, count: Number, block_step: Number, blocks: Number
) -> Number:
    """NONE, SOME or ALL, as accumulators of some products wait to be zeroed: `count` of them, from
    `first` on in steps of `step`, for each of `blocks`. After ALL, which is returned only if none
    of them occurs twice, they no longer wait."""
    if sink.filled[ZEROED] == 0:
        return NONE
    taken = 0
    for block in range(blocks):
        for position in range(count):
            at = first + block * block_step + position * step
            if sink.zeroed[at] == WAITING:
                sink.zeroed[at] = TAKEN
                taken += 1
    if taken == 0:
        return NONE
    everything = taken == blocks * count
    for block in range(blocks):
        for position in range(count):
            at = first + block * block_step + position * step
            if sink.zeroed[at] == TAKEN:
                sink.zeroed[at] = 0 if everything else WAITING
    if not everything:
        return SOME
    sink.filled[ZEROED] -= taken
    return ALL
