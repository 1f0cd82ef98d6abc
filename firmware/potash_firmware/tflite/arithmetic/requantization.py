"""Requantisation on the VTA's ALU: 32-bit accumulators x scaled down to int8, bit-exactly.

A multiplier is a significand of 31 bits and a shift. TensorFlow Lite's reference kernels take the
high 32 bits of 2 * x * significand, rounded, and divide them by a power of two, with halves rounded
away from zero. The ALU keeps only the low 32 bits of a product, so the significand s is cut into
pieces that are small enough for that: with three,

    s = a * 2^20 + b * 2^10 + c,    x * s / 2^20 = x * a + (x * b + x * c / 2^10) / 2^10

and rounding each division down in turn gives the whole rounded down. For example, for x = 1000 and
s = 1518500250, the pieces are 1448, 158 and 410:

    (410000 >> 10) + 158000 = 158400,    (158400 >> 10) + 1448000 = 1448154

which is 1000 * 1518500250 / 2^20 = 1448154.69, rounded down. No product leaves 32 bits while
|x| < 2^20; with more and smaller pieces, larger x can be scaled. From |x| = 2^21 on, which takes
five pieces, it is not slower to split x as well, x = h * 2^15 + l with a signed l and
s = a * 2^16 + b:

    x * s / 2^31 = h * a + (l * a + (h * b + l * b / 2^15) / 2) / 2^15

Before that, x is clamped to the inputs that give the smallest and the largest output. That bounds
|x|, and only multipliers of 1 or more need a clamp of the output, too. Bisection finds these inputs
for each channel.

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
CACHED = 64
"""Maximum number of cached requantisations, for models that a process loads repeatedly."""

_SPLIT_FROM_PIECES = 5
"""Number of pieces of the significand from which on splitting x takes no more instructions."""
_CONSTANT_SHIFT = 22
"""Maximum shift for which one constant, added before it, holds the rounding and the zero point:
zero_point << shift has to fit 32 bits."""

MOST_VALUES = (1 << 23) - 1
"""Maximum number of values of an average; the sums of more leave the ALU's 32 bits."""
_QUOTIENTS = 1 << 8
"""Number of the quotients of an average, which are moved to begin at zero."""
_MOST_SHIFT = 22
"""The largest shift of a reciprocal whose products fit 32 bits."""
_ESTIMATE_SHIFT = 12
"""Shift of a reciprocal for the estimate, whose product with 11 bits fits 32 bits."""


