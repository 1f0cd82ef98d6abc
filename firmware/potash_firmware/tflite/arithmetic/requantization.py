"""Scaling 32-bit accumulators down to int8 on the VTA's ALU, with the reference kernels' bits.

A multiplier is a significand of 31 bits and a shift. The reference kernels take the high half of
2 * x * significand, rounded, and divide that by a power of two, with halves away from zero. The ALU
keeps only the low 32 bits of a product, so the significand s is split into pieces that fit: with
three,

    s = a * 2^20 + b * 2^10 + c,    x * s / 2^20 = x * a + (x * b + x * c / 2^10) / 2^10

and rounding each division down in turn gives the whole rounded down. For example, for x = 1000 and
s = 1518500250, the pieces are 1448, 158 and 410:

    (410000 >> 10) + 158000 = 158400,    (158400 >> 10) + 1448000 = 1448154

which is 1000 * 1518500250 / 2^20 = 1448154.69, rounded down. No product leaves 32 bits while
|x| < 2^20; with more and smaller pieces, larger x can be scaled. From about 2^22 on it is cheaper
to split x as well, x = h * 2^15 + l with a signed l, and s = a * 2^16 + b:

    x * s / 2^31 = h * a + (l * a + (h * b + l * b / 2^15) / 2) / 2^15

First, x is clamped to the inputs that give the smallest and the largest output, which makes it that
small and replaces the clamp at the end. These inputs are found by bisection for each channel.

Averages (`divide`) are sums of n int8 values, divided by n with halves away from zero. For a sum x
and h = n / 2, rounded down, the reference kernels divide x + h or, where x is not positive, x - h,
and truncate the quotient. That is y / n rounded down with

    y = x + h    for odd n,        y = x + h - (1 where x < 0)    for even n.

y + 128 n is not negative and less than 256 n, so that the quotient is a product and a shift, exact
where the multiplier m = (2^k + e) / n has a small enough e: y * e < 2^k. For other n the quotient
is estimated by that, at most one too small, and one is added where the remainder is not less than
n.

Source: `tflite/kernels/internal/reference/integer_ops/pooling.h`.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic import ramps
from potash_firmware.tflite.arithmetic.ramps import CUT_REACH, Scale, Values
from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.quantization import (
    INT8_MIN,
    SHORT_SIGNIFICAND_BITS,
    SIGNIFICAND_BITS,
    QuantizationError,
)
from potash_firmware.vta_runtime.schedules import TILE, Channels, Plane, Step
from potash_firmware.vta_runtime.schedules.steps import MOST_IMMEDIATE

Operand: TypeAlias = Plane | Channels | Values | int

WORD_BITS = 32
SEARCHES = 64
"""Requantisations that are cached, for models that a process loads repeatedly."""

_PIECES = 5
"""From this number of pieces of the significand on, splitting x takes no more instructions."""
_CONSTANT_SHIFT = 22
"""The largest shift up to which the shifted zero point is added together with the rounding."""


@dataclass
class Steps:
    """ALU steps under construction, and the vectors for numbers that do not fit an immediate."""

    steps: list[Step] = field(default_factory=list)
    vectors: list[Values] = field(default_factory=list)

    def add(self, opcode: AluOpcode, source: Operand, target: Plane = TILE) -> None:
        """`target = opcode(target, source)`; an array is a number for each channel."""
        self.steps.append(Step(opcode, self._source(source), target))

    def copy(self, source: Operand, target: Plane) -> None:
        """`target = source`: the ALU copies by adding to zero."""
        self.add(AluOpcode.MUL, 0, target)
        self.add(AluOpcode.ADD, source, target)

    def _source(self, source: Operand) -> Plane | Channels | int:
        if isinstance(source, Plane | Channels):
            return source
        values = np.atleast_1d(np.asarray(source, np.int64))
        number = int(values[0])
        if (values == number).all() and -MOST_IMMEDIATE <= number < MOST_IMMEDIATE:
            return number
        for index, vector in enumerate(self.vectors):
            if np.array_equal(vector, values):
                return Channels(index)
        self.vectors.append(values)
        return Channels(len(self.vectors) - 1)


def requantize(steps: Steps, scale: Scale, scratch: Sequence[Plane]) -> None:
    """Append the steps that scale the accumulators of the tile down to clamped int8 values.

    With two planes of `scratch` not all scales are possible, with three they are. Raises
    QuantizationError for one that is not.
    """
    # Channels with the same multiplier share their numbers.
    pairs = np.stack((scale.significands, scale.shifts))
    distinct, channels = np.unique(pairs, axis=1, return_inverse=True)
    significands, shifts = map(tuple, distinct.tolist())
    others = (scale.zero_point, scale.low, scale.high, scale.rounding, scale.reach)
    found = _requantization(significands, shifts, *others, tuple(scratch))
    for step in found.steps:
        source: Operand = step.source
        if isinstance(source, Channels):
            source = found.vectors[source.number]
            source = source[channels.reshape(-1)] if source.size > 1 else source
        steps.add(step.opcode, source, step.target)


@functools.lru_cache(SEARCHES)
def _requantization(
    significands: tuple[int, ...],
    shifts: tuple[int, ...],
    zero_point: int,
    low: int,
    high: int,
    rounding: Rounding,
    reach: int,
    scratch: tuple[Plane, ...],
) -> Steps:
    """The steps for channels with these multipliers. Raises QuantizationError."""
    numbers = np.array(significands, np.int64), np.array(shifts, np.int64)
    scale, steps = Scale(*numbers, zero_point, low, high, rounding, reach), Steps()
    _requantize(steps, scale, scratch)
    return steps


def _requantize(steps: Steps, scale: Scale, scratch: Sequence[Plane]) -> None:
    if scale.rounding is Rounding.ALKALI:
        _requantize_short(steps, scale)
        return
    low, high = (np.clip(bound, -scale.reach, scale.reach - 1) for bound in _clamps(scale))
    left = np.minimum(scale.shifts, 0)
    if scale.low >= scale.zero_point and not left.any():
        # Where negative values do not matter, rounding is the same for both signs.
        low, high = np.maximum(low, 0), np.maximum(high, 0)
    if (low > -scale.reach).any():
        steps.add(AluOpcode.MAX, low)
    if (high < scale.reach - 1).any():
        steps.add(AluOpcode.MIN, high)
    if not left.any():
        signed = scale.rounding is Rounding.EXACT and int(low.min()) < 0
        short = ramps.shorten(ramps.Ramp(scale, low, high, signed))
        if short is not None:
            _multiply_short(steps, short, scratch)
            return
    if left.any():
        steps.add(AluOpcode.SHR, left)
    largest = int(
        (np.maximum(np.abs(low), np.abs(high)) << -left)[scale.significands > 0].max(initial=0)
    )
    shift = np.maximum(scale.shifts, 0)
    once = scale.rounding is Rounding.SINGLE
    if len(_widths(largest)) >= _PIECES and len(scratch) >= 3 and largest < CUT_REACH:
        # A shift of zero divides by 2^31 only, so that the rounding comes before that.
        half = np.where(shift == 0, 1 << 14, 0) if once else 1 << 14
        _multiply_cut(steps, scale.significands, half, scratch)
        if once:
            half_next = np.where(shift == 0, 0, np.int64(1) << np.maximum(shift - 1, 0))
            _end(steps, scale.zero_point, shift, half_next)
    else:
        done = _multiply(steps, scale.significands, largest, scratch)
        if once:
            shift = shift + SIGNIFICAND_BITS - done
            _end(steps, scale.zero_point, shift, np.int64(1) << shift - 1)
        else:
            steps.add(AluOpcode.ADD, 1 << SIGNIFICAND_BITS - done - 1)
            steps.add(AluOpcode.SHR, SIGNIFICAND_BITS - done)
    if not once:
        _divide(steps, scale.zero_point, shift, scratch[0] if low.min() < 0 else None)
    if left.any():
        steps.add(AluOpcode.MAX, scale.low)
        steps.add(AluOpcode.MIN, scale.high)


def _multiply_short(steps: Steps, short: ramps.Short, scratch: Sequence[Plane]) -> None:
    """Append a multiplication by a short significand, and the steps that follow it."""
    widths = (short.width,) * short.pieces
    _multiply_pieces(steps, list(_cut(short.significands, widths)), widths, scratch)
    if short.signed:
        sign = scratch[0]
        steps.copy(TILE, sign)
        steps.add(AluOpcode.SHR, WORD_BITS - 1, sign)
        steps.add(AluOpcode.SHR, -short.width, sign)
        steps.add(AluOpcode.ADD, sign)
    steps.add(AluOpcode.ADD, short.offsets)
    steps.add(AluOpcode.SHR, short.shifts)


def _requantize_short(steps: Steps, scale: Scale) -> None:
    """Append the platform's scheme: products may leave 32 bits, and what is shifted out is lost."""
    steps.add(AluOpcode.MUL, scale.significands)
    # A shift by more than a word gives the sign alone, as one by 31 does.
    steps.add(AluOpcode.SHR, np.minimum(scale.shifts + SHORT_SIGNIFICAND_BITS, WORD_BITS - 1))
    steps.add(AluOpcode.ADD, scale.zero_point)
    steps.add(AluOpcode.MAX, scale.low)
    steps.add(AluOpcode.MIN, scale.high)


