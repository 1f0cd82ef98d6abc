"""Step functions of int8 values as one line: floor((sum(factor * value) + offset) / 2^shift).

What an elementwise operator gives has been rounded several times on its way, but it has few arguments
of 256 values each: all that it can give is known when it is planned. Two multiplications, two
additions and a shift then give the same for every combination of arguments, if only the factors are
slightly other ones than the scales themselves: a little larger, and halves go away from zero. Where
no line does that is known as well.

The factors are tried; for each the offsets that are right for all combinations are an interval.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.operators.requantization import Steps
from potash_firmware.vta_runtime.schedules import TILE, Plane

Values = npt.NDArray[np.int64]

SHIFTS = 4
"""How many of the largest shifts are tried."""
_STRETCHES = (0, *(digit * 10.0**-power for power in (9, 8, 7, 6, 5) for digit in (2, 5, 10)))
"""By what part of themselves factors are made larger."""
_WORD = 1 << 31


class Line(NamedTuple):
    """The line, and what its values are clamped to; None for a limit that it never leaves."""

    factors: tuple[int, ...]
    offset: int
    shift: int
    low: int | None
    high: int | None


def fit(slopes: Sequence[float], arguments: Sequence[Values], wanted: Values) -> Line | None:
    """A line that gives the integers `wanted` for all `arguments` (arrays that broadcast to its
    shape), and whose slopes are about these; None where none is found."""
    order = np.argsort(wanted, axis=None, kind="stable")
    levels, starts = np.unique(wanted.reshape(-1)[order], return_index=True)
    if len(levels) == 1:
        return Line((0,) * len(slopes), int(levels[0]), 0, None, None)
    reach = sum(
        abs(slope) * float(np.abs(values).max())
        for slope, values in zip(slopes, arguments, strict=True)
    )
    # What the offset adds may need one bit more.
    most = 30 - max(0, int(np.ceil(np.log2(max(reach, 256.0)))))
    for shift, stretch in itertools.product(
        range(max(most, 0), max(most - SHIFTS, -1), -1), _STRETCHES
    ):
        factors = tuple(round(slope * (1 + stretch) * 2.0**shift) for slope in slopes)
        line = _offset(factors, shift, arguments, order, levels, starts)
        if line is not None:
            return line
    return None


def _offset(
    factors: tuple[int, ...],
    shift: int,
    arguments: Sequence[Values],
    order: Values,
    levels: Values,
    starts: Values,
) -> Line | None:
    """The line of these factors, where one offset is right for all arguments."""
    total = sum((factor * values for factor, values in zip(factors, arguments, strict=True)), 0)
    sums = np.asarray(total, np.int64).reshape(-1)[order]
    smallest = np.minimum.reduceat(sums, starts)
    largest = np.maximum.reduceat(sums, starts)
    # Each level but the lowest begins at its own multiple of 2^shift, and each but the highest ends
    # before the next; beyond those two the clamp helps.
    least = int(((levels[1:] << shift) - smallest[1:]).max())
    most = int((((levels[:-1] + 1) << shift) - 1 - largest[:-1]).min())
    offset = (least + most) // 2
    bottom, top = int(smallest.min()) + offset, int(largest.max()) + offset
    if least > most or bottom < -_WORD or top >= _WORD or not -_WORD <= offset < _WORD:
        return None
    low, high = int(levels[0]), int(levels[-1])
    return Line(
        factors,
        offset,
        shift,
        None if bottom >> shift >= low else low,
        None if top >> shift <= high else high,
    )


def emit(steps: Steps, line: Line, planes: Sequence[Plane]) -> None:
    """Append the line of what is in `planes`, whose first is the tile, and clamp it.

    Sums of products may leave 32 bits on the way, as long as the whole does not.
    """
    others = planes[1:]
    if len(set(line.factors)) == 1:
        for plane in others:
            steps.add(AluOpcode.ADD, plane)
        steps.add(AluOpcode.MUL, line.factors[0])
    else:
        for plane, factor in zip(planes, line.factors, strict=True):
            steps.add(AluOpcode.MUL, factor, plane)
        for plane in others:
            steps.add(AluOpcode.ADD, plane, TILE)
    finish(steps, line)


def finish(steps: Steps, line: Line) -> None:
    """Append what follows the products."""
    if line.offset:
        steps.add(AluOpcode.ADD, line.offset)
    if line.shift:
        steps.add(AluOpcode.SHR, line.shift)
    if line.low is not None:
        steps.add(AluOpcode.MAX, line.low)
    if line.high is not None:
        steps.add(AluOpcode.MIN, line.high)
