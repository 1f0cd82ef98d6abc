"""The ALU's steps for a scale against the scale's definition: on and around every step of the
output, at the ends of the accumulators' range, and anywhere.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic import ramps
from potash_firmware.tflite.arithmetic.ramps import Scale
from potash_firmware.tflite.arithmetic.requantization import Steps, requantize
from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.quantization import Multiplier, QuantizationError
from potash_firmware.vta_runtime.schedules import Channels, Plane

CHANNELS = 32
SCRATCH = (Plane(1), Plane(2), Plane(3))

Integers = npt.NDArray[np.int64]


def word(values: Any) -> Integers:
    """32 bits with a sign, as the ALU has them."""
    low: Integers = (np.asarray(values, np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    return low.astype(np.int64)


OPERATIONS: dict[AluOpcode, Callable[[Integers, Integers], Any]] = {
    AluOpcode.ADD: np.add,
    AluOpcode.MUL: np.multiply,
    AluOpcode.MIN: np.minimum,
    AluOpcode.MAX: np.maximum,
    AluOpcode.SHR: lambda a, b: np.where(b >= 0, a >> np.maximum(b, 0), a << np.maximum(-b, 0)),
}


def executed(steps: Steps, tile: Integers) -> Integers:
    """What the steps make of a tile, [..., channels]; other planes hold anything at first."""
    planes = {number: word(tile * 31 + number) for number in range(1, 4)} | {0: word(tile)}
    for step in steps.steps:
        match step.source:
            case Plane(number):
                source = planes[number]
            case Channels(number):
                source = word(steps.vectors[number])
            case int(number):
                source = np.array(number, np.int64)
        target = planes[step.target.number]
        planes[step.target.number] = word(OPERATIONS[step.opcode](target, source))
    return planes[0]


def telling(scale: Scale) -> Integers:
    """Accumulators that tell scales apart, for each channel."""
    random = np.random.default_rng(1)
    middle = scale.significands.astype(float) / 2.0 ** (31 + scale.shifts)
    levels = np.arange(scale.low - 2, scale.high + 3)[:, None] - scale.zero_point
    with np.errstate(divide="ignore"):
        places = np.clip((levels - 0.5) / middle, -(2.0**31) + 8, 2.0**31 - 8)
    around = np.round(places).astype(np.int64) + np.arange(-4, 5)[:, None, None]
    values = np.concatenate(
        (
            around.reshape(-1, CHANNELS),
            random.integers(-(1 << 31), 1 << 31, (100, CHANNELS)),
            np.arange(-20, 21)[:, None] + np.zeros(CHANNELS, np.int64),
            np.array([[-(1 << 31)], [(1 << 31) - 1]]) + np.zeros(CHANNELS, np.int64),
        )
    )
    # What is shifted left first is no more than 32 bits there either.
    limited: Integers = np.asarray(values >> np.maximum(-scale.shifts, 0), np.int64)
    return limited


def test_channels_and_layers_that_are_scaled_alike_are_searched_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    def shorten(ramp: ramps.Ramp) -> ramps.Short | None:
        searched.append(ramp.scale.significands.size)
        return found(ramp)

    found = ramps.shorten
    monkeypatch.setattr(ramps, "shorten", shorten)
    three = (Multiplier(0x51234567, -7), Multiplier(0x61234567, -7), Multiplier(0x61234567, -8))
    scale = Scale.of([three[at % 3] for at in range(CHANNELS)], -11, -128, 127)
    for _ in range(2):
        steps = Steps()
        requantize(steps, scale, SCRATCH)
        values = telling(scale)
        assert (executed(steps, values) == scale.clamped(values)).all()
    assert searched == [3]


@pytest.mark.parametrize("rounding", [Rounding.EXACT, Rounding.SINGLE])
@pytest.mark.parametrize("shifts", [(0, 1), (1, 4), (4, 8), (8, 10), (10, 12), (12, 18), (-8, 2)])
@pytest.mark.parametrize(
    ("zero_point", "low", "high"),
    [
        (-128, -128, 127),
        (-10, -10, 127),
        (5, -128, 127),
        (-128, -128, 30),
        (0, -3, 3),
        (127, 120, 127),
    ],
)
def test_the_steps_give_what_the_scale_says(
    rounding: Rounding, shifts: tuple[int, int], zero_point: int, low: int, high: int
) -> None:
    random = np.random.default_rng(2)
    multipliers = [
        Multiplier(int(significand), -int(shift))
        for significand, shift in zip(
            random.integers(1 << 30, 1 << 31, CHANNELS),
            random.integers(*shifts, CHANNELS),
            strict=True,
        )
    ]
    multipliers[:4] = [
        Multiplier(1 << 30, multipliers[0].shift),
        Multiplier((1 << 31) - 1, multipliers[1].shift),
        Multiplier((1 << 30) + 1, multipliers[2].shift),
        Multiplier(0, 0),
    ]
    scale = Scale.of(multipliers, zero_point, low, high, rounding)
    steps = Steps()
    requantize(steps, scale, SCRATCH)
    values = telling(scale)
    assert (executed(steps, values) == scale.clamped(values)).all()


@pytest.mark.parametrize(
    ("shift", "zero_point", "low", "rounding", "count"),
    [
        # A short significand does; where values are rounded twice and some are negative, with more.
        (3, -128, -128, Rounding.EXACT, 5),
        (8, -128, -128, Rounding.EXACT, 10),
        (8, 0, 0, Rounding.EXACT, 10),
        (8, 3, -128, Rounding.SINGLE, 10),
        (8, 3, -128, Rounding.EXACT, 15),
    ],
)
def test_scales_take_few_steps(
    shift: int, zero_point: int, low: int, rounding: Rounding, count: int
) -> None:
    steps = Steps()
    scale = Scale.of([Multiplier(1518500250, -shift)], zero_point, low, 127, rounding)
    requantize(steps, scale, SCRATCH)
    assert len(steps.steps) == count


@pytest.mark.parametrize("shift", [-18, 9])
def test_a_scale_that_leaves_32_bits_is_refused(shift: int) -> None:
    with pytest.raises(QuantizationError, match="for the VTA's 32 bits"):
        Scale.of([Multiplier(1 << 30, shift)], 0, -128, 127)
