"""Any function of int8 values as a line with bends: floor((sum of lines) / 2^shift), clamped.

The ALU has no tables. But the function's values are integers: a line gives one, rounded down, if it
is between this value and the next larger integer. So one line may be right for many values of x, up
to a bend, from which on another one is. With slopes f0, f1, … between bends b1, b2, …

    y = (f0 * x + (f1 - f0) * max(x, b1) + (f2 - f1) * max(x, b2) + … + c) >> shift

is made of the ALU's operations. For example, x where it is not negative and x / 4, rounded down,
where it is, are (8192 * x + 24480 * max(x, -1) + 28575) >> 15. The lines that reach furthest are
searched for, and the search continues from their ends. The result is compared with the function for
all 256 values.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.quantization import INT8_MIN
from potash_firmware.vta_runtime.schedules import TILE, Plane

Values = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

COUNT = 256
MOST_PIECES = 64
"""Maximum number of pieces, after which the search ends."""

_IMMEDIATE, _WORD = (1 << 15) - 1, (1 << 31) - 1
_SHIFTS = (*((shift, _IMMEDIATE) for shift in range(20, 9, -1)), (20, _WORD))
"""Shifts, each with the maximum of a factor: immediates are free, a vector takes memory."""
_MARGINS = (2.0**-14, 2.0**-11, 2.0**-8)
"""Margins for the rounding of slopes, in units of the output: larger ones take more pieces."""
_FREE = 256.0
"""The maximum distance of a line from the limit to which it is clamped."""
_BEAM, _ENDS = 3, 2
"""Number of lines from which the search continues, and of the last values of each."""
_STEEPEST = 600.0
"""The largest slope that is searched for."""
_EXACT = 1e-9
"""Numbers that differ by less are equal."""
_STEPS = np.arange(COUNT, dtype=np.float64)


class Pieces(NamedTuple):
    """The slopes, in units of 2^-shift, the bends between them, the offset, and the limits."""

    slopes: tuple[int, ...]
    bends: tuple[int, ...]
    offset: int
    shift: int
    low: int
    high: int

    def sums(self, x: Values) -> Values:
        """The sum of the lines."""
        total: Values = self.slopes[0] * x + self.offset
        for before, after, bend in zip(self.slopes, self.slopes[1:], self.bends, strict=False):
            total = total + (after - before) * np.maximum(x, bend)
        return total

    def values(self, x: Values) -> Values:
        """The values that the pieces give."""
        found: Values = np.clip(self.sums(x) >> self.shift, self.low, self.high)
        return found


def fit(table: Values) -> Pieces | None:
    """Pieces that give the integers `table` for the values from -128 to 127; None where none are
    found."""
    low, high = int(table.min()), int(table.max())
    if low == high:
        return Pieces((0,), (), low, 0, low, high)
    for margin in _MARGINS:
        floor = np.where(table == low, -_FREE, table + margin)
        ceiling = np.where(table == high, _FREE, table + 1 - margin)
        corners = _corners(floor, ceiling)
        if corners is None:
            return None
        for shift, most in _SHIFTS:
            found = _rounded(corners, shift, most, table)
            if found is not None:
                return found
    return None


class _Corner(NamedTuple):
    """The beginning of a line: the index of a value, the height there, and the corner before it."""

    at: int
    height: float
    before: "_Corner | None"


class _Window(NamedTuple):
    """Heights that a line from a corner may have at a value."""

    at: int
    lowest: float
    highest: float
    before: _Corner | None


def _corners(floor: Reals, ceiling: Reals) -> list[tuple[int, float]] | None:
    """The ends of lines from the first value to the last."""
    windows = [_Window(0, floor[0], ceiling[0], None)]
    for _ in range(MOST_PIECES):
        lines = sorted(
            (_furthest(window, floor, ceiling) for window in windows), key=lambda line: -line[0]
        )
        windows = []
        for last, corner, slope in lines[:_BEAM]:
            if last == COUNT - 1:
                return _path(_Corner(last, corner.height + slope * (last - corner.at), corner))
            x = np.arange(corner.at + 1, last + 1)
            least = np.maximum.accumulate((floor[x] - corner.height) / (x - corner.at))
            most = np.minimum.accumulate((ceiling[x] - corner.height) / (x - corner.at))
            for at, low, high in list(zip(x.tolist(), least, most, strict=True))[-_ENDS:]:
                length = at - corner.at
                ends = corner.height + low * length, corner.height + high * length
                windows.append(_Window(at, *ends, corner))
    return None


def _path(corner: _Corner | None) -> list[tuple[int, float]]:
    ends = []
    while corner is not None:
        ends.append((corner.at, corner.height))
        corner = corner.before
    return ends[::-1]


def _furthest(window: _Window, floor: Reals, ceiling: Reals) -> tuple[int, _Corner, float]:
    """The last value that a line through the window reaches, the corner at which it begins, and its
    slope.

    It always reaches the next value, as there is room at each.
    """
    low, high = floor[window.at :].copy(), ceiling[window.at :].copy()
    low[0], high[0] = window.lowest, window.highest
    # The last value that some line is known to reach, and the first that none does.
    reached, beyond, step = 1, len(low), 1
    best = _line(low[:2], high[:2])
    while beyond - reached > 1:
        tried = min(reached + step, (reached + beyond) // 2 if beyond < len(low) else len(low) - 1)
        found = _line(low[: tried + 1], high[: tried + 1])
        if found.room >= 0:
            reached, best, step = tried, found, 2 * step
        else:
            beyond = tried
    return window.at + reached, _Corner(window.at, best.height, window.before), best.slope


class _Line(NamedTuple):
    """A line with the most room above and below, at some slope: its height at the first value, and
    how the room grows with the slope."""

    slope: float
    room: float
    height: float
    growth: int


def _line(low: Reals, high: Reals) -> _Line:
    """The line between `low` and `high` for 0, 1, … with the most room; where there is no such
    line, one whose room is negative.

    The room is a concave function of the slope, made of lines. Its peak is below where the tangents
    on both sides of it meet (J. E. Kelley, "The cutting-plane method for solving convex programs").
    """
    x = _STEPS[: len(low)]

    def steep(slope: float) -> _Line:
        above, below = high - slope * x, low - slope * x
        at_high, at_low = int(above.argmin()), int(below.argmax())
        top, bottom = float(above[at_high]), float(below[at_low])
        return _Line(slope, top - bottom, (top + bottom) / 2, at_low - at_high)

    left, right = steep(-_STEEPEST), steep(_STEEPEST)
    if left.growth <= 0:
        return left
    if right.growth >= 0:
        return right
    while True:
        rise = right.room - left.room - right.growth * (right.slope - left.slope)
        slope = left.slope + rise / (left.growth - right.growth)
        most = left.room + left.growth * (slope - left.slope)
        found = steep(slope)
        if found.growth == 0 or found.room >= most - _EXACT or most < 0:
            return found
        if found.growth > 0:
            left = found
        else:
            right = found


def _rounded(
    corners: Sequence[tuple[int, float]], shift: int, most_factor: int, table: Values
) -> Pieces | None:
    """The lines with slopes in units of 2^-shift; None where these are too large, or wrong."""
    slopes: list[int] = []
    begin, height = corners[0][0], corners[0][1] * 2.0**shift
    for end, top in corners[1:]:
        # The slope leads to the beginning of the next line, so rounding errors do not add up.
        slopes.append(round((top * 2.0**shift - height) / (end - begin)))
        height += slopes[-1] * (end - begin)
        begin = end
    changes = [slopes[0], *np.diff(slopes).tolist()]
    if max(map(abs, changes)) > most_factor:
        return None
    x = np.arange(COUNT) + INT8_MIN
    bends = tuple(at + INT8_MIN for at, _ in corners[1:-1])
    low, high = int(table.min()), int(table.max())
    sums = Pieces(tuple(slopes), bends, 0, shift, low, high).sums(x)
    least = ((table << shift) - sums)[table > low].max()
    most = ((table + 1 << shift) - 1 - sums)[table < high].min()
    offset = int(least + most) // 2
    made = Pieces(tuple(slopes), bends, offset, shift, low, high)
    fits = least <= most and np.abs(sums + offset).max() < 1 << 31
    return made if fits and (made.values(x) == table).all() else None


def emit(steps: Steps, pieces: Pieces, scratch: Sequence[Plane]) -> None:
    """Append the pieces of the tile. Two planes are overwritten.

    Intermediate sums of products may exceed 32 bits, as long as the whole does not.
    """
    bent, piece = scratch[:2]
    if pieces.bends:
        steps.copy(TILE, bent)
    steps.add(AluOpcode.MUL, pieces.slopes[0])
    for number, bend in enumerate(pieces.bends):
        # The bends ascend, so that the larger of x and the last one may take the place of x.
        steps.add(AluOpcode.MAX, bend, bent)
        target = bent
        if number + 1 < len(pieces.bends):
            steps.copy(bent, piece)
            target = piece
        steps.add(AluOpcode.MUL, pieces.slopes[number + 1] - pieces.slopes[number], target)
        steps.add(AluOpcode.ADD, target)
    if pieces.offset:
        # The low 32 bits, as of the sums themselves.
        steps.add(AluOpcode.ADD, int(np.int64(pieces.offset).astype(np.int32)))
    if pieces.shift:
        steps.add(AluOpcode.SHR, pieces.shift)
    steps.add(AluOpcode.MAX, pieces.low)
    steps.add(AluOpcode.MIN, pieces.high)
