"""Scaling with a significand that is shorter than the scale's.

Accumulators are between two known bounds, and those at which the output makes its steps are known
too. A shorter significand, with another constant than a half of the last place, may have the same
steps; it is searched for. It takes fewer instructions, since its products fit into a word sooner,
and since there is one rounding in place of two. Of the first rounding remains that halves below
zero go down: one unit of the first rounding is subtracted there.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potash_firmware.tflite.quantization import SIGNIFICAND_BITS

Values = npt.NDArray[np.int64]

_PIECES = (1, 2, 3, 4)
_NUDGES = (0, 1, -1, 2, -2)
"""Differences to the shortened significand that are tried."""
_WORD = 1 << 31
_FEW = 16
_UNSURE = 4
"""The most that a step with two roundings is away from that with one."""


class Ramp(NamedTuple):
    """y = x * significand / 2^(31 + shift) + zero_point for each channel, rounded as `scaled` does:
    for x from `least` to `most`, for which y is from `low` to `high`."""

    significands: Values
    shifts: Values
    zero_point: int
    low: int
    high: int
    least: Values
    most: Values
    scaled: Callable[[Values], Values]
    signed: bool
    """Whether halves go away from zero, and x is on both sides of it."""
    loose: bool = False
    """Whether y may be beyond `low` and `high`, to which it is clamped."""

    def part(self, channels: Values | slice) -> "Ramp":
        """Some of the channels."""
        return self._replace(
            significands=self.significands[channels],
            shifts=self.shifts[channels],
            least=self.least[channels],
            most=self.most[channels],
        )


class Short(NamedTuple):
    """y = (product + offset) >> shift, with a significand of so many pieces of `width` bits and

    product = (x * significand >> width * (pieces - 1)) - (2^width if `signed` and x < 0)."""

    significands: Values
    pieces: int
    width: int
    signed: bool
    offsets: Values
    shifts: Values

    def products(self, values: Values) -> Values:
        """The products."""
        whole = values * self.significands >> self.width * (self.pieces - 1)
        return whole - ((values < 0).astype(np.int64) << self.width) if self.signed else whole


def shorten(ramp: Ramp) -> Short | None:
    """The same with a significand of few pieces; None where there is none."""
    largest = int(np.maximum(np.abs(ramp.least), np.abs(ramp.most)).max())
    bits = SIGNIFICAND_BITS - largest.bit_length()
    steps, few = _steps(ramp), ramp.part(slice(_FEW))
    for pieces in _PIECES:
        width = min(bits, SIGNIFICAND_BITS // pieces)
        # Where there is none for a few channels there is none for all.
        if width > 0 and _shortened(few, steps[:, :_FEW], pieces, width) is not None:
            found = _shortened(ramp, steps, pieces, width)
            if found is not None:
                return found
    return None


def _shortened(ramp: Ramp, steps: Values, pieces: int, width: int) -> Short | None:
    bits = pieces * width
    dropped = SIGNIFICAND_BITS - bits
    shifts = ramp.shifts + width
    if shifts.max() >= SIGNIFICAND_BITS or shifts.min() < 0:
        return None
    significands = np.zeros_like(ramp.significands)
    offsets = np.int64(ramp.zero_point) << shifts
    left = np.flatnonzero(ramp.significands)
    for nudge in _NUDGES:
        its = ramp.part(left)
        tried = (its.significands + ((1 << dropped) >> 1) >> dropped) + nudge
        tried = np.clip(tried, 1, (1 << bits) - 1)
        short = Short(tried, pieces, width, ramp.signed, offsets[left], shifts[left])
        least, most = _offsets(its, steps[:, left], short)
        middle = (least + most) >> 1
        ends = [short.products(x) for x in (its.least, its.most)]
        sums = [product + middle for product in ends]
        fits = np.maximum.reduce([np.abs(value) for value in (*ends, *sums, middle)]) < _WORD
        right = (least <= most) & fits
        significands[left[right]], offsets[left[right]] = tried[right], middle[right]
        left = left[~right]
        if not left.size:
            return Short(significands, pieces, width, ramp.signed, offsets, shifts)
    return None


def _steps(ramp: Ramp) -> Values:
    """The least x at which y is each of the integers above `low`, for each channel."""
    levels = np.arange(ramp.low + 1, ramp.high + 1, dtype=np.int64)[:, None]
    halves = (2 * (levels - ramp.zero_point) - 1) << SIGNIFICAND_BITS + ramp.shifts - 1
    places = halves // np.maximum(ramp.significands, 1) - _UNSURE
    for _ in range(2 * _UNSURE):
        places += ramp.scaled(places) < levels
    return places


def _offsets(ramp: Ramp, steps: Values, short: Short) -> tuple[Values, Values]:
    """The least and the largest offset that is right, for each channel."""
    levels = np.arange(ramp.low, ramp.high + 2, dtype=np.int64)[:, None] << short.shifts
    # Where y reaches a level, and the last x where it does not; no x is outside of the bounds.
    reached = np.concatenate((ramp.least[None], np.maximum(steps, ramp.least)))
    before = np.concatenate((np.minimum(steps - 1, ramp.most), ramp.most[None]))
    always = np.full((1, steps.shape[1]), not ramp.loose)
    is_reached = np.concatenate((always, steps <= ramp.most))
    is_before = np.concatenate((steps > ramp.least, always))
    least = np.where(is_reached, levels[:-1] - short.products(reached), -_WORD)
    most = np.where(is_before, levels[1:] - 1 - short.products(before), _WORD - 1)
    return least.max(axis=0), most.min(axis=0)
