"""Scales of accumulators, and the search for a significand that is shorter than the scale's.

Accumulators are between two known bounds, and the values at which the output changes are known,
too. A shorter significand, with another constant than half of the last place, may give the same
output for all of them. It takes fewer instructions, as its products fit into a word sooner, and as
there is one rounding in place of two. One effect of the first rounding remains: halves below zero
go down, for which one unit of the first rounding is subtracted there. For example, the multiplier
0.1 has the significand 1717986918, of 31 bits. For all x from -1284 to 1274, beyond which outputs
are clamped, one of 20 bits gives the same outputs:

    (838861 * x + 4718592 - (2^20 where x < 0)) >> 23
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.quantization import (
    SIGNIFICAND_BITS,
    Multiplier,
    QuantizationError,
    rescale,
    rescale_once,
)
from potash_firmware.tflite.quantization import shorten as shortened

Values = npt.NDArray[np.int64]

MOST_SHIFT = 17
"""The largest division by a power of two for which the clamped x can be scaled at all."""
LEAST_SHIFT = -8
"""Multipliers of up to 2^8 are possible, more than models have; larger ones would exceed 32
bits."""

FAR = 1 << 31
"""Greater than the magnitude of all accumulators."""
CUT_REACH = 1 << 30
"""The magnitude below which x can be split into two parts."""

_PIECES = (1, 2, 3, 4)
_NUDGES = (0, 1, -1, 2, -2)
"""Differences to the shortened significand that are tried."""
_FEW = 16
"""Number of channels that are tried before all are."""
_UNSURE = 4
"""The maximum distance of a step of the output with two roundings from that with one."""
_HALVINGS = (4, 2, 1, 1)
"""Steps of a bisection of the values up to twice `_UNSURE` away."""


@dataclass(frozen=True)
class Scale:
    """Multipliers of the channels (or one for all of them), the zero point that is added to the
    results, and the limits to which these are clamped."""

    significands: Values
    shifts: Values
    zero_point: int
    low: int
    high: int
    rounding: Rounding = Rounding.EXACT
    reach: int = FAR
    """An upper bound of |x|, exclusive."""

    @classmethod
    def of(
        cls,
        multipliers: Sequence[Multiplier],
        zero_point: int,
        low: int,
        high: int,
        rounding: Rounding = Rounding.EXACT,
        reach: int = FAR,
        *,
        checked: bool = True,
    ) -> "Scale":
        """The scale of multipliers, one for each channel or one for all.

        `reach` is an exclusive upper bound of the accumulators' magnitude. Raises QuantizationError
        where the ALU cannot compute the exact result, if that is to be `checked`.
        """
        if rounding is Rounding.ALKALI:
            multipliers, reach = [shortened(multiplier) for multiplier in multipliers], FAR
        significands = np.array([one.significand for one in multipliers], np.int64)
        # A multiplier of zero has no shift that matters.
        shifts = np.array([-one.shift if one.significand else 1 for one in multipliers], np.int64)
        if checked and rounding is not Rounding.ALKALI:
            if shifts.max(initial=0) > MOST_SHIFT and reach >= CUT_REACH:
                raise QuantizationError("a multiplier is too small for the VTA's 32 bits")
            least = -LEAST_SHIFT if reach >= CUT_REACH else int(FAR // reach).bit_length() - 1
            if shifts.min(initial=0) < -least:
                raise QuantizationError("a multiplier is too large for the VTA's 32 bits")
        return cls(significands, shifts, zero_point, low, high, rounding, reach)

    def part(self, channels: Values | slice) -> "Scale":
        """The scale of some of the channels."""
        significands, shifts = self.significands[channels], self.shifts[channels]
        return replace(self, significands=significands, shifts=shifts)

    def scaled(self, values: Values) -> Values:
        """The exact results before the clamp, an array of [..., channels]. The platform's rounding
        gives others."""
        multiplied = rescale_once if self.rounding is Rounding.SINGLE else rescale
        return multiplied(values, self.significands, self.shifts) + self.zero_point

    def clamped(self, values: Values) -> Values:
        """The exact results."""
        return np.clip(self.scaled(values), self.low, self.high)

    def thresholds(self) -> tuple[Values, Values]:
        """The smallest x of each channel that gives at least `low`, and the largest that gives at
        most `high`."""
        return self._first(self.low), self._first(self.high + 1) - 1

    def _first(self, output: int) -> Values:
        """The smallest x of each channel that gives at least `output`."""
        # A value that a left shift moves out of 32 bits gives more than any output.
        reached = FAR >> np.maximum(-self.shifts, 0)
        below = -reached
        while (reached - below).max() > 1:
            middle = (below + reached) >> 1
            enough = self.scaled(middle) >= output
            reached = np.where(enough, middle, reached)
            below = np.where(enough, below, middle)
        return reached


class Ramp(NamedTuple):
    """A scale without left shifts, for x from `least` to `most` of each channel, which give outputs
    from its `low` to its `high`."""

    scale: Scale
    least: Values
    most: Values
    signed: bool
    """True where halves are rounded away from zero, and x may have both signs."""

    def part(self, channels: Values | slice) -> "Ramp":
        """The ramp of some of the channels."""
        scale = self.scale.part(channels)
        return Ramp(scale, self.least[channels], self.most[channels], self.signed)


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
    """A ramp's scale with a significand of few pieces; None where there is none."""
    largest = int(np.maximum(np.abs(ramp.least), np.abs(ramp.most)).max())
    bits = SIGNIFICAND_BITS - largest.bit_length()
    steps, few = _steps(ramp), ramp.part(slice(_FEW))
    for pieces in _PIECES:
        width = min(bits, SIGNIFICAND_BITS // pieces)
        # If there is none for a few channels, there is none for all.
        if width > 0 and _shortened(few, steps[:, :_FEW], pieces, width) is not None:
            found = _shortened(ramp, steps, pieces, width)
            if found is not None:
                return found
    return None


def _shortened(ramp: Ramp, steps: Values, pieces: int, width: int) -> Short | None:
    bits = pieces * width
    dropped = SIGNIFICAND_BITS - bits
    scale, shifts = ramp.scale, ramp.scale.shifts + width
    if shifts.max() >= SIGNIFICAND_BITS or shifts.min() < 0:
        return None
    significands = np.zeros_like(scale.significands)
    offsets = np.int64(scale.zero_point) << shifts
    left = np.flatnonzero(scale.significands)
    for nudge in _NUDGES:
        rest = ramp.part(left)
        tried = (rest.scale.significands + ((1 << dropped) >> 1) >> dropped) + nudge
        tried = np.clip(tried, 1, (1 << bits) - 1)
        short = Short(tried, pieces, width, ramp.signed, offsets[left], shifts[left])
        least, most = _offsets(rest, steps[:, left], short)
        middle = (least + most) >> 1
        ends = [short.products(x) for x in (rest.least, rest.most)]
        sums = [product + middle for product in ends]
        fits = np.maximum.reduce([np.abs(value) for value in (*ends, *sums, middle)]) < FAR
        right = (least <= most) & fits
        significands[left[right]], offsets[left[right]] = tried[right], middle[right]
        left = left[~right]
        if not left.size:
            return Short(significands, pieces, width, ramp.signed, offsets, shifts)
    return None


def _steps(ramp: Ramp) -> Values:
    """The least x at which y is each of the integers above `low`, for each channel."""
    scale = ramp.scale
    levels = np.arange(scale.low + 1, scale.high + 1, dtype=np.int64)[:, None]
    halves = (2 * (levels - scale.zero_point) - 1) << SIGNIFICAND_BITS + scale.shifts - 1
    values = halves // np.maximum(scale.significands, 1) - _UNSURE
    for step in _HALVINGS:
        values += step * (scale.scaled(values + (step - 1)) < levels)
    return values


def _offsets(ramp: Ramp, steps: Values, short: Short) -> tuple[Values, Values]:
    """The least and the largest right offset, for each channel."""
    outputs = np.arange(ramp.scale.low, ramp.scale.high + 2, dtype=np.int64)
    levels = outputs[:, None] << short.shifts
    # The first x at which y reaches a level, and the last x at which it does not, both within the
    # bounds.
    reached = np.concatenate((ramp.least[None], np.maximum(steps, ramp.least)))
    before = np.concatenate((np.minimum(steps - 1, ramp.most), ramp.most[None]))
    always = np.ones((1, steps.shape[1]), bool)
    is_reached = np.concatenate((always, steps <= ramp.most))
    is_before = np.concatenate((steps > ramp.least, always))
    least = np.where(is_reached, levels[:-1] - short.products(reached), -FAR)
    most = np.where(is_before, levels[1:] - 1 - short.products(before), FAR - 1)
    return least.max(axis=0), most.min(axis=0)
