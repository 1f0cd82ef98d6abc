"""Step functions of int8 values as one line: floor((sum(factor * value) + offset) / 2^shift).

An elementwise operator's result is rounded several times, each of which would take several ALU
operations. But it has few arguments of 256 values each: all its results are known when it is
lowered. Two multiplications, two additions and a shift give the same for every combination of
arguments, with factors that differ slightly from the scales: they are a little larger where
halves are rounded away from zero. For example, a / 2 + b / 4, rounded with halves away from zero,
is

    (2097158 * a + 1048579 * b + 2097151) >> 22

for all 65 536 pairs of int8 values; the factors are 2^22 / 2 + 6 and 2^22 / 4 + 3, the offset is
half of 2^22, less one. For some operators no line does.

Factors are tried; for each, the offsets that are right for all combinations are an interval. Most
wrong factors already fail for the combinations that are nearly halves, which are tried first.
"""

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.vta_runtime.schedules import TILE, Plane

Values = npt.NDArray[np.int64]

SHIFTS = 3
"""Number of the largest shifts that are tried."""
_CHANGES = tuple(2.0**power for power in range(-26, -10, 2))
"""Relative changes of factors that are tried."""
_DIRECTIONS = 16
"""Directions in which two factors are changed."""
_NEAR = 1 / 64
"""The largest distance from a half of a nearly half."""
_WORD = 1 << 31
"""The limit of the ALU's numbers, which have 32 bits with the sign."""


class Line(NamedTuple):
    """A line, the limits to which its values are clamped, and whether there are values below and
    above these."""

    factors: tuple[int, ...]
    offset: int
    shift: int
    low: int
    high: int
    below: bool = False
    above: bool = False


class _Bounds(NamedTuple):
    """The least and the greatest correct offset (there is none if `least > most`), and the least
    and the greatest sum of products."""

    least: int
    most: int
    smallest: int
    largest: int


class _Targets(NamedTuple):
    """Values of the arguments, sorted by the integer that the line has to give for them (its
    level), the levels, and the index at which each begins."""

    arguments: tuple[Values, ...]
    levels: Values
    starts: Values

    @classmethod
    def of(cls, arguments: Sequence[Values], levels: Values) -> "_Targets":
        """The targets of arrays of one axis and the same length."""
        order = np.argsort(levels, kind="stable")
        distinct, starts = np.unique(levels[order], return_index=True)
        return cls(tuple(values[order] for values in arguments), distinct, starts)

    def bounds(self, factors: Sequence[int], shift: int, clamped: bool) -> _Bounds:
        """Bounds of the offsets that are right for these factors, and of the sums."""
        products = map(operator.mul, factors, self.arguments)
        sums = functools.reduce(operator.add, products)
        smallest = np.minimum.reduceat(sums, self.starts)
        largest = np.maximum.reduceat(sums, self.starts)
        # Each level begins at its own multiple of 2^shift and ends before the next one. Sums below
        # the lowest and above the highest level are clamped.
        least = ((self.levels << shift) - smallest)[clamped:]
        most = (((self.levels + 1) << shift) - 1 - largest)[: len(self.levels) - clamped]
        return _Bounds(
            int(least.max(initial=-_WORD)),
            int(most.min(initial=_WORD - 1)),
            int(smallest.min()),
            int(largest.max()),
        )


def fit(
    slopes: Sequence[float], arguments: Sequence[Values], levels: Values, *, clamped: bool = True
) -> Line | None:
    """A line that gives the integers `levels` for all `arguments` (arrays that broadcast to its
    shape), and whose slopes are close to `slopes`; None where none is found.

    Its limits are the smallest and the largest of `levels`. Unless it may be `clamped` to these,
    its values are within them.
    """
    spread = [np.broadcast_to(values, levels.shape).reshape(-1) for values in arguments]
    every = _Targets.of(spread, levels.reshape(-1))
    low, high = int(every.levels[0]), int(every.levels[-1])
    if low == high:
        return Line((0,) * len(slopes), low, 0, low, high)
    near = _near(slopes, spread, levels.reshape(-1))
    # The offset may need one bit more than the products.
    reach = sum(
        abs(slope) * float(np.abs(values).max())
        for slope, values in zip(slopes, arguments, strict=True)
    )
    largest = 30 - math.ceil(math.log2(max(reach, 256.0)))
    # Without a shift, the line takes a step less.
    for shift in (0, *range(largest, max(largest - SHIFTS, 0), -1)):
        for changed in _changed(slopes) if shift else (slopes,):
            factors = tuple(round(slope * 2.0**shift) for slope in changed)
            if near is not None:
                bounds = near.bounds(factors, shift, False)
                if bounds.least > bounds.most:
                    continue
            bounds = every.bounds(factors, shift, clamped)
            offset = (bounds.least + bounds.most) // 2
            bottom, top = bounds.smallest + offset, bounds.largest + offset
            if bounds.least <= bounds.most and max(abs(bottom), abs(top), abs(offset)) < _WORD:
                return Line(
                    factors, offset, shift, low, high, bottom >> shift < low, top >> shift > high
                )
    return None


def _near(slopes: Sequence[float], arguments: Sequence[Values], levels: Values) -> _Targets | None:
    """The arguments for which the line is nearly a half, without those that are clamped."""
    exact = sum(
        (slope * values for slope, values in zip(slopes, arguments, strict=True)),
        np.zeros(levels.size),
    )
    rest = levels - exact
    inside = (levels > levels.min()) & (levels < levels.max())
    if not inside.any():
        return None
    rest = rest - (rest[inside].max() + rest[inside].min()) / 2
    near = inside & (np.abs(np.abs(rest) - 0.5) < _NEAR)
    if not near.any():
        return None
    return _Targets.of([values[near] for values in arguments], levels[near])


def _changed(slopes: Sequence[float]) -> Iterator[tuple[float, ...]]:
    """The slopes, then others close to them."""
    yield tuple(slopes)
    directions: list[tuple[float, ...]] = [(1.0,), (-1.0,)]
    if len(slopes) == 2:
        angles = [math.pi / 4 + math.tau * at / _DIRECTIONS for at in range(_DIRECTIONS)]
        directions = [(math.cos(angle), math.sin(angle)) for angle in angles]
    for change, direction in itertools.product(_CHANGES, directions):
        yield tuple(
            slope * (1 + change * part) for slope, part in zip(slopes, direction, strict=True)
        )


def emit(steps: Steps, line: Line, planes: Sequence[Plane]) -> None:
    """Append the line of what is in `planes`, whose first is the tile, and clamp it.

    Intermediate sums of products may exceed 32 bits, as long as the whole does not.
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
    """Append the steps that follow the products."""
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
