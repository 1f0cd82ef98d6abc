"""Steps: what is left of GEMM and ALU instructions when their micro-ops are known.

A step is a row of numbers, whose meaning depends on its kind. The steps of a whole stream are kept
with it; where micro-ops cannot be known before they execute, an instruction becomes steps when its
turn comes, and they are not kept.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.fast import layout
from potash_device.vta.fast.compiling import Number, compiled

TABLE_PAIRS = 1 << 14
"""Pairs of an instruction, beside its micro-ops."""

COLUMNS = 19
KIND, COUNT, TARGET = range(3)
TRANSFER, ZERO, PRODUCTS, ELEMENTWISE = range(4)
"""Kinds. A TRANSFER's target is the number of its instruction; that of other kinds is an element of
ACC, the first of `COUNT`."""

DST_STEP, BLOCK_STEP, SRC, SRC_STEP, SRC_BLOCK, WGT, WGT_STEP = range(3, 10)
PAIR, PAIRS, BLOCKS, TOGETHER, FRESH, CONSECUTIVE = range(10, 16)
LINES, LINE_STEP, SRC_LINE = range(16, 19)
"""Of PRODUCTS: for so many positions and blocks, the pairs of INP and WGT elements from number PAIR
on. Two blocks may be multiplied TOGETHER. FRESH accumulators are zero, whatever they hold. The WGT
elements of CONSECUTIVE pairs follow each other. There are so many LINES of positions, one after the
other, as the rows of an image are."""

OPCODE, IMMEDIATE, OPERAND, STRIDE, CUT, JUMP, MEMBERS, PIECES, SIMPLE = range(3, 12)
"""Of ELEMENTWISE: the operand is the number itself where it is IMMEDIATE, else an element of ACC,
which goes on by STRIDE for each element of the target, and from each `CUT` of them to the next by
JUMP. The first of several steps that can be executed piece by piece says how many MEMBERS they are,
and behind how many elements a piece ends at the latest. SIMPLE: no element is an operand of
another one of the target."""

STEPS, FILLED_PAIRS, GROUP, ZEROED, ITERATION, STORES, OTHERS, FAILED, OVERFLOW = range(9)
"""Of `Sink.filled`: how many steps and pairs there are, the first step of the last group or -1, how
many accumulators wait to be zeroed, how many iterations of an instruction are done where it has
more steps than there is room for; whether there is a STORE, whether the stream uses micro-ops that
it has not loaded, whether those of an instruction lead out of a buffer; whether there was no room
for a step."""


class Sink(NamedTuple):
    """Where steps go."""

    steps: NDArray[np.int32]
    pairs: NDArray[np.int32]
    filled: NDArray[np.int64]
    zeroed: NDArray[np.uint8]
    """Of each accumulator: whether a GEMM has reset it, but no step has zeroed it yet."""
    row: NDArray[np.int64]
    words: NDArray[np.uint32]
    """An iteration of an instruction, and its micro-ops."""


def sink(config: Config, steps: int, pairs: int) -> Sink:
    """An empty one, with room for so many steps and pairs, and for those of an iteration and for
    zeroing. Memory for it is taken as it fills."""
    accumulators, micro_ops = config.depth(MemoryId.ACC), config.depth(MemoryId.UOP)
    made = Sink(
        np.empty((steps + accumulators + micro_ops, COLUMNS), np.int32),
        np.empty((pairs + micro_ops + TABLE_PAIRS, 2), np.int32),
        np.zeros(OVERFLOW + 1, np.int64),
        np.zeros(accumulators, np.uint8),
        np.zeros(layout.COLUMNS, np.int64),
        np.zeros(micro_ops, np.uint32),
    )
    clear(made)
    return made


def clear(sink: Sink) -> None:
    """Forget the steps, but not which iteration of an instruction is next."""
    iteration = sink.filled[ITERATION]
    sink.filled[:] = 0
    sink.filled[GROUP] = -1
    sink.filled[ITERATION] = iteration


@compiled
def room(sink: Sink) -> Number:
    """How many steps there is room for, besides those that zero what waits for it."""
    return sink.steps.shape[0] - sink.zeroed.size - sink.filled[STEPS]


@compiled
def new_step(sink: Sink, kind: Number) -> Number:
    """The number of a new step of that kind, which ends a group."""
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
    """Zero the accumulators that wait for it."""
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
"""How many accumulators."""
WAITING, TAKEN = 1, 2


@compiled
def take_zeroed(
    sink: Sink, first: Number, step: Number, count: Number, block_step: Number, blocks: Number
) -> Number:
    """How many of the accumulators of some products wait to be zeroed: `count` ones from `first` on
    for each of `blocks`. Where it is ALL, and none of them occurs twice, they no longer do."""
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
