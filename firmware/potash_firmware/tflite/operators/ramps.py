"""Scaling that is one division, rounded down: y = (x * significand + half) / 2^(31 + shift) + zero.

So it is where there is one rounding, or where no x is negative, since two roundings are one there.
Then x is known between two bounds, and so are the x at which y makes its steps. A shorter significand
with another constant than the half has the same steps, if only one is found; and it takes fewer
instructions, since a product with it fits into a word sooner.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potash_firmware.tflite.quantization import SIGNIFICAND_BITS

Values = npt.NDArray[np.int64]

_NUDGES = (0, 1, -1, 2, -2)
"""What shortened significands are tried with."""
_WORD = 1 << 31


class Ramp(NamedTuple):
    """y for each channel: with x, whose bounds `least` and `most` give the limits `low` and `high`
    of y, or lie within them."""

    significands: Values
    shifts: Values
    halves: Values
    zero_point: int
    low: int
    high: int
    least: Values
    most: Values


class Short(NamedTuple):
    """y = ((x * significand >> width * (pieces - 1)) + offset) >> shift, where the significand has
    so many pieces of `width` bits."""

    significands: Values
    pieces: int
    width: int
    offsets: Values
    shifts: Values


def shorten(ramp: Ramp) -> Short | None:
    """The same with a significand of one piece or two; None where there is none."""
    largest = int(np.maximum(np.abs(ramp.least), np.abs(ramp.most)).max())
    room = SIGNIFICAND_BITS - largest.bit_length()
    for pieces in (1, 2):
        width = min(room, SIGNIFICAND_BITS // pieces)
        if width > 0:
            found = _shortened(ramp, pieces, width)
            if found is not None:
                return found
    return None


def _shortened(ramp: Ramp, pieces: int, width: int) -> Short | None:
    bits, below = pieces * width, (pieces - 1) * width
    dropped = SIGNIFICAND_BITS - bits
    shifts = ramp.shifts + bits - below
    if shifts.max() >= SIGNIFICAND_BITS:
        return None
    significands = np.zeros_like(ramp.significands)
    offsets = np.int64(ramp.zero_point) << shifts
    missing = ramp.significands > 0
    steps = _steps(ramp)
    for nudge in _NUDGES:
        tried = (ramp.significands + ((1 << dropped) >> 1) >> dropped) + nudge
        tried = np.clip(tried, 1, (1 << bits) - 1)
        least, most = _offsets(ramp, steps, tried, below, shifts)
        middle = (least + most) >> 1
        ends = [((x * tried) >> below) + middle for x in (ramp.least, ramp.most)]
        fits = np.maximum.reduce([np.abs(its) for its in (*ends, middle)]) < _WORD
        right = missing & (least <= most) & fits
        significands = np.where(right, tried, significands)
        offsets = np.where(right, middle, offsets)
        missing &= ~right
        if not missing.any():
            return Short(significands, pieces, width, offsets, shifts)
    return None


def _steps(ramp: Ramp) -> Values:
    """The least x at which y is each of the integers above `low`, for each channel."""
    levels = np.arange(ramp.low + 1, ramp.high + 1, dtype=np.int64)[:, None]
    total = SIGNIFICAND_BITS + ramp.shifts
    product = (levels - ramp.zero_point << total) - ramp.halves
    return -(-product // np.maximum(ramp.significands, 1))


def _offsets(
    ramp: Ramp, steps: Values, significands: Values, below: int, shifts: Values
) -> tuple[Values, Values]:
    """The least and the largest offset that is right, for each channel."""
    levels = np.arange(ramp.low, ramp.high + 2, dtype=np.int64)[:, None] << shifts
    # Where y reaches a level, and the last place where it does not; outside of the bounds nobody is.
    reached = np.concatenate((ramp.least[None], np.maximum(steps, ramp.least)))
    before = np.concatenate((np.minimum(steps - 1, ramp.most), ramp.most[None]))
    is_reached = np.concatenate((np.full((1, steps.shape[1]), True), steps <= ramp.most))
    is_before = np.concatenate((steps > ramp.least, np.full((1, steps.shape[1]), True)))
    least = np.where(is_reached, levels[:-1] - ((reached * significands) >> below), -_WORD)
    most = np.where(is_before, levels[1:] - 1 - ((before * significands) >> below), _WORD - 1)
    return least.max(axis=0), most.min(axis=0)
