"""TensorFlow Lite's fixed-point arithmetic, as exact integer functions.

A quantised value q stands for scale * (q - zero_point). Real factors between scales become a 31-bit
significand and a power of two, so that a kernel needs integers only (Jacob et al., "Quantization
and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", sections 2.2 and
2.3). Each function names the one of TensorFlow Lite whose results it has, bit for bit, in the
reference kernels. They take Python integers or int64 arrays alike.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from potash_firmware.tflite.capi import Activation

Array64 = npt.NDArray[np.int64]

INT8_MIN, INT8_MAX = -128, 127

# The significand is a fraction of 31 bits: 2^30 <= significand < 2^31, or zero.
SIGNIFICAND_BITS = 31
SHORT_SIGNIFICAND_BITS = 15

_INCREMENTS = (1, 0, 2, 3, 4, -1, 5, 6, 7, 8)
"""Numbers that are added to the nearest significand, in the order of the trials."""


class QuantizationError(ValueError):
    """Quantisation parameters that TensorFlow Lite does not accept."""


class Multiplier(NamedTuple):
    """The real factor significand * 2^(shift - 31); a negative `shift` is a right shift."""

    significand: int
    shift: int


def quantize_multiplier(real: float) -> Multiplier:
    """`QuantizeMultiplier` (`tflite/kernels/internal/quantization_util.cc`), for `real` >= 0."""
    if not (math.isfinite(real) and real >= 0):
        raise QuantizationError(f"{real} is not a multiplier")
    fraction, shift = math.frexp(real)
    # std::round: a half goes away from zero, and the fraction is not negative.
    significand = math.floor(fraction * (1 << SIGNIFICAND_BITS) + 0.5)
    if significand == 1 << SIGNIFICAND_BITS:
        significand //= 2
        shift += 1
    if shift < -31:
        return Multiplier(0, 0)
    if shift > 30:
        return Multiplier((1 << SIGNIFICAND_BITS) - 1, 30)
    return Multiplier(significand, shift)


def shorten(multiplier: Multiplier) -> Multiplier:
    """The real factor significand * 2^(shift - 15), with a significand of 15 bits, that the
    platform's delegate takes for a multiplier (Alkali CSD platform documentation, "Delegated
    operators")."""
    dropped = SIGNIFICAND_BITS - SHORT_SIGNIFICAND_BITS
    significand = (multiplier.significand + (1 << dropped - 1)) >> dropped
    if significand == 1 << SHORT_SIGNIFICAND_BITS:
        return Multiplier(significand // 2, multiplier.shift + 1)
    return Multiplier(significand, multiplier.shift)


def quantize_multiplier_below_one(real: float) -> Multiplier:
    """`QuantizeMultiplierSmallerThanOneExp`: TensorFlow Lite aborts the process where this
    raises."""
    if not 0 < real < 1:
        raise QuantizationError(f"the multiplier {real} is not between 0 and 1")
    return quantize_multiplier(real)


def single_precision_ratio(factors: Sequence[float], divisor: float) -> float:
    """The product of scales by another one, rounded to float32 after every operation, as where a
    kernel computes with the scales themselves. Infinite where it leaves float32."""
    with np.errstate(all="ignore"):
        return float(np.prod(np.array(factors, np.float32)) / np.float32(divisor))


class Addition(NamedTuple):
    """The factors of a sum of two quantised values, its operands shifted left beforehand."""

    left: Multiplier
    right: Multiplier
    output: Multiplier


def quantize_addition(left: float, right: float, output: float, left_shift: int) -> Addition:
    """The multipliers that `tflite/kernels/add.cc` derives from the scales in its Prepare. Raises
    QuantizationError for scales with which TensorFlow Lite aborts the process."""
    with np.errstate(over="ignore"):
        # float32, as there: a large scale overflows, and else a power of two changes no digit.
        twice_largest = float(np.float32(2) * np.float32(max(left, right)))
        shifted_output = float(np.float32(1 << left_shift) * np.float32(output))
    scales = (left, right, output, twice_largest, shifted_output)
    if not all(0 < scale < math.inf for scale in scales):
        raise QuantizationError(f"the scales {left}, {right} and {output} give no multipliers")
    return Addition(
        left=quantize_multiplier_below_one(left / twice_largest),
        right=quantize_multiplier_below_one(right / twice_largest),
        output=quantize_multiplier_below_one(twice_largest / shifted_output),
    )


def rescale(values: Array64, significands: Array64, shifts: Array64) -> Array64:
    """`MultiplyByQuantizedMultiplier` (`tflite/kernels/internal/common.cc`) of 32-bit accumulators,
    with a multiplier for each channel, the last axis; a positive one of `shifts` is a right shift.

    gemmlowp's doubling high multiplication adds a nudge by sign and truncates; for a positive
    significand that is rounding to nearest with halves upwards. Its division by a power of two
    rounds halves away from zero.
    """
    right = np.maximum(shifts, 0)
    half = np.where(right > 0, np.int64(1) << np.maximum(right - 1, 0), 0)
    high = (values << np.maximum(-shifts, 0)) * significands
    high += 1 << SIGNIFICAND_BITS - 1
    high >>= SIGNIFICAND_BITS
    # -1 where a negative value is divided.
    sign = high >> 63
    sign &= np.where(right > 0, -1, 0)
    high += half
    high += sign
    high >>= right
    return high


def rescale_once(values: Array64, significands: Array64, shifts: Array64) -> Array64:
    """Rescale values, rounded once and with halves up, as with TFLITE_SINGLE_ROUNDING."""
    total = SIGNIFICAND_BITS + shifts
    return (values * significands + (np.int64(1) << total - 1)) >> total


def multipliers_of_floats(
    factors: Sequence[float] | npt.NDArray[np.float64], zero_point: int
) -> list[Multiplier]:
    """The multipliers with which `rescale_once` gives `std::round(value * factor)`, in double
    precision and with halves away from zero, wherever that and the zero point are an int8.

    They are a little larger than the factors, so that halves below zero go down. Raises
    QuantizationError where none does.
    """
    real = np.array(factors, np.float64)
    if not (np.isfinite(real).all() and (real > 0).all()):
        raise QuantizationError("the scales of a product give no multipliers")
    fractions, exponents = np.frexp(real)
    if exponents.max() > 8 or exponents.min() < -22:
        raise QuantizationError("the scales of a product are not for the VTA's 32 bits")
    nearest = (fractions * 2.0**SIGNIFICAND_BITS).astype(np.int64)
    results = np.arange(INT8_MIN + 1, INT8_MAX + 1)[:, None] - zero_point
    halves = (2 * results - 1) << (SIGNIFICAND_BITS - 1 - exponents).astype(np.int64)
    found = np.zeros(len(real), np.int64)
    for more in _INCREMENTS:
        left = np.flatnonzero(found == 0)
        tried = np.minimum(nearest[left] + more, (1 << SIGNIFICAND_BITS) - 1)
        # The least value that gives each result.
        least = -(-halves[:, left] // tried)
        right = rounded(least * real[left]) >= results
        right &= rounded((least - 1) * real[left]) < results
        found[left] = np.where((right | (np.abs(least) >= 1 << 31)).all(axis=0), tried, 0)
    if not found.all():
        raise QuantizationError("no multiplier scales a product as the reference kernel does")
    return [
        Multiplier(significand, exponent)
        for significand, exponent in zip(found.tolist(), exponents.tolist(), strict=True)
    ]


def rounded(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """`std::round`."""
    return np.trunc(values + np.copysign(0.5, values))


def _quantize(real: float, scale: float, zero_point: int) -> int:
    # The division and the rounding are of float32 values, as in kernel_util.cc's Quantize.
    with np.errstate(over="ignore"):
        steps = float(np.float32(real) / np.float32(scale))
    if not -(2.0**31) <= steps <= 2.0**31:
        raise QuantizationError(f"{real} cannot be quantised with the scale {scale}")
    return zero_point + int(math.copysign(math.floor(abs(steps) + 0.5), steps))


def activation_range(activation: int, scale: float, zero_point: int) -> tuple[int, int]:
    """The int8 output's limits: `CalculateActivationRangeQuantized` (`kernel_util.cc`). Raises
    QuantizationError for an activation that is not a clamp, and where TensorFlow Lite fails."""
    bounds: dict[int, tuple[float | None, float | None]] = {
        Activation.NONE: (None, None),
        Activation.RELU: (0.0, None),
        Activation.RELU_N1_TO_1: (-1.0, 1.0),
        Activation.RELU6: (0.0, 6.0),
    }
    if activation not in bounds:
        raise QuantizationError(f"the fused activation {activation} is not a clamp")
    low, high = bounds[activation]
    return (
        INT8_MIN if low is None else max(INT8_MIN, _quantize(low, scale, zero_point)),
        INT8_MAX if high is None else min(INT8_MAX, _quantize(high, scale, zero_point)),
    )
