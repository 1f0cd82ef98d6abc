"""Loop nests as instructions: an instruction has two loops and, inside them, a list of micro-ops.

A nest is any number of loops, each of which moves the three indices of a step by something. Two of
its loops become the instruction's, others are written out as micro-ops as far as there is room for
them, and what is left becomes more instructions.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from potash_device.vta.isa import MicroOp
from potash_firmware.vta_runtime.kernels import MAX_LOOPS, Loop

LONG = 64
"""So many micro-ops make a turn of a loop long, and what it costs to turn nothing much."""

KEPT = 1024
"""Nests that are kept: the steps of an epilogue go through a tile in a few ways."""


class Nest(NamedTuple):
    """The micro-ops and the loops of one instruction."""

    micro_ops: tuple[MicroOp, ...]
    loops: tuple[Loop, ...]


@functools.lru_cache(KEPT)
def nests(start: MicroOp, loops: tuple[Loop, ...], room: int) -> tuple[Nest, ...]:
    """The instructions that go through `loops`, outer first, from `start` on, of which none has
    more than `room` micro-ops.

    An instruction's loops cost time whenever they turn, so they turn as seldom as `room` lets them.
    But the first one is kept where its turns are long: it goes through blocks of weights for the
    same inputs, which a simulator multiplies by two or more of them at once if it sees them.
    """
    turning = [loop for loop in loops if loop.extent > 1]
    kept = _kept(turning, room)
    inside = [loop for number, loop in enumerate(turning) if number not in kept]
    repeated: list[Loop] = []
    while math.prod(loop.extent for loop in inside) > room:
        repeated.append(inside.pop(0))
    its_loops = tuple(turning[number] for number in kept)
    return tuple(Nest(tuple(_steps(first, inside)), its_loops) for first in _steps(start, repeated))


def pieces(count: int, room: int) -> Iterator[tuple[int, int, int]]:
    """`count` positions as (first, rows, positions of a row), where no row is longer than `room`:
    equal rows, and what is left of them."""
    rows = -(-count // room)
    row = count // rows
    yield 0, rows, row
    if rows * row < count:
        yield rows * row, 1, count - rows * row


def _kept(loops: Sequence[Loop], room: int) -> tuple[int, ...]:
    """The numbers of the loops that an instruction keeps."""
    extents = [loop.extent for loop in loops]
    choices = [
        chosen
        for count in range(min(MAX_LOOPS, len(loops)) + 1)
        for chosen in itertools.combinations(range(len(loops)), count)
    ]

    def turns(chosen: tuple[int, ...]) -> int:
        return math.prod(extents[number] for number in chosen)

    def rank(chosen: tuple[int, ...]) -> tuple[bool, int]:
        first = 0 in chosen and math.prod(extents) // turns(chosen) >= LONG
        return not first, turns(chosen)

    fitting = [chosen for chosen in choices if math.prod(extents) // turns(chosen) <= room]
    return min(fitting, key=rank) if fitting else max(choices, key=turns)


def _steps(start: MicroOp, loops: Sequence[Loop]) -> list[MicroOp]:
    made = [start]
    for loop in loops:
        made = [
            MicroOp(dst + turn * loop.dst, src + turn * loop.src, wgt + turn * loop.wgt)
            for dst, src, wgt in made
            for turn in range(loop.extent)
        ]
    return made