def _divide(steps: Steps, zero_point: int, shift: Values, sign: Plane | None) -> None:
    """Append the division by a power of two, halves away from zero, and the zero point; the sign is
    needed where there are negative values."""
    if not shift.all():
        # Twice the value divided by two, halves away from zero, is the value.
        steps.add(AluOpcode.SHR, np.where(shift == 0, -1, 0))
        shift = np.maximum(shift, 1)
    if sign is not None:
        # -1 where the value is negative: a half then goes down, away from zero.
        steps.copy(TILE, sign)
        steps.add(AluOpcode.SHR, WORD_BITS - 1, sign)
        steps.add(AluOpcode.ADD, sign)
    _end(steps, zero_point, shift, np.int64(1) << shift - 1)


def _end(steps: Steps, zero_point: int, shift: Values, half: Values) -> None:
    """Append the last rounding, the shift and the zero point."""
    together = shift.max() <= _CONSTANT_SHIFT
    steps.add(AluOpcode.ADD, half + (np.int64(zero_point) << shift if together else 0))
    steps.add(AluOpcode.SHR, shift)
    if not together:
        steps.add(AluOpcode.ADD, zero_point)


def _clamps(scale: Scale) -> tuple[Values, Values]:
    """The limits to which x is clamped. Where a step of x is less than one of the output, the
    thresholds give the output's limits themselves. Otherwise x may go one beyond them, and the
    result has to be clamped again."""
    low, high = scale.thresholds()
    beyond = (scale.shifts < 0).any()
    nothing = scale.significands == 0
    return (np.where(nothing, 0, low - beyond), np.where(nothing, 0, high + beyond))


