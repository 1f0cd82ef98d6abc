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
    """The line, what its values are clamped to, and whether there are any below and above that."""

    factors: tuple[int, ...]
    offset: int
    shift: int
    low: int
    high: int
    below: bool = False
    above: bool = False


def fit(
    slopes: Sequence[float], arguments: Sequence[Values], wanted: Values, *, clamped: bool = True
) -> Line | None:
    """A line that gives the integers `wanted` for all `arguments` (arrays that broadcast to its
    shape), and whose slopes are about these; None where none is found.

    Its limits are the smallest and the largest of `wanted`; unless it is `clamped` to these it
    leaves them nowhere.
    """
    order = np.argsort(wanted, axis=None, kind="stable")
    levels, starts = np.unique(wanted.reshape(-1)[order], return_index=True)
    if len(levels) == 1:
        level = int(levels[0])
        return Line((0,) * len(slopes), level, 0, level, level)
    reach = sum(
        abs(slope) * float(np.abs(values).max())
        for slope, values in zip(slopes, arguments, strict=True)
    )
    # What the offset adds may need one bit more.
    most = 30 - max(0, int(np.ceil(np.log2(max(reach, 256.0)))))
    # Without a shift it is a step less.
    shifts = [0, *range(most, max(most - SHIFTS, 0), -1)]
    for shift, stretch in itertools.product(shifts, _STRETCHES):
        factors = tuple(round(slope * (1 + stretch) * 2.0**shift) for slope in slopes)
        if stretch and not shift:
            continue
        line = _offset(factors, shift, arguments, order, levels, starts, clamped)
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
    clamped: bool,
) -> Line | None:
    """The line of these factors, where one offset is right for all arguments."""
    total = sum((factor * values for factor, values in zip(factors, arguments, strict=True)), 0)
    sums = np.asarray(total, np.int64).reshape(-1)[order]
    smallest = np.minimum.reduceat(sums, starts)
    largest = np.maximum.reduceat(sums, starts)
    # Each level begins at its own multiple of 2^shift and ends before the next; below the lowest and
    # above the highest the clamp helps.
    least = int(((levels << shift) - smallest)[clamped:].max())
    most = int((((levels + 1) << shift) - 1 - largest)[: len(levels) - clamped].min())
    offset = (least + most) // 2
    bottom, top = int(smallest.min()) + offset, int(largest.max()) + offset
    if least > most or bottom < -_WORD or top >= _WORD or not -_WORD <= offset < _WORD:
        return None
    low, high = int(levels[0]), int(levels[-1])
    return Line(factors, offset, shift, low, high, bottom >> shift < low, top >> shift > high)


def emit(steps: Steps, line: Line, planes: Sequence[Plane]) -> None:
    """Append the line of what is in `planes`, whose first is the tile, and clamp it.

    Sums of products may leave 32 bits on the way, as long as the whole does not.
    """
    others = planes[1:]
    if len(set(line.factors)) == 1:
        for plane in others:
            steps.add(AluOpcode.ADD, plane)
        _multiply(steps, line.factors[0], TILE)
    else:
        for plane, factor in zip(planes, line.factors, strict=True):
            _multiply(steps, factor, plane)
        for plane in others:
            steps.add(AluOpcode.ADD, plane)
    _finish(steps, [line])


def emit_each(steps: Steps, each: Sequence[Line]) -> None:
    """Append lines of the tile alone, one for each channel."""
    _multiply(steps, np.array([line.factors[0] for line in each], np.int64), TILE)
    _finish(steps, each)


def _multiply(steps: Steps, factor: Values | int, plane: Plane) -> None:
    if np.any(np.asarray(factor) != 1):
        steps.add(AluOpcode.MUL, factor, plane)


def _finish(steps: Steps, each: Sequence[Line]) -> None:
    """Append what follows the products."""
    offsets, shifts, lows, highs = (
        np.array([getattr(line, name) for line in each], np.int64)
        for name in ("offset", "shift", "low", "high")
    )
    if offsets.any():
        steps.add(AluOpcode.ADD, offsets)
    if shifts.any():
        steps.add(AluOpcode.SHR, shifts)
    if any(line.below for line in each):
        steps.add(AluOpcode.MAX, lows)
    if any(line.above for line in each):
        steps.add(AluOpcode.MIN, highs)
