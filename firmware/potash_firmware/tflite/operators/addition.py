"""ADD and SUB of two int8 tensors.

The reference kernels (`tflite/kernels/add.cc`, `sub.cc`, `internal/reference/add.h`) scale both
operands to one scale, shifted left by 20 bits, add them, and scale the sum down to the output. The
results for all 65536 pairs of values are known beforehand, so that mostly one line gives them
(`lines`). Else the operands are scaled as there.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.arithmetic import lines
from potash_firmware.tflite.arithmetic.ramps import Scale, Values
from potash_firmware.tflite.arithmetic.requantization import WORD_BITS, Steps, requantize
from potash_firmware.tflite.capi import BuiltinOperator, Node
from potash_firmware.tflite.lowering import Lowering, Rounding, Settings
from potash_firmware.tflite.operators import checks, elementwise
from potash_firmware.tflite.operators.elementwise import OTHER, VALUES, Operand, Quantization
from potash_firmware.tflite.quantization import (
    INT8_MIN,
    SHORT_SIGNIFICAND_BITS,
    Addition,
    Multiplier,
    activation_range,
    quantize_addition,
    shorten,
)
from potash_firmware.vta_runtime.schedules import TILE, Plane

LEFT_SHIFT = 20
"""Left shift of the operands before they are scaled (`add.cc`, for int8)."""
SHORT_LEFT_SHIFT = 7
"""Left shift of the operands in the platform's scheme."""
_REACH = 1 << 28
"""Sums are below it: each operand is below 2^8 * 2^20 / 2."""
TABLES = 8
"""Tables that are cached, of half a megabyte each."""
LINES = 2048
"""Lines that are cached."""

_SCRATCH = (Plane(2), Plane(3))
_SIGNS: Mapping[int, tuple[int, str]] = {
    BuiltinOperator.ADD: (1, "an addition"),
    BuiltinOperator.SUB: (-1, "a subtraction"),
}


class Sum(NamedTuple):
    """Quantisation of left + sign * right."""

    left: Quantization
    right: Quantization
    output: Quantization
    limits: tuple[int, int]
    rounding: Rounding
    sign: int

    @property
    def factors(self) -> Addition:
        """The multipliers. Raises QuantizationError where TensorFlow Lite has none."""
        left_shift = SHORT_LEFT_SHIFT if self.rounding is Rounding.ALKALI else LEFT_SHIFT
        return quantize_addition(self.left.scale, self.right.scale, self.output.scale, left_shift)

    @property
    def scale(self) -> Scale:
        """The scaling of the sum."""
        return Scale.of(
            [self.factors.output], self.output.zero_point, *self.limits, self.rounding, reach=_REACH
        )

    @property
    def slopes(self) -> tuple[float, float]:
        """The factors between the operands and the output."""
        return self.left.scale / self.output.scale, self.sign * self.right.scale / self.output.scale


def lower(node: Node, settings: Settings) -> Lowering:
    """Raises Refusal, QuantizationError where TensorFlow Lite fails."""
    sign, what = _SIGNS[node.operator]
    sources, target = elementwise.tensors(node, settings, 2, what)
    left, right = (Quantization.of(tensor) for tensor in sources)
    output = Quantization.of(target)
    limits = activation_range(checks.options(node, what).activation, *output)
    its = Sum(left, right, output, limits, settings.rounding, sign)
    scale = its.scale

    def emit(steps: Steps, first: int, other: Operand | None) -> None:
        assert other is not None
        if isinstance(other, np.ndarray) and its.rounding is not Rounding.ALKALI:
            each = [_constant_line(its, first, int(value)) for value in other]
            if all(each):
                lines.emit_each(steps, [line for line in each if line])
                return
        if not isinstance(other, Plane):
            steps.copy(other, OTHER)
        line = None if its.rounding is Rounding.ALKALI else _line(its)
        if line is not None:
            factors = line.factors if first == 0 else line.factors[::-1]
            lines.emit(steps, line._replace(factors=factors), (TILE, OTHER))
        else:
            _add(steps, its, scale, (TILE, OTHER) if first == 0 else (OTHER, TILE))

    return elementwise.lowering(sources, target, settings, emit)