def _multiply_cut(
    steps: Steps, significands: Values, half: Values | int, scratch: Sequence[Plane]
) -> None:
    """Append the multiplication of the tile, cut in two, and the division by 2^31; `half` is in
    units of 2^16."""
    high, total, piece = scratch[:3]
    upper, lower = _cut(significands, (15, 16))
    steps.copy(TILE, high)
    steps.add(AluOpcode.ADD, 1 << 14, high)
    steps.add(AluOpcode.SHR, 15, high)
    # The low 15 bits with their sign: up against the top of the word and back.
    steps.add(AluOpcode.SHR, -17)
    steps.add(AluOpcode.SHR, 17)
    steps.copy(TILE, total)
    steps.add(AluOpcode.MUL, lower, total)
    steps.add(AluOpcode.SHR, 15, total)
    steps.copy(high, piece)
    steps.add(AluOpcode.MUL, lower, piece)
    steps.add(AluOpcode.ADD, piece, total)
    steps.add(AluOpcode.SHR, 1, total)
    steps.add(AluOpcode.MUL, upper)
    steps.add(AluOpcode.ADD, total)
    steps.add(AluOpcode.ADD, half)
    steps.add(AluOpcode.SHR, 15)
    steps.add(AluOpcode.MUL, upper, high)
    steps.add(AluOpcode.ADD, high)


def _multiply(steps: Steps, significands: Values, largest: int, scratch: Sequence[Plane]) -> int:
    """Append the multiplication of the tile; returns by which power of two the product is divided,
    rounded down."""
    widths = _widths(largest)
    _multiply_pieces(steps, list(_cut(significands, widths)), widths, scratch)
    return sum(widths[1:])