@dataclass
class Steps:
    """ALU steps under construction, and the vectors for numbers that do not fit an immediate."""

    steps: list[Step] = field(default_factory=list)
    vectors: list[Values] = field(default_factory=list)

    def add(self, opcode: AluOpcode, source: Operand, target: Plane = TILE) -> None:
        """Append `target = opcode(target, source)`. An array has a number for each channel."""
        self.steps.append(Step(opcode, self._source(source), target))

    def copy(self, source: Operand, target: Plane) -> None:
        """Append `target = source`: the ALU has no move, so it adds to zero."""
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

    Three planes of `scratch` are enough for each scale; two are enough for some. Raises
    QuantizationError where the planes are too few.
    """
    # The constants are searched for once per distinct multiplier, not once per channel.
    multipliers = np.stack((scale.significands, scale.shifts))
    distinct, channels = np.unique(multipliers, axis=1, return_inverse=True)
    significands, shifts = map(tuple, distinct.tolist())
    found = _requantization(
        significands,
        shifts,
        scale.zero_point,
        scale.low,
        scale.high,
        scale.rounding,
        scale.reach,
        tuple(scratch),
    )
    for step in found.steps:
        source: Operand = step.source
        if isinstance(source, Channels):
            source = found.vectors[source.number]
            source = source[channels.reshape(-1)] if source.size > 1 else source
        steps.add(step.opcode, source, step.target)


@functools.lru_cache(CACHED)
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
    significand_values, shift_values = np.array(significands, np.int64), np.array(shifts, np.int64)
    scale = Scale(significand_values, shift_values, zero_point, low, high, rounding, reach)
    steps = Steps()
    _requantize(steps, scale, scratch)
    return steps


def _requantize(steps: Steps, scale: Scale, scratch: Sequence[Plane]) -> None:
    if scale.rounding is Rounding.ALKALI:
        _requantize_alkali(steps, scale)
        return
    low, high = (np.clip(bound, -scale.reach, scale.reach - 1) for bound in _clamps(scale))
    # Multipliers of 1 or more have negative shifts, which the ALU's SHR executes as left shifts.
    left = np.minimum(scale.shifts, 0)
    if scale.low >= scale.zero_point and not left.any():
        # All negative values give `low`, as 0 does. Without them, no rounding depends on the sign.
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
    single = scale.rounding is Rounding.SINGLE
    if len(_widths(largest)) >= _SPLIT_FROM_PIECES and len(scratch) >= 3 and largest < CUT_REACH:
        # A single rounding belongs to the last division: that by 2^31 where the shift is zero.
        half = np.where(shift == 0, 1 << 14, 0) if single else 1 << 14
        _multiply_split(steps, scale.significands, half, scratch)
        if single:
            half_next = np.where(shift == 0, 0, np.int64(1) << np.maximum(shift - 1, 0))
            _end(steps, scale.zero_point, shift, half_next)
    else:
        divided = _multiply(steps, scale.significands, largest, scratch)
        if single:
            shift = shift + SIGNIFICAND_BITS - divided
            _end(steps, scale.zero_point, shift, np.int64(1) << shift - 1)
        else:
            steps.add(AluOpcode.ADD, 1 << SIGNIFICAND_BITS - divided - 1)
            steps.add(AluOpcode.SHR, SIGNIFICAND_BITS - divided)
    if not single:
        _divide(steps, scale.zero_point, shift, scratch[0] if low.min() < 0 else None)
    if left.any():
        steps.add(AluOpcode.MAX, scale.low)
        steps.add(AluOpcode.MIN, scale.high)


def _multiply_short(steps: Steps, short: ramps.Short, scratch: Sequence[Plane]) -> None:
    """Append a multiplication by a short significand (`ramps`), its offset and its shift."""
    widths = (short.width,) * short.pieces
    _multiply_pieces(steps, list(_cut(short.significands, widths)), widths, scratch)
    if short.signed:
        # -1 where the product is negative, shifted left: the ALU shifts left by negative numbers.
        sign = scratch[0]
        steps.copy(TILE, sign)
        steps.add(AluOpcode.SHR, WORD_BITS - 1, sign)
        steps.add(AluOpcode.SHR, -short.width, sign)
        steps.add(AluOpcode.ADD, sign)
    steps.add(AluOpcode.ADD, short.offsets)
    steps.add(AluOpcode.SHR, short.shifts)


def _requantize_alkali(steps: Steps, scale: Scale) -> None:
    """Append the scheme of the platform's own delegate, with 15-bit significands: products wrap
    modulo 2^32, and the shift truncates."""
    steps.add(AluOpcode.MUL, scale.significands)
    # A shift by more than a word leaves nothing but the sign, as one by 31 does.
    steps.add(AluOpcode.SHR, np.minimum(scale.shifts + SHORT_SIGNIFICAND_BITS, WORD_BITS - 1))
    steps.add(AluOpcode.ADD, scale.zero_point)
    steps.add(AluOpcode.MAX, scale.low)
    steps.add(AluOpcode.MIN, scale.high)


def _divide(steps: Steps, zero_point: int, shift: Values, sign: Plane | None) -> None:
    """Append the division by 2^shift, with halves rounded away from zero, and the zero point.

    `sign` is a free plane, which is needed where values may be negative.
    """
    if not shift.all():
        # The steps below cannot divide by 1. Where they should, the value is doubled (a shift by -1
        # is one to the left) and divided by 2.
        steps.add(AluOpcode.SHR, np.where(shift == 0, -1, 0))
        shift = np.maximum(shift, 1)
    if sign is not None:
        # -1 where the value is negative: a half then goes down, away from zero.
        steps.copy(TILE, sign)
        steps.add(AluOpcode.SHR, WORD_BITS - 1, sign)
        steps.add(AluOpcode.ADD, sign)
    _end(steps, zero_point, shift, np.int64(1) << shift - 1)


def _end(steps: Steps, zero_point: int, shift: Values, half: Values) -> None:
    """Append the addition of `half` of a unit of the result, the shift and the zero point."""
    together = shift.max() <= _CONSTANT_SHIFT
    steps.add(AluOpcode.ADD, half + (np.int64(zero_point) << shift if together else 0))
    steps.add(AluOpcode.SHR, shift)
    if not together:
        steps.add(AluOpcode.ADD, zero_point)


def _clamps(scale: Scale) -> tuple[Values, Values]:
    """The lowest and highest x of each channel, to which it is clamped.

    A multiplier below 1 reaches each output, so x at its thresholds gives the output's limits.
    One of 1 or more may skip the limits: x may then go one beyond its thresholds, and the output
    has to be clamped as well.
    """
    low, high = scale.thresholds()
    margin = int((scale.shifts < 0).any())
    zero = scale.significands == 0
    return (np.where(zero, 0, low - margin), np.where(zero, 0, high + margin))


def _multiply_split(
    steps: Steps, significands: Values, half: Values | int, scratch: Sequence[Plane]
) -> None:
    """Append the multiplication of the tile, with x split in two, and the division by 2^31.

    `half`, in units of 2^16, is added for the rounding. In the module's formula, the tile is l, the
    plane `high` is h, `upper` is a and `lower` is b.
    """
    high, total, piece = scratch[:3]
    upper, lower = _cut(significands, (15, 16))
    steps.copy(TILE, high)
    steps.add(AluOpcode.ADD, 1 << 14, high)
    steps.add(AluOpcode.SHR, 15, high)
    # Sign-extend the low 15 bits: shift them to the top of the word (left by 17) and back.
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
    """Append the multiplication of the tile. Returns n where the result is the product divided by
    2^n, rounded down."""
    widths = _widths(largest)
    _multiply_pieces(steps, list(_cut(significands, widths)), widths, scratch)
    return sum(widths[1:])


def _multiply_pieces(
    steps: Steps, pieces: Sequence[Values], widths: Sequence[int], scratch: Sequence[Plane]
) -> None:
    """Append the multiplication of the tile by a number in pieces of these widths in bits, the
    highest first. The result is the product divided by 2^n, rounded down, where n is the sum of all
    widths but the first."""
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
    """The widths of a significand's pieces in bits, the highest first: the fewest pieces whose
    products with numbers of up to `largest` fit 32 bits."""
    for count in range(2, SIGNIFICAND_BITS + 1):
        width = SIGNIFICAND_BITS // count
        widths = (SIGNIFICAND_BITS - width * (count - 1), *[width] * (count - 1))
        if count == 2:
            widths = (15, 16)
        # x times a piece is at most |x| * (2^width - 1), and the sum of the lower pieces' products,
        # shifted down, adds at most |x|.
        if largest << max(widths) < 1 << 31:
            return widths
    raise QuantizationError("the accumulators are too large for the VTA's 32 bits")


def _cut(significands: Values, widths: Sequence[int]) -> Iterator[Values]:
    """A significand's pieces, the highest first."""
    position = sum(widths)
    for width in widths:
        position -= width
        yield (significands >> position) & ((1 << width) - 1)


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
        if _QUOTIENTS * count * excess < 1 << shift:
            return multiplier, shift
    return None
