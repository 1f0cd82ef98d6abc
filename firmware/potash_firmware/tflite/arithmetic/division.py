"""Averages on the VTA's ALU: a sum of n int8 values, divided by n with halves away from zero.

For a sum x and h = n / 2, rounded down, the reference kernels divide x + h or, where x is not
positive, x - h, and truncate the quotient. That is y / n rounded down with

    y = x + h    for odd n,        y = x + h - (1 where x < 0)    for even n.

y + 128 n is not negative and less than 256 n, so that the quotient is a product and a shift, exact
where the multiplier m = (2^k + e) / n has a small enough e: y * e < 2^k. For other n the quotient
is estimated by that, at most one too small, and one is added where the remainder is not less than
n.

Source: `tflite/kernels/internal/reference/integer_ops/pooling.h`.
"""

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic.requantization import Steps
from potash_firmware.tflite.quantization import INT8_MIN, QuantizationError
from potash_firmware.vta_runtime.schedules import TILE, Plane

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
