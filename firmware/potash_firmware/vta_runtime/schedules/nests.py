"""Loop nests as instructions: an instruction has two loops and, inside them, a list of micro-ops.

A nest is any number of loops, each of which adds to the three indices of a micro-op. Two of its
loops become the instruction's, others are unrolled into micro-ops as far as the buffer allows, and
the rest becomes more instructions.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from potash_device.vta.isa import MicroOp
from potash_firmware.vta_runtime.kernels import MAX_LOOPS, Loop

LONG = 64
"""Micro-ops of a long iteration, in which the cost of the loop itself matters little."""

_micro_op = functools.partial(tuple.__new__, MicroOp)
"""`MicroOp._make`, which takes much longer."""

KEPT = 1024
"""Nests that are cached: the steps of an epilogue share a few of them."""


class Nest(NamedTuple):
    """The micro-ops and the loops of one instruction."""

    micro_ops: tuple[MicroOp, ...]
    loops: tuple[Loop, ...]


@functools.lru_cache(KEPT)
def nests(start: MicroOp, loops: tuple[Loop, ...], limit: int) -> tuple[Nest, ...]:
    """The instructions of `loops`, outer first, from `start` on, with at most `limit` micro-ops
    each.

    Each iteration of an instruction's loops costs time, so there are as few as `limit` allows. But
    the first loop is kept where its iterations are long: it goes through blocks of weights for the
    same inputs, two or more of which a simulator multiplies at once.
    """
    looping = [loop for loop in loops if loop.extent > 1]
    kept = _kept(looping, limit)
    inside = [loop for number, loop in enumerate(looping) if number not in kept]
    repeated: list[Loop] = []
    while math.prod(loop.extent for loop in inside) > limit:
        repeated.append(inside.pop(0))
    its_loops = tuple(looping[number] for number in kept)
    return tuple(Nest(tuple(_steps(first, inside)), its_loops) for first in _steps(start, repeated))


def pieces(count: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """`count` positions as (first, rows, positions of a row), where no row is longer than `limit`:
    equal rows, and what is left of them."""
    rows = -(-count // limit)
    row = count // rows
    yield 0, rows, row
    if rows * row < count:
        yield rows * row, 1, count - rows * row


def _kept(loops: Sequence[Loop], limit: int) -> tuple[int, ...]:
    """The numbers of the loops that an instruction keeps."""
    extents = [loop.extent for loop in loops]
    choices = [
        chosen
        for count in range(min(MAX_LOOPS, len(loops)) + 1)
        for chosen in itertools.combinations(range(len(loops)), count)
    ]

    def iterations(chosen: tuple[int, ...]) -> int:
        return math.prod(extents[number] for number in chosen)

    def rank(chosen: tuple[int, ...]) -> tuple[bool, int]:
        first = 0 in chosen and math.prod(extents) // iterations(chosen) >= LONG
        return not first, iterations(chosen)

    fitting = [chosen for chosen in choices if math.prod(extents) // iterations(chosen) <= limit]
    return min(fitting, key=rank) if fitting else max(choices, key=iterations)


def _steps(start: MicroOp, loops: Sequence[Loop]) -> list[MicroOp]:
    made: list[tuple[int, int, int]] = [start]
    for loop in loops:
        made = [
            (dst + i * loop.dst, src + i * loop.src, wgt + i * loop.wgt)
            for dst, src, wgt in made
            for i in range(loop.extent)
        ]
    return list(map(_micro_op, made))