@functools.lru_cache(TABLES)
def _table(its: Sum) -> Values:
    """The output for each pair of values, by definition."""
    first, second = (
        Scale.of([factor], 0, 0, 0, its.rounding, reach=_REACH).scaled(
            (VALUES - operand.zero_point) << LEFT_SHIFT
        )
        for operand, factor in zip((its.left, its.right), its.factors[:2], strict=True)
    )
    return its.scale.clamped((first[:, None] + its.sign * second)[..., None])[..., 0]


@functools.lru_cache(LINES)
def _line(its: Sum) -> lines.Line | None:
    """The line for all pairs."""
    return lines.fit(its.slopes, (VALUES[:, None], VALUES), _table(its))


@functools.lru_cache(LINES)
def _constant_line(its: Sum, first: int, value: int) -> lines.Line | None:
    """The line of the operand `first` where the other one is a constant."""
    table = _table(its) if first == 0 else _table(its).T
    wanted = table[:, value - INT8_MIN]
    return lines.fit(its.slopes[first : first + 1], (VALUES,), wanted)


def _add(steps: Steps, its: Sum, scale: Scale, planes: tuple[Plane, Plane]) -> None:
    """Append the sum as it is defined, of the operands in `planes`."""
    operands = zip((its.left, its.right), its.factors[:2], planes, strict=True)
    for operand, factor, plane in operands:
        if operand.zero_point:
            steps.add(AluOpcode.ADD, -operand.zero_point, plane)
        if its.rounding is Rounding.ALKALI:
            _scale_operand_short(steps, shorten(factor), plane)
        else:
            _scale_operand(steps, factor, plane, its.rounding)
    if its.sign < 0:
        steps.add(AluOpcode.MUL, -1, planes[1])
    steps.add(AluOpcode.ADD, OTHER)
    requantize(steps, scale, (OTHER, *_SCRATCH))


def _scale_operand(steps: Steps, factor: Multiplier, plane: Plane, rounding: Rounding) -> None:
    """Append the scaling of an operand that is shifted left by `LEFT_SHIFT`.

    With v = q - z below 2^8 and the significand a * 2^16 + b, b signed, the product shifted right
    by 31 bits is v * a * 2^5 + v * b / 2^11.
    """
    low_bits = 1 << 16
    lower = (factor.significand + low_bits // 2) % low_bits - low_bits // 2
    upper = (factor.significand - lower) // low_bits
    shift = -factor.shift
    scratch = _SCRATCH[0]
    if lower:
        steps.copy(plane, scratch)
        steps.add(AluOpcode.MUL, lower, scratch)
        if rounding is Rounding.EXACT or not shift:
            steps.add(AluOpcode.ADD, 1 << 10, scratch)
        steps.add(AluOpcode.SHR, 11, scratch)
    steps.add(AluOpcode.MUL, upper, plane)
    steps.add(AluOpcode.SHR, -5, plane)
    if lower:
        steps.add(AluOpcode.ADD, scratch, plane)
    if shift:
        if rounding is Rounding.EXACT:
            steps.copy(plane, scratch)
            steps.add(AluOpcode.SHR, 31, scratch)
            steps.add(AluOpcode.ADD, scratch, plane)
        steps.add(AluOpcode.ADD, 1 << shift - 1, plane)
        steps.add(AluOpcode.SHR, shift, plane)


def _scale_operand_short(steps: Steps, factor: Multiplier, plane: Plane) -> None:
    """Append the platform's scaling of an operand that is shifted left by `SHORT_LEFT_SHIFT`.

    To the product 2^14 is added, or 1 - 2^14 where it is negative, before 15 bits are dropped.
    """
    nudge = _SCRATCH[0]
    half = 1 << SHORT_SIGNIFICAND_BITS - 1
    steps.copy(plane, nudge)
    steps.add(AluOpcode.SHR, WORD_BITS - 1, nudge)
    steps.add(AluOpcode.MUL, 2 * half - 1, nudge)
    steps.add(AluOpcode.ADD, half, nudge)
    steps.add(AluOpcode.MUL, factor.significand << SHORT_LEFT_SHIFT, plane)
    steps.add(AluOpcode.ADD, nudge, plane)
    shift = min(SHORT_SIGNIFICAND_BITS - factor.shift, WORD_BITS - 1)
    steps.add(AluOpcode.SHR, shift, plane)
