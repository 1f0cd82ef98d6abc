"""The fixed-point functions against gemmlowp's definitions and against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash_firmware.tflite.capi import Activation
from potash_firmware.tflite.quantization import (
    Multiplier,
    QuantizationError,
    activation_range,
    quantize_addition,
    quantize_multiplier,
    quantize_multiplier_below_one,
    rescale,
)
from support import tflite


def scaled(value: int, significand: int, shift: int) -> int:
    """One value by one multiplier, whose negative shift is to the right."""
    arrays = (np.array([number], np.int64) for number in (value, significand, -shift))
    return int(rescale(*arrays)[0])


SIGNIFICANDS = st.integers(1 << 30, (1 << 31) - 1)


@pytest.mark.parametrize(
    ("real", "significand", "shift"),
    [
        (0.0, 0, 0),
        (0.5, 1 << 30, 0),
        (0.75, 3 << 29, 0),
        (1.0, 1 << 30, 1),
        (0.25, 1 << 30, -1),
        (2.0**-32, 1 << 30, -31),
        # Too small for a shift of 31 bits.
        (2.0**-33, 0, 0),
        # Too large for a shift of 30 bits.
        (2.0**31, (1 << 31) - 1, 30),
        # The nearest significand is 2^31, which is 2^30 and a shift more.
        (1.0 - 2.0**-40, 1 << 30, 1),
        # 1/3 is 0.6666… * 2^-1.
        (1 / 3, 1431655765, -1),
    ],
)
def test_a_real_multiplier_becomes_a_significand_and_a_shift(
    real: float, significand: int, shift: int
) -> None:
    assert quantize_multiplier(real) == Multiplier(significand, shift)


@given(st.floats(2.0**-31, 1.0, exclude_max=True))
def test_significands_are_those_of_exact_arithmetic(real: float) -> None:
    assert tuple(quantize_multiplier(real)) == tflite.quantize_multiplier(Fraction(real))


@pytest.mark.parametrize("real", [-1.0, float("nan"), float("inf")])
def test_what_is_no_multiplier_is_refused(real: float) -> None:
    with pytest.raises(QuantizationError):
        quantize_multiplier(real)


@pytest.mark.parametrize("real", [0.0, 1.0, 1.5, float("nan")])
def test_a_multiplier_below_one_is_above_zero_and_below_one(real: float) -> None:
    with pytest.raises(QuantizationError):
        quantize_multiplier_below_one(real)


@given(st.integers(-(1 << 28), 1 << 28), SIGNIFICANDS, st.integers(-31, 0))
def test_scaling_rounds_as_gemmlowp_does(value: int, significand: int, shift: int) -> None:
    expected = tflite.scale_down(value, significand, shift)
    assert scaled(value, significand, shift) == expected


# As large as an accumulator of 32 bits can be.
@given(st.integers(-(1 << 22), (1 << 22) - 1), st.integers(1, 8))
def test_halves_go_away_from_zero(odd: int, shift: int) -> None:
    # Times 1/2, then a division that leaves exactly a half.
    value = (2 * odd + 1) << shift
    away = odd + 1 if odd >= 0 else odd
    assert scaled(value, 1 << 30, -shift) == away


def test_arrays_are_scaled_as_integers_are() -> None:
    values = np.arange(-5000, 5000, 7, dtype=np.int64) << 14
    significand, shift = 1431655765, -18
    expected = [tflite.scale_down(int(value), significand, shift) for value in values]
    results = rescale(values, np.array(significand), np.array(-shift))
    assert results.tolist() == expected


@pytest.mark.parametrize(
    ("activation", "scale", "zero_point", "limits"),
    [
        (Activation.NONE, 0.5, 3, (-128, 127)),
        (Activation.RELU, 0.5, 3, (3, 127)),
        (Activation.RELU6, 0.5, 3, (3, 15)),
        (Activation.RELU6, 0.01, 3, (3, 127)),
        (Activation.RELU_N1_TO_1, 0.5, 3, (1, 5)),
        # 1 / 0.4 is 2.5 steps, rounded away from zero on both sides.
        (Activation.RELU_N1_TO_1, 0.4, 0, (-3, 3)),
        (Activation.RELU, 0.5, -128, (-128, 127)),
    ],
)
def test_a_fused_activation_limits_the_output(
    activation: Activation, scale: float, zero_point: int, limits: tuple[int, int]
) -> None:
    assert activation_range(activation, scale, zero_point) == limits


def test_a_limit_beyond_32_bits_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r"6\.0 cannot be quantised"):
        activation_range(Activation.RELU6, 1e-12, 0)


@pytest.mark.parametrize(
    "scales",
    [
        (0.0, 0.1, 0.1),
        (0.1, 0.1, 0.0),
        (0.1, float("nan"), 0.1),
        (-0.1, 0.1, 0.1),
        # Twice the largest is more than a float32 holds.
        (3e38, 0.1, 0.1),
        # The output's steps are so fine that the sum would have to be scaled up.
        (1.0, 1.0, 1e-6),
    ],
)
def test_an_addition_with_impossible_scales_is_refused(scales: tuple[float, float, float]) -> None:
    with pytest.raises(QuantizationError):
        quantize_addition(*scales, left_shift=20)