def _multiply_pieces(
    steps: Steps, pieces: Sequence[Values], widths: Sequence[int], scratch: Sequence[Plane]
) -> None:
    """Append the multiplication of the tile by a number in pieces of these widths, the highest
    first. The product is divided by two to the power of all widths but the first, rounded down."""
    total, piece = scratch[:2]
    first, *others = pieces
    for number, factor in enumerate(reversed(others)):
        target = piece if number else total
        steps.copy(TILE, target)
        steps.add(AluOpcode.MUL, factor, target)
        if number:
            steps.add(AluOpcode.ADD, piece, total)
        steps.add(AluOpcode.SHR, widths[len(others) - number], total)
    steps.add(AluOpcode.MUL, first)
    if others:
        steps.add(AluOpcode.ADD, total)


def _widths(largest: int) -> tuple[int, ...]:
    """The bits of the pieces of a significand, the highest first, as few as `largest` allows."""
    for count in range(2, SIGNIFICAND_BITS + 1):
        width = SIGNIFICAND_BITS // count
        widths = (SIGNIFICAND_BITS - width * (count - 1), *[width] * (count - 1))
        if count == 2:
            widths = (15, 16)
        # The carry from the smaller pieces is less than one more product.
        if largest << max(widths) < 1 << 31:
            return widths
    raise QuantizationError("the accumulators are too large for the VTA's 32 bits")


def _cut(significands: Values, widths: Sequence[int]) -> Iterator[Values]:
    """A significand's pieces, the highest first."""
    position = sum(widths)
    for width in widths:
        position -= width
        yield (significands >> position) & ((1 << width) - 1)


MOST_VALUES = (1 << 23) - 1
"""The sums of more values leave the ALU's 32 bits."""

_RANGE = 1 << 8
"""All quotients, moved to begin at zero, are below it."""
_MOST_SHIFT = 22
"""The largest shift whose products fit 32 bits."""
_ESTIMATE_SHIFT = 12


def divide(steps: Steps, count: int, scratch: tuple[Plane, Plane]) -> None:
    """Append the steps that turn sums of `count` int8 values into averages. Raises
    QuantizationError."""
    if count > MOST_VALUES:
        raise QuantizationError(f"the sum of {count} values is too large for the VTA's 32 bits")
    if count == 1:
        return
    estimate, product = scratch
    if count % 2 == 0:
        steps.copy(TILE, estimate)
        steps.add(AluOpcode.SHR, 31, estimate)
        steps.add(AluOpcode.ADD, estimate)
    steps.add(AluOpcode.ADD, count // 2 - INT8_MIN * count)
    reciprocal = _reciprocal(count)
    if reciprocal is not None:
        multiplier, shift = reciprocal
        if multiplier > 1:
            steps.add(AluOpcode.MUL, multiplier)
        steps.add(AluOpcode.SHR, shift)
        steps.add(AluOpcode.ADD, INT8_MIN)
        return
    # Below 2^11 after this, and a step of it is at most a quarter of the quotient's.
    shift = count.bit_length() - 3
    steps.copy(TILE, estimate)
    steps.add(AluOpcode.SHR, shift, estimate)
    steps.add(AluOpcode.MUL, (1 << _ESTIMATE_SHIFT + shift) // count, estimate)
    steps.add(AluOpcode.SHR, _ESTIMATE_SHIFT, estimate)
    steps.copy(estimate, product)
    steps.add(AluOpcode.MUL, -count, product)
    steps.add(AluOpcode.ADD, product)
    steps.add(AluOpcode.ADD, -count)
    # -1 where the remainder was less than the divisor, else 0.
    steps.add(AluOpcode.SHR, 31)
    steps.add(AluOpcode.ADD, estimate)
    steps.add(AluOpcode.ADD, 1 + INT8_MIN)


def _reciprocal(count: int) -> tuple[int, int] | None:
    """A multiplier and a shift that divide exactly, the smallest; None where there are none."""
    for shift in range(_MOST_SHIFT + 1):
        multiplier = -(-(1 << shift) // count)
        excess = multiplier * count - (1 << shift)
        if _RANGE * count * excess < 1 << shift:
            return multiplier, shift
    return None
